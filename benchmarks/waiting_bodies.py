"""How many bodies that wait for others (50 ms each, on a loop) does a host carry, against plain asyncio?

A hundred at once in each host, and as many slots as they take. Counted from the first body to the recorded end.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.findings import Finding, at_least
from benchmarks.jobs import TimedCount, WaitingTimed, WaitingTimedJob
from benchmarks.measure import Benchmark, Size, connected, first_mark, marks, rounds_of, run_job, timed

BODY_SECONDS = 0.05


async def plain(steps: int, at_once: int) -> None:
    """The same waits in one loop, as many at once."""
    places = asyncio.Semaphore(at_once)

    async def body() -> None:
        async with places:
            await asyncio.sleep(BODY_SECONDS)

    await asyncio.gather(*(body() for _ in range(steps)))


def measure(size: Size) -> list[Finding]:
    """Jobs beside plain loops."""
    ours: list[float] = []
    other: list[float] = []
    with connected(size.slots) as choreography:
        for _ in rounds_of(size):
            with marks() as folder:
                request = TimedCount(steps=size.steps, folder=str(folder), seconds=BODY_SECONDS)
                run_job(choreography, WaitingTimedJob, request)
                ours.append(size.steps / (time.time() - first_mark(folder)))
            other.append(size.steps / timed(lambda: asyncio.run(plain(size.steps, size.slots)))[1])
    hosts = size.slots // WaitingTimed.steps_per_actor
    what = f"{size.steps:,} bodies that wait 50 ms, {size.slots} at once in {hosts} hosts"
    return [Finding(what, "steps/s", tuple(ours), "plain asyncio", tuple(other), at_least(0.7))]


BENCHMARK = Benchmark("waiting_bodies", __doc__ or "", measure, Size(20_000, 1, slots=200), Size(100_000, 3, slots=200))

if __name__ == "__main__":
    BENCHMARK.main()
