"""How many durable no-op steps a second, against what else keeps each of them: Celery, DBOS, Prefect, Dagster?

The same work: a step returns a number, and the number is kept. Ours is a whole job with kept results on warm actors
and the embedded store; a peer's time runs from the first submission to the last result. Servers are on this machine,
new for each measurement. A peer that cannot be set up here is told of and left out.
"""

from __future__ import annotations

from benchmarks.findings import Finding, Target, at_least
from benchmarks.jobs import Count, KeptJob
from benchmarks.measure import Benchmark, Size, connected, rounds_of, run_job, say, timed
from benchmarks.peers.asking import Answer, Peer, measure_peer
from benchmarks.peers.servers import postgres, redis

PEERS = (
    Peer("celery", "Celery, Redis with appendfsync always", 200, redis),
    Peer("dbos", "DBOS queues, PostgreSQL", 100, postgres),
    Peer("prefect", "Prefect, PostgreSQL", 20, postgres),
    Peer("dagster", "Dagster, SQLite", 10),
)


def measure(size: Size) -> list[Finding]:
    """Ours first, then each peer as often."""
    return against(PEERS, size, at_least(2))


def against(peers: tuple[Peer, ...], size: Size, target: Target | None) -> list[Finding]:
    """A finding for each peer that can be measured here."""
    with connected(size.slots) as choreography:
        run_job(choreography, KeptJob, Count(steps=200))
        ours = [
            size.steps / timed(lambda: run_job(choreography, KeptJob, Count(steps=size.steps)))[1]
            for _ in rounds_of(size)
        ]
    return [found for peer in peers if (found := beside(peer, tuple(ours), size, target)) is not None]


def beside(peer: Peer, ours: tuple[float, ...], size: Size, target: Target | None) -> Finding | None:
    """One peer's rates beside ours; None, and a line that says why, when he cannot be measured."""
    try:
        answers: list[Answer] = [measure_peer(peer, size.steps, size.slots) for _ in ours]
    except Exception as error:  # noqa: BLE001 - one that cannot be set up should not hide the others
        say(f"{peer.title} is left out: {error}")
        return None
    other = tuple(answer.rate for answer in answers)
    what = f"steps whose results are kept, against {peer.title}"
    return Finding(what, "steps/s", ours, peer.title, other, target, answers[-1].settings)


BENCHMARK = Benchmark("durable_peers", __doc__ or "", measure, Size(10_000, 1), Size(50_000, 3))

if __name__ == "__main__":
    BENCHMARK.main()
