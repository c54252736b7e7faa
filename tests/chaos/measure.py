"""How long does it take until work goes on, whatever died? `python -m tests.chaos.measure [TIMES] [NAME ...]`
prints a table.

With the lease and the health checks that a user has by default, not with the shorter ones of the tests.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.chaos import stories
from tests.chaos.cluster import ClusterUnderTest
from tests.chaos.endings import check_counts
from tests.chaos.marks import Witness
from tests.chaos.stories import Running


class Row(NamedTuple):
    """A line of the table: what dies, from when until when is measured, and how a cluster for it is made."""

    what: str
    happens: Callable[[Running], float]
    rocksdb: bool = False


ROWS = {
    "driver": Row("driver killed: the next body begins", stories.driver_dies),
    "host": Row("host killed: its step begins again", stories.host_dies),
    "job": Row("job actor killed: the next outcome is recorded", stories.job_actor_dies),
    "job-hangs": Row("job actor stopped for 8 s and woken: the next outcome is recorded", stories.job_actor_pauses),
    "throttle": Row("throttle killed: the next host gets a slot", stories.throttle_dies),
    "supervisor": Row("supervisor killed: its next process is there", stories.supervisor_dies),
    "node": Row("node without power: its steps begin again", stories.node_dies),
    "raylet": Row("raylet killed: its node's steps begin again", stories.raylet_dies),
    "head": Row("all nodes and GCS killed and started anew, one connects: a body begins", stories.head_restarts),
    "head-rocksdb": Row(
        "the same with a GCS that remembers, nobody connects: a body begins", stories.head_restarts_by_itself, True
    ),
    "gcs-rocksdb": Row(
        "GCS killed, back after 5 s, nodes live: the next outcome is recorded", stories.gcs_restarts, True
    ),
    "store": Row("store killed, back after 5 s: the next outcome is recorded", partial(stories.store_dies, away=5.0)),
    "store-minute": Row(
        "store stopped for 60 s and woken: the next outcome is recorded", partial(stories.store_hangs, seconds=60.0)
    ),
}


def measure(row: Row, number: int) -> float:
    """Let it happen to a job on a new cluster; seconds. Raises when the job does not end as it must."""
    with tempfile.TemporaryDirectory(prefix="measure") as folder:
        cluster = ClusterUnderTest(Path(folder), lease=30.0, rocksdb=row.rocksdb, is_quick=False)
        with cluster:
            cluster.add_node()
            witness = Witness(Path(folder, "witness"))
            job = Running(cluster, witness, f"measured-{number}", steps=200)
            seconds = row.happens(job)
            job.finish()
            check_counts(cluster, witness, job.load, job.job_id)
            return seconds


def main(times: int, names: list[str]) -> None:
    """Print the table."""
    print("| what | median | worst | times |")
    print("|---|---|---|---|")
    for name in names or ROWS:
        row = ROWS[name]
        found: list[float] = []
        for number in range(times):
            try:
                found.append(measure(row, number))
            except Exception:
                traceback.print_exc()
        if found:
            print(f"| {row.what} | {statistics.median(found):.1f} s | {max(found):.1f} s | {len(found)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:])
