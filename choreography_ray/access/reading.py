"""What readers find in the store, with or without a cluster [S2.3]."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from choreography_ray.access.step_records import StepRecords
from choreography_ray.code import load_code
from choreography_ray.codec import decode
from choreography_ray.codec.classes import led_to
from choreography_ray.core.explaining import Explained, explain_stored
from choreography_ray.core.ledger import Ledger, recount
from choreography_ray.engine.hooks import told
from choreography_ray.engine.ports import Loaded
from choreography_ray.engine.verification import verify_job
from choreography_ray.errors import JobNotFound, StorageUnavailable
from choreography_ray.model import (
    Explanation,
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    StepId,
    StepRecord,
    Verification,
    Waiting,
)
from choreography_ray.progress import record_of
from choreography_ray.records import FailedStep, JobDocument, KeptResult, LedgerSegment, StepCode, StepKind
from choreography_ray.storage.protocol import JobStorage

PAGE = 1_000


class Reader:
    """Reads one job."""

    def __init__(self, storage: JobStorage, job_id: JobId) -> None:
        self._storage = storage
        self._steps = StepRecords(storage, job_id)
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

    async def code(self, document: JobDocument) -> Loaded:
        """The job's code, loaded here. Raises `UnknownJobType`."""
        captured = await self._storage.read_code(document.code.digest) if document.code.digest else None
        return load_code(document.code, captured)

    async def state(self) -> Any:
        """The job's own state as last saved; None once a finished job was cleared [S9.8]."""
        document = await self.document()
        if document.state is None:
            return None
        return decode(document.state, resolver(await self.code(document)))

    async def steps(
        self, status: JobStepStatus | Collection[JobStepStatus] | None = None, take: int | None = None
    ) -> AsyncIterator[StepRecord]:
        """Steps of the plan in its order: all, or those of some statuses. None once a finished job was cleared."""
        wanted = frozenset((status,)) if isinstance(status, JobStepStatus) else status
        async for record in self._steps.all(await self.document(), wanted, take):
            yield record

    async def failed_steps(self, take: int) -> list[StepRecord]:
        """The first failed steps in plan order, with what their failure records alone tell: the plan is not read."""
        return [
            StepRecord(
                step_id=failed.step_id,
                ordinal=failed.ordinal,
                status=JobStepStatus.COMPLETED_WITH_FAILURE,
                attempt=failed.attempt,
                failure=told(failed.attempts[-1]) if failed.attempts else None,
                attempts=tuple(told(attempt) for attempt in failed.attempts),
            )
            for failed in await self.failures(take)
        ]

    async def failures(self, take: int) -> list[FailedStep]:
        """The first failed steps in plan order, with all that is kept of their attempts."""
        return await self._storage.read_failures(self.job_id, take=take)

    async def ids(self, document: JobDocument, ordinals: Iterable[int]) -> dict[int, StepId]:
        """The ids of these steps, as far as the plan is there."""
        return await self._steps.ids(document, ordinals)

    async def ledger(self, document: JobDocument) -> Ledger | None:
        """Where each step stands; None before there is a plan, and once a finished job was cleared."""
        if document.plan is None or document.is_cleared:
            return None
        kinds, segments = await self._ledger(document)
        return Ledger(kinds, segments, document.plan.segment_steps) if segments else None

    async def step(self, step_id: StepId) -> StepRecord:
        """One step. Raises `StepNotFound`."""
        return await self._steps.one(await self.document(), step_id)

    async def results(self) -> AsyncIterator[tuple[StepId, Any]]:
        """The values of successes in plan order, page by page; empty unless the job keeps results."""
        document = await self.document()
        resolve = resolver(await self.code(document))
        async for kept in kept_results(self._storage, self.job_id):
            yield kept.step_id, decode(kept.value, resolve)

    async def counted_steps(self) -> AsyncIterator[StepId]:
        """Steps that have a final outcome, in plan order [S3.2]: what the ledger says, and no list besides."""
        document = await self.document()
        if document.plan is None or document.is_cleared:
            return
        _, segments = await self._ledger(document)
        for segment in segments:
            counted = [place for place, code in enumerate(segment.codes) if StepCode(code).status.is_final]
            if counted:
                begin = segment.index * document.plan.segment_steps
                ids = await self._steps.ids(document, [begin + place for place in counted])
                for _, step_id in sorted(ids.items()):
                    yield step_id

    async def explain(self, explained: Explained | None) -> Explanation:
        """Why steps do not run: what the job's actor said, else what the store alone tells [S14.4].

        Raises `JobNotFound`; `StorageUnavailable` when neither can be asked.
        """
        try:
            document = await self.document()
            is_from_actor = explained is not None and not explained.phase
            if explained is None or explained.phase:
                stored = await self._explain_stored(document)
                explained = stored if explained is None else replace(explained, waits=stored.waits)
            ids = await self._steps.ids(document, (ordinal for wait in explained.waits for ordinal in wait.ordinals))
        except StorageUnavailable as error:
            if explained is None or explained.status is None:
                raise
            return explanation(self.job_id, replace(explained, trouble=explained.trouble or str(error)), {})
        return explanation(self.job_id, explained, ids, document, is_from_actor=is_from_actor)

    async def _explain_stored(self, document: JobDocument) -> Explained:
        if document.plan is None or document.is_cleared or document.status.is_final:
            return Explained()
        kinds, segments = await self._ledger(document)
        due: datetime | None = None
        if any(StepCode.AWAITING_RETRY in segment.codes for segment in segments):
            due = await self._storage.first_due(self.job_id)
        return explain_stored(document, kinds, segments, due)


