"""One run of one step inside its host: what its context may ask for, and what it leaves as outcome [S6]."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from choreography_ray.authoring.bridge import await_on, block_on
from choreography_ray.authoring.cancellation import Cancellation
from choreography_ray.authoring.context import BlockingStepContext, ResultsPage, StepContext
from choreography_ray.authoring.result import JobStepResult, ResultKind, describe_exception, plain_value
from choreography_ray.codec import decode, encode
from choreography_ray.core.attempts import bounded_failure
from choreography_ray.engine.ports import Clock, Loaded, StepWork, UserCode, Whereabouts
from choreography_ray.engine.writes import Writer
from choreography_ray.errors import CallbackReason, CallbackRejected, Fenced, NotStorable, StepTimedOut, TooLarge
from choreography_ray.model import JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import Failure, Outcome, OutcomeKind, Payload, Run, StepDocument
from choreography_ray.step import JobStep
from choreography_ray.storage.protocol import JobStorage
from choreography_ray.storage.sizes import MAX_PAYLOAD_BYTES, checked_size, payload_size


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all runs of a host share."""

    job_id: JobId
    storage: JobStorage
    writer: Writer
    clock: Clock
    code: Loaded
    options: JobsOptions
    user: UserCode
    loop: asyncio.AbstractEventLoop
    whereabouts: Whereabouts
    end: Callable[[], None]
    """Ends the host's process."""


