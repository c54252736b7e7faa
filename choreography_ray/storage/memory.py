"""How is the storage contract kept in the memory of one process, for tests and simulations?

Nothing here awaits: a method runs to its end without yielding, so each is one atomic step of a simulation. Payloads
are copied through BSON on the way in and out, and bounded like those of MongoDB, so that neither aliasing nor size
hides a fault that the real store would show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import bson
from bson.codec_options import CodecOptions

from choreography_ray.model import HostId, JobId, JobStatus, StepId
from choreography_ray.options import ClusterOptions
from choreography_ray.records import (
    Beside,
    FailedStep,
    JobBrief,
    JobDocument,
    KeptResult,
    LedgerSegment,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    Owner,
    Payload,
    PlanSegment,
    PreparedSegment,
    RemovedJob,
    Run,
    StepDocument,
    StepKind,
    brief_of,
)
from choreography_ray.storage.packing import address
from choreography_ray.storage.protocol import JobFilter
from choreography_ray.storage.sizes import (
    MAX_PAYLOAD_BYTES,
    PART_BYTES,
    check_new_job,
    check_size,
    payload_size,
)

_Kept = TypeVar("_Kept")


class _Sealed(NamedTuple):
    """A payload as bytes: nobody can change it."""

    data: bytes


def _seal(what: str, payload: Payload) -> Payload:
    if payload is None or payload.__class__ in _UNCHANGING:
        return payload
    data = bson.encode({"": payload})
    check_size(what, len(data), MAX_PAYLOAD_BYTES)
    return _Sealed(data)


_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
_UNCHANGING = frozenset({bool, int, float})


def _open(sealed: Any) -> Payload:
    if sealed.__class__ is not _Sealed:
        return sealed
    return bson.decode(sealed.data, _OPTIONS)[""]  # pyright: ignore[reportUnknownMemberType] - an array type of bson


def _weight(*sealed: Any) -> int:
    return sum(len(one.data) for one in sealed if one.__class__ is _Sealed)


@dataclass(slots=True)
class _Job:
    """All that is kept of one job beside its document; it may outlive that."""

    plans: dict[int, tuple[StepKind, ...]] = field(default_factory=dict[int, tuple[StepKind, ...]])
    segments: dict[tuple[int, int], PlanSegment] = field(default_factory=dict[tuple[int, int], PlanSegment])
    prepared: dict[tuple[int, int], PreparedSegment] = field(default_factory=dict[tuple[int, int], PreparedSegment])
    ledger: dict[tuple[int, int], LedgerSegment] = field(default_factory=dict[tuple[int, int], LedgerSegment])
    outcomes: dict[OutcomeKey, OutcomeDocument] = field(default_factory=dict[OutcomeKey, OutcomeDocument])
    steps: dict[int, StepDocument] = field(default_factory=dict[int, StepDocument])
    failures: dict[int, FailedStep] = field(default_factory=dict[int, FailedStep])
    results: dict[int, KeptResult] = field(default_factory=dict[int, KeptResult])


class MemoryStorage:
    """A `JobStorage` that lives as long as the object; several engines share it as they would share a database."""

    def __init__(self) -> None:
        self._documents: dict[JobId, JobDocument] = {}
        self._jobs: dict[JobId, _Job] = {}
        self._removed: dict[RemovedJob, datetime] = {}
        self._code: dict[str, tuple[bytes, datetime]] = {}
        self._cluster = ClusterOptions()
        self._numbers: dict[str, int] = {}

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Everything stays: a simulation closes and opens the same store."""

    # ---- jobs

    async def insert_job(self, document: JobDocument) -> bool:
        there = self._documents.get(document.job_id)
        if there is None:
            check_new_job(document)
            self._documents[document.job_id] = _sealed_job(document)
            return True
        return there.created_at == document.created_at and there.save == 0 and there.fence >= document.fence

    async def read_job(self, job_id: JobId) -> JobDocument | None:
        there = self._documents.get(job_id)
        return None if there is None else _opened_job(there)

    async def list_jobs(self, wanted: JobFilter, skip: int = 0, take: int = 100) -> list[JobDocument]:
        found = sorted(
            (one for one in self._documents.values() if _matches(one, wanted)), key=lambda one: address(one.job_id)
        )
        found.sort(key=lambda one: one.created_at, reverse=True)  # stable: ids in order where times are equal
        return [_opened_job(one) for one in found[skip : skip + take]]

    async def raise_fence(
        self, job_id: JobId, expected: int, fence: int, owner: Owner | None = None, crashes: int | None = None
    ) -> bool:
        there = self._documents.get(job_id)
        if there is None or there.fence not in (expected, fence):
            return False
        self._documents[job_id] = replace(
            there,
            fence=fence,
            owner=there.owner if owner is None else owner,
            crashes=there.crashes if crashes is None else crashes,
        )
        return True

    async def beat(self, job_id: JobId, fence: int) -> bool:
        there = self._documents.get(job_id)
        if there is None or there.fence != fence:
            return False
        self._documents[job_id] = replace(there, beats=there.beats + 1)
        return True

    async def save_job(self, document: JobDocument, changed: Collection[str]) -> bool:
        there = self._documents.get(document.job_id)
        if there is None or there.fence != document.fence:
            return False
        if there.save != document.save - 1:
            return there.save == document.save
        names = {*changed, "save", "updated_at"} - {"job_id", "fence"}
        fields = {name: getattr(document, name) for name in names}
        self._documents[document.job_id] = _sealed_job(replace(there, **fields), names)
        return True

    async def delete_job(self, document: JobDocument) -> None:
        self._removed[RemovedJob(document.job_id, document.fence)] = document.updated_at
        there = self._documents.get(document.job_id)
        if there is not None and (there.fence, there.created_at) == (document.fence, document.created_at):
            del self._documents[document.job_id]

    async def clear_job(self, job_id: JobId, fence: int, *, keep_results: bool, keep_failures: bool = False) -> None:
        there = self._job(job_id)
        there.plans = {key: kept for key, kept in there.plans.items() if key > fence}
        there.segments = {key: kept for key, kept in there.segments.items() if key[0] > fence}
        there.prepared = {key: kept for key, kept in there.prepared.items() if key[0] > fence}
        there.ledger = {key: kept for key, kept in there.ledger.items() if key[0] > fence}
        there.outcomes = {key: kept for key, kept in there.outcomes.items() if key.run.fence > fence}
        there.steps = {key: kept for key, kept in there.steps.items() if kept.run.fence > fence}
        if not keep_failures:
            there.failures = {key: kept for key, kept in there.failures.items() if kept.run.fence > fence}
        if not keep_results:
            there.results = {key: kept for key, kept in there.results.items() if kept.fence > fence}
        if there == _Job():
            del self._jobs[job_id]

    async def unfinished_jobs(self, after: JobBrief | None = None, take: int = 100) -> list[JobBrief]:
        wanted = (
            one
            for one in self._documents.values()
            if one.status.is_interruptible
            or one.status is JobStatus.REMOVING
            or (one.status is JobStatus.STOPPED and not one.is_stop_finalized)
            or (one.status.is_final and one.owner is not None and one.owner.cluster)
        )
        return _oldest_first(wanted, after, take)

    async def ended_jobs(self, before: datetime, after: JobBrief | None = None, take: int = 100) -> list[JobBrief]:
        wanted = (one for one in self._documents.values() if one.status.is_final and one.updated_at < before)
        return _oldest_first(wanted, after, take)

    async def removed_jobs(self, before: datetime, take: int = 100) -> list[RemovedJob]:
        return [removed for removed, moment in self._removed.items() if moment < before][:take]

    async def forget_removed(self, removed: Sequence[RemovedJob]) -> None:
        for one in removed:
            self._removed.pop(one, None)

    # ---- plan

    async def save_plan(self, job_id: JobId, fence: int, kinds: Sequence[StepKind]) -> None:
        sealed = (replace(kind, ray_options=_seal(f"job {job_id!r}: ray_options", kind.ray_options)) for kind in kinds)
        self._job(job_id).plans[fence] = tuple(sealed)

    async def read_plan(self, job_id: JobId, fence: int) -> tuple[StepKind, ...]:
        kinds = self._job(job_id).plans.get(fence, ())
        return tuple(replace(kind, ray_options=_open(kind.ray_options)) for kind in kinds)

    async def save_plan_segments(self, job_id: JobId, fence: int, segments: Sequence[PlanSegment]) -> None:
        plan = self._job(job_id).segments
        for segment in segments:
            sealed = (
                replace(step, request=_seal(f"job {job_id!r}, step {step.step_id!r}: request", step.request))
                for step in segment.steps
            )
            plan[fence, segment.index] = PlanSegment(segment.index, tuple(sealed))

    async def read_plan_segment(self, job_id: JobId, fence: int, index: int) -> PlanSegment | None:
        segment = self._job(job_id).segments.get((fence, index))
        if segment is None:
            return None
        return PlanSegment(index, tuple(replace(step, request=_open(step.request)) for step in segment.steps))

    async def save_prepared(self, job_id: JobId, segments: Sequence[PreparedSegment]) -> None:
        prepared = self._job(job_id).prepared
        for segment in segments:
            sealed = (
                _seal(f"job {job_id!r}, step {step_id!r}: state", state)
                for step_id, state in zip(segment.step_ids, segment.states, strict=True)
            )
            prepared[segment.plan, segment.index] = replace(segment, states=tuple(sealed))

    async def find_planned(self, job_id: JobId, fence: int, step_id: StepId) -> list[int]:
        return sorted(
            index
            for (there, index), segment in self._job(job_id).segments.items()
            if there == fence and any(step.step_id == step_id for step in segment.steps)
        )

    async def read_prepared(self, job_id: JobId, plan: int, index: int) -> PreparedSegment | None:
        segment = self._job(job_id).prepared.get((plan, index))
        return None if segment is None else replace(segment, states=tuple(map(_open, segment.states)))

    async def prepared_segments(self, job_id: JobId, plan: int) -> set[int]:
        return {index for there, index in self._job(job_id).prepared if there == plan}

    # ---- ledger

    async def insert_ledger(self, job_id: JobId, segments: Sequence[LedgerSegment]) -> None:
        ledger = self._job(job_id).ledger
        for segment in segments:
            ledger.setdefault((segment.plan, segment.index), segment)

    async def fence_ledger(self, job_id: JobId, fence: int) -> None:
        ledger = self._job(job_id).ledger
        for place, segment in ledger.items():
            if segment.fence < fence:
                ledger[place] = replace(segment, fence=fence)

    async def read_ledger(
        self, job_id: JobId, plan: int, begin: int = 0, end: int | None = None
    ) -> list[LedgerSegment]:
        found = sorted(self._job(job_id).ledger.items())
        return [
            segment
            for (there, index), segment in found
            if there == plan and begin <= index and (end is None or index < end)
        ]

    async def save_ledger(self, job_id: JobId, segments: Sequence[LedgerSegment]) -> bool:
        ledger = self._job(job_id).ledger
        are_applied = True
        for segment in segments:
            place = (segment.plan, segment.index)
            there = ledger.get(place)
            if there is None or there.fence != segment.fence:
                are_applied = False
            elif there.save == segment.save - 1:
                ledger[place] = replace(there, save=segment.save, codes=segment.codes, groups=segment.groups)
            elif there.save != segment.save:
                are_applied = False
        return are_applied

    # ---- outcomes

    async def insert_outcome(self, document: OutcomeDocument) -> OutcomeDocument | None:
        outcomes = self._job(document.job_id).outcomes
        there = outcomes.get(document.key)
        if there is not None:
            return _opened_outcomes(there)
        sealed = tuple(_sealed_outcome(document.job_id, outcome) for outcome in document.outcomes)
        weight = sum(_weight(outcome.value, outcome.state) for outcome in sealed)
        check_size(f"job {document.job_id!r}: the outcomes of a group", weight)
        outcomes[document.key] = replace(document, outcomes=sealed)
        return None

    async def read_outcomes(
        self, job_id: JobId, host: HostId | None = None, run: Run | None = None
    ) -> list[OutcomeDocument]:
        found = (
            (key, document)
            for key, document in self._job(job_id).outcomes.items()
            if host in (None, key.host) and run in (None, key.run)
        )
        return [_opened_outcomes(document) for _, document in sorted(found, key=lambda pair: pair[0])]

    async def read_outcome_keys(self, job_id: JobId) -> list[OutcomeKey]:
        return sorted(self._job(job_id).outcomes)

    async def delete_outcomes(self, job_id: JobId, keys: Sequence[OutcomeKey]) -> None:
        outcomes = self._job(job_id).outcomes
        for key in keys:
            outcomes.pop(key, None)

    # ---- what single steps have of their own

    async def save_step_documents(self, job_id: JobId, documents: Sequence[StepDocument]) -> list[int]:
        steps = self._job(job_id).steps
        refused: list[int] = []
        for document in documents:
            there = steps.get(document.ordinal)
            if there is not None and (there.run, there.is_closed) > (document.run, document.is_closed):
                refused.append(document.ordinal)
            else:
                state = _seal(f"job {job_id!r}, step number {document.ordinal}: state", document.state)
                attempts, stop = document.attempts, document.stop
                if there is not None:
                    state = there.state if state is None else state
                    stop = there.stop if stop is None else stop
                    attempts = attempts or there.attempts
                steps[document.ordinal] = replace(document, state=state, stop=stop, attempts=attempts)
        return refused

    async def read_step_documents(self, job_id: JobId, ordinals: Sequence[int] | None = None) -> list[StepDocument]:
        found = _chosen(self._job(job_id).steps, ordinals)
        return [replace(document, state=_open(document.state)) for document in found]

    async def first_due(self, job_id: JobId) -> datetime | None:
        found = self._job(job_id).steps.values()
        return min((one.due for one in found if one.is_closed and one.due is not None), default=None)

    async def delete_step_documents(self, job_id: JobId, closed: Sequence[tuple[int, Run]]) -> None:
        steps = self._job(job_id).steps
        for ordinal, run in closed:
            there = steps.get(ordinal)
            if there is not None and there.run <= run:
                del steps[ordinal]

    async def save_failures(self, job_id: JobId, failures: Sequence[FailedStep]) -> None:
        kept = self._job(job_id).failures
        for failure in failures:
            what = f"job {job_id!r}, step {failure.step_id!r}"
            value, state = _seal(f"{what}: partial result", failure.value), _seal(f"{what}: state", failure.state)
            check_size(what, _weight(value, state))
            there = kept.get(failure.ordinal)
            if there is None or there.run.fence <= failure.run.fence:
                kept[failure.ordinal] = replace(failure, value=value, state=state)

    async def read_failures(
        self, job_id: JobId, ordinals: Sequence[int] | None = None, skip: int = 0, take: int = 100
    ) -> list[FailedStep]:
        found = _chosen(self._job(job_id).failures, ordinals)
        if ordinals is None:
            found = found[skip : skip + take]
        return [replace(failure, value=_open(failure.value), state=_open(failure.state)) for failure in found]

    async def delete_failures(self, job_id: JobId, failures: Sequence[tuple[int, Run]]) -> None:
        kept = self._job(job_id).failures
        for ordinal, run in failures:
            there = kept.get(ordinal)
            if there is not None and there.run == run:
                del kept[ordinal]

    async def save_results(self, job_id: JobId, results: Sequence[KeptResult]) -> None:
        kept = self._job(job_id).results
        for result in results:
            value = _seal(f"job {job_id!r}, step {result.step_id!r}: result", result.value)
            there = kept.get(result.ordinal)
            if there is None or there.fence <= result.fence:
                kept[result.ordinal] = replace(result, value=value)

    async def delete_results(self, job_id: JobId, results: Sequence[tuple[int, int]]) -> None:
        kept = self._job(job_id).results
        for ordinal, fence in results:
            there = kept.get(ordinal)
            if there is not None and there.fence == fence:
                del kept[ordinal]

    async def read_results(
        self,
        job_id: JobId,
        after: int = -1,
        take: int = 100,
        *,
        stage: int | None = None,
        before_stage: int | None = None,
    ) -> list[KeptResult]:
        kept = self._job(job_id).results
        page = sorted(
            ordinal
            for ordinal, result in kept.items()
            if ordinal > after
            and (stage is None or result.stage == stage)
            and (before_stage is None or result.stage < before_stage)
        )[:take]
        found: list[KeptResult] = []
        size = 0
        for ordinal in page:
            found.append(replace(kept[ordinal], value=_open(kept[ordinal].value)))
            size += payload_size(found[-1].value)
            if size > PART_BYTES:
                break
        return found

    async def read_beside(self, job_id: JobId, begin: int, end: int) -> Beside:
        there = self._job(job_id)
        documents = _between(there.steps, begin, end)
        failures = _between(there.failures, begin, end)
        results = _between(there.results, begin, end)
        return Beside(
            tuple(replace(document, state=None, attempts=()) for document in documents),
            tuple(replace(failed, attempts=(), value=None, state=None) for failed in failures),
            tuple(replace(result, value=None) for result in results),
        )

    async def count_records(self, job_id: JobId) -> dict[str, int]:
        there = self._job(job_id)
        counts = {
            "prepared": len(there.prepared),
            "plan": len(there.plans) + len(there.segments),
            "ledger": len(there.ledger),
            "outcomes": len(there.outcomes),
            "steps": len(there.steps),
            "failures": len(there.failures),
            "results": len(there.results),
        }
        return {name: count for name, count in counts.items() if count}

    # ---- the namespace

    async def save_code(self, digest: str, captured: bytes, about: dict[str, Any], now: datetime) -> None:
        there, _ = self._code.get(digest, (bytes(captured), now))
        self._code[digest] = there, now

    async def read_code(self, digest: str) -> bytes | None:
        captured, _ = self._code.get(digest, (None, None))
        return captured

    async def delete_unused_code(self, before: datetime) -> None:
        used = {document.code.digest for document in self._documents.values()}
        self._code = {
            digest: (captured, at) for digest, (captured, at) in self._code.items() if digest in used or at >= before
        }

    async def read_cluster_options(self) -> ClusterOptions:
        return self._cluster

    async def save_cluster_options(self, changed: ClusterOptions) -> ClusterOptions:
        fields = {name: getattr(changed, name) for name in changed.model_fields_set}
        self._cluster = self._cluster.model_copy(update=fields)
        return self._cluster

    async def next_number(self, name: str) -> int:
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        return number

    def _job(self, job_id: JobId) -> _Job:
        there = self._jobs.get(job_id)
        if there is None:
            there = self._jobs[job_id] = _Job()
        return there


