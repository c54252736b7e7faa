"""How do jobs and steps look as tables and pages of a terminal? All of their text is cleaned."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from choreography_ray.display.words import (
    attempt_of,
    done_of,
    elapsed,
    facts_of,
    failure_line,
    format_duration,
    labels_of,
    moment,
)
from choreography_ray.model import JobRecord, JobStatus, JobStepStatus, Progress, StageProgress, StepRecord
from choreography_ray.plain import clean

PLAIN_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""
LEAST_COLUMN = 12
"""Columns that a text of any length must have to be readable, folded."""

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


def console_for(stream: TextIO | None = None) -> Console:
    """A console that reads no markup. To anything but a terminal it writes wide, so that nothing is cut off."""
    target = stream or sys.stdout
    width = None if target.isatty() else PLAIN_WIDTH
    return Console(file=target, width=width, markup=False, emoji=False, highlight=False)


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
            cell(labels_of(record)),
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
            Text(attempt_of(step)),
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
    for name, value in facts_of(record):
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
    return Text(str(status), style=_STYLES.get(status, ""))
