"""What a failed assertion prints of a job: its history, its steps with their attempts, and what happened last."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from choreography_ray.access.job import JobAccess
from choreography_ray.errors import JobNotFound
from choreography_ray.model import AttemptRecord, JobRecord, StepRecord
from choreography_ray.testing.cluster import EPOCH, Cluster

MAX_STEPS = 30
"""Steps that are told one by one."""
MAX_NOTES = 15
"""Things that happened that are told, the latest."""
_REGULAR = (" lease", ": an answer", " wants 0 slots")
"""How messages end that come all the time, unless something became of them: they are not told."""


async def story_of(cluster: Cluster, job: JobAccess) -> str:
    """All of it, as lines."""
    try:
        record = await job.record()
        steps = [step async for step in job.steps(take=MAX_STEPS)]
        lines = [*_of_job(record), *_of_steps(record, steps)]
    except JobNotFound:
        lines = [f"job {job.job_id!r} is not stored"]
    return "\n".join([*lines, *_of_cluster(cluster)])


def _at(when: datetime | None) -> str:
    """Time since the cluster began, as it reads best."""
    return "" if when is None else str(when - EPOCH)[:-3] if when.microsecond else str(when - EPOCH)


def _of_job(record: JobRecord) -> Iterator[str]:
    counts = record.progress
    yield f"job {record.job_id!r} ({record.type_name}): {record.status}"
    told = f"{counts.succeeded} succeeded, {counts.failed} failed, {counts.stopped} stopped"
    yield f"  of {counts.total} steps {told}, {counts.unreachable} unreachable"
    for entry in record.history:
        yield f"  {_at(entry.at)}  {entry.status}" + (f": {entry.why}" if entry.why else "")
    if record.error:
        yield f"  its last error: {record.error}"
    if record.start_error:
        yield f"  its start: {record.start_error}"


def _of_steps(record: JobRecord, steps: list[StepRecord]) -> Iterator[str]:
    for step in steps:
        due = f", due {_at(step.retry_due)}" if step.retry_due else ""
        yield f"  step {step.step_id!r}, stage {step.stage}: {step.status}, attempt {step.attempt}{due}"
        for attempt in step.attempts or ((step.failure,) if step.failure else ()):
            yield f"    {_of_attempt(attempt)}"
    if record.progress.total > len(steps) and steps:
        yield f"  ... and {record.progress.total - len(steps)} more steps"


def _of_attempt(attempt: AttemptRecord) -> str:
    message = attempt.message.split("\n", 1)[0][:200]
    when = f"{_at(attempt.began_at)} to {_at(attempt.ended_at)}"
    return f"attempt {attempt.attempt}, {when}: {attempt.error_type}: {message}"


def _of_cluster(cluster: Cluster) -> Iterator[str]:
    notes = [(at, what) for at, what in cluster.notes if not what.endswith(_REGULAR)]
    if notes:
        yield "what happened last:"
    for at, what in notes[-MAX_NOTES:]:
        yield f"  {_at(EPOCH + timedelta(seconds=at))}  {what}"
