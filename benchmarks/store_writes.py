"""How many writes does the store take for a step, and for a batch that a body reports?

python -m benchmarks.store_writes [--steps 2000] [--own 6] [--batches 1000] [--slots 2] [--json]

Counted on the wire: between the processes and the store stands a proxy that reads the command and the collection of
each message. A command may write many documents, as those of a group: commands are what a store is waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import bson

from benchmarks.jobs import Count, OwnJob, WarmJob
from benchmarks.reporting import CheckpointedJob, DebouncedJob, Reports
from choreography_ray import Choreography, ClusterOptions, JobHandle
from choreography_ray.storage.embedded import EmbeddedStore

WRITES = frozenset({"insert", "update", "delete", "findAndModify"})
OP_MSG = 2013


class Meter:
    """A proxy on loopback that counts the write commands to a store, by command and collection."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self._target = (target.hostname or "127.0.0.1", target.port or 27017)
        self._query = target.query
        self._loop = asyncio.new_event_loop()
        self._port = 0
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        """Where to connect instead."""
        return f"mongodb://127.0.0.1:{self._port}/?{self._query}"

    def take(self) -> Counter[str]:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def _run(self) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
            self._port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await server.serve_forever()

        self._loop.run_until_complete(serve())

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(*self._target)
        back = asyncio.ensure_future(_copy(behind, writer))
        try:
            while True:
                head = await reader.readexactly(16)
                length, _, _, code = struct.unpack("<iiii", head)
                body = await reader.readexactly(length - 16)
                if code == OP_MSG:
                    self._count(body)
                ahead.write(head + body)
                await ahead.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            back.cancel()
            ahead.close()
            writer.close()

    def _count(self, body: bytes) -> None:
        (size,) = struct.unpack_from("<i", body, 5)  # behind flags and the kind of the first section
        command = bson.decode(body[5 : 5 + size])
        name = next(iter(command))
        if name in WRITES:
            with self._lock:
                self._counts[f"{name} {command[name]}"] += 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@contextmanager
def metered(slots: int) -> Iterator[tuple[Choreography, Meter]]:
    """A cluster of this process whose store is behind a meter."""
    with tempfile.TemporaryDirectory(prefix="choreography-bench-") as folder:
        before = Path.cwd()
        store = EmbeddedStore(Path(folder) / "store")
        meter = Meter(store.start())
        os.chdir(folder)
        try:
            options = ClusterOptions(max_parallel_steps=slots)
            with Choreography.connect("local", mongo_url=meter.url, cluster=options) as choreography:
                yield choreography, meter
        finally:
            os.chdir(before)
            store.stop()


def per(count: int, counts: Counter[str]) -> dict[str, float]:
    """Commands per unit, all and by command and collection, the most frequent first."""
    return {"all": counts.total() / count} | {name: n / count for name, n in counts.most_common(6)}


def measure(meter: Meter, job: JobHandle) -> Counter[str]:
    """The write commands of a job from its start to its recorded end; planning and preparing included."""
    job.wait(timeout=900, progress=False)
    return meter.take()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000, help="steps on warm actors (2000)")
    parser.add_argument("--own", type=int, default=6, help="steps on own actors (6)")
    parser.add_argument("--batches", type=int, default=1_000, help="batches that one step reports (1000)")
    parser.add_argument("--slots", type=int, default=2, help="bodies at once (2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with metered(given.slots) as (choreography, meter):
        choreography.start(WarmJob, Count(steps=20)).wait(timeout=900, progress=False)
        for name, count, job, request in (
            ("step on warm actors", given.steps, WarmJob, Count(steps=given.steps)),
            ("step on own actors", given.own, OwnJob, Count(steps=given.own)),
            ("batch, debounced", given.batches, DebouncedJob, Reports(batches=given.batches)),
            ("batch, checkpoint_after_every_batch", given.batches, CheckpointedJob, Reports(batches=given.batches)),
        ):
            meter.take()
            found[name] = per(count, measure(meter, choreography.start(job, request)))
    if given.json:
        print(json.dumps(found))
        return
    for name, counts in found.items():
        print(f"write commands per {name}: {counts.pop('all'):.3f}")
        for command, count in counts.items():
            print(f"    {command:28} {count:.3f}")


if __name__ == "__main__":
    main()
