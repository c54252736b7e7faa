"""Does a step of a large job cost more than one of a job of 10,000 steps?

Per step, by the history of the jobs: from the first window's start to the recorded end, and before that planning and
preparing. The full run has a million steps.
"""

from __future__ import annotations

from benchmarks.findings import Finding, at_most
from benchmarks.jobs import Count, WarmJob
from benchmarks.measure import Benchmark, Size, connected, rounds_of, run_job, say, seconds_between
from choreography_ray import Choreography, JobStatus

SMALL = 10_000
PREPARING = (JobStatus.PREPARING_JOB, JobStatus.STARTING_STEPS)
RUNNING = (JobStatus.RUNNING, JobStatus.COMPLETED_SUCCESSFULLY)


def microseconds(choreography: Choreography, steps: int) -> tuple[float, float]:
    """Of running a step, and of planning and preparing one."""
    say(f"{steps:,} steps")
    record = run_job(choreography, WarmJob, Count(steps=steps))
    return seconds_between(record, *RUNNING) / steps * 1e6, seconds_between(record, *PREPARING) / steps * 1e6


def measure(size: Size) -> list[Finding]:
    """A small job before each large one."""
    with connected(size.slots) as choreography:
        run_job(choreography, WarmJob, Count(steps=200))
        pairs = [(microseconds(choreography, SMALL), microseconds(choreography, size.steps)) for _ in rounds_of(size)]
    small, large = zip(*pairs, strict=True)
    against = f"of {SMALL:,}"
    return [
        Finding(what, "µs", tuple(each[n] for each in large), against, tuple(each[n] for each in small), at_most(1.15))
        for n, what in (
            (0, f"running a step of {size.steps:,}"),
            (1, f"planning and preparing a step of {size.steps:,}"),
        )
    ]


BENCHMARK = Benchmark("large_jobs", __doc__ or "", measure, Size(100_000, 1), Size(1_000_000, 1))

if __name__ == "__main__":
    BENCHMARK.main()
