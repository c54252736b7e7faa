"""After kill -9 of everything in a large job: how long from connect to the first body, beyond the lease?

Driver, cluster and store are a process tree of their own, and all of it is killed while steps run. Then this process
connects over the same folder. The job's new owner must wait for a whole lease without a sign of the old one [S10.3]
(10 s here), which is taken off.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.findings import Finding
from benchmarks.jobs import TimedCount, WarmTimedJob
from benchmarks.measure import Benchmark, Size, connected_here, first_mark, folder_of_its_own, marks, rounds_of, say

LEASE_SECONDS = 10.0
JOB = "killed"
RUNNING = "running"
ROOT = Path(__file__).parents[1]


def victim(steps: int, slots: int, folder: str) -> None:
    """What is killed: start the job, tell when steps have run, and wait for the end."""
    with connected_here(slots, lease=LEASE_SECONDS) as choreography:
        handle = choreography.start(WarmTimedJob, TimedCount(steps=steps, folder=folder), job_id=JOB)
        while not handle.progress().succeeded:
            time.sleep(0.1)
        print(RUNNING, flush=True)
        handle.wait(progress=False)


def kill_tree(root: int) -> None:
    """Kill a process and all that it started, at once."""
    process = psutil.Process(root)
    everything = [process, *process.children(recursive=True)]
    for each in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(everything, timeout=30)


def run_and_kill(size: Size, folder: Path) -> None:
    """A job in processes of its own, killed once it runs."""
    program = f"from benchmarks.kill_everything import victim; victim({size.steps}, {size.slots}, {str(folder)!r})"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        if not any(line.strip() == RUNNING for line in driver.stdout):
            raise RuntimeError("the job that was to be killed never ran")
    finally:
        kill_tree(driver.pid)
        driver.wait()


def measure(size: Size) -> list[Finding]:
    """Kill, connect, and await the first body."""
    beyond: list[float] = []
    for _ in rounds_of(size):
        with folder_of_its_own(), marks() as folder:
            run_and_kill(size, folder)
            say("all is killed")
            killed = time.time()
            with connected_here(size.slots, lease=LEASE_SECONDS):
                took = first_mark(folder, after=killed) - killed
            beyond.append(took - LEASE_SECONDS)
    what = f"from connect to the first body after kill -9 of everything, {size.steps:,} steps, beyond the lease"
    return [Finding(what, "s", tuple(beyond), settings={"lease": f"{LEASE_SECONDS:g} s"})]


BENCHMARK = Benchmark("kill_everything", __doc__ or "", measure, Size(100_000, 1), Size(1_000_000, 1))

if __name__ == "__main__":
    BENCHMARK.main()
