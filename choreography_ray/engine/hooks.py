"""How the job's own code is called: one hook at a time, on a working copy of the state, bounded in time [S14.3]."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from choreography_ray.codec import decode, encode
from choreography_ray.core.commands import ReportedOutcome
from choreography_ray.core.events import CompletionHookRan, HooksRan, ResumeHookRan, Verdict
from choreography_ray.core.policies import retry_delay
from choreography_ray.engine.plans import Plans
from choreography_ray.engine.ports import Loaded, UserCode
from choreography_ray.job import Job, JobRuntime, bind_job, is_overridden
from choreography_ray.model import AttemptRecord, StageFailureBehavior
from choreography_ray.options import JobsOptions
from choreography_ray.records import Failure, OutcomeKind, Payload
from choreography_ray.result import JobStepResult, describe_exception

log = logging.getLogger(__name__)


class Hooks:
    """The hooks of one job in one incarnation. `state` is the payload that the store has, or soon will have."""

    def __init__(
        self, code: Loaded, runtime: JobRuntime, request: Payload, state: Payload, options: JobsOptions, user: UserCode
    ) -> None:
        self._code = code
        self._runtime = runtime
        self._request = request
        self._state = state
        self._options = options
        self._user = user
        self._gate = asyncio.Lock()
        self.plans: Plans | None = None
        self.is_judging = False
        """Outcomes are being decided: what hooks do to the state is saved with the decisions, not before [S6.5]."""
        self.job = self._bind()
        self._tells = is_overridden(code.job_class, "on_step_completed_or_stopped")
        self._asks_retry = is_overridden(code.job_class, "should_retry_step")
        self._asks_delay = is_overridden(code.job_class, "get_step_retry_delay")

    def _bind(self) -> Job[Any, Any]:
        resolve = self._code.resolve
        request, state = decode(self._request, resolve), decode(self._state, resolve)
        return bind_job(self._code.job_class, self._runtime, request, state)

    @property
    def timeout(self) -> float | None:
        """Seconds that a hook may take."""
        seconds = self._options.hook_timeout.total_seconds()
        return seconds if seconds > 0 else None

    async def call(self, hook: str, *args: Any) -> Any:
        """Run one hook. Raises what it raises; one over its time raises `TimeoutError`, its later changes are lost."""
        async with self._gate:
            return await self._call(hook, *args)

    async def _call(self, hook: str, *args: Any) -> Any:
        function: Callable[..., Any] = getattr(self.job, hook)
        try:
            return await self._user.call(function, *args, timeout=self.timeout)
        except TimeoutError as error:
            # The thread cannot be stopped: it keeps the old instance, which nobody reads any more.
            self._state = encode(self.job.state, "state")
            self.job = self._bind()
            raise TimeoutError(f"{hook} took longer than hook_timeout ({self.timeout:g} s)") from error

    def changed_state(self) -> Payload:
        """The state as payload if the hooks changed it since it was last asked for, else None."""
        payload = encode(self.job.state, "state")
        if payload == self._state:
            return None
        self._state = payload
        return payload

    async def run_group(self, ticket: int, items: tuple[ReportedOutcome, ...]) -> HooksRan:
        """Ask and tell the job about outcomes, in their order [S6.5, S7.2]."""
        async with self._gate:
            errors: list[str] = []
            self.is_judging = True
            try:
                verdicts = [await self._judge(item, errors) for item in items]
            finally:
                self.is_judging = False
            state = self.changed_state() if self._tells or self._asks_retry else None
            return HooksRan(ticket, tuple(verdicts), state, errors[-1] if errors else "")

    async def _judge(self, item: ReportedOutcome, errors: list[str]) -> Verdict:
        outcome = item.outcome
        needs_result = self._tells or (item.may_retry and self._asks_retry)
        if not needs_result and not item.may_retry and outcome.kind is not OutcomeKind.START_FAILED:
            return Verdict()
        assert self.plans is not None
        step_id = await self.plans.step_id(outcome.ordinal)
        result = _result(item, self._code) if needs_result else None
        if item.may_retry:
            delay = await self._retry_after(step_id, result, outcome.attempt, errors)
            if delay is not None:
                return Verdict(delay)
        if self._tells:
            try:
                await self._call("on_step_completed_or_stopped", step_id, result)
            except Exception as error:  # noqa: BLE001 - a hook that raises is recorded and not repeated
                errors.append(_told("on_step_completed_or_stopped", error))
        return Verdict(step_id=step_id)

    async def _retry_after(self, step_id: str, result: Any, attempt: int, errors: list[str]) -> float | None:
        if self._asks_retry:
            try:
                if not await self._call("should_retry_step", step_id, result, attempt):
                    return None
            except Exception as error:  # noqa: BLE001 - raising means no
                errors.append(_told("should_retry_step", error))
                return None
        if self._asks_delay:
            try:
                delay = await self._call("get_step_retry_delay", attempt)
                if isinstance(delay, timedelta):
                    return max(0.0, delay.total_seconds())
            except Exception as error:  # noqa: BLE001 - raising means the default
                errors.append(_told("get_step_retry_delay", error))
        return retry_delay(self._options, attempt)

    async def failure_behavior(self, stage: int) -> StageFailureBehavior:
        """What failures of a stage mean; raising, or anything else than an answer, means `STOP_JOB`."""
        try:
            return StageFailureBehavior(await self.call("get_failure_behavior_for", stage))
        except Exception as error:  # noqa: BLE001 - raising means STOP_JOB [S14.3]
            _told("get_failure_behavior_for", error)
            return StageFailureBehavior.STOP_JOB

    async def resume(self, initialization_may_be_incomplete: bool) -> ResumeHookRan:
        """Run what comes before an interrupted job goes on [S8]."""
        try:
            await self.call("on_before_resuming_job_steps")
            await self.call("on_before_dispatching_job_steps", initialization_may_be_incomplete)
        except Exception as error:  # noqa: BLE001 - the machine decides when to try again
            return ResumeHookRan(self.changed_state(), _told("on_before_resuming_job_steps", error))
        return ResumeHookRan(self.changed_state())

    async def complete(self) -> CompletionHookRan:
        """Run `on_all_steps_completed`."""
        if not is_overridden(self._code.job_class, "on_all_steps_completed"):
            return CompletionHookRan()
        try:
            await self.call("on_all_steps_completed")
        except Exception as error:  # noqa: BLE001 - raising makes the job FAILED [S9.8]
            return CompletionHookRan(self.changed_state(), _told("on_all_steps_completed", error))
        return CompletionHookRan(self.changed_state())


def _result(item: ReportedOutcome, code: Loaded) -> JobStepResult[Any]:
    outcome = item.outcome
    value = decode(outcome.value, code.resolve)
    if outcome.kind is OutcomeKind.SUCCEEDED:
        return JobStepResult.succeeded(value)
    if outcome.kind is OutcomeKind.STOPPED:
        return JobStepResult.cancelled(value)
    failure = outcome.failure
    return JobStepResult.failed(AttemptRecord(attempt=outcome.attempt) if failure is None else told(failure), value)


def told(failure: Failure) -> AttemptRecord:
    """A stored failure as readers see it."""
    return AttemptRecord(
        attempt=failure.attempt,
        began_at=failure.began_at,
        ended_at=failure.ended_at,
        error_type=failure.error_type,
        message=failure.message,
        traceback=failure.traceback,
        node=failure.node,
        pid=failure.pid,
    )


def _told(hook: str, error: BaseException) -> str:
    log.warning("hook %s raised", hook, exc_info=error)
    described = describe_exception(error)
    return f"{hook} raised {described.error_type}: {described.message}"
