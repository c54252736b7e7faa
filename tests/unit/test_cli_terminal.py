"""What does a person at a terminal see of the commands: wide, narrow, without colour, and after Ctrl-C?

The program runs on a pseudo-terminal of its own; jobs come from a script of records instead of a store.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from choreography_ray.display import clean

PROGRAM = """
import fcntl, signal, sys, termios, threading
from datetime import UTC, datetime
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches us
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a script

from choreography_ray import display
from choreography_ray.cli import main
from choreography_ray.cli.connection import Connection
from choreography_ray.model import *

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

def record(status, done, failed=0, stage=0):
    def part(total, done, failed=0):
        return StageProgress(total=total, succeeded=done - failed, failed=failed)
    stages = {0: part(10, min(done, 10), failed), 10: part(20, max(done - 10, 0))}
    counts = part(30, done, failed)
    return JobRecord(job_id=JobId("nightly"), type_name="shop.RebuildIndex", status=status, stage=stage,
        progress=Progress(total=30, succeeded=counts.succeeded, failed=failed, stages=stages),
        created_at=NOW, updated_at=NOW)

FAILURE = StepRecord(step_id=StepId("shard-7"), ordinal=7, status=JobStepStatus.COMPLETED_WITH_FAILURE,
    failure=AttemptRecord(attempt=1, error_type="ValueError", message="no such shard " * 6))
RUN = [record(JobStatus.RUNNING, 0), record(JobStatus.RUNNING, 8, 1), record(JobStatus.RUNNING, 20, 1, 10)]
END = record(JobStatus.COMPLETED_WITH_FAILURES, 30, 1, 10)

class Handle:
    job_id = "nightly"
    def __init__(self, waits): self.waits = waits
    def status(self): return JobStatus.COMPLETED_WITH_FAILURES
    def record(self): return END
    def steps(self, status, take): return [FAILURE]
    def wait(self, timeout, progress):
        with display.live_view() as live:
            for each in RUN:
                live.update(each, [FAILURE] if each.progress.failed else [])
            if self.waits:
                threading.Event().wait()
            live.update(END)
        return END

class Client:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def job(self, job_id): return Handle(job_id == "endless")

Connection.open = lambda self, *, with_ray, resumes=True: Client()
sys.exit(main(sys.argv[1:]))
"""
PROMISED_SECONDS = 60
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7]|38|4[0-7])\b[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A program on a pseudo-terminal of so many columns."""

    def __init__(self, folder: Path, *arguments: str, columns: int, **environment: str) -> None:
        (folder / "program.py").write_text(PROGRAM)
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, columns))
        kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "FORCE_COLOR"}}
        self._process = subprocess.Popen(
            [sys.executable, "program.py", *arguments],
            cwd=folder,
            env={**kept, "TERM": "xterm-256color", "PYTHONPATH": str(Path.cwd()), **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def read_until(self, wanted: str) -> None:
        """Read until something is on the screen."""
        until = time.monotonic() + PROMISED_SECONDS
        while wanted not in self.text:
            assert time.monotonic() < until, self.text
            self._read()

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self._process.wait(PROMISED_SECONDS)

    @property
    def lines(self) -> list[str]:
        """What was written, without what moves the cursor or sets a colour."""
        return [clean(CONTROL.sub("", line)) for line in re.split(r"[\r\n]+", self.text)]

    def _read(self) -> bool:
        assert select.select([self._ours], [], [], PROMISED_SECONDS)[0], f"nothing more came after {self.text}"
        try:
            read = os.read(self._ours, 65_536)
        except OSError:  # Linux's word for: nobody holds the other end
            return False
        self.text += read.decode(errors="replace")
        return bool(read)


def test_a_watch_shows_stages_bars_rate_and_failures_as_they_come(tmp_path: Path) -> None:
    screen = Screen(tmp_path, "watch", "nightly", columns=120)
    assert screen.end() == 3
    shown = "\n".join(screen.lines)
    for told in ("stage 0", "stage 10", "━━━━", "8/10", "20/30 steps (66 %)", "/s", "left", "1 failed"):
        assert told in shown
    assert shown.index("failed: shard-7 (attempt 1): ValueError") < shown.index("20/30 steps")
    assert COLOUR.search(screen.text)
    assert screen.text.rindex("\x1b[?25h") > screen.text.rindex("\x1b[?25l"), "the cursor is back"


@pytest.mark.parametrize("arguments", [["watch", "nightly"], ["steps", "nightly"], ["show", "nightly"]])
def test_a_narrow_terminal_without_colour_wraps_nothing_and_loses_nothing(tmp_path: Path, arguments: list[str]) -> None:
    screen = Screen(tmp_path, *arguments, columns=50, NO_COLOR="1")
    screen.end()
    assert max(len(line) for line in screen.lines) <= 50
    assert not COLOUR.search(screen.text)
    for told in ("shard-7", "ValueError", "COMPLETED_WITH_FAILURE"):
        assert told in screen.text


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path: Path) -> None:
    screen = Screen(tmp_path, "watch", "nightly", columns=80, TERM="dumb")
    assert screen.end() == 3
    assert "\x1b" not in screen.text
    assert "RUNNING" in screen.text


def test_ctrl_c_leaves_the_job_alone_and_says_how_to_follow_it(tmp_path: Path) -> None:
    screen = Screen(tmp_path, "watch", "endless", columns=100)
    screen.read_until("20/30 steps")
    screen.press(b"\x03")
    assert screen.end() == 130
    shown = " ".join(screen.lines)
    assert "interrupted; the job goes on" in shown
    assert "choreography watch nightly" in shown
    assert "Traceback" not in shown
    assert screen.text.rindex("\x1b[?25h") > screen.text.rindex("\x1b[?25l"), "the cursor is back"
