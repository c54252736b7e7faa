"""How long does it take until work goes on, whatever died? `python -m tests.chaos.measure [TIMES] [NAME ...]`
prints a table.

With the lease and the health checks that a user has by default, not with the shorter ones of the tests. What is
measured is checked, too: a job that does not end as it must is told, and its times do not count.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.chaos import stories
from tests.chaos.cluster import ClusterUnderTest, Memory
from tests.chaos.endings import check_counts, check_nothing_left
from tests.chaos.marks import Witness
from tests.chaos.stories import Running


class Row(NamedTuple):
    """A line of the table: what dies, from when until when is measured, and how often one job can have it happen."""

    what: str
    happens: Callable[[Running], float]
    memory: Memory = Memory.NONE
    per_job: int = 1


ROWS = {
    "driver": Row("driver killed: the next body begins", stories.driver_dies, per_job=4),
    "host": Row("host killed: its step begins again", stories.host_dies, per_job=5),
    "job": Row("job actor killed: the next outcome is recorded", stories.job_actor_dies, per_job=5),
    "job-hangs": Row(
        "job actor stopped for 8 s and woken: the next outcome is recorded", stories.job_actor_pauses, per_job=5
    ),
    "throttle": Row("throttle killed: the next host gets a slot", stories.throttle_dies),
    "supervisor": Row("supervisor killed: its next process is there", stories.supervisor_dies, per_job=5),
    "node": Row("node without power: its steps begin again", stories.node_dies),
    "raylet": Row("raylet killed: its node's steps begin again", stories.raylet_dies),
    "head": Row("all nodes and GCS killed and started anew, one connects: a body begins", stories.head_restarts),
    "head-rocksdb": Row(
        "the same with a GCS that remembers, nobody connects: a body begins",
        stories.head_restarts_by_itself,
        Memory.ROCKSDB,
    ),
    "gcs-rocksdb": Row(
        "GCS killed, back after 5 s, nodes live: the next outcome is recorded",
        stories.gcs_restarts,
        Memory.ROCKSDB,
        per_job=2,
    ),
    "head-redis": Row(
        "all killed, a GCS with Redis, nobody connects: a body begins", stories.head_restarts_by_itself, Memory.REDIS
    ),
    "store": Row(
        "store killed, back after 5 s: the next outcome is recorded", partial(stories.store_dies, away=5.0), per_job=5
    ),
    "store-minute": Row(
        "store stopped for 60 s and woken: the next outcome is recorded", partial(stories.store_hangs, seconds=60.0)
    ),
}


def measure(row: Row, times: int) -> Iterator[float]:
    """Let it happen so many times, to as few jobs and clusters as will do; seconds of each time.

    After a job that does not end as it must there is a new cluster; each such job takes away from `times`.
    """
    left = times
    while left > 0:
        try:
            for seconds in _on_one_cluster(row, left):
                left -= len(seconds)
                yield from seconds
        except Exception:
            left -= row.per_job
            traceback.print_exc()


def _on_one_cluster(row: Row, times: int) -> Iterator[list[float]]:
    with tempfile.TemporaryDirectory(prefix="measure") as folder:
        cluster = ClusterUnderTest(Path(folder), lease=30.0, memory=row.memory, is_quick=False)
        witness = Witness(Path(folder, "witness"))
        with cluster:
            for number in count():
                while len(cluster.raylets) < 2:
                    cluster.add_node()
                job = Running(cluster, witness, f"measured-{number}", steps=60 if row.per_job == 1 else 200)
                wanted = min(row.per_job, times)
                seconds = [row.happens(job) for _ in range(wanted)]
                job.finish()
                check_counts(cluster, witness, job.load, job.job_id)
                check_nothing_left(cluster, witness, job.driver, job.job_id)
                job.driver.kill()
                yield seconds
                times -= wanted
                if times <= 0:
                    return


def main(times: int, names: list[str]) -> None:
    """Print the table, and each time by itself as errors."""
    print("| what | median | worst | times |")
    print("|---|---|---|---|")
    for name in names or ROWS:
        row = ROWS[name]
        found: list[float] = []
        for seconds in measure(row, times):
            found.append(seconds)
            print(f"{name} {len(found)}: {seconds:.2f} s", file=sys.stderr, flush=True)
        if found:
            print(f"| {row.what} | {statistics.median(found):.1f} s | {max(found):.1f} s | {len(found)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:])
