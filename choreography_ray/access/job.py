"""One job by its id: what can be read of it, and asked of it, whichever way leads to its actor [S2.3]."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from typing import Any

from choreography_ray.access.asker import Asker, Unanswered
from choreography_ray.access.reading import Reader
from choreography_ray.access.step import AsyncStepHandle
from choreography_ray.core.explaining import Explained
from choreography_ray.core.instant import seconds_of
from choreography_ray.engine.rest import Request, RequestKind, RetryFailed
from choreography_ray.errors import (
    OwnedElsewhere,
    RemoveJobError,
    RemoveJobReason,
    ResumeJobError,
    ResumeJobReason,
    RetryFailedStepsError,
    RetryFailedStepsReason,
    StartReport,
    StopJobError,
    StopJobReason,
    UnknownJobType,
)
from choreography_ray.model import (
    DrainResult,
    Explanation,
    JobRecord,
    JobStatus,
    JobStepStatus,
    Progress,
    ResumeResult,
    StepId,
    StepRecord,
    Verification,
)
from choreography_ray.plain import clean
from choreography_ray.storage.protocol import JobStorage

ANSWER_SECONDS = 60.0
"""How long a job may take to answer: its actor may be coming back."""
HOOK_SECONDS = 600.0
"""The same, where hooks of the job run before the answer."""
DRAIN_POLL_SECONDS = 0.1


class JobAccess:
    """One job, by id. Everything read is from the store."""

    def __init__(self, storage: JobStorage, reader: Reader, asker: Asker) -> None:
        self.job_id = reader.job_id
        self.start_error: StartReport | None = None
        """What a start that started the job still has to say [S4.1, S4.4]."""
        self._storage = storage
        self._reader = reader
        self._asker = asker

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {clean(self.job_id)}>"

    async def status(self) -> JobStatus:
        """Where the job stands."""
        return (await self._reader.document()).status

    async def progress(self) -> Progress:
        """Its counts [S3.1]."""
        return (await self._reader.record()).progress

    async def record(self) -> JobRecord:
        """All that is told of it."""
        return await self._reader.record()

    async def state(self) -> Any:
        """Its own state, as last saved."""
        return await self._reader.state()

    def steps(
        self, status: JobStepStatus | Collection[JobStepStatus] | None = None, take: int | None = None
    ) -> AsyncIterator[StepRecord]:
        """Every step of its plan, in order, or those of one status or of several; at most `take`."""
        return self._reader.steps(status, take)

    def step(self, step_id: str) -> AsyncStepHandle:
        """One step by its id; whether there is one shows when it is read."""
        return AsyncStepHandle(self._storage, self._reader, self._asker, StepId(step_id))

    def results(self) -> AsyncIterator[tuple[StepId, Any]]:
        """(step id, value) of successes in plan order; needs `keep_results`."""
        return self._reader.results()

    def counted_steps(self) -> AsyncIterator[StepId]:
        """The ids of steps that were counted, in this and earlier executions [S3.2]."""
        return self._reader.counted_steps()

    async def verify(self) -> Verification:
        """Recount it from its ledger and look for what is missing, contradicts itself or is left over [S3.2].

        Also while it runs, without taking what is under way for a fault. Reads every record, and writes nothing.
        """
        return await self._reader.verify()

    async def explain(self) -> Explanation:
        """For what each of its steps waits, by reason, with numbers and examples [S14.4].

        Where its actor cannot be asked, what the store alone tells. Raises `JobNotFound`, `StorageUnavailable`.
        """
        return await self._reader.explain(await self._explained())

    async def _explained(self) -> Explained | None:
        """What the job's actor says; None when it cannot be asked."""
        return None

    async def failures(self, take: int = 100) -> list[StepRecord]:
        """The first steps that failed, with their attempts, without reading the plan: type and stage are not told."""
        return await self._reader.failed_steps(take)

    async def stop(self) -> None:
        """Stop the job: `STOPPED` is durable when this returns, its steps are told and accounted afterwards [S9.1].

        A stopped job is stopped again without an error. Raises `StopJobError`, `JobNotFound`.
        """
        answer = await self._ask(RequestKind.STOP, StopJobError, StopJobReason, ANSWER_SECONDS)
        if answer != JobStatus.STOPPED:
            raise StopJobError(StopJobReason(str(answer)), self.job_id)

    async def drain(self, timeout: float | timedelta = 60.0) -> DrainResult:
        """Stop, and wait until no step code runs and all outcomes and hooks are recorded [S9.4]. Zero: look once.

        Raises `StopJobError`, `JobNotFound`.
        """
        answer = await self._ask(RequestKind.DRAIN, StopJobError, StopJobReason, ANSWER_SECONDS)
        if answer == StopJobReason.JOB_IS_COMPLETED:
            return DrainResult.COMPLETED
        if answer != JobStatus.STOPPED:
            raise StopJobError(StopJobReason(str(answer)), self.job_id)
        deadline = asyncio.get_running_loop().time() + seconds_of(timeout)
        while True:
            document = await self._reader.document()
            if document.status is JobStatus.STOPPED and document.is_stop_finalized:
                return DrainResult.DRAINED
            if document.status in (JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES):
                return DrainResult.COMPLETED
            if document.status.is_interruptible:
                return DrainResult.DRAINED  # and resumed since: nobody could while this was pending [S9.4]
            if document.status is not JobStatus.STOPPED:
                raise StopJobError(StopJobReason.JOB_IS_NOT_RUNNING, self.job_id)
            if asyncio.get_running_loop().time() >= deadline:
                return DrainResult.TIMED_OUT
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def resume(self) -> ResumeResult:
        """Go on with a stopped job, where it was [S9.5]. Raises `ResumeJobError`, `JobNotFound`."""
        answer = await self._ask(RequestKind.RESUME, ResumeJobError, ResumeJobReason, HOOK_SECONDS)
        if answer in tuple(ResumeResult):
            return ResumeResult(str(answer))
        raise ResumeJobError(ResumeJobReason(str(answer)), self.job_id)

    async def retry_failed_steps(self) -> int:
        """Run the failed steps of a job that completed with failures again; their number [S7.3].

        Raises `RetryFailedStepsError`, `JobNotFound`.
        """
        call = RetryFailed(uuid.uuid4().hex)
        answer = await self._ask(call, RetryFailedStepsError, RetryFailedStepsReason, HOOK_SECONDS)
        if isinstance(answer, int):
            return answer
        raise RetryFailedStepsError(RetryFailedStepsReason(answer), self.job_id)

    async def remove(self, timeout: float | timedelta = 60.0, *, force: bool = False) -> None:
        """End the job's steps and delete every record of it, whatever its status [S9.6].

        `force` deletes without hooks, also when the job's code cannot be loaded.
        Raises `RemoveJobError`, `JobNotFound`.
        """
        if force:
            await self._asker.remove_by_force()
            return
        answer = await self._ask(RequestKind.REMOVE, RemoveJobError, RemoveJobReason, seconds_of(timeout))
        if answer != "REMOVED":
            raise RemoveJobError(RemoveJobReason(str(answer)), self.job_id)

    async def _ask(self, what: Request, error: Any, reasons: Any, timeout: float) -> str | int:
        try:
            return await self._asker.ask(what, timeout)
        except UnknownJobType as unknown:
            raise error(reasons.UNKNOWN_JOB_TYPE, self.job_id, str(unknown)) from unknown
        except OwnedElsewhere as elsewhere:
            raise error(reasons.OWNED_ELSEWHERE, self.job_id, str(elsewhere)) from elsewhere
        except Unanswered as unanswered:
            raise error(reasons.UNANSWERED, self.job_id) from unanswered
