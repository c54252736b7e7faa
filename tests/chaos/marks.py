"""What did the bodies and hooks really do? They tell it outside the framework: the witness of the chaos tests.

Two kinds of evidence. Locks of the kernel, which it lets go with the process whatever ends it: a body holds the lock
of its step, and one of as many as there are slots. And lines added to a file, each whole or not at all, with the clock
that all processes of the machine share and that goes on while it sleeps.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Mark(NamedTuple):
    """`event` is plan, begin, end, fail, twice, over, told; `at` is seconds of CLOCK_BOOTTIME."""

    event: str
    job: str
    step: str
    stage: int
    attempt: int
    pid: int
    at: float


def mark(folder: str, event: str, job: str, step: str = "", stage: int = 0, attempt: int = 0) -> None:
    """Add a line."""
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    line = json.dumps(Mark(event, job, step, stage, attempt, os.getpid(), at)) + "\n"
    descriptor = os.open(f"{folder}/marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _try_lock(path: str) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def witnessed(folder: str, slots: int, job: str, step: str, stage: int, attempt: int) -> Iterator[None]:
    """A body at work. Marks `twice` when another body of the step is at work, `over` when `slots` bodies are."""
    held: list[int] = []
    mine = _try_lock(f"{folder}/locks/{job}-{step}")
    if mine is None:
        mark(folder, "twice", job, step, stage, attempt)
    else:
        held.append(mine)
    for n in range(slots):
        slot = _try_lock(f"{folder}/locks/slot-{n}")
        if slot is not None:
            held.append(slot)
            break
    else:
        mark(folder, "over", job, step, stage, attempt)
    mark(folder, "begin", job, step, stage, attempt)
    try:
        yield
    except BaseException:
        mark(folder, "fail", job, step, stage, attempt)
        raise
    else:
        mark(folder, "end", job, step, stage, attempt)
    finally:
        for descriptor in held:
            os.close(descriptor)


class Witness:
    """The marks of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "locks").mkdir(parents=True, exist_ok=True)

    def marks(self, *events: str, job: str | None = None) -> list[Mark]:
        """What was marked, in the order of time."""
        path = self.folder / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        found = (Mark(*json.loads(line)) for line in lines)
        wanted = [m for m in found if (not events or m.event in events) and job in {None, m.job}]
        return sorted(wanted, key=lambda m: m.at)

    def count(self, *events: str, job: str | None = None) -> int:
        """How many of these marks there are."""
        return len(self.marks(*events, job=job))

    def pids(self, job: str | None = None) -> set[int]:
        """Every process that ever marked anything."""
        return {m.pid for m in self.marks(job=job)}

    def check(self, job: str) -> None:
        """No two bodies of a step at once, never more than slots, no stage early, no attempt before the one before."""
        seen = self.marks(job=job)
        assert [m for m in seen if m.event == "twice"] == [], "two bodies of one step were at work at once"
        assert [m for m in seen if m.event == "over"] == [], "more bodies than slots were at work at once"
        plans = [m for m in seen if m.event == "plan"]
        assert len(plans) <= 1, "the job was planned twice"
        self._check_stages(seen)
        self._check_attempts(seen)

    def _check_stages(self, seen: list[Mark]) -> None:
        stages = sorted({m.stage for m in seen if m.event == "begin"})
        for earlier, later in pairwise(stages):
            begins = min(m.at for m in seen if m.event == "begin" and m.stage == later)
            early = [m for m in seen if m.event in {"begin", "end", "fail"} and m.stage == earlier and m.at > begins]
            assert early == [], f"stage {later} began while {earlier} was at work"
            told = {m.step for m in seen if m.event == "told" and m.stage == earlier and m.at < begins}
            done = {m.step for m in seen if m.event == "begin" and m.stage == earlier}
            assert done <= told, f"stage {later} began before the hooks of {earlier} had run"

    def _check_attempts(self, seen: list[Mark]) -> None:
        failed = {(m.step, m.attempt) for m in seen if m.event == "fail"}
        for m in seen:
            if m.event == "begin" and m.attempt > 1:
                assert (m.step, m.attempt - 1) in failed, f"attempt {m.attempt} of {m.step} follows no failure"

    def repeated(self, job: str) -> int:
        """How many bodies were performed beyond the first of their attempt: what the kills cost."""
        begins = Counter((m.step, m.attempt) for m in self.marks("begin", job=job))
        return sum(count - 1 for count in begins.values())
