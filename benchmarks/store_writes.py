"""How many writes does the store take for a step, and for a batch that a body reports?

Counted on the wire: between the processes and the store stands a proxy that reads the command and the collection of
each message. A command may write many documents, as those of a group: commands are what a store is waited for. Planning
and preparing are included.
"""

from __future__ import annotations

import threading
from collections import Counter

from benchmarks.batches import CheckpointedJob, DebouncedJob, Reports
from benchmarks.findings import Finding
from benchmarks.jobs import Count, OwnJob, WarmJob
from benchmarks.measure import Benchmark, Size, proxied, run_job
from benchmarks.wire import WRITES, Messages, command_of


class Meter:
    """Counts the write commands to a store, by command and collection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def watch(self) -> Messages:
        """For one connection of a proxy."""
        return Messages(self._count)

    def take(self) -> Counter[str]:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def _count(self, message: bytes) -> None:
        command = command_of(message)
        name = next(iter(command), "")
        if name in WRITES:
            with self._lock:
                self._counts[f"{name} {command[name]}"] += 1


def measure(size: Size) -> list[Finding]:
    """A job of each kind, alone."""
    meter = Meter()
    own = max(2, size.steps // 400)
    findings: list[Finding] = []
    with proxied(size.slots, meter.watch) as (choreography, _):
        run_job(choreography, WarmJob, Count(steps=20))
        for what, count, job, request in (
            ("step on warm actors", size.steps, WarmJob, Count(steps=size.steps)),
            ("step on its own actor", own, OwnJob, Count(steps=own)),
            ("batch that a body reports, debounced", size.steps, DebouncedJob, Reports(batches=size.steps)),
            ("batch, checkpoint_after_every_batch", size.steps, CheckpointedJob, Reports(batches=size.steps)),
        ):
            meter.take()
            run_job(choreography, job, request)
            counts = meter.take()
            most = {name: f"{n / count:.3f}" for name, n in counts.most_common(6)}
            findings.append(Finding(f"write commands per {what}", "commands", (counts.total() / count,), settings=most))
    return findings


BENCHMARK = Benchmark("store_writes", __doc__ or "", measure, Size(2_000, 1), Size(20_000, 1))

if __name__ == "__main__":
    BENCHMARK.main()
