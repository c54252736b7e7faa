"""Dask: a local cluster of processes of one thread each, a task a step, sent as one batch. Nothing is durable."""

from __future__ import annotations

import time
from importlib.metadata import version

from distributed import Client, LocalCluster

from benchmarks.peers.protocol import answer, asked


def body(n: int) -> int:
    """A step."""
    return n


def main() -> None:
    """A task a step."""
    given = asked()
    with (
        LocalCluster(
            n_workers=given.slots, threads_per_worker=1, dashboard_address=None, local_directory=str(given.folder)
        ) as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(body, range(20), pure=False))
        began = time.perf_counter()
        results = client.gather(client.map(body, range(given.steps), pure=False))
        seconds = time.perf_counter() - began
        assert results == list(range(given.steps))
    answer(seconds, distributed=version("distributed"), cluster=f"{given.slots} processes of one thread")


if __name__ == "__main__":
    main()
