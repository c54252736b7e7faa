"""What every benchmark here shares: pairs measured side by side in one run, their median ratio, JSON on request."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from choreography_ray import Choreography, ClusterOptions


@dataclass(frozen=True)
class Pair:
    """One round: ours and the other, each in units per second."""

    ours: float
    other: float

    @property
    def ratio(self) -> float:
        """Ours against the other."""
        return self.ours / self.other


def rate(count: int, work: Callable[[], object]) -> float:
    """Units per second of one call that does `count` of them."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def report(question: str, unit: str, other: str, pairs: list[Pair], *, as_json: bool) -> None:
    """Print the medians. Absolute numbers depend on the machine and its mood; the ratio is what to compare."""
    ratio = statistics.median(pair.ratio for pair in pairs)
    ours = statistics.median(pair.ours for pair in pairs)
    theirs = statistics.median(pair.other for pair in pairs)
    if as_json:
        rounds = [{"ours": pair.ours, "other": pair.other, "ratio": pair.ratio} for pair in pairs]
        print(json.dumps({"question": question, "unit": unit, "other": other, "ratio": ratio, "rounds": rounds}))
        return
    print(question)
    print(f"  choreography-ray  {ours:10.1f} {unit}")
    print(f"  {other:16}  {theirs:10.1f} {unit}")
    spread = f"{min(p.ratio for p in pairs):.2f} to {max(p.ratio for p in pairs):.2f}"
    print(f"  ratio             {ratio:10.2f} (median of {len(pairs)} pairs, {spread})")


def arguments(about: str, *, steps: int, rounds: int) -> argparse.Namespace:
    """The options of a benchmark."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--steps", type=int, default=steps, help=f"steps of a round ({steps})")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"pairs to measure ({rounds})")
    parser.add_argument("--slots", type=int, default=2, help="bodies at once (2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


@contextmanager
def connected(slots: int) -> Iterator[Choreography]:
    """A cluster of this process, and an embedded store in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="choreography-bench-") as folder:
        import os

        before = Path.cwd()
        os.chdir(folder)
        try:
            with Choreography.connect("local", cluster=ClusterOptions(max_parallel_steps=slots)) as choreography:
                yield choreography
        finally:
            os.chdir(before)
