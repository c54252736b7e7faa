"""How do the durable records become documents of MongoDB, and records again?

Every document has `schema_version`. Those of a job name it in `job`, and `n` is their place among their kind: the
index of a segment, the ordinal of a step. Fields with a default are left out when they have it; readers ignore
fields that they do not know and fill in what is missing [S12.1]. Moments are ISO texts in UTC, which sort as they
follow each other and keep microseconds. Lists of numbers that grow with a group are packed, little-endian.

Text that is not Unicode (lone surrogates, as from names of files) is stored with escapes where it is only read by
people: BSON has no place for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from choreography_ray.errors import UnreadableRecord
from choreography_ray.model import HistoryEntry, HostId, JobId, JobStatus, StepHosting, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import (
    SCHEMA_VERSION,
    CodeRef,
    Counts,
    Decision,
    FailedStep,
    Failure,
    Group,
    JobBrief,
    JobDocument,
    JournalEntry,
    KeptResult,
    LedgerSegment,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    Owner,
    Payload,
    PlannedStep,
    PlanRef,
    PlanSegment,
    PreparedSegment,
    StageCounts,
    StepCode,
    StepDocument,
    StepKind,
)
from choreography_ray.storage.packing import (
    address,
    as_run,
    at,
    known_fields,
    order_of,
    packed,
    packed_attempts,
    packed_moments,
    plain_text,
    stored_run,
    unpacked,
    unpacked_attempts,
    unpacked_moments,
)
from choreography_ray.storage.sizes import (
    are_small,
    check_new_job,
    check_size,
    checked_size,
    parts,
)

Document = dict[str, Any]
_T = TypeVar("_T")


def _head(job_id: JobId, n: int, *places: str | int) -> Document:
    return {"_id": address(job_id, *places), "job": job_id, "n": n, "schema_version": SCHEMA_VERSION}


def _failure(failure: Failure) -> Document:
    stored: Document = {"error_type": plain_text(failure.error_type), "message": plain_text(failure.message)}
    stored["attempt"] = failure.attempt
    if failure.traceback:
        stored["traceback"] = plain_text(failure.traceback)
    if failure.began_at is not None:
        stored["began_at"] = at(failure.began_at)
    if failure.ended_at is not None:
        stored["ended_at"] = at(failure.ended_at)
    if failure.node:
        stored["node"] = plain_text(failure.node)
    if failure.pid:
        stored["pid"] = failure.pid
    return stored


def _as_failure(stored: Document) -> Failure:
    known: dict[str, Any] = {"error_type": "", "message": ""} | known_fields(Failure, stored)
    for name in ("began_at", "ended_at"):
        if name in known:
            known[name] = datetime.fromisoformat(known[name])
    return Failure(**known)


# ---- the job


def _options(options: JobsOptions) -> Document:
    """All values, so that a job keeps them when defaults change; `explicit` are those that somebody set."""
    return {"values": options.model_dump(mode="json"), "explicit": sorted(options.model_fields_set)}


def _as_options(stored: Document) -> JobsOptions:
    values = {name: value for name, value in stored["values"].items() if name in JobsOptions.model_fields}
    options = JobsOptions.model_validate(values)
    object.__setattr__(options, "__pydantic_fields_set__", set(stored.get("explicit", values)) & values.keys())
    return options


def label(name: str, value: str) -> Document:
    """One label as it is stored and asked for: names may have dots and dollars."""
    return {"name": plain_text(name), "value": plain_text(value)}


def _history(entry: HistoryEntry) -> Document:
    more = {plain_text(name): value for name, value in (entry.model_extra or {}).items()}
    return {**more, "at": at(entry.at), "status": str(entry.status), "why": plain_text(entry.why)}


_STATUSES = frozenset(JobStatus)


def _as_history(stored: Document) -> HistoryEntry:
    status = stored["status"]  # what a newer version called it stays in the history as it is
    known = JobStatus(status) if status in _STATUSES else status
    read = {**stored, "at": datetime.fromisoformat(stored["at"]), "status": known}
    return HistoryEntry.model_construct(set(read), **read)


def _journal(entry: JournalEntry) -> Document:
    stored: Document = {"decision": entry.decision.value}
    if entry.key is not None:
        stored["key"] = {"host": entry.key.host, "run": stored_run(entry.key.run), "n": entry.key.n}
    if entry.ordinals:
        stored["ordinals"] = packed(entry.ordinals)
    if entry.attempts:
        stored["attempts"] = packed(entry.attempts)
    if entry.dues:
        stored["dues"] = packed_moments(entry.dues)
    if entry.left:
        stored["left"] = int(entry.left)
    if entry.after_stage:
        stored["after_stage"] = entry.after_stage
    return stored


def _as_journal(stored: Document) -> JournalEntry:
    key = stored.get("key")
    return JournalEntry(
        Decision(stored["decision"]),
        None if key is None else OutcomeKey(HostId(key["host"]), as_run(key["run"]), int(key["n"])),
        unpacked(stored.get("ordinals", b"")),
        unpacked(stored.get("attempts", b"")),
        unpacked_moments(stored.get("dues", b"")),
        StepCode(stored.get("left", 0)),
        int(stored.get("after_stage", 0)),
    )


def _labels(labels: dict[str, str]) -> list[Document]:
    return [label(name, value) for name, value in labels.items()]


def _as_labels(stored: list[Document]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in stored}


_JOB_PAYLOADS = frozenset({"request", "state", "runtime_env"})
_JOB_FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "created_at": (at, datetime.fromisoformat),
    "updated_at": (at, datetime.fromisoformat),
    "options": (_options, _as_options),
    "labels": (_labels, _as_labels),
    "history": (lambda entries: [_history(entry) for entry in entries], lambda stored: tuple(map(_as_history, stored))),
    "journal": (lambda entries: [_journal(entry) for entry in entries], lambda stored: tuple(map(_as_journal, stored))),
    "code": (dataclasses.asdict, lambda stored: CodeRef(**known_fields(CodeRef, stored))),
    "counts": (dataclasses.asdict, lambda stored: Counts(**known_fields(Counts, stored))),
    "stage_counts": (
        lambda stages: [stage._asdict() for stage in stages],
        lambda stored: tuple(
            StageCounts(**{name: int(stage[name]) for name in StageCounts._fields if name in stage}) for stage in stored
        ),
    ),
    "plan": (
        lambda plan: None if plan is None else dataclasses.asdict(plan),
        lambda stored: None if stored is None else PlanRef(**known_fields(PlanRef, stored)),
    ),
    "owner": (
        lambda owner: None if owner is None else dataclasses.asdict(owner),
        lambda stored: None if stored is None else Owner(**known_fields(Owner, stored)),
    ),
    "status": (lambda status: status.value, JobStatus),
    "start_details": (lambda lines: [plain_text(line) for line in lines], tuple),
    **dict.fromkeys(("details", "error", "mark", "start_error", "actor_name"), (plain_text, str)),
    **dict.fromkeys(("fence", "save", "crashes", "beats"), (int, int)),
}
"""How fields of a job are written and read, where they are not stored as they are."""


def _job_value(job_id: JobId, name: str, value: Any) -> Any:
    if name in _JOB_PAYLOADS:
        checked_size(f"job {job_id!r}: {name}", value)
    return _JOB_FORMS[name][0](value) if name in _JOB_FORMS else value


def job_fields(document: JobDocument, names: Iterable[str]) -> Document:
    """Some fields of a job as they are stored. Raises `TooLarge`."""
    return {name: _job_value(document.job_id, name, getattr(document, name)) for name in names}


def claim_fields(owner: Owner | None, crashes: int | None) -> Document:
    """What is written with a fence; nothing where it is None."""
    claimed: Document = {} if owner is None else {"owner": _JOB_FORMS["owner"][0](owner)}
    return claimed if crashes is None else claimed | {"crashes": crashes}


_JOB_FIELDS = tuple(f.name for f in dataclasses.fields(JobDocument) if f.name != "job_id")


def job_document(document: JobDocument) -> Document:
    """A whole job."""
    check_new_job(document)
    head = {"_id": address(document.job_id), "job": document.job_id, "schema_version": SCHEMA_VERSION}
    return head | job_fields(document, _JOB_FIELDS)


def _readable(read: Callable[[Document], _T]) -> Callable[[Document], _T]:
    """What a job's record does not tell this version becomes `UnreadableRecord`: one of them must not end a list."""

    @functools.wraps(read)
    def try_to_read(stored: Document) -> _T:
        try:
            return read(stored)
        except (ValueError, KeyError, TypeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise UnreadableRecord(stored["job"], int(stored.get("schema_version", 0)), why) from error

    return try_to_read


@_readable
def as_job(stored: Document) -> JobDocument:
    """A job that was stored, perhaps by an older or a newer version. Raises `UnreadableRecord`."""
    known: dict[str, Any] = {"request": None, "state": None} | known_fields(JobDocument, stored)
    read = {name: _JOB_FORMS[name][1](value) if name in _JOB_FORMS else value for name, value in known.items()}
    return JobDocument(job_id=JobId(stored["job"]), **read)


_BRIEF_FIELDS = tuple(f.name for f in dataclasses.fields(JobBrief) if f.name not in {"job_id", "has_plan", "cluster"})
BRIEF = dict.fromkeys(("job", "schema_version", "plan.fence", "owner.cluster", *_BRIEF_FIELDS), 1)
"""What is read of a job for its brief."""


@_readable
def as_brief(stored: Document) -> JobBrief:
    """A job's brief, from what `BRIEF` names. Raises `UnreadableRecord`."""
    known = known_fields(JobBrief, stored)
    read = {name: _JOB_FORMS[name][1](value) if name in _JOB_FORMS else value for name, value in known.items()}
    owner: Document = stored.get("owner") or {}
    cluster = str(owner.get("cluster", ""))
    return JobBrief(JobId(stored["job"]), has_plan=stored.get("plan") is not None, cluster=cluster, **read)


def removed_document(document: JobDocument) -> Document:
    """What is remembered of a job that is deleted."""
    own = {"job": document.job_id, "fence": document.fence, "at": at(document.updated_at)}
    return {"_id": address(document.job_id, document.fence), "schema_version": SCHEMA_VERSION} | own


# ---- the plan: lists of any size, in parts


def _in_parts(
    job_id: JobId, n: int, places: Collection[str | int], split: Sequence[_T], batch: str, *, plan: int
) -> list[tuple[Document, _T]]:
    """A head per part, and the part. `batch` tells the parts of one save from those of another."""
    return [
        (_head(job_id, n, *places, part) | {"part": part, "parts": len(split), "batch": batch, "plan": plan}, some)
        for part, some in enumerate(split)
    ]


def plan_documents(job_id: JobId, fence: int, kinds: Sequence[StepKind], batch: str) -> list[Document]:
    """The table of a plan."""

    def size(kind: StepKind) -> int:
        return checked_size(f"job {job_id!r}: ray_options of {kind.step_type}", kind.ray_options) + 256

    return [
        head | {"kinds": [dataclasses.asdict(kind) | {"hosting": kind.hosting.value} for kind in some]}
        for head, some in _in_parts(job_id, -1, ("kinds", fence), list(parts(kinds, size)), batch, plan=fence)
    ]


def as_plan(stored: Sequence[Document]) -> tuple[StepKind, ...]:
    """The table, from all its parts in order."""
    kinds = (known_fields(StepKind, kind) for part in stored for kind in part["kinds"])
    return tuple(dataclasses.replace(StepKind(**kind), hosting=StepHosting(kind["hosting"])) for kind in kinds)


def plan_segment_documents(job_id: JobId, fence: int, segment: PlanSegment, batch: str) -> list[Document]:
    """A segment of a plan, its steps column by column."""

    def size(step: PlannedStep) -> int:
        request = checked_size(f"job {job_id!r}, step {step.step_id!r}: request", step.request)
        return request + 4 * (len(step.step_id) + len(step.name)) + 64

    is_one = are_small(step.request for step in segment.steps)
    split = [segment.steps] if is_one else list(parts(segment.steps, size))
    return [
        head
        | {
            "step_ids": [step.step_id for step in steps],
            "names": [plain_text(step.name) for step in steps],
            "kinds": packed([step.kind for step in steps]),
            "requests": [step.request for step in steps],
        }
        for head, steps in _in_parts(job_id, segment.index, ("plan", fence, segment.index), split, batch, plan=fence)
    ]


def as_plan_segment(stored: Sequence[Document]) -> PlanSegment:
    """A segment, from all its parts in order."""
    steps = (
        PlannedStep(StepId(step_id), name, kind, request)
        for part in stored
        for step_id, name, kind, request in zip(
            part["step_ids"], part["names"], unpacked(part["kinds"]), part["requests"], strict=True
        )
    )
    return PlanSegment(int(stored[0]["n"]), tuple(steps))


def prepared_documents(job_id: JobId, segment: PreparedSegment, batch: str) -> list[Document]:
    """The ids and initial states of a segment."""

    def size(step: tuple[StepId, Payload]) -> int:
        step_id, state = step
        return checked_size(f"job {job_id!r}, step {step_id!r}: state", state) + 4 * len(step_id) + 32

    steps = list(zip(segment.step_ids, segment.states, strict=True))
    split = [steps] if are_small(segment.states) else list(parts(steps, size))
    places = ("prepared", segment.plan, segment.index)
    return [
        head | {"step_ids": [step_id for step_id, _ in some], "states": [state for _, state in some]}
        for head, some in _in_parts(job_id, segment.index, places, split, batch, plan=segment.plan)
    ]


def as_prepared(stored: Sequence[Document]) -> PreparedSegment:
    """Ids and states, from all parts in order."""
    step_ids = tuple(StepId(step_id) for part in stored for step_id in part["step_ids"])
    states = tuple(state for part in stored for state in part["states"])
    return PreparedSegment(int(stored[0]["n"]), step_ids, states, int(stored[0].get("plan", 0)))


# ---- the ledger


def ledger_fields(segment: LedgerSegment) -> Document:
    """What each save writes."""
    groups = [
        {
            "host": group.host,
            "run": stored_run(group.run),
            "width": group.width,
            "ordinals": packed(group.ordinals),
            "attempts": packed_attempts(group.attempts),
        }
        for group in segment.groups
    ]
    return {"save": segment.save, "codes": segment.codes, "groups": groups}


def ledger_document(job_id: JobId, segment: LedgerSegment) -> Document:
    """A new segment."""
    head = _head(job_id, segment.index, segment.plan, segment.index)
    return head | {"plan": segment.plan, "fence": segment.fence, "kinds": segment.kinds} | ledger_fields(segment)


def as_ledger(stored: Document) -> LedgerSegment:
    """A segment."""
    groups: list[Group] = []
    for group in stored.get("groups", ()):
        ordinals = unpacked(group["ordinals"])
        attempts = unpacked_attempts(group["attempts"], len(ordinals))
        groups.append(Group(HostId(group["host"]), as_run(group["run"]), int(group["width"]), ordinals, attempts))
    guard = int(stored["fence"]), int(stored["save"])
    plan = int(stored.get("plan", 0))
    return LedgerSegment(int(stored["n"]), *guard, stored["codes"], stored["kinds"], tuple(groups), plan)


# ---- outcomes


def outcome_address(job_id: JobId, key: OutcomeKey) -> str:
    """The `_id` of an outcome document."""
    return address(job_id, key.host, key.run.fence, key.run.counter, key.n)


def outcome_document(document: OutcomeDocument) -> Document:
    """The outcomes of a group column by column; only those with more than a value have more. Raises `TooLarge`."""
    job_id, key, outcomes = document.job_id, document.key, document.outcomes
    _check_outcomes(job_id, outcomes)
    more = {str(place): told for place, outcome in enumerate(outcomes) if (told := _more(outcome))}
    kinds = [outcome.kind.value for outcome in outcomes]
    values = [outcome.value for outcome in outcomes]
    return {
        "_id": outcome_address(job_id, key),
        "job": job_id,
        "n": key.n,
        "schema_version": SCHEMA_VERSION,
        "host": key.host,
        "run": stored_run(key.run),
        "seconds": document.seconds,
        "ordinals": packed([outcome.ordinal for outcome in outcomes]),
        "attempts": packed_attempts([outcome.attempt for outcome in outcomes]),
        "kinds": kinds[0] if len(set(kinds)) == 1 else kinds,
        "values": [] if values.count(None) == len(values) else values,
        "more": more,
    }


def _check_outcomes(job_id: JobId, outcomes: Sequence[Outcome]) -> None:
    if are_small([*(outcome.value for outcome in outcomes), *(outcome.state for outcome in outcomes)]):
        return
    size = 0
    for outcome in outcomes:
        what = f"job {job_id!r}, step number {outcome.ordinal}"
        size += checked_size(f"{what}: result", outcome.value) + checked_size(f"{what}: state", outcome.state)
    check_size(f"job {job_id!r}: the outcomes of a group", size)


def _more(outcome: Outcome) -> Document:
    told: Document = {}
    if outcome.state is not None:
        told["state"] = outcome.state
    if outcome.failure is not None:
        told["failure"] = _failure(outcome.failure)
    if outcome.crash:
        told["crash"] = outcome.crash
    if outcome.has_document:
        told["has_document"] = True
    return told


def as_outcome_key(stored: Document) -> OutcomeKey:
    """The place of an outcome document."""
    return OutcomeKey(HostId(stored["host"]), as_run(stored["run"]), int(stored["n"]))


def as_outcomes(stored: Document) -> OutcomeDocument:
    """The outcomes of a group."""
    ordinals = unpacked(stored["ordinals"])
    attempts = unpacked_attempts(stored["attempts"], len(ordinals))
    kinds = [stored["kinds"]] * len(ordinals) if isinstance(stored["kinds"], str) else stored["kinds"]
    values = stored.get("values") or [None] * len(ordinals)
    outcomes: list[Outcome] = []
    for place, (ordinal, attempt, kind, value) in enumerate(zip(ordinals, attempts, kinds, values, strict=True)):
        told = stored["more"].get(str(place), {})
        failure = _as_failure(told["failure"]) if "failure" in told else None
        payload = told.get("value", value)  # where it lay before there was a column
        state, crash = told.get("state"), int(told.get("crash", 0))
        has_document = told.get("has_document", False)
        outcomes.append(Outcome(ordinal, attempt, OutcomeKind(kind), payload, failure, state, crash, has_document))
    key = as_outcome_key(stored)
    return OutcomeDocument(JobId(stored["job"]), key, tuple(outcomes), float(stored.get("seconds", 0.0)))


# ---- what single steps have of their own


def step_address(job_id: JobId, ordinal: int) -> str:
    """The `_id` of a step's own document."""
    return address(job_id, ordinal)


def step_update(job_id: JobId, document: StepDocument) -> Document:
    """The update that writes a step's own document, or makes it. Raises `TooLarge`.

    State, stop and attempts are left as they are stored where the document has none.
    """
    checked_size(f"job {job_id!r}, step number {document.ordinal}: state", document.state)
    written: Document = {
        "job": job_id,
        "n": document.ordinal,
        "schema_version": SCHEMA_VERSION,
        "order": order_of(document.run, document.is_closed),
        "run": stored_run(document.run),
        "is_closed": document.is_closed,
        "attempt": document.attempt,
        "due": None if document.due is None else at(document.due),
        "crashes": document.crashes,
        "base": document.base,
    }
    if document.state is not None:
        written["state"] = document.state
    if document.stop is not None:
        written["stop"] = stored_run(document.stop)
    if document.attempts:
        written["attempts"] = [_failure(failure) for failure in document.attempts]
    return {"$set": written}


def as_step(stored: Document) -> StepDocument:
    """A step's own document."""
    known = known_fields(StepDocument, stored)
    known["run"] = as_run(stored["run"])
    known["due"] = None if stored.get("due") is None else datetime.fromisoformat(stored["due"])
    known["stop"] = None if stored.get("stop") is None else as_run(stored["stop"])
    known["attempts"] = tuple(map(_as_failure, stored.get("attempts", ())))
    return StepDocument(ordinal=int(stored["n"]), **known)


def failed_step_document(job_id: JobId, failed: FailedStep) -> Document:
    """A failed step."""
    what = f"job {job_id!r}, step {failed.step_id!r}"
    size = checked_size(f"{what}: partial result", failed.value) + checked_size(f"{what}: state", failed.state)
    check_size(what, size)
    return _head(job_id, failed.ordinal, failed.ordinal) | {
        "step_id": failed.step_id,
        "attempt": failed.attempt,
        "run": stored_run(failed.run),
        "attempts": [_failure(failure) for failure in failed.attempts],
        "value": failed.value,
        "state": failed.state,
    }


def as_failed_step(stored: Document) -> FailedStep:
    """A failed step."""
    known = known_fields(FailedStep, stored)
    known["run"] = as_run(stored["run"])
    known["attempts"] = tuple(map(_as_failure, stored.get("attempts", ())))
    return FailedStep(ordinal=int(stored["n"]), **known)


def result_document(job_id: JobId, result: KeptResult) -> Document:
    """A kept result."""
    checked_size(f"job {job_id!r}, step {result.step_id!r}: result", result.value)
    own = {"step_id": result.step_id, "value": result.value, "stage": result.stage, "fence": result.fence}
    return _head(job_id, result.ordinal, result.ordinal) | own


def as_result(stored: Document) -> KeptResult:
    """A kept result."""
    stage, fence = int(stored.get("stage", 0)), int(stored.get("fence", 0))
    return KeptResult(int(stored["n"]), StepId(stored["step_id"]), stored.get("value"), stage, fence)
