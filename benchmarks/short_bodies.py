"""How much of what their slots allow do warm actors carry when a body takes 10 ms?

Counted from the first body to the recorded end; the other side is arithmetic: slots / 10 ms.
"""

from __future__ import annotations

import time

from benchmarks.findings import Finding, at_least
from benchmarks.jobs import TimedCount, WarmTimedJob
from benchmarks.measure import Benchmark, Size, connected, first_mark, marks, rounds_of, run_job

BODY_SECONDS = 0.01


def measure(size: Size) -> list[Finding]:
    """Jobs of bodies that sleep."""
    ours: list[float] = []
    with connected(size.slots) as choreography:
        for _ in rounds_of(size):
            with marks() as folder:
                request = TimedCount(steps=size.steps, folder=str(folder), seconds=BODY_SECONDS)
                run_job(choreography, WarmTimedJob, request)
                ours.append(size.steps / (time.time() - first_mark(folder)))
    ideal = size.slots / BODY_SECONDS
    what = f"{size.steps:,} bodies of 10 ms on warm actors, {size.slots} slots"
    return [Finding(what, "steps/s", tuple(ours), "slots / 10 ms", (ideal,) * size.rounds, at_least(0.9))]


BENCHMARK = Benchmark("short_bodies", __doc__ or "", measure, Size(2_000, 3), Size(10_000, 3))

if __name__ == "__main__":
    BENCHMARK.main()