_JOB_PAYLOADS = ("request", "state", "runtime_env")


def _sealed_job(document: JobDocument, changed: Collection[str] | None = None) -> JobDocument:
    """Its payloads sealed; those not in `changed` are sealed already."""
    fields: dict[str, Any] = {
        name: _seal(f"job {document.job_id!r}: {name}", getattr(document, name))
        for name in _JOB_PAYLOADS
        if changed is None or name in changed
    }
    sealed = replace(document, labels=dict(document.labels), **fields)
    weight = _weight(*(getattr(sealed, name) for name in _JOB_PAYLOADS))
    check_size(f"job {document.job_id!r}: request and state", weight)
    return sealed


def _opened_job(document: JobDocument) -> JobDocument:
    opened = {name: _open(getattr(document, name)) for name in _JOB_PAYLOADS}
    return replace(document, labels=dict(document.labels), **opened)


def _sealed_outcome(job_id: JobId, outcome: Outcome) -> Outcome:
    if outcome.value is None and outcome.state is None:
        return outcome
    what = f"job {job_id!r}, step number {outcome.ordinal}"
    value, state = _seal(f"{what}: result", outcome.value), _seal(f"{what}: state", outcome.state)
    return outcome._replace(value=value, state=state)


def _opened_outcomes(document: OutcomeDocument) -> OutcomeDocument:
    opened = (
        outcome
        if outcome.value is None and outcome.state is None
        else outcome._replace(value=_open(outcome.value), state=_open(outcome.state))
        for outcome in document.outcomes
    )
    return replace(document, outcomes=tuple(opened))


def _matches(document: JobDocument, wanted: JobFilter) -> bool:
    return (
        wanted.type_name in (None, document.type_name)
        and (not wanted.statuses or document.status in wanted.statuses)
        and wanted.labels.items() <= document.labels.items()
        and (wanted.created_before is None or document.created_at < wanted.created_before)
    )


def _oldest_first(found: Iterable[JobDocument], after: JobBrief | None, take: int) -> list[JobBrief]:
    briefs = sorted((brief_of(document) for document in found), key=_age)
    return [brief for brief in briefs if after is None or _age(brief) > _age(after)][:take]


def _age(brief: JobBrief) -> tuple[datetime, str]:
    return brief.created_at, address(brief.job_id)


def _between(kept: dict[int, _Kept], begin: int, end: int) -> list[_Kept]:
    return [kept[ordinal] for ordinal in sorted(kept) if begin <= ordinal < end]


def _chosen(kept: dict[int, _Kept], ordinals: Iterable[int] | None) -> list[_Kept]:
    return [kept[ordinal] for ordinal in sorted(kept if ordinals is None else set(ordinals)) if ordinal in kept]
