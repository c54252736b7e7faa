"""What readers find in the store, with or without a cluster [S2.3]."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

from choreography_ray.actors.names import host_actor
from choreography_ray.code import LoadedCode, load_code
from choreography_ray.codec import decode
from choreography_ray.core.ledger import recount
from choreography_ray.engine.hooks import told
from choreography_ray.engine.verification import verify_job
from choreography_ray.errors import JobNotFound, StepNotFound
from choreography_ray.model import JobId, JobRecord, JobStepStatus, StepId, StepRecord, Verification
from choreography_ray.progress import record_of
from choreography_ray.records import (
    FailedStep,
    Group,
    JobDocument,
    LedgerSegment,
    PlannedStep,
    StepCode,
    StepDocument,
    StepKind,
)
from choreography_ray.storage.protocol import JobStorage

PAGE = 1_000


class Reader:
    """Reads one job."""

    def __init__(self, storage: JobStorage, job_id: JobId) -> None:
        self._storage = storage
        self.job_id = job_id

    async def document(self) -> JobDocument:
        """The stored job. Raises `JobNotFound`."""
        document = await self._storage.read_job(self.job_id)
        if document is None:
            raise JobNotFound(self.job_id)
        return document

    async def record(self) -> JobRecord:
        """The job as people see it; counts per stage are recounted when there are too many to be stored."""
        document = await self.document()
        record = record_of(document)
        if document.plan is not None and not document.is_cleared and not document.stage_counts:
            kinds, segments = await self._ledger(document)
            if segments:
                return record_of(document, recount(kinds, segments, document.plan.segment_steps))
        return record

    async def _ledger(self, document: JobDocument) -> tuple[tuple[StepKind, ...], list[LedgerSegment]]:
        assert document.plan is not None
        kinds = await self._storage.read_plan(self.job_id, document.plan.fence)
        return kinds, await self._storage.read_ledger(self.job_id, document.plan.fence)

    async def verify(self) -> Verification:
        """A recount, and whatever is missing, contradicts itself or is left over [S3.2]."""
        return await verify_job(self._storage, self.job_id)

    async def code(self, document: JobDocument) -> LoadedCode:
        """The job's code, loaded here. Raises `UnknownJobType`."""
        captured = await self._storage.read_code(document.code.digest) if document.code.digest else None
        return load_code(document.code, captured)

    async def state(self) -> Any:
        """The job's own state as last saved; None once a finished job was cleared [S9.8]."""
        document = await self.document()
        if document.state is None:
            return None
        return decode(document.state, resolver(await self.code(document)))

    async def steps(self, status: JobStepStatus | None = None) -> AsyncIterator[StepRecord]:
        """Every step of the plan in its order, or those of one status. None once a finished job was cleared."""
        document = await self.document()
        if document.plan is None or document.is_cleared:
            return
        kinds, segments = await self._ledger(document)
        ledger = {segment.index: segment for segment in segments}
        own = {d.ordinal: d for d in await self._storage.read_step_documents(self.job_id)}
        for index in range(document.plan.segments):
            page = await self._storage.read_plan_segment(self.job_id, document.plan.fence, index)
            if page is None:
                continue
            begin = index * document.plan.segment_steps
            failures = await self._failures(ledger.get(index), begin)
            for place, step in enumerate(page.steps):
                record = _step_record(self.job_id, step, begin + place, place, kinds, ledger.get(index), own, failures)
                if status is None or record.status is status:
                    yield record

    async def _failures(self, segment: LedgerSegment | None, begin: int) -> dict[int, FailedStep]:
        if segment is None:
            return {}
        failed = (StepCode.COMPLETED_WITH_FAILURE, StepCode.FAILED)
        ordinals = [begin + place for place, code in enumerate(segment.codes) if code in failed]
        if not ordinals:
            return {}
        found = await self._storage.read_failures(self.job_id, ordinals, take=len(ordinals))
        return {failure.ordinal: failure for failure in found}

    async def failed_steps(self, take: int) -> list[StepRecord]:
        """The first failed steps in plan order, with what their failure records alone tell: the plan is not read."""
        return [
            StepRecord(
                step_id=failed.step_id,
                ordinal=failed.ordinal,
                status=JobStepStatus.COMPLETED_WITH_FAILURE,
                attempt=failed.attempt,
                failure=told(failed.attempts[-1]) if failed.attempts else None,
            )
            for failed in await self._storage.read_failures(self.job_id, take=take)
        ]

    async def step(self, step_id: StepId) -> StepRecord:
        """One step. Raises `StepNotFound`."""
        async for record in self.steps():
            if record.step_id == step_id:
                return record
        raise StepNotFound(self.job_id, step_id)

    async def results(self) -> AsyncIterator[tuple[StepId, Any]]:
        """The values of successes in plan order, page by page; empty unless the job keeps results."""
        document = await self.document()
        resolve = resolver(await self.code(document))
        after = -1
        while page := await self._storage.read_results(self.job_id, after, PAGE):
            for kept in page:
                yield kept.step_id, decode(kept.value, resolve)
            after = page[-1].ordinal

    async def counted_steps(self) -> AsyncIterator[StepId]:
        """Steps that have a final outcome, in plan order [S3.2]."""
        async for record in self.steps():
            if record.status.is_final:
                yield record.step_id


def _step_record(
    job_id: JobId,
    step: PlannedStep,
    ordinal: int,
    place: int,
    kinds: tuple[StepKind, ...],
    segment: LedgerSegment | None,
    own: dict[int, StepDocument],
    failures: dict[int, FailedStep],
) -> StepRecord:
    kind = kinds[step.kind]
    code = StepCode(segment.codes[place]) if segment is not None else StepCode.PREPARED
    group = _group_of(segment, ordinal)
    document, failure = own.get(ordinal), failures.get(ordinal)
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


def _group_of(segment: LedgerSegment | None, ordinal: int) -> Group | None:
    if segment is None:
        return None
    return next((group for group in segment.groups if ordinal in group.ordinals), None)


def resolver(code: LoadedCode) -> Any:
    """Finds classes for values that are given to a reader: its own `__main__` first, so that they are the reader's."""

    def resolve(name: str) -> type:
        module, _, qualname = name.partition(":")
        found: Any = sys.modules.get(module)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, type) else code.resolve(name)

    return resolve
