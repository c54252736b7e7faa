"""How do a verification, an explanation and a single step's failures look to people? All of their text is cleaned."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from choreography_ray.display import (
    attempt_of,
    cell,
    clean,
    failure_text,
    format_duration,
    moment,
    status_text,
    table_of,
    troubles,
)
from choreography_ray.model import Explanation, StepOutput, StepRecord, Verification


def verification_view(found: Verification) -> RenderableType:
    """What a verification found: a line, a row per finding, and what could not be told."""
    counts = found.recount
    told = Text(f"{clean(found.job_id)}: ")
    if found.status is None:
        told.append("no such job, and nothing is stored of it" if found.is_ok else "no such job, but records are left")
    else:
        told.append_text(status_text(found.status))
        told.append(f"  {counts.total} steps recounted" if counts.total else "  no steps to recount")
        told.append(troubles(counts))
    told.append("  ok" if found.is_ok else f"  {found.errors} errors", style="green" if found.is_ok else "red")
    if found.debris:
        told.append(f", {found.debris} pieces of debris, which nothing reads and which go with the job")
    parts: list[RenderableType] = [told]
    if found.findings:
        table = table_of("what", "#", "step", "stored", "should be")
        for one in found.findings:
            style = "" if one.is_debris else "red"
            number = "" if one.ordinal is None else str(one.ordinal)
            what = Text(f"{one.kind.value}{' (debris)' if one.is_debris else ''}", style=style)
            table.add_row(what, number, cell(one.step_id or ""), cell(one.stored), cell(one.expected))
        parts.append(table)
    if found.errors + found.debris > len(found.findings):
        parts.append(Text(f"and {found.errors + found.debris - len(found.findings)} more"))
    parts += [Text(f"not told for certain: {clean(what)}", style="yellow") for what in found.unchecked]
    return Group(*parts)


def explanation_view(found: Explanation) -> RenderableType:
    """For what the steps of a job wait: a line about the job, and a row per reason."""
    told = Text.assemble(f"{clean(found.job_id)}: ", status_text(found.status), f"  {clean(found.told)}")
    parts: list[RenderableType] = [told]
    if found.trouble:
        parts.append(Text(f"the store does not take its writes: {clean(found.trouble)}", style="red"))
    if found.running:
        parts.append(Text(f"{found.running} steps run"))
    if found.waiting:
        table = table_of("steps", "wait for", "because", "until", "such as")
        for one in found.waiting:
            until = "" if one.due is None else moment(one.due)
            examples = ", ".join(clean(step_id, 60) for step_id in one.examples)
            table.add_row(str(one.steps), one.reason.value, cell(one.told), until, Text(examples))
        parts.append(table)
    return Group(*parts)


def attempts_view(step: StepRecord) -> RenderableType:
    """All that is known of a step: a line, a row per attempt that failed, and the last traceback."""
    name = f" ({clean(step.name)})" if step.name else ""
    head = Text.assemble(f"step {clean(step.step_id)}{name}, number {step.ordinal}, stage {step.stage}: ")
    head.append_text(status_text(step.status))
    if attempt := attempt_of(step):
        head.append(f", attempt {attempt}")
    if step.retry_due is not None:
        head.append(f", due {moment(step.retry_due)}")
    if step.host:
        head.append(f", at {clean(step.host)}")
    parts: list[RenderableType] = [head]
    if step.attempts:
        table = table_of("attempt", "began", "took", "node", "process", "failure")
        for one in step.attempts:
            took = one.ended_at - one.began_at if one.began_at and one.ended_at else None
            table.add_row(
                str(one.attempt),
                moment(one.began_at) if one.began_at else "",
                "" if took is None else format_duration(took),
                clean(one.node, 12),
                str(one.pid or ""),
                Text(failure_text(one)),
            )
        parts.append(table)
        if step.attempts[0].attempt != 1 or len(step.attempts) < step.attempts[-1].attempt - step.attempts[0].attempt:
            parts.append(Text("of many attempts only the first and the latest are kept"))
    if step.failure is not None and step.failure.traceback:
        lines = (clean(line) for line in step.failure.traceback.rstrip().splitlines())
        parts.append(Text("\n".join(f"  {line}" for line in lines), style="dim"))
    return Group(*parts)


def output_view(found: StepOutput) -> RenderableType:
    """What a step's process printed, line by line, and where it ran."""
    where = f", {clean(found.host)}, node {clean(found.node, 12)}, process {found.pid}" if found.host else ""
    parts: list[RenderableType] = [Text(f"step {clean(found.step_id)}{where}", style="bold")]
    if found.told:
        parts.append(Text(clean(found.told), style="yellow"))
    for name, text in (("printed", found.out), ("errors and logs", found.err)):
        if text:
            parts += [Text(f"{name}:", style="bold"), Text("\n".join(clean(line) for line in text.splitlines()))]
    return Group(*parts)
