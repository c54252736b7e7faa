"""What does a user write to define a job?"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pydantic import BaseModel

from choreography_ray.authoring import checks
from choreography_ray.authoring.bridge import await_on, block_on
from choreography_ray.authoring.result import JobStepResult
from choreography_ray.errors import InvalidId, InvalidJobType
from choreography_ray.model import (
    MAX_ID_BYTES,
    AdmissionMoment,
    JobId,
    Progress,
    StageFailureBehavior,
    StepId,
)
from choreography_ray.options import MAX_COUNT, JobsOptions
from choreography_ray.step import JobStep

HOOKS: Mapping[str, tuple[str, ...]] = {
    "prepare_steps": ("request",),
    "get_job_details": (),
    "on_before_starting_job_steps": (),
    "on_before_dispatching_job_steps": ("initialization_may_be_incomplete",),
    "on_before_resuming_job_steps": (),
    "can_resume": (),
    "get_failure_behavior_for": ("stage",),
    "should_retry_step": ("step_id", "result", "attempt"),
    "get_step_retry_delay": ("failed_attempt",),
    "can_retry_failed_steps": (),
    "on_step_completed_or_stopped": ("step_id", "result"),
    "on_all_steps_completed": (),
    "on_failed_to_prepare": (),
    "on_stopped": (),
    "may_run": ("moment",),
}
"""The hooks of a job and what they are called with; each may be `def` or `async def` [S2.1]."""


class JobState(BaseModel):
    """What a job remembers of its own. Every field has a default. Saved whole with each group of outcomes [S6.5]."""


TRequest = TypeVar("TRequest", bound=BaseModel)
TState = TypeVar("TState", bound=JobState)
TStepRequest = TypeVar("TStepRequest", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class StepDetails:
    """One step of a plan, as `create_step` made it. `ray_options` are the class's with those given on top."""

    step_class: type[JobStep[Any, Any, Any]]
    request: BaseModel
    step_id: StepId
    stage: int = 0
    name: str = ""
    ray_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _check_step(step_class: type[JobStep[Any, Any, Any]], request: object, stage: object) -> None:
    title = checks.type_title(step_class)
    if not step_class.is_concrete:
        raise InvalidJobType(title, "it is abstract: derive from it and give it all types and methods")
    if not isinstance(request, step_class.request_type):
        wanted, got = step_class.request_type.__name__, type(request).__name__
        raise InvalidJobType(title, f"its request must be a {wanted}, not a {got}")
    checks.require_kind(title, "the stage", stage, int)


class JobRuntime(Protocol):
    """The incarnation that runs a job, as it offers itself to the job's hooks. `write_state` runs on `loop`."""

    @property
    def job_id(self) -> JobId: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    async def write_state(self) -> None:
        """Save the state as it is now; in the outcome hook only mark it [S6.5]."""
        ...


