"""How is a peer measured? Its script runs on its own Python, beside the server that it needs, and answers once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import say
from benchmarks.peers.environments import python_of
from benchmarks.peers.protocol import ANSWER

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 900.0


@contextlib.contextmanager
def no_server() -> Iterator[str]:
    """For a peer that needs none."""
    yield ""


@dataclass(frozen=True)
class Peer:
    """Who is compared. `share`: how many steps he gets for each thousand of ours; his rate does not depend on it."""

    name: str
    title: str
    share: int
    server: Callable[[], contextlib.AbstractContextManager[str]] = no_server


@dataclass(frozen=True)
class Answer:
    """A peer's rate, in steps per second, and what he ran on."""

    rate: float
    settings: dict[str, str]


def measure_peer(peer: Peer, ours: int, slots: int) -> Answer:
    """One measurement, with a new server and an empty folder. Raises what stands in its way, for people to read."""
    steps = max(20, ours * peer.share // 1000)
    say(f"{peer.title}: {steps:,} steps")
    python = python_of(peer.name)
    with peer.server() as url, tempfile.TemporaryDirectory(prefix=f"{peer.name}-") as folder:
        command = [str(python), "-m", f"benchmarks.peers.{peer.name}_peer", "--steps", str(steps)]
        command += ["--slots", str(slots), "--folder", folder, "--url", url]
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    lines = [line.removeprefix(ANSWER) for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if not lines:
        raise RuntimeError(f"{peer.title} gave no answer: {(done.stdout + done.stderr).strip()[-1500:]}")
    told = json.loads(lines[-1])
    return Answer(steps / told["seconds"], told["settings"] | {"steps": f"{steps:,}"})
