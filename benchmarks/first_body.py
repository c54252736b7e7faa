"""How soon after `start()` does the first body begin, against the bare creation of two actors and a call?

Throttle and supervisor are up. The other side does what must happen in turn: an actor is made, it makes another, and
calls it.
"""

from __future__ import annotations

import time

import ray

from benchmarks.findings import Finding, at_most
from benchmarks.jobs import OwnTimedJob, TimedCount
from benchmarks.measure import Benchmark, Size, connected, finished, first_mark, marks, rounds_of
from choreography_ray import Choreography


@ray.remote(num_cpus=0)
class Body:
    """The second actor."""

    def begin(self) -> float:
        """When it is called."""
        return time.time()


@ray.remote(num_cpus=0)
class Maker:
    """The first actor."""

    def begin(self) -> float:
        """Make the second, and call it."""
        body = Body.remote()  # type: ignore[attr-defined]
        began: float = ray.get(body.begin.remote())
        return began


def bare() -> float:
    """Seconds until the second actor's call."""
    asked = time.time()
    maker = Maker.remote()  # type: ignore[attr-defined]
    began: float = ray.get(maker.begin.remote())
    return began - asked


def durable(choreography: Choreography) -> float:
    """Seconds until the first body of a job."""
    with marks() as folder:
        asked = time.time()
        handle = choreography.start(OwnTimedJob, TimedCount(steps=1, folder=str(folder)))
        took = first_mark(folder) - asked
        finished(handle)
    return took


def measure(size: Size) -> list[Finding]:
    """Jobs of one step beside pairs of bare actors."""
    with connected(size.slots) as choreography:
        durable(choreography)
        bare()
        pairs = [(durable(choreography), bare()) for _ in rounds_of(size)]
    ours, other = zip(*pairs, strict=True)
    what = "from start() to the first body, in an actor of its own"
    return [Finding(what, "s", ours, "two bare actors and a call", other, at_most(1.3))]


BENCHMARK = Benchmark("first_body", __doc__ or "", measure, Size(1, 5), Size(1, 15))

if __name__ == "__main__":
    BENCHMARK.main()