class StepRun:
    """A run. The body's side is called where the body runs, the rest on the host's loop."""

    def __init__(
        self, around: Surroundings, step_type: type[JobStep[Any, Any, Any]], run: Run, stage: int, work: StepWork
    ) -> None:
        self._around = around
        self._type = step_type
        self._run = run
        self._stage = stage
        self.work = work
        self.cancelled = Cancellation()
        self.began_at: datetime | None = None
        self._gate = asyncio.Lock()
        self._instance: JobStep[Any, Any, Any] | None = None
        self._is_closed = False
        self._timed_out: StepTimedOut | None = None
        self._is_stopped = False
        self._body: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._unsaved = 0
        self.is_in_callback = False
        """One of the body's callbacks runs."""
        self._has_document = work.attempt > 1 or work.crashes > 0
        self._flusher: asyncio.TimerHandle | None = None

    # What the context asks: `StepRuntime`.

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self._around.job_id

    @property
    def step_id(self) -> StepId:
        """The step's id."""
        return self.work.step_id

    @property
    def attempt(self) -> int:
        """The attempt, from 1."""
        return self.work.attempt

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Names job, step and attempt in each record."""
        about = {"job_id": self.job_id, "step_id": self.step_id, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger(f"choreography_ray.step.{self._type.__name__}"), about)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The host's loop."""
        return self._around.loop

    async def invoke(self, callback: Callable[[], Any], cancel: Cancellation | None) -> Any:
        """Run a callback in turn [S6.2]."""
        async with self._gate:
            if self._is_closed:
                raise CallbackRejected(CallbackReason.CLOSED)
            if cancel is not None and cancel.is_set():
                raise CallbackRejected(CallbackReason.CANCELLED)
            self.is_in_callback = True
            try:
                return await self._around.user.call(callback)
            finally:
                self.is_in_callback = False

    async def _last_callback(self) -> None:
        async with self._gate:
            pass

    async def checkpoint(self, in_turn: bool) -> None:
        """Note that the state moved on; durable as S6.3 says."""
        if in_turn:
            await self._checkpoint()
            return
        async with self._gate:
            if self._is_closed:
                raise CallbackRejected(CallbackReason.CLOSED)
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        self._unsaved += 1
        every = 1 if self._type.checkpoint_after_every_batch else self._around.options.step_checkpoint_batch_interval
        if self._unsaved >= every:
            await self._save_state()
        elif self._flusher is None:
            seconds = self._around.options.step_checkpoint_flush_interval.total_seconds()
            if seconds > 0:
                self._flusher = self.loop.call_later(seconds, lambda: self.loop.create_task(self._flush()))

    async def _flush(self) -> None:
        async with self._gate:
            if self._unsaved and not self._is_closed:
                await self._save_state()

    async def _save_state(self) -> None:
        document = StepDocument(
            self.work.ordinal,
            self._run,
            attempt=self.attempt,
            crashes=self.work.crashes,
            base=self.work.base,
            state=encode(self._step.state, "state"),
        )
        around = self._around
        refused = await around.writer.certain(lambda: around.storage.save_step_documents(self.job_id, [document]))
        if refused:
            # Another run of this step has begun elsewhere: this process must not go on beside it.
            around.end()
            raise Fenced(self.job_id)
        self._has_document = True
        self._stop_flusher()

    def _stop_flusher(self) -> None:
        self._unsaved = 0
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None

    async def progress(self, fraction: float, message: str) -> None:
        """Volatile: told in the log."""
        self.logger.info("%.0f%% %s", 100 * fraction, message)

    async def read_results(self, stage: int | None, after: int) -> ResultsPage:
        """A page of kept results of earlier stages, or of one of them, as far as the job keeps any."""
        if stage is not None and stage >= self._stage:
            return ResultsPage((), None)  # what is kept of it by now is a matter of luck
        around = self._around
        before = self._stage if stage is None else None
        page = await around.writer.certain(
            lambda: around.storage.read_results(self.job_id, after, stage=stage, before_stage=before)
        )
        values = [(kept.step_id, decode(kept.value, around.code.resolve)) for kept in page]
        return ResultsPage(values, page[-1].ordinal if page else None)

    # The body.

    @property
    def _step(self) -> JobStep[Any, Any, Any]:
        # Made when first asked for: most bodies never look at the step's own state.
        if self._instance is None:
            self._instance = self._type()
            self._instance.state = decode(self.work.state, self._around.code.resolve)
        return self._instance

    def perform_blocking(self) -> Outcome:
        """Run a `def` body to its end. Never raises."""
        self.began_at = self._around.clock.instant().at
        try:
            if self._is_stopped:
                return self._stopped(self._cancelled_blocking())
            state = decode(self.work.state, self._around.code.resolve)
            value = self._step.perform_step(state, BlockingStepContext(self, self.cancelled))
            self._close_blocking()
            return self._outcome(value)
        except BaseException as error:  # noqa: BLE001 - whatever a body raises is its outcome
            self._close_blocking()
            return self._stopped(self._cancelled_blocking()) if self._is_stopped else self.failed(error)

    async def perform_async(self) -> Outcome:
        """Run an `async def` body to its end. Never raises."""
        self.began_at = self._around.clock.instant().at
        try:
            if self._is_stopped:
                return self._stopped(await self._cancelled_async())
            state = decode(self.work.state, self._around.code.resolve)
            body = self._step.perform_step(state, StepContext(self, self.cancelled))
            self._body = asyncio.get_running_loop(), asyncio.ensure_future(body)  # type: ignore[arg-type]
            if self.cancelled.is_set():  # told on the host's loop, while there was no body to tell
                self._body[1].cancel()
            value = await self._body[1]
            await self._close_async()
            return self._outcome(value)
        except BaseException as error:  # noqa: BLE001 - whatever a body raises is its outcome
            await self._close_async()
            return self._stopped(await self._cancelled_async()) if self._is_stopped else self.failed(error)
        finally:
            self._body = None

    # No callback begins any more. One that has begun runs to its end, and its checkpoint goes with the outcome [S6.2]:
    # a body need not have waited for it, and one that is told to stop does not.

    def _close_blocking(self) -> None:
        self._is_closed = True
        if self._gate.locked():
            block_on(self.loop, self._last_callback())

    async def _close_async(self) -> None:
        self._is_closed = True
        if self._gate.locked():
            await await_on(self.loop, self._last_callback())

    def stop(self) -> None:
        """The step is stopped: no more callbacks, and the body is told [S9.2]. A timeout that was first decides."""
        if self._timed_out is not None:
            return
        self._is_closed = self._is_stopped = True
        self._tell_body()

    def _tell_body(self) -> None:
        self.cancelled.set()
        if (body := self._body) is not None:
            loop, task = body
            with contextlib.suppress(RuntimeError):  # the loop may have gone with its last body
                loop.call_soon_threadsafe(task.cancel)

    def time_out(self, seconds: float) -> bool:
        """The attempt has failed, whatever the body still does; it is told to stop [S6.8]. False: a stop was first."""
        if self._is_stopped:
            return False
        self._is_closed = True
        self._timed_out = StepTimedOut(seconds)
        self._tell_body()
        return True

    def _cancelled_blocking(self) -> Any:
        made = self._cancelled_result()
        return asyncio.run(_awaited(made)) if inspect.isawaitable(made) else made

    async def _cancelled_async(self) -> Any:
        made = self._cancelled_result()
        return await made if inspect.isawaitable(made) else made

    def _cancelled_result(self) -> Any:
        """What the step's code reports of what it did until it was stopped; nothing, when that raises."""
        try:
            return self._step.create_cancelled_result(decode(self._last_state(), self._around.code.resolve))
        except Exception:
            self.logger.exception("create_cancelled_result raised")
            return None

    def _stopped(self, made: Any) -> Outcome:
        try:
            value = self._encoded_result(plain_value(made))
        except (NotStorable, TooLarge):
            self.logger.exception("the partial result cannot be stored")
            value = None
        return self._made(OutcomeKind.STOPPED, value)

    def _outcome(self, returned: Any) -> Outcome:
        if self._timed_out is not None:
            return self.failed(self._timed_out)
        result: JobStepResult[Any] = JobStepResult.succeeded(returned)
        if isinstance(returned, JobStepResult):
            result = returned  # pyright: ignore[reportUnknownVariableType]
        try:
            value = self._encoded_result(result.value)
        except (NotStorable, TooLarge) as error:
            return self.failed(error)
        match result.kind:
            case ResultKind.SUCCEEDED:
                return self._made(OutcomeKind.SUCCEEDED, value)
            case ResultKind.FAILED:
                record = result.error
                told = ("", "", "") if record is None else (record.error_type, record.message, record.traceback)
                return self._made(OutcomeKind.FAILED, value, self._failure(*told))
            case ResultKind.CANCELLED:
                if self._is_stopped:
                    return self._made(OutcomeKind.STOPPED, value)
                # Nobody asked it to stop: a body that gives up by itself has failed.
                failure = self._failure("StepCancelled", "the body reported that it was cancelled")
                return self._made(OutcomeKind.FAILED, value, failure)

    def _encoded_result(self, value: Any) -> Payload:
        payload = encode(value, "result")
        checked_size(f"job {self.job_id!r}, step {self.step_id!r}: result", payload)
        return payload

    def failed(self, error: BaseException) -> Outcome:
        """The outcome of an attempt that ended with this error."""
        described = describe_exception(self._timed_out or error)
        failure = self._failure(described.error_type, described.message, described.traceback)
        return self._made(OutcomeKind.FAILED, None, failure)

    def _failure(self, error_type: str, message: str, traceback: str = "") -> Failure:
        here = self._around.whereabouts
        ended_at = self._around.clock.instant().at
        failure = Failure(error_type, message, self.attempt, traceback, self.began_at, ended_at, here.node, here.pid)
        return bounded_failure(failure)  # a body may have made all of these texts itself

    def _made(self, kind: OutcomeKind, value: Payload, failure: Failure | None = None) -> Outcome:
        self._is_closed = True
        state = None
        if kind is not OutcomeKind.SUCCEEDED and self._instance is not None:
            state = self._last_state()
            if payload_size(value) + payload_size(state) > MAX_PAYLOAD_BYTES:
                self.logger.warning("the partial result is lost: it is too large to be kept beside the state")
                value = None
        return Outcome(
            self.work.ordinal, self.attempt, kind, value, failure, state, self.work.crashes, self._has_document
        )

    def _last_state(self) -> Payload:
        try:
            payload = encode(self._step.state, "state")
            checked_size("state", payload)
            return payload
        except (NotStorable, TooLarge):
            return None  # the last durable one stays
