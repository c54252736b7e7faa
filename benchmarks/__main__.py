"""Runs the benchmarks, each in a process of its own, and tells what they found as one table and one picture.

The short set takes less than ten minutes on two cores that are idle, the full one hours. What is not asked for with
`--out` goes into `benchmark-results/`; `--docs` also renews the results in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.findings import Finding
from benchmarks.measure import Benchmark, say
from benchmarks.page import findings_of, read, table, write

NAMES = (
    "warm_steps",
    "store_ceiling",
    "short_bodies",
    "own_actor_overhead",
    "large_jobs",
    "job_memory",
    "planning",
    "slow_store",
    "waiting_bodies",
    "first_body",
    "kill_everything",
    "durable_peers",
    "plain_peers",
    "store_writes",
    "cpu_seconds",
)
SHORT_SECONDS, FULL_SECONDS = 300.0, 3 * 3600.0
"""After which a benchmark is ended, and the others go on."""


def benchmark_of(name: str) -> Benchmark:
    """A benchmark by its name."""
    found: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return found


def run(name: str, out: Path, *, full: bool) -> bool:
    """Run one in a process of its own; whether it found something."""
    result = out / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(result), *(["--full"] if full else [])]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1], stdin=subprocess.DEVNULL)
    try:
        process.wait(FULL_SECONDS if full else SHORT_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"{name} takes too long and is ended")
    finally:
        end(process)
    return result.exists()


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a benchmark that still runs, so that it takes its cluster with it; then kill what is left."""
    with contextlib.suppress(psutil.NoSuchProcess):
        everything = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        for left in psutil.wait_procs(everything, timeout=30)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
    process.wait()


def main() -> int:
    """What the command line asks for; the exit code tells whether every benchmark found something."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="tell the questions, and run nothing")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help="run these alone")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="the short set (the default)")
    size.add_argument("--full", action="store_true", help="large jobs and more rounds")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"), metavar="DIR", help="for what is found")
    parser.add_argument("--docs", action="store_true", help="renew the results in docs/benchmarks.md")
    given = parser.parse_args()
    if given.list:
        for name in NAMES:
            print(f"{name:20} {benchmark_of(name).about.strip().splitlines()[0]}")
        return 0
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for place, name in enumerate(given.only, 1):
        began = time.monotonic()
        say(f"{name} ({place} of {len(given.only)})")
        if not run(name, out, full=given.full):
            failed.append(name)
        say(f"{name}: {time.monotonic() - began:.0f} s")
    write(out, NAMES, docs=given.docs)
    print(table(read(out, given.only)))
    print(f"\nJSON, table and picture are in {out}")
    missed: list[Finding] = [each for each in findings_of(read(out, given.only)) if each.is_met is False]
    print(f"{len(missed)} targets are missed" if missed else "no target is missed")
    for name in failed:
        print(f"{name} found nothing: see what it said above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
