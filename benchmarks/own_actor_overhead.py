"""What does durability add to an actor per step, against a bare loop of create, call and kill?

python benchmarks/own_actor_overhead.py [--steps 40] [--rounds 3] [--slots 4] [--json]
"""

from __future__ import annotations

import uuid

import ray

from benchmarks.jobs import Count, OwnJob
from benchmarks.measure import Pair, arguments, connected, rate, report
from choreography_ray import Choreography


@ray.remote(num_cpus=0)
class Bare:
    """What the other side makes for a step."""

    def run(self) -> int:
        """The body."""
        return 1


def ours(choreography: Choreography, steps: int) -> None:
    """One job from start to its recorded end."""
    handle = choreography.start(OwnJob, Count(steps=steps))
    record = handle.wait(timeout=900, progress=False)
    assert record.progress.succeeded == steps, record.progress


def other(steps: int, width: int) -> None:
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


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", steps=40, rounds=3)
    with connected(options.slots) as choreography:
        ours(choreography, options.slots)
        other(options.slots, options.slots)
        pairs = [
            Pair(
                rate(options.steps, lambda: ours(choreography, options.steps)),
                rate(options.steps, lambda: other(options.steps, options.slots)),
            )
            for _ in range(options.rounds)
        ]
    report("steps in actors of their own", "steps/s", "bare actors", pairs, as_json=options.json)


if __name__ == "__main__":
    main()
