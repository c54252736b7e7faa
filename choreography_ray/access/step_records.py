"""What is stored of a job's steps, put together for readers: plan, ledger, documents and failures [S12.2, S7.1]."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence

from choreography_ray.actors.names import host_actor
from choreography_ray.engine.hooks import told
from choreography_ray.errors import StepNotFound
from choreography_ray.model import JobId, JobStepStatus, StepId, StepRecord
from choreography_ray.records import (
    FailedStep,
    Group,
    JobDocument,
    LedgerSegment,
    PlannedStep,
    PlanRef,
    StepCode,
    StepDocument,
    StepKind,
)
from choreography_ray.storage.protocol import JobStorage

_FAILED = (StepCode.COMPLETED_WITH_FAILURE, StepCode.FAILED)


class StepRecords:
    """Reads steps of one job, segment by segment: those of which nothing is wanted are not read."""

    def __init__(self, storage: JobStorage, job_id: JobId) -> None:
        self._storage = storage
        self.job_id = job_id

    async def all(
        self, document: JobDocument, statuses: Collection[JobStepStatus] | None, take: int | None
    ) -> AsyncIterator[StepRecord]:
        """The steps with one of these statuses (None: with any) in the order of the plan, at most `take`."""
        plan = _plan_of(document)
        if plan is None or take == 0:
            return
        kinds = await self._storage.read_plan(self.job_id, plan.fence)
        ledger = {segment.index: segment for segment in await self._storage.read_ledger(self.job_id, plan.fence)}
        has_documents = bool((await self._storage.count_records(self.job_id)).get("steps"))
        given = 0
        for index in range(plan.segments):
            places = _places(ledger.get(index), statuses)
            if places is not None and not places:
                continue
            page = await self._storage.read_plan_segment(self.job_id, plan.fence, index)
            if page is None:
                continue
            steps = [(place, page.steps[place]) for place in (range(len(page.steps)) if places is None else places)]
            begin = index * plan.segment_steps
            async for record in self._told(ledger.get(index), kinds, begin, steps, has_documents):
                yield record
                given += 1
                if given == take:
                    return

    async def one(self, document: JobDocument, step_id: StepId) -> StepRecord:
        """One step. Raises `StepNotFound`."""
        plan = _plan_of(document)
        if plan is None:
            raise StepNotFound(self.job_id, step_id)
        for index in await self._storage.find_planned(self.job_id, plan.fence, step_id):
            page = await self._storage.read_plan_segment(self.job_id, plan.fence, index)
            steps = [] if page is None else [(i, step) for i, step in enumerate(page.steps) if step.step_id == step_id]
            if not steps:
                continue
            kinds = await self._storage.read_plan(self.job_id, plan.fence)
            segments = await self._storage.read_ledger(self.job_id, plan.fence, index, index + 1)
            segment = segments[0] if segments else None
            async for record in self._told(segment, kinds, index * plan.segment_steps, steps, has_documents=True):
                return record
        raise StepNotFound(self.job_id, step_id)

    async def ids(self, document: JobDocument, ordinals: Iterable[int]) -> dict[int, StepId]:
        """The ids of some steps."""
        plan = _plan_of(document)
        found: dict[int, StepId] = {}
        if plan is None:
            return found
        wanted = sorted(set(ordinals))
        for index in sorted({ordinal // plan.segment_steps for ordinal in wanted}):
            page = await self._storage.read_plan_segment(self.job_id, plan.fence, index)
            begin = index * plan.segment_steps
            steps = () if page is None else page.steps
            found |= {begin + i: step.step_id for i, step in enumerate(steps) if begin + i in wanted}
        return found

    async def _told(
        self,
        segment: LedgerSegment | None,
        kinds: Sequence[StepKind],
        begin: int,
        steps: Sequence[tuple[int, PlannedStep]],
        has_documents: bool,
    ) -> AsyncIterator[StepRecord]:
        codes = [_code(segment, place) for place, _ in steps]
        failed = [begin + place for (place, _), code in zip(steps, codes, strict=True) if code in _FAILED]
        failures = await self._failures(failed)
        documents: dict[int, StepDocument] = {}
        if has_documents:
            others = [begin + place for (place, _), code in zip(steps, codes, strict=True) if not code.status.is_final]
            if others:
                found = await self._storage.read_step_documents(self.job_id, others)
                documents = {document.ordinal: document for document in found}
        for (place, step), code in zip(steps, codes, strict=True):
            ordinal = begin + place
            group = _group_of(segment, ordinal)
            document, failure = documents.get(ordinal), failures.get(ordinal)
            yield _record(self.job_id, ordinal, step, kinds[step.kind], code, group, document, failure)

    async def _failures(self, ordinals: list[int]) -> dict[int, FailedStep]:
        if not ordinals:
            return {}
        found = await self._storage.read_failures(self.job_id, ordinals, take=len(ordinals))
        return {failure.ordinal: failure for failure in found}


def _plan_of(document: JobDocument) -> PlanRef | None:
    return None if document.is_cleared else document.plan


def _code(segment: LedgerSegment | None, place: int) -> StepCode:
    return StepCode(segment.codes[place]) if segment is not None else StepCode.PREPARED


def _places(segment: LedgerSegment | None, statuses: Collection[JobStepStatus] | None) -> list[int] | None:
    """Where in a segment steps of these statuses are; None: everywhere."""
    if statuses is None or segment is None:
        return None if statuses is None or JobStepStatus.PREPARED in statuses else []
    wanted = {code for code in StepCode if code.status in statuses}
    return [place for place, code in enumerate(segment.codes) if code in wanted]


def _group_of(segment: LedgerSegment | None, ordinal: int) -> Group | None:
    if segment is None:
        return None
    return next((group for group in segment.groups if ordinal in group.ordinals), None)


def _record(
    job_id: JobId,
    ordinal: int,
    step: PlannedStep,
    kind: StepKind,
    code: StepCode,
    group: Group | None,
    document: StepDocument | None,
    failure: FailedStep | None,
) -> StepRecord:
    attempts = tuple(told(f) for f in (failure.attempts if failure else document.attempts if document else ()))
    attempt = document.attempt if document else failure.attempt if failure else 1
    return StepRecord(
        step_id=step.step_id,
        ordinal=ordinal,
        name=step.name,
        step_type=kind.step_type,
        stage=kind.stage,
        status=code.status,
        attempt=attempt,
        host=host_actor(job_id, group.host) if group else None,
        retry_due=document.due if document and code is StepCode.AWAITING_RETRY else None,
        failure=attempts[-1] if attempts else None,
        attempts=attempts,
    )
