"""How does a job look in a terminal while it runs? A display that redraws itself; plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from choreography_ray.display.live import SHOWN_FAILURES, Rate, shown_stages
from choreography_ray.display.tables import console_for, status_text
from choreography_ray.display.words import done_of, failure_line, format_duration, troubles
from choreography_ray.model import JobRecord, JobStatus, StepRecord
from choreography_ray.plain import clean

PLAIN_INTERVAL = 5.0
"""Seconds between two plain lines that tell nothing but progress."""


class LiveProgress:
    """Shows a job while it runs: feed it the latest record.

    In a terminal that can move its cursor, or a notebook, it is a display that redraws itself: a bar per stage, the
    rate, the time left, and above it each new failure. Anywhere else it writes a line when the status or the stage
    changes, for each new failure, and now and then in between. The context manager restores the terminal
    whatever happens inside.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or console_for(sys.stderr)
        self._clock = clock
        self._rate = Rate(clock)
        is_live = self._console.is_jupyter or (self._console.is_terminal and not self._console.is_dumb_terminal)
        self._live = Live(console=self._console, auto_refresh=False, transient=False) if is_live else None
        self._failures_told: set[str] = set()
        self._last_line: tuple[JobStatus, int | None, int] | None = None
        self._last_line_at = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, record: JobRecord, failures: Sequence[StepRecord] = ()) -> None:
        """Show `record`, and those of `failures` that were not told before."""
        self._rate.observe(done_of(record.progress))
        for step in failures:
            self._tell_failure(step)
        if self._live:
            self._live.update(self._view(record), refresh=True)
        else:
            self._write_line(record)

    @property
    def failures_told(self) -> int:
        """How many failures were told one by one."""
        return len(self._failures_told)

    @property
    def wants_failures(self) -> bool:
        """False once enough were told: the caller may save itself reading them."""
        return self.failures_told < SHOWN_FAILURES

    def _tell_failure(self, step: StepRecord) -> None:
        if step.step_id in self._failures_told or not self.wants_failures:
            return
        self._failures_told.add(step.step_id)
        name = clean(step.name or step.step_id, 80)
        self._console.print(Text(f"failed: {name} (attempt {step.attempt}): {failure_line(step)}", style="red"))
        if self.failures_told == SHOWN_FAILURES:
            self._console.print(Text("further failures are only counted", style="red"))

    def _view(self, record: JobRecord) -> RenderableType:
        bars = Table.grid(padding=(0, 1))
        for stage, counts in shown_stages(record):
            bars.add_row(
                Text(f"stage {stage}" if stage is not None else "other stages"),
                ProgressBar(total=max(counts.total, 1), completed=done_of(counts), width=30),
                Text(f"{done_of(counts)}/{counts.total}"),
                Text(troubles(counts).removeprefix(", "), style="red"),
            )
        return Group(bars, self._headline(record))

    def _headline(self, record: JobRecord) -> Text:
        counts = record.progress
        line = Text.assemble(status_text(record.status))
        if record.stage is not None and record.status.is_interruptible and len(counts.stages) > 1:
            line.append(f"  stage {record.stage}")
        if counts.total:
            done = done_of(counts)
            line.append(f"  {done}/{counts.total} steps ({100 * done // counts.total} %)")
        if record.status.is_interruptible and self._rate.per_second:
            line.append(f"  {self._rate.per_second:.3g}/s")
            left = self._rate.seconds_for(counts.total - done_of(counts))
            if left:
                line.append(f"  about {format_duration(left)} left")
        line.append(troubles(counts).replace(", ", "  "), style="red")
        if record.error:
            line.append(f"  {clean(record.error, 300)}", style="red")
        return line

    def _write_line(self, record: JobRecord) -> None:
        now, seen = self._clock(), (record.status, record.stage, done_of(record.progress))
        last = self._last_line
        if seen == last or (last and seen[:2] == last[:2] and now - self._last_line_at < PLAIN_INTERVAL):
            return
        self._last_line, self._last_line_at = seen, now
        self._console.print(self._headline(record), soft_wrap=True)
