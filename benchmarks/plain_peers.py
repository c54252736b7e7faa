"""How many durable no-op steps a second, against what keeps nothing: Dask, and a pool of plain Ray actors?

Ours is a whole job with kept results on warm actors. The others' time runs from the first submission to the last
result.
"""

from __future__ import annotations

import ray
from ray.util import ActorPool

from benchmarks.durable_peers import beside
from benchmarks.findings import Finding
from benchmarks.jobs import Count, KeptJob
from benchmarks.measure import Benchmark, Size, connected, rounds_of, run_job, timed
from benchmarks.peers.asking import Peer

DASK = Peer("dask", "Dask, processes of one thread, not durable", 500)


@ray.remote(num_cpus=0)
class Worker:
    """An actor of the pool."""

    def run(self, n: int) -> int:
        """The body."""
        return n


def pooled(pool: ActorPool, steps: int) -> None:
    """A call a step."""
    results = list(pool.map_unordered(lambda actor, n: actor.run.remote(n), range(steps)))
    assert len(results) == steps


def measure(size: Size) -> list[Finding]:
    """The pool beside ours on one cluster, then Dask alone."""
    ours: list[float] = []
    other: list[float] = []
    count = size.steps // 4
    with connected(size.slots) as choreography:
        run_job(choreography, KeptJob, Count(steps=200))
        pool = ActorPool([Worker.remote() for _ in range(size.slots)])  # type: ignore[attr-defined]
        pooled(pool, 50)
        for _ in rounds_of(size):
            ours.append(size.steps / timed(lambda: run_job(choreography, KeptJob, Count(steps=size.steps)))[1])
            other.append(count / timed(lambda: pooled(pool, count))[1])
    title = "a pool of plain Ray actors, not durable"
    what = f"steps whose results are kept, against {title}"
    dask = beside(DASK, tuple(ours), size, None)
    return [Finding(what, "steps/s", tuple(ours), title, tuple(other)), *([dask] if dask is not None else [])]


BENCHMARK = Benchmark("plain_peers", __doc__ or "", measure, Size(10_000, 1), Size(50_000, 3))

if __name__ == "__main__":
    BENCHMARK.main()
