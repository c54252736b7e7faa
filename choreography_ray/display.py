"""How jobs and steps look to people: tables, a live bar in terminals and notebooks, plain lines everywhere else.

Whatever a user's code can put into a record (ids, labels, messages) is shown as text and never as markup or as a
control sequence of the terminal: `clean` is applied to all of it.
"""

from __future__ import annotations

import html
import sys
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from choreography_ray.model import (
    AttemptRecord,
    JobRecord,
    JobStatus,
    JobStepStatus,
    Progress,
    StageProgress,
    StepRecord,
)

PLAIN_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""
LEAST_COLUMN = 12
"""Columns that a text of any length must have to be readable, folded."""
SHOWN_FAILURES = 20
"""Failures that a live view tells one by one; further ones are only counted."""
SHOWN_STAGES = 10
"""Stages that a live view has a bar for; the others are folded into one line."""
RATE_WINDOW = 30.0
"""Seconds over which the rate is measured."""
PLAIN_INTERVAL = 5.0
"""Seconds between two plain lines that tell nothing but progress."""

_SHORT_COLUMNS = {
    "#",
    "stage",
    "steps",
    "status",
    "attempt",
    "failed",
    "created",
    "took",
    "when",
    "due",
    "until",
    "began",
}
_STYLES: dict[str, str] = {
    JobStatus.COMPLETED_SUCCESSFULLY: "green",
    JobStatus.COMPLETED_WITH_FAILURES: "yellow",
    JobStatus.FAILED: "red",
    JobStatus.STOPPED: "magenta",
    JobStatus.REMOVING: "magenta",
    JobStatus.RUNNING: "cyan",
    JobStepStatus.COMPLETED_WITH_FAILURE: "red",
    JobStepStatus.AWAITING_RETRY: "yellow",
    JobStepStatus.UNREACHABLE: "yellow",
}


def clean(text: str, limit: int = 2000) -> str:
    """`text` on one line without control, format and surrogate characters; cut with an ellipsis after `limit`."""
    cut = text[: limit + 1]
    shown = "".join(
        " " if character in "\n\r\t" else "" if unicodedata.category(character) in {"Cc", "Cf", "Cs"} else character
        for character in cut
    )
    return shown if len(cut) <= limit else shown[: limit - 1] + "…"


def console_for(stream: TextIO | None = None) -> Console:
    """A console that reads no markup. To anything but a terminal it writes wide, so that nothing is cut off."""
    target = stream or sys.stdout
    width = None if target.isatty() else PLAIN_WIDTH
    return Console(file=target, width=width, markup=False, emoji=False, highlight=False)


def done_of(counts: StageProgress) -> int:
    """Steps that are settled: final, or stopped."""
    return counts.succeeded + counts.failed + counts.stopped + counts.unreachable


def format_duration(duration: timedelta | float) -> str:
    """A duration for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    seconds = max(0.0, duration.total_seconds() if isinstance(duration, timedelta) else duration)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, part, part_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part_size
            return f"{whole // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def format_size(size: int) -> str:
    """Bytes for people: `812 B`, `3.1 KiB`, `16.0 MiB`."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 1024**2 else f"{size / 1024**2:.1f} MiB"


def elapsed(record: JobRecord, now: datetime | None = None) -> timedelta:
    """From the job's creation to its last change of status; to now while it works."""
    if record.status.is_interruptible:
        return (now or datetime.now(UTC)) - record.created_at
    return (record.history[-1].at if record.history else record.updated_at) - record.created_at


def job_table(records: Iterable[JobRecord]) -> Table:
    """A row per job."""
    table = table_of("job", "type", "status", "steps", "failed", "created", "took", "labels")
    for record in records:
        counts = record.progress
        table.add_row(
            cell(record.job_id),
            cell(record.type_name),
            status_text(record.status),
            f"{done_of(counts)}/{counts.total}",
            str(counts.failed) if counts.failed else "",
            moment(record.created_at),
            format_duration(elapsed(record)),
            cell(_labels(record)),
        )
    return table


