"""How many durable no-op steps a second do warm actors carry, against plain Ray tasks, which keep nothing?

python benchmarks/warm_steps.py [--steps 20000] [--rounds 3] [--slots 2] [--json]
"""

from __future__ import annotations

import ray

from benchmarks.jobs import Count, WarmJob
from benchmarks.measure import Pair, arguments, connected, rate, report
from choreography_ray import Choreography


@ray.remote(num_cpus=1)
def plain(n: int) -> int:
    """What the other side does for a step."""
    return n


def ours(choreography: Choreography, steps: int) -> None:
    """One job from start to its recorded end: planning, preparing and starting included."""
    handle = choreography.start(WarmJob, Count(steps=steps))
    record = handle.wait(timeout=900, progress=False)
    assert record.progress.succeeded == steps, record.progress


def other(steps: int) -> None:
    """As many plain tasks."""
    ray.get([plain.remote(n) for n in range(steps)])


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", steps=20_000, rounds=3)
    tasks = max(1_000, options.steps // 4)
    with connected(options.slots) as choreography:
        ours(choreography, 200)
        other(50)
        pairs = [
            Pair(rate(options.steps, lambda: ours(choreography, options.steps)), rate(tasks, lambda: other(tasks)))
            for _ in range(options.rounds)
        ]
    report("durable no-op steps on warm actors", "steps/s", "plain Ray tasks", pairs, as_json=options.json)


if __name__ == "__main__":
    main()
