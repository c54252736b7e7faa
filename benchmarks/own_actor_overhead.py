"""What does durability add to an actor per step, against a bare loop of create, call and kill at equal concurrency?"""

from __future__ import annotations

import uuid

import ray

from benchmarks.findings import Finding, at_least
from benchmarks.jobs import Count, OwnJob
from benchmarks.measure import Benchmark, Size, connected, rounds_of, run_job, timed


@ray.remote(num_cpus=0)
class Bare:
    """What the other side makes for a step."""

    def run(self) -> int:
        """The body."""
        return 1


def bare(steps: int, width: int) -> None:
    """A named, detached actor per step, `width` at a time."""
    started = 0
    live: dict[object, object] = {}
    while started < steps or live:
        while started < steps and len(live) < width:
            options = {"name": uuid.uuid4().hex, "namespace": "bare", "lifetime": "detached"}
            actor = Bare.options(**options).remote()  # type: ignore[attr-defined]
            live[actor.run.remote()] = actor
            started += 1
        for done in ray.wait(list(live))[0]:
            ray.kill(live.pop(done))


def measure(size: Size) -> list[Finding]:
    """Whole jobs beside bare loops."""
    ours: list[float] = []
    other: list[float] = []
    with connected(size.slots) as choreography:
        run_job(choreography, OwnJob, Count(steps=size.slots))
        bare(size.slots, size.slots)
        for _ in rounds_of(size):
            ours.append(size.steps / timed(lambda: run_job(choreography, OwnJob, Count(steps=size.steps)))[1])
            other.append(size.steps / timed(lambda: bare(size.steps, size.slots))[1])
    what = f"{size.steps} steps in actors of their own, {size.slots} at once"
    return [Finding(what, "steps/s", tuple(ours), "create, call and kill", tuple(other), at_least(0.85))]


BENCHMARK = Benchmark("own_actor_overhead", __doc__ or "", measure, Size(20, 3, slots=4), Size(60, 5, slots=4))

if __name__ == "__main__":
    BENCHMARK.main()
