"""Which words tell of jobs and steps? What terminal and notebook have in common: texts, numbers, durations.

Whatever a user's code can put into a record (ids, labels, messages) is shown as text and never as markup or as a
control sequence of the terminal: `clean` is applied to all of it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from choreography_ray.model import AttemptRecord, JobRecord, JobStepStatus, StageProgress, StepRecord
from choreography_ray.plain import clean


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


def moment(at: datetime) -> str:
    """A moment in local time, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def failure_text(failure: AttemptRecord) -> str:
    """A failure on one line."""
    return clean(f"{failure.error_type}: {failure.message}".strip(": "), 300)


def attempt_of(step: StepRecord) -> str:
    """The number of a step's attempt; nothing where nobody knows it."""
    return "" if step.status is JobStepStatus.COMPLETED_SUCCESSFULLY else str(step.attempt)


def failure_line(step: StepRecord) -> str:
    """The last failure of a step on one line; empty when there is none."""
    return "" if step.failure is None else failure_text(step.failure)


def troubles(counts: StageProgress) -> str:
    """What did not succeed, in numbers; empty when all did."""
    named = (("failed", counts.failed), ("stopped", counts.stopped), ("unreachable", counts.unreachable))
    return "".join(f", {number} {name}" for name, number in named if number)


def labels_of(record: JobRecord) -> str:
    """Its labels on one line."""
    return " ".join(f"{key}={value}" for key, value in sorted(record.labels.items()))


def _share_of_document(record: JobRecord) -> str:
    """How much of what they may take request and state take [S12.4]."""
    used, most = record.document_bytes, record.max_document_bytes
    near = ", near the limit" if record.is_nearly_full else ""
    return f"{format_size(used)} of {format_size(most)} ({used / most:.0%}{near})" if most else ""


def facts_of(record: JobRecord) -> list[tuple[str, str]]:
    """What there is to tell of a job beside its steps, each with a name; cleaned."""
    facts = [
        ("job", record.job_id),
        ("type", record.type_name),
        ("status", str(record.status)),
        ("details", record.details),
        ("request and state", _share_of_document(record)),
        ("labels", labels_of(record)),
        ("created", moment(record.created_at)),
        ("took", format_duration(elapsed(record))),
        ("start error", record.start_error or ""),
        ("error", record.error),
        ("actor", record.actor_name),
    ]
    return [(name, clean(value)) for name, value in facts if value]
