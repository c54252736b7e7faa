"""How the job's own code is called: one hook at a time, on a working copy of the state, bounded in time [S14.3]."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from choreography_ray.authoring.result import JobStepResult, describe_exception, plain_value
from choreography_ray.codec import decode, encode
from choreography_ray.core.admission import ADMISSION_UNANSWERED, NOT_ADMITTED
from choreography_ray.core.commands import ReportedOutcome
from choreography_ray.core.events import (
    AdmissionAnswered,
    CompletionHookRan,
    HooksRan,
    ResumeChecked,
    ResumeHookRan,
    RetryChecked,
    StoppedHookRan,
    Verdict,
)
from choreography_ray.core.policies import retry_delay
from choreography_ray.engine.admission import ask_admission, is_asked, question_of
from choreography_ray.engine.plans import Plans
from choreography_ray.engine.ports import Loaded, UserCode
from choreography_ray.errors import NotStorable, TooLarge
from choreography_ray.job import Job, JobRuntime, bind_job, is_overridden
from choreography_ray.model import AdmissionMoment, AttemptRecord, StageFailureBehavior
from choreography_ray.plain import clean
from choreography_ray.records import Failure, JobDocument, Outcome, OutcomeKind, Payload
from choreography_ray.step import JobStep
from choreography_ray.storage.sizes import check_job, checked_size, nearness, payload_size

log = logging.getLogger(__name__)


class Hooks:
    """The hooks of one job in one incarnation. `state` is the payload that the store has, or soon will have."""

    def __init__(self, code: Loaded, runtime: JobRuntime, document: JobDocument, user: UserCode) -> None:
        self._code = code
        self._runtime = runtime
        self._about = document
        self._request = document.request
        self._state = document.state
        self._request_bytes = payload_size(document.request)
        self._has_warned = False
        self._warn_of(self._request_bytes + payload_size(document.state))
        self._options = document.options
        self._user = user
        self._gate = asyncio.Lock()
        self.plans: Plans | None = None
        self.step_type: Callable[[int], str] | None = None
        self.is_judging = False
        """Outcomes are being decided: what hooks do to the state is saved with the decisions, not before [S6.5]."""
        self.job = self._bind(self._state)
        self.asks_admission = is_asked(code.job_class, document.options)
        self._is_admitted = False
        self._tells = is_overridden(code.job_class, "on_step_completed_or_stopped")
        self._asks_retry = is_overridden(code.job_class, "should_retry_step")
        self._asks_delay = is_overridden(code.job_class, "get_step_retry_delay")

    def _bind(self, payload: Payload) -> Job[Any, Any]:
        resolve = self._code.resolve
        request, state = decode(self._request, resolve), decode(payload, resolve)
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
        bound = asyncio.timeout(self.timeout)
        try:
            async with bound:
                return await self._user.call(function, *args)
        except TimeoutError as error:
            if not bound.expired():
                raise  # its own: something that it called was too slow
            # The thread cannot be stopped: it keeps the old instance, which nobody reads any more. What was changed
            # until now is in the new one, and still to be saved.
            self._leave_behind()
            raise TimeoutError(f"{hook} took longer than hook_timeout ({self.timeout:g} s)") from error

    def abandon(self) -> None:
        """Nobody waits any longer for what still runs: its thread keeps the old instance, and its changes are lost."""
        self.job = self._bind(self._state)

    def _leave_behind(self) -> None:
        """Go on with a new instance, in the state that the old one is in now, or the last that can be stored."""
        try:
            payload = encode(self.job.state, "state")
        except NotStorable:
            payload = self._state
        self.job = self._bind(payload)

    def changed_state(self) -> Payload:
        """The state as payload if the hooks changed it since it was last asked for, else None.

        Raises `NotStorable` or `TooLarge` for one that the store would not take.
        """
        payload = encode(self.job.state, "state")
        if payload == self._state:
            return None
        used = check_job(self._runtime.job_id, self._request_bytes, payload)
        self._warn_of(used)
        self._state = payload
        return payload

    def _warn_of(self, job_bytes: int) -> None:
        """Once per incarnation [S12.4]."""
        if not self._has_warned and (near := nearness(job_bytes)):
            self._has_warned = True
            job_id = self._runtime.job_id
            log.warning("request and state of job %r take %s: a state beyond that is not saved", job_id, near)

    def _state_after(self, hook: str) -> tuple[Payload, str]:
        """The state if it changed, and what is wrong with it.

        One that cannot be stored means that the hook raised: what changed since the last state that was, is discarded.
        """
        try:
            return self.changed_state(), ""
        except (NotStorable, TooLarge) as error:
            self.job = self._bind(self._state)
            return None, _told(hook, error)

    async def run_group(self, ticket: int, items: tuple[ReportedOutcome, ...]) -> HooksRan:
        """Ask and tell the job about outcomes, in their order [S6.5, S7.2]."""
        async with self._gate:
            errors: list[str] = []
            self.is_judging = True
            try:
                verdicts = [await self._judge(item, errors) for item in items]
            finally:
                self.is_judging = False
            state = None
            if self._tells or self._asks_retry or self._asks_delay:
                state, error = self._state_after("on_step_completed_or_stopped")
                errors += [error] if error else []
            return HooksRan(ticket, tuple(verdicts), state, errors[-1] if errors else "")

    async def _judge(self, item: ReportedOutcome, errors: list[str]) -> Verdict:
        outcome = item.outcome
        needs_result = self._tells or (item.may_retry and self._asks_retry)
        if not needs_result and not item.may_retry and outcome.kind is not OutcomeKind.START_FAILED:
            return Verdict()
        assert self.plans is not None
        step_id = await self.plans.step_id(outcome.ordinal)
        result = await self._result(item) if needs_result else None
        if item.may_retry:
            delay = await self._retry_after(step_id, result, item, errors)
            if delay is not None:
                return Verdict(delay)
        if self._tells:
            try:
                await self._call("on_step_completed_or_stopped", step_id, result)
            except Exception as error:  # noqa: BLE001 - a hook that raises is recorded and not repeated
                errors.append(_told("on_step_completed_or_stopped", error))
        return Verdict(step_id=step_id)

    async def _result(self, item: ReportedOutcome) -> JobStepResult[Any]:
        outcome = item.outcome
        if item.is_made_by_job:
            assert self.plans is not None
            if outcome.kind is OutcomeKind.STOPPED:
                outcome = outcome._replace(value=await self.cancelled_value(outcome.ordinal))
            else:
                outcome = outcome._replace(failure=await self.plans.last_failure(outcome.ordinal))
        return _result(outcome, self._code)

    async def _retry_after(self, step_id: str, result: Any, item: ReportedOutcome, errors: list[str]) -> float | None:
        attempt = item.outcome.attempt
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
        return retry_delay(self._options, item.failed, random.random())

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
            told = _told("on_before_resuming_job_steps", error)
            return ResumeHookRan(self._state_after("on_before_resuming_job_steps")[0], told)
        return ResumeHookRan(*self._state_after("on_before_resuming_job_steps"))

    async def admit(self, moment: AdmissionMoment, stage: int | None) -> AdmissionAnswered:
        """Ask whether the job may go on [S11]."""
        async with self._gate:
            question = question_of(self._about, moment, self.job.request, stage)
            answer = await ask_admission(self.job, question, self._options, self._user)
            if answer.is_allowed is None:
                # A thread that is over its time keeps the old instance.
                self._leave_behind()
        return AdmissionAnswered(answer.is_allowed, moment, answer.why)

    async def admit_resume(self) -> str:
        """Ask whether a stopped job may be resumed; the refusal, empty when it may. Remembered for the next resume."""
        if self._is_admitted or not self.asks_admission:
            return ""
        answer = await self.admit(AdmissionMoment.RESUME, None)
        if answer.is_allowed:
            self._is_admitted = True
            return ""
        log.warning("job %r is not resumed: %s", self._runtime.job_id, clean(answer.why))
        return ADMISSION_UNANSWERED if answer.is_allowed is None else NOT_ADMITTED

    async def check_resume(self) -> ResumeChecked:
        """Whether a stopped job may go on; then what comes before it does [S9.5, S11]."""
        refusal = await self.admit_resume()
        self._is_admitted = False
        if refusal:
            return ResumeChecked(refusal)
        try:
            if not await self.call("can_resume"):
                return ResumeChecked("JOB_CANNOT_BE_RESUMED")
        except Exception as error:  # noqa: BLE001 - raising means no
            return ResumeChecked("JOB_CANNOT_BE_RESUMED", error=_told("can_resume", error))
        ran = await self.resume(initialization_may_be_incomplete=False)
        return ResumeChecked("RESUME_HOOK_FAILED" if ran.error else "", ran.state, ran.error)

    async def check_retry(self) -> RetryChecked:
        """Whether failed steps may be run again [S7.3]."""
        try:
            return RetryChecked(bool(await self.call("can_retry_failed_steps")))
        except Exception as error:  # noqa: BLE001 - raising means no
            _told("can_retry_failed_steps", error)
            return RetryChecked(is_allowed=False)

    async def stopped(self) -> StoppedHookRan:
        """Run `on_stopped`; one that raises is recorded and not repeated [S14.3]."""
        try:
            await self.call("on_stopped")
        except Exception as error:  # noqa: BLE001
            told = _told("on_stopped", error)
            return StoppedHookRan(self._state_after("on_stopped")[0], told)
        return StoppedHookRan(*self._state_after("on_stopped"))

    async def cancelled_value(self, ordinal: int) -> Payload:
        """What the step's own code reports of a step that a stop kept from its work, as far as it says [S9.2]."""
        assert self.plans is not None and self.step_type is not None
        step_type = self._code.resolve(self.step_type(ordinal))
        if step_type.create_cancelled_result is getattr(JobStep, "create_cancelled_result"):  # noqa: B009 - untyped
            return None
        try:
            state = decode(await self.plans.state(ordinal), self._code.resolve)
            step = step_type()
            step.state = state
            made = await self._user.call(step.create_cancelled_result, state, timeout=self.timeout)
            payload = encode(plain_value(made), "result")
            checked_size("the result of a stopped step", payload)
            return payload
        except Exception as error:  # noqa: BLE001 - nothing to tell is no failure of the stop
            _told("create_cancelled_result", error)
            return None

    async def complete(self) -> CompletionHookRan:
        """Run `on_all_steps_completed`."""
        if not is_overridden(self._code.job_class, "on_all_steps_completed"):
            return CompletionHookRan()
        try:
            await self.call("on_all_steps_completed")
        except Exception as error:  # noqa: BLE001 - raising makes the job FAILED [S9.8]
            told = _told("on_all_steps_completed", error)
            return CompletionHookRan(self._state_after("on_all_steps_completed")[0], told)
        return CompletionHookRan(*self._state_after("on_all_steps_completed"))


def _result(outcome: Outcome, code: Loaded) -> JobStepResult[Any]:
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
