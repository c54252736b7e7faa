"""How many durable no-op steps a second do warm actors carry, against plain Ray tasks, which keep nothing?

A round is a whole job, from `start` to its recorded end: planning, preparing, starting and every write are in it.
"""

from __future__ import annotations

import ray

from benchmarks.findings import Finding, at_least
from benchmarks.jobs import Count, WarmJob
from benchmarks.measure import Benchmark, Size, connected, rounds_of, run_job, seconds_between, timed
from choreography_ray import JobStatus


@ray.remote(num_cpus=1)
def plain(n: int) -> int:
    """What the other side does for a step."""
    return n


def tasks(count: int) -> None:
    """As many plain tasks."""
    ray.get([plain.remote(n) for n in range(count)])


def measure(size: Size) -> list[Finding]:
    """Whole jobs, and what of them is running."""
    whole: list[float] = []
    running: list[float] = []
    other: list[float] = []
    count = max(1_000, size.steps // 4)  # tasks are slower, and their rate does not depend on how many
    with connected(size.slots) as choreography:
        run_job(choreography, WarmJob, Count(steps=200))
        tasks(50)
        for _ in rounds_of(size):
            record, seconds = timed(lambda: run_job(choreography, WarmJob, Count(steps=size.steps)))
            whole.append(size.steps / seconds)
            running.append(size.steps / seconds_between(record, JobStatus.RUNNING, JobStatus.COMPLETED_SUCCESSFULLY))
            other.append(count / timed(lambda: tasks(count))[1])
    what = f"{size.steps:,} durable no-op steps on warm actors"
    against = "plain Ray tasks, not durable"
    return [
        Finding(what, "steps/s", tuple(whole), against, tuple(other), at_least(5)),
        Finding(f"{what}, once prepared", "steps/s", tuple(running), against, tuple(other)),
    ]


BENCHMARK = Benchmark("warm_steps", __doc__ or "", measure, Size(50_000, 2), Size(100_000, 5))

if __name__ == "__main__":
    BENCHMARK.main()
