"""Who uses the CPU: bodies' hosts, the job's actor, the store, or Ray?

CPU time per step, by process, of a job of no-op steps on warm actors, of one in actors of their own, and of the bare
loop of create, call and kill. Every process below this one is looked at ten times a second, and this one itself; what
a process uses between the last look and its end is not seen.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import psutil

from benchmarks.findings import Finding
from benchmarks.jobs import Count, OwnJob, WarmJob
from benchmarks.measure import Benchmark, Size, connected, looking, rounds_of, run_job
from benchmarks.own_actor_overhead import bare

OWN = 20
"""Steps in actors of their own, each some tenths of a second."""

KINDS = {
    "JobActor": "job actor",
    "HostActor": "hosts",
    "Bare": "bare actors",
    "/gcs_server ": "GCS",
    "/raylet/raylet ": "raylet",
    "secantus": "store",
}
"""By a part of the command line."""
OTHERS = "what else Ray runs"


class Meter:
    """CPU seconds of this process and of those below it."""

    def __init__(self) -> None:
        self.used: dict[psutil.Process, tuple[str, float]] = {}

    def look(self) -> None:
        """Note what each has used by now, and of which kind it is."""
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                # A worker is given its title with its actor, has used time before, and may lose it before its end.
                kind = "driver" if process == here else kind_of(" ".join(process.cmdline()))
                known = self.used.get(process, (OTHERS, 0.0))[0]
                self.used[process] = known if kind == OTHERS else kind, times.user + times.system


def kind_of(command: str) -> str:
    """What a process is to us."""
    return next((kind for part, kind in KINDS.items() if part in command), OTHERS)


def counted(work: Callable[[], object]) -> Counter[str]:
    """What a piece of work uses, by kind of process."""
    meter = Meter()
    meter.look()
    before = dict(meter.used)
    with looking(meter.look, every=0.1):
        work()
    meter.look()
    used: Counter[str] = Counter()
    for process, (kind, seconds) in meter.used.items():
        used[kind] += seconds - before.get(process, ("", 0.0))[1]
    return used


def measure(size: Size) -> list[Finding]:
    """One after the other, once each process is warm."""
    found: dict[str, list[Counter[str]]] = {"warm": [], "own": [], "bare": []}
    with connected(size.slots) as choreography:
        run_job(choreography, WarmJob, Count(steps=200))
        for _ in rounds_of(size):
            found["warm"].append(counted(lambda: run_job(choreography, WarmJob, Count(steps=size.steps))))
            found["own"].append(counted(lambda: run_job(choreography, OwnJob, Count(steps=OWN))))
            found["bare"].append(counted(lambda: bare(OWN, size.slots)))
    return [
        finding(f"CPU per no-op step on warm actors, of {size.steps:,}", "µs", size.steps / 1e6, found["warm"]),
        finding(f"CPU per step in an actor of its own, of {OWN}", "ms", OWN / 1e3, found["own"]),
        finding(f"CPU per bare create, call and kill, of {OWN}", "ms", OWN / 1e3, found["bare"]),
    ]


def finding(what: str, unit: str, steps: float, used: list[Counter[str]]) -> Finding:
    """The sum, and beside it the mean share of each kind of process."""
    total: Counter[str] = sum(used, Counter())
    shares = {kind: f"{seconds / len(used) / steps:.3g} {unit}" for kind, seconds in total.most_common()}
    return Finding(what, unit, tuple(each.total() / steps for each in used), settings=shares)


BENCHMARK = Benchmark("cpu_seconds", __doc__ or "", measure, Size(50_000, 1), Size(100_000, 3))

if __name__ == "__main__":
    BENCHMARK.main()
