"""What do planning and preparing a job cost, against building the same pydantic requests in a bare loop?

From the job's call of `prepare_steps` until every step is prepared and saved, by the job's history. The steps are not
run: the job is removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.findings import Finding, at_most
from benchmarks.jobs import Number, TimedCount, WarmNoOp, leave_mark
from benchmarks.measure import Benchmark, Size, connected, first_mark, marks, rounds_of, timed
from choreography_ray import Choreography, Job, JobState, JobStatus, StepDetails


class PlannedJob(Job[TimedCount, JobState]):
    """Marks when it is asked for its steps."""

    def prepare_steps(self, request: TimedCount) -> Iterator[StepDetails]:
        leave_mark(request.folder)
        for n in range(request.steps):
            yield self.create_step(WarmNoOp, Number(n=n))


def bare(steps: int) -> list[Number]:
    """The requests, kept as a list."""
    return [Number(n=n) for n in range(steps)]


def planned(choreography: Choreography, steps: int, folder: Path) -> float:
    """Seconds until all is prepared."""
    handle = choreography.start(PlannedJob, TimedCount(steps=steps, folder=str(folder)))
    prepared = next(each.at for each in handle.record().history if each.status is JobStatus.STARTING_STEPS)
    handle.remove(timeout=300)
    return prepared.timestamp() - first_mark(folder)


def measure(size: Size) -> list[Finding]:
    """Jobs beside loops."""
    ours: list[float] = []
    other: list[float] = []
    with connected(size.slots) as choreography:
        for _ in rounds_of(size):
            with marks() as folder:
                ours.append(planned(choreography, size.steps, folder) / size.steps * 1e6)
            other.append(timed(lambda: bare(size.steps))[1] / size.steps * 1e6)
    what = f"planning and preparing a step of {size.steps:,}"
    return [Finding(what, "µs", tuple(ours), "building its request", tuple(other), at_most(3))]


BENCHMARK = Benchmark("planning", __doc__ or "", measure, Size(100_000, 1), Size(1_000_000, 1))

if __name__ == "__main__":
    BENCHMARK.main()