class Job(Generic[TRequest, TState], metaclass=checks.Authored):
    """A durable unit of work, spread over steps. Derive from it with request and state type [S2].

    The class is checked when Python makes it: `InvalidJobType` says what cannot work. Hooks run one at a time, each
    at most `hook_timeout`; what a hook that raises means stands in S14.3. A hook's effect on `self.state` is exactly
    once, its other effects at least once [S6.5].
    """

    options: ClassVar[JobsOptions | None] = None
    """Overrides of the fields that it sets explicitly [S2.1]."""
    max_active_steps: ClassVar[int | None] = None
    """The active window of this job; goes before `max_active_steps_per_job` [S5.6]."""
    keep_after_completed: ClassVar[bool] = False
    """Keep records of a job that succeeded until retention [S9.8]."""
    keep_after_completed_with_failures: ClassVar[bool] = True
    """Keep records of a job that completed with failures until retention [S9.8]."""
    keep_results: ClassVar[bool] = False
    """Keep the results of steps, for later stages and for `JobHandle.results` [S18.8]."""
    start_steps_in_background: ClassVar[bool] = False
    """`start` returns as soon as the record is durable [S4.5]."""
    type_name: ClassVar[str | None] = None
    """The label that records carry; None: the class's qualified name. Nothing is looked up by it [S13]."""

    request_type: ClassVar[type[BaseModel]] = BaseModel
    state_type: ClassVar[type[JobState]] = JobState

    request: TRequest
    """What the job was started with; there once it is bound."""
    state: TState
    """The job's own state. In a hook a working copy, which becomes the state with the write that follows [S6.5]."""
    _runtime: JobRuntime | None = None

    def __new__(cls) -> Self:
        # Here rather than in __init__, so that a subclass whose __init__ forgets super() has a state all the same.
        job = super().__new__(cls)
        if cls.is_concrete:
            job.state = cls.state_type()  # type: ignore[assignment]
        return job

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self._bound.job_id

    @property
    def progress(self) -> Progress:
        """The counts as of now [S3.1]."""
        return self._bound.progress

    async def write_state(self) -> None:
        """Save `self.state` now; it is durable when this returns. In `on_step_completed_or_stopped` it only marks."""
        await await_on(self._bound.loop, self._bound.write_state())

    def write_state_blocking(self) -> None:
        """`write_state` for hooks that are `def`."""
        block_on(self._bound.loop, self._bound.write_state())

    def bind(self, runtime: JobRuntime) -> None:
        """For the engine: the incarnation that this instance's hooks belong to."""
        self._runtime = runtime

    @property
    def _bound(self) -> JobRuntime:
        if self._runtime is None:
            raise RuntimeError(f"{type(self).__name__} belongs to no started job: only its hooks can ask for this")
        return self._runtime

    def create_step(
        self,
        step_class: type[JobStep[TStepRequest, Any, Any]],
        request: TStepRequest,
        *,
        stage: int = 0,
        step_id: str | None = None,
        name: str | None = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> StepDetails:
        """A step for the plan. Without `step_id` one is drawn; `ray_options` go on top of the class's.

        Raises `InvalidJobType` when class, request or stage cannot be used, `InvalidId` for an id that is not text of
        1 to 1,024 UTF-8 bytes, or a longer name.
        """
        # Plans have millions of steps: what is plainly right is let through before anything is asked in detail.
        if JobStep not in getattr(step_class, "__mro__", ()):
            checks.require_subclass(checks.type_title(type(self)), "create_step", step_class, JobStep)
        if not step_class.is_concrete or type(request) is not step_class.request_type or type(stage) is not int:
            _check_step(step_class, request, stage)
        if not -(2**63) <= stage < 2**63:
            raise InvalidJobType(checks.type_title(step_class), f"the stage {stage} takes more than 64 bits")
        if name and len(name.encode("utf-8", "backslashreplace")) > MAX_ID_BYTES:
            raise InvalidId("step name", f"{name[:40]!r}... takes more than {MAX_ID_BYTES:,} bytes")
        options = step_class.ray_options
        if ray_options is not None:
            checks.check_ray_options(checks.type_title(step_class), ray_options)
            options = {**options, **ray_options}
        return StepDetails(
            step_class,
            request,
            StepId(os.urandom(16).hex() if step_id is None else check_id("step id", step_id)),
            int(stage),
            name or "",
            options,
        )

    @abstractmethod
    def prepare_steps(
        self, request: TRequest
    ) -> Iterable[StepDetails] | AsyncIterable[StepDetails] | Awaitable[Iterable[StepDetails]]:
        """The plan: a list or a generator of what `create_step` returns. Called once, before anything is saved [S4]."""

    def get_job_details(self) -> str | Awaitable[str]:
        """A sentence about this job for people who look at a list of jobs."""
        return ""

    def on_before_starting_job_steps(self) -> Awaitable[None] | None:
        """Before the first step starts. Marked before the call: at most once in a job's life."""
        return None

    def on_before_dispatching_job_steps(self, initialization_may_be_incomplete: bool) -> Awaitable[None] | None:
        """Before steps start, on start and on each resume. True when startup was interrupted after the mark of
        `on_before_starting_job_steps`: what that one does may be half done.
        """
        return None

    def on_before_resuming_job_steps(self) -> Awaitable[None] | None:
        """Before a job that was stopped or interrupted goes on; until it succeeds nothing starts [S8]."""
        return None

    def can_resume(self) -> bool | Awaitable[bool]:
        """Whether a stopped job may be resumed."""
        return True

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior | Awaitable[StageFailureBehavior]:
        """What failed steps in this stage mean for the stages after it [S5.3]."""
        return StageFailureBehavior.STOP_JOB

    def should_retry_step(self, step_id: StepId, result: JobStepResult[Any], attempt: int) -> bool | Awaitable[bool]:
        """Whether a failed attempt is followed by another; asked only below `max_step_attempts` [S7.2]."""
        return True

    def get_step_retry_delay(self, failed_attempt: int) -> timedelta | Awaitable[timedelta | None] | None:
        """How long to wait after this attempt, uncapped; None: the backoff of the options [S7.2]."""
        return None

    def can_retry_failed_steps(self) -> bool | Awaitable[bool]:
        """Whether `retry_failed_steps` is allowed [S7.3]."""
        return False

    def on_step_completed_or_stopped(self, step_id: StepId, result: JobStepResult[Any]) -> Awaitable[None] | None:
        """A step has a final outcome or was stopped. Changes of `self.state` are saved with it, exactly once [S6.5]."""
        return None

    def on_all_steps_completed(self) -> Awaitable[None] | None:
        """Every step has a final outcome. Raising makes the job `FAILED` [S9.8]."""
        return None

    def on_failed_to_prepare(self) -> Awaitable[None] | None:
        """A step was refused, or could not be prepared: the job is `FAILED` [S4.3]."""
        return None

    def on_stopped(self) -> Awaitable[None] | None:
        """The job is stopped and all its steps are accounted [S9.1]."""
        return None

    def may_run(self, moment: AdmissionMoment) -> bool | Awaitable[bool]:
        """Whether the job may start, go on, or begin its next stage [S11]. Raising is no refusal."""
        return True

    @classmethod
    def _check_definition(cls) -> None:
        """Raise `InvalidJobType` when the class cannot work; else set what is derived from its definition."""
        title = checks.type_title(cls)
        arguments = checks.resolve_arguments(cls, Job)
        if any(isinstance(argument, TypeVar) for argument in arguments):
            raise InvalidJobType(title, "it names no types: derive from Job[Request, State]")
        cls.request_type = checks.require_model(cls, "request", arguments[0], BaseModel)
        cls.state_type = checks.require_model(cls, "state", arguments[1], JobState)  # type: ignore[assignment]
        checks.require_defaults(cls, cls.state_type)
        checks.require_no_arguments(cls)
        for hook, parameters in HOOKS.items():
            checks.require_method(cls, hook, parameters, Job, required=hook == "prepare_steps")
        checks.require_annotation(cls, "prepare_steps", 0, cls.request_type, "the request type")
        for name, kind in _OPTIONAL_ATTRIBUTES.items():
            if (value := getattr(cls, name)) is not None:
                checks.require_kind(title, name, value, kind)
        if cls.type_name is not None:
            try:
                check_id("type_name", cls.type_name)
            except InvalidId as error:
                raise InvalidJobType(title, str(error)) from None


_OPTIONAL_ATTRIBUTES: Mapping[str, type] = {"options": JobsOptions, "max_active_steps": int, "type_name": str}


def check_id(what: str, value: object) -> str:
    """`value` if it can be a job or step id, else `InvalidId`. `what` is "job id", "step id" or the like [S2.1]."""
    if not isinstance(value, str):
        raise InvalidId(what, f"it must be text, not {value!r}")
    if not value:
        raise InvalidId(what, "it is empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidId(what, f"{value!r} has half of a surrogate pair, which UTF-8 cannot express") from None
    if size > MAX_ID_BYTES:
        raise InvalidId(what, f"it takes {size:,} bytes, the limit is {MAX_ID_BYTES:,}")
    return value


def label_of(job_class: type[Job[Any, Any]]) -> str:
    """The label that records of this job carry: `type_name`, else the class's qualified name [S13]."""
    return job_class.type_name or job_class.__qualname__


def is_overridden(job_class: type[Job[Any, Any]], hook: str) -> bool:
    """Whether the class has a hook of its own; one that has not need not be called."""
    return getattr(job_class, hook) is not getattr(Job, hook)


def effective_options(job_class: type[Job[Any, Any]], base: JobsOptions) -> JobsOptions:
    """`base` with the fields that the class sets explicitly, its `max_active_steps` included, on top."""
    overrides: dict[str, Any] = {}
    if job_class.options is not None:
        overrides = {name: getattr(job_class.options, name) for name in job_class.options.model_fields_set}
    if job_class.max_active_steps is not None:
        overrides["max_active_steps_per_job"] = max(0, min(job_class.max_active_steps, MAX_COUNT))
    return base.model_copy(update=overrides)


def bind_job(
    job_class: type[Job[Any, Any]], runtime: JobRuntime, request: BaseModel, state: BaseModel | None = None
) -> Job[Any, Any]:
    """An instance for the engine to call hooks on. Without `state` it has a fresh one."""
    if not job_class.is_concrete:
        raise InvalidJobType(checks.type_title(job_class), "it is abstract: derive from it and give it all types")
    job = job_class()
    job.bind(runtime)
    job.request = request
    if state is not None:
        job.state = state
    return job