async def kept_results(storage: JobStorage, job_id: JobId) -> AsyncIterator[KeptResult]:
    """Every kept result of a job in plan order, page by page."""
    after = -1
    while page := await storage.read_results(job_id, after, PAGE):
        after = page[-1].ordinal
        for kept in page:
            yield kept


def explanation(
    job_id: JobId,
    explained: Explained,
    ids: Mapping[int, StepId],
    document: JobDocument | None = None,
    *,
    is_from_actor: bool = True,
) -> Explanation:
    """What is told to people. Without a document: the store is away, and the actor alone speaks."""
    status = document.status if document is not None else explained.status
    assert status is not None
    return Explanation(
        job_id=job_id,
        status=status,
        told=_sentence(status, explained, document, is_from_actor=is_from_actor),
        running=explained.running,
        waiting=tuple(
            Waiting(
                reason=wait.reason,
                steps=wait.steps,
                told=wait.told,
                examples=tuple(ids[ordinal] for ordinal in wait.ordinals if ordinal in ids),
                due=wait.due,
            )
            for wait in explained.waits
        ),
        is_from_actor=is_from_actor,
        trouble=explained.trouble,
    )


def _sentence(status: JobStatus, explained: Explained, document: JobDocument | None, *, is_from_actor: bool) -> str:
    if document is None:
        return "the store does not answer, and what the job decides waits for it"
    error = f"; its last error: {document.error}" if document.error else ""
    if status.is_final:
        return f"it has ended, and nothing of it waits{error}"
    if explained.phase:
        return explained.phase + error
    if status is JobStatus.STOPPED:
        what = "it is stopped" if document.is_stop_finalized else "it is stopped, and its steps are being accounted"
        return what + error
    if status is JobStatus.REMOVING:
        return "it is being removed"
    if not is_from_actor:
        return f"its actor was not asked or did not answer: this is what the store tells{error}"
    return f"its actor is at work{error}"


def resolver(code: Loaded) -> Any:
    """Finds classes for values that are given to a reader: its own `__main__` first, so that they are the reader's."""

    def resolve(name: str) -> type:
        module, _, qualname = name.partition(":")
        found = led_to(sys.modules.get(module), qualname)
        return found if isinstance(found, type) else code.resolve(name)

    return resolve
