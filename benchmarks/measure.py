"""What every benchmark here shares: its sizes and options, a cluster of its own, jobs that are waited for."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from benchmarks.findings import Finding, conditions
from choreography_ray import Choreography, ClusterOptions, Job, JobHandle, JobRecord, JobStatus
from choreography_ray.storage.embedded import EmbeddedStore
from harness.proxy import Proxy, Watch

T = TypeVar("T")

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray may choose for this process, and says so each time

TELL_SECONDS = 10.0
"""How often long work says how far it is."""


@dataclass(frozen=True)
class Size:
    """How much is measured: steps of a round, rounds, bodies at once."""

    steps: int
    rounds: int
    slots: int = 2


@dataclass(frozen=True)
class Benchmark:
    """One question, by the name of its module: what is measured, and how much of it on a short and on a full run."""

    name: str
    about: str
    measure: Callable[[Size], list[Finding]]
    short: Size
    full: Size

    def main(self, arguments: list[str] | None = None) -> None:
        """`python -m benchmarks.<name>`: measure, print, and write JSON where it was asked for."""
        given = self._parser().parse_args(arguments)
        size = self.full if given.full else self.short
        chosen = {name: wanted for name in ("steps", "rounds", "slots") if (wanted := getattr(given, name)) is not None}
        size = replace(size, **chosen)
        at = conditions()
        began = time.monotonic()
        findings = self.measure(size)
        for line in (line for finding in findings for line in finding.lines()):
            print(line)
        if given.json is not None:
            told = [finding.as_json() for finding in findings]
            seconds = round(time.monotonic() - began, 1)
            found = {"benchmark": self.name, "conditions": at, "size": vars(size), "seconds": seconds}
            given.json.write_text(json.dumps(found | {"findings": told}, indent=2) + "\n")

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}",
            description=self.about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--full", action="store_true", help=f"measure {self.full}, not {self.short}")
        parser.add_argument("--steps", type=int, help="steps of a round")
        parser.add_argument("--rounds", type=int, help="pairs to measure")
        parser.add_argument("--slots", type=int, help="bodies at once")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found as JSON")
        return parser


def say(text: str) -> None:
    """A line of progress, beside what is found."""
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def rounds_of(size: Size) -> Iterator[int]:
    """The rounds of a benchmark, each told of."""
    for number in range(size.rounds):
        say(f"round {number + 1} of {size.rounds}")
        yield number


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and how many seconds it takes."""
    began = time.perf_counter()
    value = work()
    return value, time.perf_counter() - began


@contextlib.contextmanager
def looking(look: Callable[[], None], every: float) -> Iterator[None]:
    """Within, something is looked at every so many seconds, on a thread of its own."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.wait(every):
            look()

    thread = threading.Thread(target=go_on, name="looking")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def folder_of_its_own() -> Iterator[Path]:
    """A temporary working folder, left and deleted in the end."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="choreography-bench-") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


@contextlib.contextmanager
def connected(slots: int, mongo_url: str | None = None) -> Iterator[Choreography]:
    """A cluster of this process, and, unless a store is named, an embedded one in a folder that goes with it."""
    with folder_of_its_own(), connected_here(slots, mongo_url) as choreography:
        yield choreography


@contextlib.contextmanager
def connected_here(slots: int, mongo_url: str | None = None, lease: float = 30.0) -> Iterator[Choreography]:
    """The same, the store in the working folder, which stays."""
    options = ClusterOptions(max_parallel_steps=slots, step_lease_timeout=timedelta(seconds=lease))
    with Choreography.connect("local", mongo_url=mongo_url, cluster=options) as choreography:
        yield choreography


@contextlib.contextmanager
def proxied(slots: int, watch: Callable[[], Watch] | None = None) -> Iterator[tuple[Choreography, Proxy]]:
    """The same with a proxy on the way to the store."""
    with embedded_store() as url:
        port = url.rpartition(":")[2].partition("/")[0]
        proxy = Proxy(int(port), watch)
        try:
            with connected(slots, url.replace(f":{port}/", f":{proxy.port}/")) as choreography:
                yield choreography, proxy
        finally:
            proxy.close()


@contextlib.contextmanager
def embedded_store() -> Iterator[str]:
    """The URL of a new embedded store of this process."""
    with tempfile.TemporaryDirectory(prefix="choreography-bench-store-") as folder:
        store = EmbeddedStore(folder)
        try:
            yield store.start()
        finally:
            store.stop()


def run_job(choreography: Choreography, job: type[Job[Any, Any]], request: BaseModel) -> JobRecord:
    """One job from its start to its recorded end, all of its steps successful."""
    return finished(choreography.start(job, request))


def finished(handle: JobHandle) -> JobRecord:
    """Wait for a job, saying now and then how far it is. Raises `AssertionError` unless every step has succeeded."""
    while True:
        try:
            record = handle.wait(timeout=TELL_SECONDS, progress=False)
        except TimeoutError:
            progress = handle.progress()
            say(f"{progress.succeeded:,} of {progress.total:,} steps")
            continue
        assert record.progress.succeeded == record.progress.total, record.progress
        return record


def seconds_between(record: JobRecord, since: JobStatus, until: JobStatus) -> float:
    """How long a job took from one status to another, by its history."""
    at = {entry.status: entry.at for entry in record.history}
    return (at[until] - at[since]).total_seconds()


@contextlib.contextmanager
def marks() -> Iterator[Path]:
    """A folder for the marks of bodies that begin. See `benchmarks.jobs.leave_mark`."""
    with tempfile.TemporaryDirectory(prefix="choreography-bench-marks-") as folder:
        yield Path(folder)


def first_mark(folder: Path, after: float = 0.0, patience: float = 600.0) -> float:
    """When the first process after a moment began its first body; awaited."""
    deadline = time.monotonic() + patience
    while True:
        times = [float(text) for mark in folder.iterdir() if (text := mark.read_text())]
        if later := [each for each in times if each > after]:
            return min(later)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no body began within {patience:g} s")
        time.sleep(0.05)  # bodies are in other processes, and nothing but the file tells