def step_table(steps: Iterable[StepRecord]) -> Table:
    """A row per step, with its last failure. A column that would be empty is left out."""
    columns = ("#", "step", "name", "type", "stage", "status", "attempt", "due", "host", "failure")
    rows = [
        (
            Text(str(step.ordinal)),
            cell(step.step_id),
            cell(step.name),
            cell(step.step_type),
            Text(str(step.stage)),
            status_text(step.status),
            Text(str(step.attempt)),
            Text("" if step.retry_due is None else moment(step.retry_due)),
            cell(step.host or ""),
            Text(failure_line(step)),
        )
        for step in steps
    ]
    is_used = [any(cells) for cells in zip(*rows, strict=True)] if rows else [True] * len(columns)
    table = table_of(*(name for name, is_shown in zip(columns, is_used, strict=True) if is_shown))
    for row in rows:
        table.add_row(*(cell for cell, is_shown in zip(row, is_used, strict=True) if is_shown))
    return table


def stage_table(progress: Progress) -> Table:
    """A row per stage in the order in which they run, and one for the whole job."""
    table = table_of("stage", "steps", "succeeded", "failed", "stopped", "unreachable")
    for stage, counts in sorted(progress.stages.items()):
        table.add_row(str(stage), *_counts(counts))
    if len(progress.stages) != 1:
        table.add_row("all", *_counts(progress))
    return table


def job_view(record: JobRecord) -> RenderableType:
    """All that a record tells, as a page."""
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(record):
        facts.add_row(Text(name, style="bold"), status_text(record.status) if name == "status" else cell(value))
    history = table_of("when", "status", "why")
    for entry in record.history:
        history.add_row(moment(entry.at), status_text(entry.status), cell(entry.why))
    return Group(facts, Text(), stage_table(record.progress), Text(), history)


def summary(record: JobRecord) -> Text:
    """One line: what became of the job, in numbers."""
    counts = record.progress
    parts = [f"{counts.succeeded} of {counts.total} steps succeeded"]
    for name, number in (
        ("failed", counts.failed),
        ("stopped", counts.stopped),
        ("unreachable", counts.unreachable),
    ):
        if number:
            parts.append(f"{number} {name}")
    parts.append(format_duration(elapsed(record)))
    told = Text.assemble(status_text(record.status), f"  {clean(record.type_name)} {clean(record.job_id)}: ")
    told.append(", ".join(parts))
    if record.error:
        told.append(f": {clean(record.error)}", style="red")
    return told


def failure_line(step: StepRecord) -> str:
    """The last failure of a step on one line; empty when there is none."""
    return "" if step.failure is None else failure_text(step.failure)


def repr_html(record: JobRecord) -> str:
    """The record as HTML for a notebook: facts, and a bar per stage. All text is escaped."""
    rows = "".join(f"<tr><th>{_html(name)}</th><td>{_html(value)}</td></tr>" for name, value in _facts(record))
    stages = sorted(record.progress.stages.items())
    bars = "".join(
        f"<tr><th>{_html(name)}</th><td><progress max={max(counts.total, 1)} value={done_of(counts)}></progress>"
        f" {done_of(counts)}/{counts.total}{_html(troubles(counts))}</td></tr>"
        for name, counts in ((f"stage {stage}", counts) for stage, counts in stages)
    )
    return f"<table>{rows}{bars}</table>"


def plain_html(text: str) -> str:
    """A line of text as HTML; nothing in it is markup."""
    return f"<pre>{_html(text)}</pre>"


class Rate:
    """Steps per second over the last `RATE_WINDOW`, and what that means for the rest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, done: int) -> None:
        """Take note that `done` steps are settled now."""
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > RATE_WINDOW:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """Zero until something was settled while it was watched."""
        (began, before), (ended, after) = self._seen[0], self._seen[-1]
        return max(0, after - before) / (ended - began) if ended > began else 0.0

    def seconds_for(self, steps: int) -> float | None:
        """How long `steps` more will take at this rate; None when there is none to go by."""
        rate = self.per_second
        return steps / rate if rate else None


class LiveProgress:
    """Shows a job while it runs: feed it the latest record.

    In a terminal or a notebook it is a display that redraws itself: a bar per stage, the rate, the time left, and
    above it each new failure. Anywhere else it writes a line when the status or the stage changes, for each new
    failure, and now and then in between. The context manager restores the terminal whatever happens inside.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or console_for(sys.stderr)
        self._clock = clock
        self._rate = Rate(clock)
        is_live = self._console.is_terminal or self._console.is_jupyter
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


