"""Which processes belong to a cluster under test, and how is one of them killed, paused, woken or started again?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process, told from any later one of the same id by `began`, in clock ticks since the machine started."""

    pid: int
    began: int
    parent: int
    state: str
    command: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it calls itself: Ray's workers say what they are."""
        return " ".join(self.command).strip()

    @property
    def is_running(self) -> bool:
        """False also for one that only waits to be reaped."""
        now = _read(self.pid)
        return now is not None and now.began == self.began

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when it was gone."""
        if not self.is_running:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> bool:
        """End it as a crash does; False when it was gone."""
        return self.send(signal.SIGKILL)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stopped within, as a machine that hangs; it goes on afterwards."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def await_end(self, seconds: float = 20.0) -> None:
        """Wait until it is gone; it need not be our child, so nothing tells."""
        await_true(lambda: not self.is_running, seconds, f"{self.title[:60]} ({self.pid}) ends")


class Recipe(NamedTuple):
    """How a process was started, kept from while it ran."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str

    @classmethod
    def of(cls, process: Process) -> Recipe:
        """Read it from a live process."""
        here = Path("/proc") / str(process.pid)
        pairs = (here / "environ").read_bytes().decode(errors="replace").split("\0")
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        return cls(tuple(part for part in process.command if part), environment, str((here / "cwd").readlink()))

    def start(self, log: Path) -> subprocess.Popen[bytes]:
        """Start it once more."""
        with log.open("ab") as out:
            return subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def running() -> dict[int, Process]:
    """Every process of the machine that is not merely waiting to be reaped."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return {pid: found for pid in pids if (found := _read(pid)) is not None}


def descendants(roots: Iterable[int], among: dict[int, Process]) -> list[Process]:
    """What these processes started, and what that started."""
    found: list[Process] = []
    parents = set(roots)
    while level := [each for each in among.values() if each.parent in parents and each.pid not in parents]:
        level = [each for each in level if each not in found]
        if not level:
            break
        found += level
        parents = {each.pid for each in level}
    return found


def _read(pid: int) -> Process | None:
    here = Path("/proc") / str(pid)
    try:
        # The name in parentheses may hold anything, so count from its end.
        fields = (here / "stat").read_text(errors="replace").rpartition(")")[2].split()
        command = (here / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, IndexError):
        return None
    if fields[0] in {"Z", "X"}:
        return None
    return Process(pid, int(fields[19]), int(fields[1]), fields[0], tuple(command))


def await_true(holds: Callable[[], object], seconds: float, what: str, every: float = 0.1) -> None:
    """Ask again until it holds; what is awaited here has no event of its own."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(every)
