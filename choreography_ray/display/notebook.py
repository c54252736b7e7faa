"""How do jobs and steps look in a notebook? As HTML that is bounded, whatever the job's size, and fits any theme."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from choreography_ray.display.html import (
    Content,
    bar,
    code,
    folded,
    grid,
    lines,
    muted,
    status_mark,
    table,
    tag,
    to_html,
)
from choreography_ray.display.live import shown_stages
from choreography_ray.display.timeline import timeline_html
from choreography_ray.display.words import (
    attempt_of,
    done_of,
    elapsed,
    facts_of,
    failure_line,
    failure_text,
    format_duration,
    labels_of,
    moment,
    troubles,
)
from choreography_ray.model import (
    AttemptRecord,
    Explanation,
    JobRecord,
    JobStatus,
    Progress,
    StageProgress,
    StepOutput,
    StepRecord,
    Timeline,
    Verification,
)
from choreography_ray.plain import clean

PAGE_ROWS = 100
"""Rows of a list that are shown at once: a slice of it shows others."""


def job_html(record: JobRecord, failures: Sequence[StepRecord] = ()) -> str:
    """A job as one page: what it is, where it stands stage by stage, why steps failed, and what can be done next."""
    parts: list[Content] = [_facts(record), stage_bars(record)]
    if failures:
        more = record.progress.failed - len(failures)
        told = [folded(failed_step_line(step), *_attempts(step)) for step in failures]
        rest = [muted(f"and {more} more: job.steps(JobStepStatus.COMPLETED_WITH_FAILURE)")] if more > 0 else []
        parts.append(folded(f"{record.progress.failed} failed steps", *told, *rest))
    if record.options:
        options = table(("option", "value"), sorted(record.options.items()))
        parts.append(folded("options that differ from the defaults", options))
    history = [(moment(entry.at), status_mark(entry.status), entry.why) for entry in record.history]
    parts.append(folded("history", table(("when", "status", "why"), history)))
    parts.append(_advice(record))
    return to_html(*parts)


def _facts(record: JobRecord) -> Content:
    rows: list[tuple[str, Content]] = [
        (name, status_mark(record.status) if name == "status" else value) for name, value in facts_of(record)
    ]
    return grid(rows)


def stage_bars(record: JobRecord) -> Content:
    """A bar for each stage, or for those around the one that the job has reached."""
    return _bars(
        ("other stages" if stage is None else f"stage {stage}", counts) for stage, counts in shown_stages(record)
    )


def _bars(named: Iterable[tuple[str, StageProgress]]) -> Content:
    """Bars between their names and their numbers."""
    return grid((name, bar(counts), _numbers(counts)) for name, counts in named)


def _numbers(counts: StageProgress) -> str:
    return f"{done_of(counts)}/{counts.total}{troubles(counts)}"


def _advice(record: JobRecord) -> Content:
    """What somebody who has the handle may want to do, by where the job stands."""
    next_calls: Sequence[tuple[str, str]]
    if record.status.is_interruptible:
        next_calls = (("follow it", "job.wait()"), ("what it waits for", "job.explain()"), ("end it", "job.stop()"))
    elif record.status is JobStatus.STOPPED:
        next_calls = (("go on", "job.resume()"), ("delete it", "job.remove()"))
    elif record.status is JobStatus.REMOVING:
        next_calls = (("wait until it is gone", "job.remove()"),)
    elif record.status is JobStatus.COMPLETED_WITH_FAILURES:
        next_calls = (("its steps", "job.steps()"),)
        if len(record.progress.stages) <= 1:  # of a job with stages no step runs again [S7.3]
            next_calls += (("run the failed ones again, if the job allows it", "job.retry_failed_steps()"),)
    else:
        next_calls = (("its steps", "job.steps()"), ("when what happened", "job.timeline()"))
    told = [part for what, call in next_calls for part in (f"{what} ", code(call), " \u00a0 ")]
    return tag("div", *told, style="opacity:.8;margin:4px 0")


def text_html(text: str) -> str:
    """A line of text; nothing in it is markup."""
    return to_html(lines(text))


def steps_html(steps: Sequence[StepRecord]) -> str:
    """A page of steps, each failure with its attempts."""
    shown = steps[:PAGE_ROWS]
    rows = [
        (
            str(step.ordinal),
            step.step_id,
            step.name,
            step.step_type.rpartition(":")[2],
            str(step.stage),
            status_mark(step.status),
            attempt_of(step),
            "" if step.retry_due is None else moment(step.retry_due),
            step.host or "",
            _failure(step),
        )
        for step in shown
    ]
    columns = ("#", "step", "name", "type", "stage", "status", "attempt", "due", "host", "failure")
    return to_html(table(columns, rows), *_others(len(shown), len(steps), "steps"))


def _others(shown: int, total: int, what: str) -> list[Content]:
    if not total:
        return [muted(f"no {what}")]
    if shown == total:
        return []
    page = code(f"{what}[{shown}:{shown + PAGE_ROWS}]")
    return [tag("div", f"{shown} of {total} {what}; the next: ", page, style="opacity:.8;margin:4px 0")]


def _failure(step: StepRecord) -> Content:
    return "" if step.failure is None else folded(failure_line(step), *_attempts(step))


def step_html(step: StepRecord) -> str:
    """A step with everything that is known of its attempts."""
    rows: list[tuple[str, Content]] = [
        ("step", step.step_id),
        ("name", step.name),
        ("type", step.step_type),
        ("number", str(step.ordinal)),
        ("stage", str(step.stage)),
        ("status", status_mark(step.status)),
        ("attempt", attempt_of(step)),
        ("due", "" if step.retry_due is None else moment(step.retry_due)),
        ("host", step.host or ""),
    ]
    return to_html(grid(rows), *_attempts(step))


def failed_step_line(step: StepRecord) -> str:
    """A failed step and why, on one line."""
    return f"{clean(step.name or step.step_id, 80)} (attempt {step.attempt}): {failure_line(step)}"


def _attempts(step: StepRecord) -> list[Content]:
    known = step.attempts or ((step.failure,) if step.failure else ())
    rows = [
        (
            str(one.attempt),
            moment(one.began_at) if one.began_at else "",
            _took(one),
            clean(one.node, 12),
            str(one.pid or ""),
            folded(failure_text(one), lines(one.traceback)) if one.traceback else failure_text(one),
        )
        for one in known
    ]
    return [table(("attempt", "began", "took", "node", "process", "failure"), rows)] if rows else []


def _took(one: AttemptRecord) -> str:
    return format_duration(one.ended_at - one.began_at) if one.began_at and one.ended_at else ""


def jobs_html(records: Sequence[JobRecord], now: datetime | None = None) -> str:
    """A row per job."""
    shown = records[:PAGE_ROWS]
    rows = [
        (
            record.job_id,
            record.type_name,
            status_mark(record.status),
            bar(record.progress, 100),
            _numbers(record.progress),
            moment(record.created_at),
            format_duration(elapsed(record, now)),
            labels_of(record),
        )
        for record in shown
    ]
    columns = ("job", "type", "status", "", "steps", "created", "took", "labels")
    return to_html(table(columns, rows), *_others(len(shown), len(records), "jobs"))


def progress_html(progress: Progress) -> str:
    """The counts of a job, stage by stage."""
    stages = [(f"stage {stage}", counts) for stage, counts in sorted(progress.stages.items())[:PAGE_ROWS]]
    return to_html(_bars([*stages, ("all", progress)]))


def explanation_html(found: Explanation) -> str:
    """For what the steps of a job wait, by reason."""
    parts: list[Content] = [tag("div", tag("b", found.job_id), " ", status_mark(found.status), f": {found.told}")]
    if found.trouble:
        parts.append(tag("div", f"the store does not take its writes: {found.trouble}"))
    if found.running:
        parts.append(tag("div", f"{found.running} steps run"))
    rows = [
        (
            str(one.steps),
            one.reason.value,
            one.told,
            "" if one.due is None else moment(one.due),
            ", ".join(clean(step_id, 60) for step_id in one.examples),
        )
        for one in found.waiting
    ]
    if rows:
        parts.append(table(("steps", "wait for", "because", "until", "such as"), rows))
    return to_html(*parts)


def verification_html(found: Verification) -> str:
    """What a verification found."""
    told = f"{found.job_id}: {found.status or 'no such job'}, {found.recount.total} steps recounted, "
    told += "ok" if found.is_ok else f"{found.errors} errors"
    rows = [
        (
            f"{one.kind.value}{' (debris)' if one.is_debris else ''}",
            "" if one.ordinal is None else str(one.ordinal),
            one.step_id or "",
            one.stored,
            one.expected,
        )
        for one in found.findings[:PAGE_ROWS]
    ]
    parts: list[Content] = [tag("div", told)]
    if rows:
        parts.append(table(("what", "#", "step", "stored", "should be"), rows))
    parts += [muted(f"not told for certain: {what}") for what in found.unchecked]
    return to_html(*parts)


def output_html(found: StepOutput) -> str:
    """What a step's process printed, and where it ran."""
    where = f", {found.host}, node {clean(found.node, 12)}, process {found.pid}" if found.host else ""
    parts: list[Content] = [tag("b", f"step {found.step_id}{where}")]
    if found.told:
        parts.append(muted(found.told))
    for name, text in (("printed", found.out), ("errors and logs", found.err)):
        if text:
            parts.append(folded(name, lines(text)))
    return to_html(*parts)


VIEWS: Mapping[type, Callable[[Any], str]] = {
    JobRecord: job_html,
    StepRecord: step_html,
    Progress: progress_html,
    Explanation: explanation_html,
    Verification: verification_html,
    StepOutput: output_html,
    Timeline: timeline_html,
}
"""How a notebook shows what handles return."""
