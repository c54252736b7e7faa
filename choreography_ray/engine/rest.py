"""What an incarnation does for a job that does not run: answer requests, finish a stop, remove, clear [S9].

Used where there is no machine: before the plan is prepared, and once a finished job was cleared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from choreography_ray.core import control as answers
from choreography_ray.engine.hooks import Hooks
from choreography_ray.engine.silent import SilentHooks
from choreography_ray.engine.writes import JobWriter, Writer
from choreography_ray.errors import StartJobReason
from choreography_ray.model import JobStatus, JobStepStatus, StepId
from choreography_ray.storage.protocol import JobStorage

NOT_PREPARED = "JOB_IS_NOT_PREPARED"


class RequestKind(StrEnum):
    """What people ask of a job."""

    STOP = "STOP"
    DRAIN = "DRAIN"
    RESUME = "RESUME"
    REMOVE = "REMOVE"


@dataclass(frozen=True, slots=True)
class StopStep:
    """Somebody stops one step [S9.7]: by its place in the plan, and by its id, lest the plan be another job's."""

    ordinal: int
    step_id: StepId


@dataclass(frozen=True, slots=True)
class RetryFailed:
    """Somebody runs the failed steps again [S7.3]. Asked again with the same `call`, it is done once all the same."""

    call: str


Request = RequestKind | StopStep | RetryFailed

NO_SUCH_STEP = "NO_SUCH_STEP"


class Desk:
    """Where requests wait until somebody can answer them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Request, asyncio.Future[Any]]] = []
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, what: Request) -> str | int:
        """Put a request down; its answer."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((what, done))
        self._news.set()
        answer: str | int = await done
        return answer

    @property
    def wants_rest(self) -> bool:
        """Somebody wants the job to stop, or to go."""
        return any(what in (RequestKind.STOP, RequestKind.DRAIN, RequestKind.REMOVE) for what, _ in self._waiting)

    @property
    def wants_removal(self) -> bool:
        """Somebody wants the job to go."""
        return any(what is RequestKind.REMOVE for what, _ in self._waiting)

    async def until_rest_is_wanted(self) -> None:
        """Wait for somebody who wants the job to stop, or to go."""
        while not self.wants_rest:
            self._news.clear()
            await self._news.wait()

    async def next(self, patience: float) -> Request | None:
        """The next request, which stays here until it is answered; None when nobody comes."""
        if not self._waiting:
            self._news.clear()
            try:
                async with asyncio.timeout(patience):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._waiting[0][0]

    def answer(self, answer: str | int) -> None:
        """Answer the request that came first."""
        _, done = self._waiting.pop(0)
        if not done.done():
            done.set_result(answer)

    def answer_all(self, answer: Callable[[Request], str]) -> None:
        """Answer everybody who waits."""
        waiting, self._waiting = self._waiting, []
        for what, done in waiting:
            if not done.done():
                done.set_result(answer(what))

    def hand_over(self, ask: Callable[[Request], Awaitable[str | int]]) -> None:
        """Somebody else answers from now on, those that wait first."""
        waiting, self._waiting = self._waiting, []
        for what, done in waiting:
            task = asyncio.get_running_loop().create_task(_pass_on(ask(what), done))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self, error: Exception) -> None:
        """Nobody answers any more."""
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(error)


async def _pass_on(asking: Awaitable[str | int], done: asyncio.Future[Any]) -> None:
    try:
        answer = await asking
    except Exception as error:  # noqa: BLE001 - it is for whoever asked
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(answer)


class Rest:
    """The requests of a job without a machine."""

    def __init__(
        self, storage: JobStorage, job: JobWriter, writer: Writer, hooks: Hooks | SilentHooks, desk: Desk
    ) -> None:
        self._storage = storage
        self._job = job
        self._writer = writer
        self._hooks = hooks
        self._desk = desk

    async def come_to_rest(self, why: str, error: str = "") -> bool:
        """Stop a job of which nothing has started [S9.1]. False: it is to go, which needs no stop before it."""
        if self._desk.wants_removal:
            return False
        # With it, as whoever waits for the start may be told by the next incarnation.
        await self._job.change_status(JobStatus.STOPPED, why=why, error=error, start_error=StartJobReason.STOPPED)
        await self._finish_stop()
        return True

    async def _finish_stop(self) -> None:
        stopped = await self._hooks.stopped()
        fields: dict[str, Any] = {} if stopped.state is None else {"state": stopped.state}
        if stopped.error:
            fields["error"] = stopped.error
        await self._job.change(is_stop_finalized=True, is_draining=False, **fields)

    async def clear(self) -> None:
        """Delete all but the summary of a job that ended and is not kept [S9.8]."""
        document = self._job.document
        job_id, fence = document.job_id, document.fence
        await self._writer.certain(lambda: self._storage.clear_job(job_id, fence, keep_results=document.keep_results))
        await self._job.change(is_cleared=True, request=None, state=None)

    async def serve(self) -> JobStatus | None:
        """Answer until nobody asks for a while: the job's status. None: it is to be resumed, by whoever prepares it."""
        await self._finish_what_was_begun()
        while True:
            status = self._job.document.status
            what = await self._desk.next(answers.LINGER_SECONDS)
            if what is None:
                return status
            if self._desk.wants_removal:
                await self._remove()
                return JobStatus.REMOVING
            if what is RequestKind.RESUME and status is JobStatus.STOPPED and self._job.document.plan is not None:
                return None
            self._desk.answer(self._told(what, status))

    def _told(self, what: Request, status: JobStatus) -> str:
        is_completed = status in (JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES)
        if isinstance(what, StopStep):
            if status is JobStatus.STOPPED:
                return JobStepStatus.PREPARED  # it has not begun, and will not before the job is resumed
            return answers.IS_COMPLETED if is_completed else answers.IS_NOT_RUNNING
        if isinstance(what, RetryFailed):
            is_ours = status is JobStatus.COMPLETED_WITH_FAILURES
            return answers.NOT_SUPPORTED if is_ours else answers.IS_NOT_COMPLETED_WITH_FAILURES
        if what is RequestKind.RESUME:
            if is_completed:
                return answers.COMPLETED
            return NOT_PREPARED if status is JobStatus.STOPPED else answers.CANNOT_BE_RESUMED
        if status is JobStatus.STOPPED:
            return answers.STOPPED
        return answers.IS_COMPLETED if is_completed else answers.IS_NOT_RUNNING

    async def _finish_what_was_begun(self) -> None:
        document = self._job.document
        if document.status is JobStatus.REMOVING:
            await self._delete()
        elif document.status is JobStatus.STOPPED and not document.is_stop_finalized:
            await self._finish_stop()

    async def _remove(self) -> None:
        if self._job.document.status is not JobStatus.REMOVING:
            await self._job.change_status(JobStatus.REMOVING, why="removed")
        await self._delete()
        self._desk.answer_all(_answered_by_removal)

    async def _delete(self) -> None:
        await self._hooks.stopped()
        document = self._job.document
        await self._writer.certain(lambda: self._storage.clear_job(document.job_id, document.fence, keep_results=False))
        await self._writer.certain(lambda: self._storage.delete_job(document))


def _answered_by_removal(what: Request) -> str:
    match what:
        case RequestKind.REMOVE:
            return answers.REMOVED
        case RequestKind.STOP | RequestKind.DRAIN:
            return answers.IS_NOT_RUNNING
        case RetryFailed():
            return answers.IS_NOT_COMPLETED_WITH_FAILURES
        case RequestKind.RESUME | StopStep():
            return answers.IS_BEING_REMOVED
