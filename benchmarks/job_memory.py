"""How much memory does the job's actor need per step?

What its process has to itself, looked at twice a second, in a large job against one of 20,000 steps: the largest while
it plans, prepares and runs, and what it has while it runs. The large job is removed once it has run 30,000 steps.
"""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime

import psutil

from benchmarks.findings import Finding, at_most
from benchmarks.jobs import Count, WarmJob
from benchmarks.measure import TELL_SECONDS, Benchmark, Size, connected, looking, rounds_of, run_job, say
from choreography_ray import Choreography, JobHandle, JobStatus

SMALL = 20_000
RUN = 30_000


class Watcher:
    """Looks at the job actor below this process."""

    def __init__(self) -> None:
        self.seen: list[tuple[datetime, int]] = []
        self._actor: psutil.Process | None = None

    def look(self) -> None:
        """Note what it has now, if it is there."""
        with contextlib.suppress(psutil.Error):
            if self._actor is None or not self._actor.is_running():
                self._actor = next(filter(_is_job_actor, psutil.Process().children(recursive=True)), None)
            if self._actor is not None:
                self.seen.append((datetime.now(UTC), self._actor.memory_full_info().uss))


def _is_job_actor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).startswith("ray::JobActor")
    return False


def bytes_of(choreography: Choreography, steps: int) -> tuple[int, int]:
    """The job actor's memory: the most that was seen, and what it has while it runs."""
    watcher = Watcher()
    with looking(watcher.look, every=0.5):
        handle = choreography.start(WarmJob, Count(steps=steps))
        run_until(handle, min(RUN, steps))
        record = handle.record()
        handle.remove(timeout=300)
    running = next(each.at for each in record.history if each.status is JobStatus.RUNNING)
    return max(each for _, each in watcher.seen), max(each for at, each in watcher.seen if at > running)


def run_until(handle: JobHandle, steps: int) -> None:
    """Wait until so many steps have run, and say now and then how far they are."""
    told = time.monotonic()
    while (progress := handle.progress()).succeeded < steps:
        if time.monotonic() > told + TELL_SECONDS:
            told = time.monotonic()
            say(f"{progress.succeeded:,} of {steps:,} steps")
        time.sleep(0.5)  # counts are written within a second


def measure(size: Size) -> list[Finding]:
    """A small job before each large one."""
    peaks: list[float] = []
    running: list[float] = []
    with connected(size.slots) as choreography:
        run_job(choreography, WarmJob, Count(steps=200))
        for _ in rounds_of(size):
            (small_peak, small), (large_peak, large) = (bytes_of(choreography, n) for n in (SMALL, size.steps))
            more = size.steps - SMALL
            peaks.append((large_peak - small_peak) / more)
            running.append((large - small) / more)
    what = f"memory of the job actor per step at {size.steps:,}"
    return [
        Finding(f"{what}, at most", "B", tuple(peaks), target=at_most(200)),
        Finding(f"{what}, while it runs", "B", tuple(running), target=at_most(200)),
    ]


BENCHMARK = Benchmark("job_memory", __doc__ or "", measure, Size(100_000, 1), Size(1_000_000, 1))

if __name__ == "__main__":
    BENCHMARK.main()
