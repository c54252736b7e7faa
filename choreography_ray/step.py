"""What does a user write to define a step?"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel

from choreography_ray.authoring import checks
from choreography_ray.authoring.cancellation import AsyncCancellation, BlockingCancellation, Cancellation
from choreography_ray.authoring.context import BlockingStepContext, ResultsPage, StepContext, StepRuntime
from choreography_ray.authoring.result import JobStepResult, ResultKind, describe_exception
from choreography_ray.errors import InvalidJobType
from choreography_ray.model import StepHosting
from choreography_ray.options import MAX_COUNT

__all__ = [
    "AsyncCancellation",
    "BlockingCancellation",
    "BlockingStepContext",
    "Cancellation",
    "JobStep",
    "JobStepResult",
    "JobStepState",
    "ResultKind",
    "ResultsPage",
    "StepContext",
    "StepRuntime",
    "describe_exception",
]


class JobStepState(BaseModel):
    """What survives a crash of a step. Every field has a default. No output store and no inbox [S6.1]."""


TRequest = TypeVar("TRequest", bound=BaseModel)
TResult = TypeVar("TResult")
TState = TypeVar("TState", bound=JobStepState)


class JobStep(Generic[TRequest, TResult, TState], metaclass=checks.Authored):
    """One independently failing piece of a job. Derive from it with request, result and state type [S2].

    The class is checked when Python makes it: `InvalidJobType` says what cannot work. A class that leaves type
    arguments open, has abstract methods or names `abc.ABC` among its bases is only there to be derived from.

    A body may be performed more than once: it must bear that [S6.7].
    """

    ray_options: ClassVar[Mapping[str, Any]] = {}
    """Options of the Ray actor that performs the step, passed on unchanged [S14.4]."""
    hosting: ClassVar[StepHosting] = StepHosting.OWN_ACTOR
    """An actor for each step, or warm ones that perform many [S14.2]."""
    steps_per_actor: ClassVar[int] = 1
    """How many steps a shared actor performs at once, each with a slot of its own. At least 1."""
    step_timeout: ClassVar[timedelta | None] = None
    """How long an attempt may take from the body's begin. None: no bound [S6.8]."""
    checkpoint_after_every_batch: ClassVar[bool] = False
    """Make every debounced checkpoint durable at once [S6.3]."""

    request_type: ClassVar[type[BaseModel]] = BaseModel
    state_type: ClassVar[type[JobStepState]] = JobStepState
    is_async: ClassVar[bool] = False
    """Whether `perform_step` is `async def`."""

    state: TState
    """The step's own state: fresh until `initialize_state`, then as it was last made durable."""

    def __new__(cls) -> Self:
        # Here rather than in __init__, so that a subclass whose __init__ forgets super() has a state all the same.
        step = super().__new__(cls)
        if cls.is_concrete:
            step.state = cls.state_type()  # type: ignore[assignment]
        return step

    def prepare_step(self, request: TRequest) -> Awaitable[None] | None:
        """Look at the request before the job starts; raise `StepRefused` to refuse it [S4.3]. In the job's process."""
        return None

    @abstractmethod
    def initialize_state(self, request: TRequest) -> Awaitable[None] | None:
        """Copy what the body needs from the request into `self.state`. Once, in the job's process [S4]."""

    @abstractmethod
    def perform_step(
        self, state: TState, context: Any
    ) -> TResult | JobStepResult[TResult] | Awaitable[TResult | JobStepResult[TResult]]:
        """Do the work and return its result, or a `JobStepResult`; what is raised is recorded as a failure.

        `state` is a deep copy as of the body's begin: changing it persists nothing [S6.1]. `async def` gets a
        `StepContext` on a loop of its own thread, `def` a `BlockingStepContext` on a thread [S14.3].
        """

    def create_cancelled_result(
        self, state: TState
    ) -> TResult | JobStepResult[TResult] | Awaitable[TResult | JobStepResult[TResult] | None] | None:
        """What to report when the step is stopped before or during its work [S9.2]; None: nothing to tell."""
        return None

    @classmethod
    def _check_definition(cls) -> None:
        """Raise `InvalidJobType` when the class cannot work; else set what is derived from its definition."""
        title = checks.type_title(cls)
        arguments = checks.resolve_arguments(cls, JobStep)
        if any(isinstance(argument, TypeVar) for argument in arguments):
            raise InvalidJobType(title, "it names no types: derive from JobStep[Request, Result, State]")
        cls.request_type = checks.require_model(cls, "request", arguments[0], BaseModel)
        cls.state_type = checks.require_model(cls, "state", arguments[2], JobStepState)  # type: ignore[assignment]
        checks.require_defaults(cls, cls.state_type)
        checks.require_no_arguments(cls)
        checks.require_method(cls, "prepare_step", ("request",), JobStep)
        checks.require_method(cls, "initialize_state", ("request",), JobStep, required=True)
        checks.require_method(cls, "perform_step", ("state", "context"), JobStep, required=True)
        checks.require_method(cls, "create_cancelled_result", ("state",), JobStep)
        if inspect.isgeneratorfunction(cls.perform_step) or inspect.isasyncgenfunction(cls.perform_step):
            raise InvalidJobType(title, "perform_step returns its result once: it cannot yield")
        cls.is_async = inspect.iscoroutinefunction(cls.perform_step)
        for method in ("prepare_step", "initialize_state"):
            checks.require_annotation(cls, method, 0, cls.request_type, "the request type")
        for method in ("perform_step", "create_cancelled_result"):
            checks.require_annotation(cls, method, 0, cls.state_type, "the state type")
        context: type = StepContext if cls.is_async else BlockingStepContext
        checks.require_annotation(cls, "perform_step", 1, context, "what it gets")
        checks.check_ray_options(title, cls.ray_options)
        checks.require_kind(title, "hosting", cls.hosting, StepHosting)
        checks.require_kind(title, "steps_per_actor", cls.steps_per_actor, int)
        if not 1 <= cls.steps_per_actor <= MAX_COUNT:
            raise InvalidJobType(title, f"steps_per_actor must be 1 to {MAX_COUNT:,}, not {cls.steps_per_actor}")
        if cls.step_timeout is not None:
            checks.require_kind(title, "step_timeout", cls.step_timeout, timedelta)
            if cls.step_timeout <= timedelta(0):
                raise InvalidJobType(title, "step_timeout must be positive: None means no bound")