def shown_stages(record: JobRecord) -> list[tuple[int | None, StageProgress]]:
    """At most `SHOWN_STAGES` stages around the one that the job has reached; the sum of the others under None."""
    stages = sorted(record.progress.stages.items())
    if len(stages) <= SHOWN_STAGES:
        return list(stages)
    reached = sum(1 for stage, _ in stages if record.stage is not None and stage < record.stage)
    first = max(0, min(reached - SHOWN_STAGES // 2, len(stages) - SHOWN_STAGES))
    shown, others = stages[first : first + SHOWN_STAGES], stages[:first] + stages[first + SHOWN_STAGES :]
    folded = StageProgress(
        total=sum(counts.total for _, counts in others),
        succeeded=sum(counts.succeeded for _, counts in others),
        failed=sum(counts.failed for _, counts in others),
        stopped=sum(counts.stopped for _, counts in others),
        unreachable=sum(counts.unreachable for _, counts in others),
    )
    return [*shown, (None, folded)]


def _share_of_document(record: JobRecord) -> str:
    """How near the job's document is to what the store takes [S12.4]."""
    used, most = record.document_bytes, record.max_document_bytes
    return f"{format_size(used)} of {format_size(most)} ({used / most:.0%})" if most else ""


def _facts(record: JobRecord) -> list[tuple[str, str]]:
    facts = [
        ("job", record.job_id),
        ("type", record.type_name),
        ("status", str(record.status)),
        ("details", record.details),
        ("document", _share_of_document(record)),
        ("labels", _labels(record)),
        ("created", moment(record.created_at)),
        ("took", format_duration(elapsed(record))),
        ("start error", record.start_error or ""),
        ("error", record.error),
        ("actor", record.actor_name),
    ]
    return [(name, clean(value)) for name, value in facts if value]


def failure_text(failure: AttemptRecord) -> str:
    """A failure on one line."""
    return clean(f"{failure.error_type}: {failure.message}".strip(": "), 300)


def troubles(counts: StageProgress) -> str:
    """What did not succeed, in numbers; empty when all did."""
    named = (("failed", counts.failed), ("stopped", counts.stopped), ("unreachable", counts.unreachable))
    return "".join(f", {number} {name}" for name, number in named if number)


def _labels(record: JobRecord) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(record.labels.items()))


def _counts(counts: StageProgress) -> tuple[str, ...]:
    numbers = (counts.total, counts.succeeded, counts.failed, counts.stopped, counts.unreachable)
    return tuple(str(number) for number in numbers)


class FittingTable(Table):
    """A table where it fits; where columns would be squeezed until nothing can be read, each row as a list of lines."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wanted = sum(self._least(column) + 2 for column in self.columns)
        if wanted <= options.max_width or not self.row_count:
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*(column.cells for column in self.columns), strict=True):
            lines = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1))
            for column, told in zip(self.columns, row, strict=True):
                if str(told):
                    lines.add_row(Text(str(column.header), style="bold"), told)
            yield Padding(lines, (0, 0, 1, 0))

    def _least(self, column: Column) -> int:
        widest = max((len(str(told)) for told in (column.header, *column.cells)), default=0)
        return widest if column.no_wrap else min(widest, LEAST_COLUMN)


def table_of(*columns: str) -> Table:
    """An empty table. Free text is folded to fit; what has a known, short form is not."""
    table = FittingTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in _SHORT_COLUMNS)
    return table


def cell(text: str) -> Text:
    """Anybody's text, cleaned."""
    return Text(clean(text))


def status_text(status: JobStatus | JobStepStatus) -> Text:
    """A status in its colour."""
    return Text(status.value, style=_STYLES.get(status, ""))


def moment(at: datetime) -> str:
    """A moment in local time, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _html(text: str) -> str:
    return html.escape(clean(text))
