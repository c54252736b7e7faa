"""One job by its id: what can be read of it, and asked of it [S2.3]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from typing import Any

from ray.exceptions import RayError

from choreography_ray.actors.connection import Connection
from choreography_ray.actors.names import job_actor
from choreography_ray.actors.ray_api import find, is_connected
from choreography_ray.client.control import Controller, Unanswered
from choreography_ray.client.logs import output_of
from choreography_ray.client.reading import Reader
from choreography_ray.client.step import AsyncStepHandle
from choreography_ray.client.timeline import timeline_of
from choreography_ray.core.explaining import Explained
from choreography_ray.display import SHOWN_FAILURES, LiveView, live_view
from choreography_ray.engine.rest import Request, RequestKind, RetryFailed
from choreography_ray.errors import (
    ChoreographyError,
    ClusterUnavailable,
    JobNotFound,
    JobRemoved,
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
    StorageUnavailable,
    UnknownJobType,
)
from choreography_ray.model import (
    DrainResult,
    Explanation,
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    Progress,
    ResumeResult,
    StepId,
    StepOutput,
    StepRecord,
    Timeline,
    Verification,
)
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
"""How long a job may take to answer: its actor may be coming back."""
HOOK_SECONDS = 600.0
"""The same, where hooks of the job run before the answer."""
EXPLAIN_SECONDS = 10.0
"""How long a job's actor may take to say what its steps wait for; else the store tells what it can."""
DRAIN_POLL_SECONDS = 0.1
POLL_SECONDS = 0.5
"""How often a wait looks into the store while nothing tells it that the job has ended."""
STORE_TRIES = 5
FIRST_STORE_DELAY = 0.2
"""How often a wait asks a store again that does not answer, and after how many seconds first; each doubles it [S10]."""


class AsyncJobHandle:
    """One job, by id. Reading works without a cluster; everything read is from the store."""

    def __init__(self, storage: JobStorage, connection: Connection, job_id: JobId) -> None:
        self.job_id = job_id
        self.start_error: StartReport | None = None
        self._connection = connection
        self._storage = storage
        self._reader = Reader(storage, job_id)
        self._controller = Controller(storage, connection, job_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.job_id}>"

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
        return AsyncStepHandle(self._storage, self._reader, self._controller, StepId(step_id))

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
        explained: Explained | None = None
        if is_connected():
            with contextlib.suppress(ValueError, RayError, ChoreographyError, TimeoutError):
                async with asyncio.timeout(EXPLAIN_SECONDS):
                    actor = await asyncio.to_thread(find, job_actor(self.job_id), self._connection.ray_namespace)
                    explained = await actor.explain.remote()
        return await self._reader.explain(explained)

    async def timeline(self) -> Timeline:
        """When what happened, as far as store and cluster know it, and what they do not know.

        A notebook shows it as a plot. Raises `JobNotFound`, `StorageUnavailable`.
        """
        return await timeline_of(self._reader, self._connection.ray_namespace)

    async def failures(self, take: int = 100) -> list[StepRecord]:
        """The first steps that failed, with their attempts, without reading the plan: type and stage are not told."""
        return await self._reader.failed_steps(take)

    async def output(self, step_id: str, size: int = 65_536) -> StepOutput:
        """The last `size` bytes of what a step's process printed and logged, or why it cannot be had [S16].

        Raises `StepNotFound`, `JobNotFound`.
        """
        step = await self._reader.step(StepId(step_id))
        return await output_of(self.job_id, step, self._connection.ray_namespace, size)

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
        deadline = asyncio.get_running_loop().time() + _seconds(timeout)
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
            await self._controller.remove_by_force()
            return
        answer = await self._ask(RequestKind.REMOVE, RemoveJobError, RemoveJobReason, _seconds(timeout))
        if answer != "REMOVED":
            raise RemoveJobError(RemoveJobReason(str(answer)), self.job_id)

    async def _ask(self, what: Request, error: Any, reasons: Any, timeout: float) -> str | int:
        if not is_connected():
            raise ClusterUnavailable("", "this client was connected for reading only")
        try:
            return await self._controller.ask(what, timeout)
        except UnknownJobType as unknown:
            raise error(reasons.UNKNOWN_JOB_TYPE, self.job_id, str(unknown)) from unknown
        except OwnedElsewhere as elsewhere:
            raise error(reasons.OWNED_ELSEWHERE, self.job_id, str(elsewhere)) from elsewhere
        except Unanswered as unanswered:
            raise error(reasons.UNANSWERED, self.job_id) from unanswered

    async def wait(self, timeout: float | timedelta | None = None, progress: bool = True) -> JobRecord:
        """Wait until the job has ended or is stopped and accounted; `timeout` in seconds, else `TimeoutError`.

        Raises `JobNotFound`, and `JobRemoved` when it is removed meanwhile [S9.6].
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            async with asyncio.timeout(seconds):
                return await self._wait(progress)
        except TimeoutError as error:
            status = await self.status()
            raise TimeoutError(f"job {self.job_id!r} is still {status} after {seconds or 0:g} s") from error

    async def _wait(self, progress: bool) -> JobRecord:
        record = await self.record()
        with contextlib.ExitStack() as stack:
            live = stack.enter_context(live_view()) if progress else None
            ended = asyncio.ensure_future(self._ended())

            def give_up() -> None:  # on whichever it is by then
                ended.cancel()

            stack.callback(give_up)
            while True:
                if live is not None:
                    live.update(record, await self._new_failures(record, live))
                if record.status.is_final or (record.status is JobStatus.STOPPED and record.is_accounted):
                    return record
                # The actor's word only ends the pause: what counts is what the store says.
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
                if ended.done():
                    ended = asyncio.ensure_future(self._pause())
                record = await self._after_removal()

    async def _new_failures(self, record: JobRecord, live: LiveView) -> list[StepRecord]:
        """What to tell of failures: nothing is read while there is nothing new."""
        if record.progress.failed <= live.failures_told or not live.wants_failures:
            return []
        with contextlib.suppress(StorageUnavailable):  # they are told with the next look
            return await self._reader.failed_steps(SHOWN_FAILURES)
        return []

    async def _after_removal(self) -> JobRecord:
        """The record; a store that is away for a moment ends nobody's wait [S10]."""
        failed = 0
        while True:
            try:
                return await self.record()
            except JobNotFound as error:
                raise JobRemoved(self.job_id) from error
            except StorageUnavailable as error:
                failed += 1
                if failed > STORE_TRIES:
                    raise
                log.info("job %s is looked at again: %s", self.job_id, error)
                await asyncio.sleep(FIRST_STORE_DELAY * 2.0 ** (failed - 1) * (0.5 + random.random()))

    async def _pause(self) -> None:
        await asyncio.sleep(POLL_SECONDS)

    async def _ended(self) -> None:
        """Until the job's actor says that it has ended, or cannot be asked."""
        if not is_connected():
            await self._pause()
            return
        try:
            actor = await asyncio.to_thread(find, job_actor(self.job_id), self._connection.ray_namespace)
            await actor.ended.remote()
        except (ValueError, RayError, ChoreographyError):
            await self._pause()


def _seconds(timeout: float | timedelta) -> float:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
