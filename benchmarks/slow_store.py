"""What is left of the throughput when each round trip to the store takes 2 ms more?

A proxy stands before the store on both sides, and adds 1 ms in each direction on one. A round is a whole job.
"""

from __future__ import annotations

from benchmarks.findings import Finding, at_least
from benchmarks.jobs import Count, WarmJob
from benchmarks.measure import Benchmark, Size, proxied, rounds_of, run_job, timed

EACH_WAY_SECONDS = 0.001


def measure(size: Size) -> list[Finding]:
    """Jobs on one cluster, with and without, in turn."""
    slow: list[float] = []
    quick: list[float] = []
    with proxied(size.slots) as (choreography, proxy):
        run_job(choreography, WarmJob, Count(steps=200))
        for _ in rounds_of(size):
            for delay, rates in ((EACH_WAY_SECONDS, slow), (0.0, quick)):
                proxy.delay = delay
                rates.append(size.steps / timed(lambda: run_job(choreography, WarmJob, Count(steps=size.steps)))[1])
    what = f"{size.steps:,} durable no-op steps, 2 ms added to each round trip to the store"
    return [Finding(what, "steps/s", tuple(slow), "none added", tuple(quick), at_least(0.8))]


BENCHMARK = Benchmark("slow_store", __doc__ or "", measure, Size(10_000, 3), Size(50_000, 5))

if __name__ == "__main__":
    BENCHMARK.main()
