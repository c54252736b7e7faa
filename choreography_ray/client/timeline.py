"""When did what of a job happen? What the store knows of attempts that failed, and the cluster of the job's hosts."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from choreography_ray.access.reading import Reader
from choreography_ray.actors.gcs import ActorInfo, RayTables
from choreography_ray.actors.names import host_prefix
from choreography_ray.actors.ray_api import is_connected
from choreography_ray.core.ledger import Ledger
from choreography_ray.model import Span, SpanKind, Timeline
from choreography_ray.records import FailedStep, JobDocument

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 200
"""Failed steps whose attempts a timeline reads; with more it says that it is not all."""
MAX_NAMED_STEPS = 200
"""Steps that a timeline calls by their ids; with more they are numbers, as their plan would have to be read whole."""

_OWN_ACTOR = re.compile(r"step(\d+)-")


async def timeline_of(reader: Reader, namespace: str) -> Timeline:
    """All that can be had; what cannot is said in `unknown`. Raises `JobNotFound`, `StorageUnavailable`."""
    document = await reader.document()
    ledger = await reader.ledger(document)
    failures = await reader.failures(MAX_FAILED_STEPS)
    rows, unknown = await _hosts(document, namespace)
    steps = {ordinal for row in rows if (ordinal := _ordinal(row)) is not None}
    ids = await reader.ids(document, steps) if len(steps) <= MAX_NAMED_STEPS else {}
    names = {ordinal: ids.get(ordinal, f"step number {ordinal}") for ordinal in steps}
    spans = [*_host_spans(rows, names, ledger), *_failed_spans(failures, ledger)]
    if len(failures) == MAX_FAILED_STEPS:
        unknown.append(f"of failed steps only the first {MAX_FAILED_STEPS} were read")
    unknown.append("attempts that failed before another one succeeded are not kept")
    return Timeline(
        job_id=document.job_id,
        status=document.status,
        created_at=document.created_at,
        history=document.history,
        spans=tuple(sorted(spans, key=lambda span: span.began_at)),
        unknown=tuple(unknown),
    )


async def _hosts(document: JobDocument, namespace: str) -> tuple[list[ActorInfo], list[str]]:
    """The job's hosts that had a process, as far as the cluster remembers them, and what it does not tell."""
    if not is_connected():
        return [], ["no cluster was asked: when and where hosts ran is known to theirs alone, while it lives"]
    try:
        rows = await RayTables().actors(namespace)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the cluster is what there is to tell
        log.info("the hosts of job %r cannot be read: %s", document.job_id, error)
        return [], [f"the cluster did not say when hosts ran: {error}"]
    prefix = host_prefix(document.job_id)
    found = [row for row in rows if row.name.startswith(prefix) and row.began]
    if not found:
        return [], ["this cluster remembers no host of the job"]
    if any(_ordinal(row) is None for row in found):
        return found, ["of steps that succeed on warm actors no times are kept: the lives of those actors are shown"]
    return found, []


def _ordinal(row: ActorInfo) -> int | None:
    """The step that an actor was made for; None for a warm one."""
    match = _OWN_ACTOR.match(row.name.rpartition("/")[2])
    return int(match[1]) if match else None


def _host_spans(rows: Sequence[ActorInfo], names: dict[int, str], ledger: Ledger | None) -> list[Span]:
    spans: list[Span] = []
    for row in rows:
        ordinal = _ordinal(row)
        spans.append(
            Span(
                SpanKind.HOST if ordinal is None else SpanKind.STEP,
                row.name.rpartition("/")[2] if ordinal is None else names[ordinal],
                row.node_id,
                datetime.fromtimestamp(row.began, UTC),
                datetime.fromtimestamp(row.ended, UTC) if row.ended else None,
                None if ordinal is None else _stage(ledger, ordinal),
                f"{row.name}, process {row.pid}",
            )
        )
    return spans


def _failed_spans(failures: Sequence[FailedStep], ledger: Ledger | None) -> list[Span]:
    return [
        Span(
            SpanKind.FAILED_ATTEMPT,
            failed.step_id,
            attempt.node,
            attempt.began_at,
            attempt.ended_at or attempt.began_at,
            _stage(ledger, failed.ordinal),
            f"attempt {attempt.attempt}: {attempt.error_type}: {attempt.message}",
        )
        for failed in failures
        for attempt in failed.attempts
        if attempt.began_at is not None
    ]


def _stage(ledger: Ledger | None, ordinal: int) -> int | None:
    return ledger.stage(ordinal) if ledger is not None and ordinal < len(ledger) else None
