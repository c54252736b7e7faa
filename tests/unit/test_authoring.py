"""What a user writes: classes are checked where they are made, and contexts reach a runtime that lives elsewhere."""

from __future__ import annotations

import abc
import asyncio
import logging
import pickle
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel

from choreography_ray.authoring.cancellation import AsyncCancellation, BlockingCancellation, Cancellation
from choreography_ray.authoring.context import BlockingStepContext, ResultsPage, StepContext
from choreography_ray.authoring.result import JobStepResult
from choreography_ray.errors import (
    CallbackReason,
    CallbackRejected,
    InvalidId,
    InvalidJobType,
    NestedCallback,
    StepCancelled,
)
from choreography_ray.job import (
    Job,
    JobState,
    StepDetails,
    bind_job,
    check_id,
    effective_options,
    is_overridden,
    label_of,
)
from choreography_ray.model import MAX_MESSAGE, MAX_TRACEBACK, JobId, Progress, StepHosting, StepId
from choreography_ray.options import MAX_COUNT, JobsOptions
from choreography_ray.step import JobStep, JobStepState


class Request(BaseModel):
    shard: str = ""


class UrgentRequest(Request):
    priority: int = 0


class Other(BaseModel):
    pass


class State(JobStepState):
    shard: str = ""
    pending: list[str] = []


class Work(JobStep[Request, str, State]):
    ray_options = {"num_cpus": 1, "memory": 5}

    def initialize_state(self, request: Request) -> None:
        self.state.shard = request.shard

    def perform_step(self, state: State, context: BlockingStepContext) -> str:
        return state.shard


class Plan(Job[Request, JobState]):
    def prepare_steps(self, request: Request) -> Iterator[StepDetails]:
        yield self.create_step(Work, request)


# steps, when Python makes them


def test_a_step_class_tells_its_types_and_how_its_body_runs() -> None:
    """What the engine reads from the class."""

    class Awaiting(Work):
        async def perform_step(self, state: State, context: StepContext) -> str:
            return state.shard

    assert (Work.request_type, Work.state_type, Work.is_async, Work.is_concrete) == (Request, State, False, True)
    assert (Awaiting.request_type, Awaiting.is_async) == (Request, True)


def test_a_thread_that_waits_for_a_stop_is_told_before_any_listener() -> None:
    """A listener that takes its time holds up nobody who waits, and one that raises loses nobody."""
    flag = Cancellation()
    body = BlockingCancellation(flag)
    assert not body.wait(0)
    heard: list[bool] = []
    flag.on_set(lambda: heard.append(body.wait(5)))
    flag.on_set(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        flag.set()
    assert heard == [True]
    assert BlockingCancellation(flag).wait()


def test_every_step_has_a_fresh_state_of_its_own() -> None:
    """Two steps share nothing, and a constructor that forgets super() costs nothing."""

    class Forgetful(Work):
        def __init__(self) -> None:
            self.extra = 1

    first, second = Forgetful(), Forgetful()
    first.state.pending.append("x")
    assert second.state == State()


R = TypeVar("R", bound=BaseModel)
S = TypeVar("S", bound=JobStepState)


def test_types_are_found_through_generic_classes_between() -> None:
    """Intermediate bases may leave arguments open, reorder them, and are not checked themselves."""

    class Swapped(JobStep[R, str, S], Generic[S, R]):
        def perform_step(self, state: S, context: BlockingStepContext) -> str:
            return ""

    class Half(Swapped[State, R]):
        def initialize_state(self, request: R) -> None:
            pass

    class Whole(Half[UrgentRequest]):
        pass

    assert not Swapped.is_concrete
    assert not Half.is_concrete
    assert (Whole.request_type, Whole.state_type) == (UrgentRequest, State)


def test_a_class_that_says_that_it_is_abstract_is_left_alone() -> None:
    """`abc.ABC` among the bases, or an abstract method, and no check is made, but no step either."""

    class Declared(JobStep[Request, str, State], abc.ABC):
        pass

    class HasAbstract(Work):
        @abc.abstractmethod
        def more(self) -> None: ...

    for cls in (Declared, HasAbstract):
        with pytest.raises(InvalidJobType, match="it is abstract"):
            Plan().create_step(cls, Request())  # type: ignore[type-abstract]


def make(base: Any, **members: Any) -> Any:
    """A class named Made with these members; those that are None are left out."""
    body = {name: member for name, member in members.items() if member is not None}
    return types.new_class("Made", (base,), {}, lambda namespace: namespace.update(body))


def make_step(base: Any = JobStep[Request, str, State], **members: Any) -> Any:
    """A step class that can work, but for what is given."""
    required = {"initialize_state": lambda self, request: None, "perform_step": lambda self, state, context: None}
    return make(base, **{**required, **members})


class Needy(JobStepState):
    must: int


async def generates(self: Any, state: State, context: StepContext) -> AsyncIterator[int]:
    yield 1


def takes_other(self: Any, request: Other) -> None: ...


def takes_any(self: Any, request: Any) -> None: ...


def takes_base(self: Any, request: BaseModel) -> None: ...


def blocks_with_async_context(self: Any, state: State, context: StepContext) -> str:
    return ""


async def awaits_with_blocking_context(self: Any, state: State, context: BlockingStepContext) -> str:
    return ""


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (lambda: make_step(JobStep), "it names no types: derive from JobStep"),
        (lambda: make_step(JobStep[str, str, State]), "its request type must be a pydantic model, not builtins.str"),  # type: ignore[type-var]
        (lambda: make_step(JobStep[Request, str, Other]), "its state type must be a JobStepState, not .*Other"),  # type: ignore[type-var]
        (lambda: make_step(JobStep[Request, str, Needy]), "every field of its state Needy needs a default, and must"),
        (lambda: make_step(perform_step=None), r"it must define perform_step\(self, state, context\)"),
        (lambda: make_step(initialize_state=None), r"it must define initialize_state\(self, request\)"),
        (lambda: make_step(perform_step=lambda self, state: None), r"perform_step must take \(self, state, context\)"),
        (lambda: make_step(perform_step="text"), "perform_step must be a method"),
        (lambda: make_step(perform_step=generates), "perform_step returns its result once"),
        (lambda: make_step(prepare_step=lambda self: None), r"prepare_step must take \(self, request\)"),
        (lambda: make_step(initialize_state=takes_other), "takes request: Other, but the request type is Request"),
        (lambda: make_step(perform_step=blocks_with_async_context), "context: StepContext, but what it gets is Block"),
        (lambda: make_step(perform_step=awaits_with_blocking_context), "but what it gets is StepContext"),
        (lambda: make_step(__init__=lambda self, argument: None), "its __init__ must work without arguments"),
        (lambda: make_step(ray_options={"name": "x", "max_restarts": 3}), "ray_options cannot set max_restarts, name:"),
        (lambda: make_step(ray_options={"max_concurrency": 3}), "ray_options cannot set max_concurrency"),
        (lambda: make_step(ray_options=[1]), "ray_options must map names"),
        (lambda: make_step(ray_options={1: 1}), "ray_options must map names"),
        (lambda: make_step(hosting="SHARED_ACTORS"), "hosting must be of type StepHosting"),
        (lambda: make_step(steps_per_actor=0), "steps_per_actor must be 1 to 2,147,483,647, not 0"),
        (lambda: make_step(steps_per_actor=True), "steps_per_actor must be of type int, not True"),
        (lambda: make_step(step_timeout=5), "step_timeout must be of type timedelta, not 5"),
        (lambda: make_step(step_timeout=timedelta(0)), "step_timeout must be positive"),
    ],
)
def test_a_step_class_that_cannot_work_is_refused_when_it_is_made(attempt: Callable[[], Any], why: str) -> None:
    """The error names the class and says what is wrong with it."""
    with pytest.raises(InvalidJobType, match=why) as refused:
        attempt()
    assert refused.value.type_name.endswith(".Made")
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize(
    "members",
    [
        {"initialize_state": takes_any},
        {"initialize_state": takes_base},
        {"initialize_state": lambda self, *anything: None},
        {"perform_step": staticmethod(lambda state, context: None)},
        {"perform_step": lambda self, state, context, more=1: None},
        {"hosting": StepHosting.SHARED_ACTORS, "steps_per_actor": 4, "step_timeout": timedelta(seconds=1)},
        {"ray_options": {"num_gpus": 0.5, "runtime_env": {"pip": []}}},
    ],
)
def test_a_step_class_that_can_work_is_accepted(members: dict[str, Any]) -> None:
    """Wider annotations and signatures are no contradiction."""
    assert make_step(**members).is_concrete


# jobs, when Python makes them


def make_job(base: Any = Job[Request, JobState], **members: Any) -> Any:
    """A job class that can work, but for what is given."""
    return make(base, **{"prepare_steps": lambda self, request: [], **members})


class NeedyJobState(JobState):
    must: int


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (lambda: make_job(Job), "it names no types: derive from Job"),
        (lambda: make_job(Job[int, JobState]), "its request type must be a pydantic model"),  # type: ignore[type-var]
        (lambda: make_job(Job[Request, State]), "its state type must be a JobState"),  # type: ignore[type-var]
        (lambda: make_job(Job[Request, NeedyJobState]), "every field of its state NeedyJobState needs a default"),
        (lambda: make_job(prepare_steps=lambda self: []), r"prepare_steps must take \(self, request\)"),
        (lambda: make_job(prepare_steps=takes_other), "takes request: Other, but the request type is Request"),
        (lambda: make_job(may_run=lambda self: True), r"may_run must take \(self, moment\)"),
        (lambda: make_job(should_retry_step=lambda self, s, r: True), "should_retry_step must take"),
        (lambda: make_job(options={"max_step_attempts": 2}), "options must be of type JobsOptions"),
        (lambda: make_job(max_active_steps="4"), "max_active_steps must be of type int"),
        (lambda: make_job(type_name=""), "type_name cannot be used: it is empty"),
        (lambda: make_job(type_name="\ud800"), "half of a surrogate pair"),
        (lambda: make_job(type_name=3), "type_name must be of type str"),
    ],
)
def test_a_job_class_that_cannot_work_is_refused_when_it_is_made(attempt: Callable[[], Any], why: str) -> None:
    """As for steps."""
    with pytest.raises(InvalidJobType, match=why):
        attempt()


def test_the_options_of_a_class_override_only_what_they_set() -> None:
    """A field that the class sets to its default is set all the same; the others come from the client [S2.1]."""
    made = make_job(options=JobsOptions(max_step_attempts=1, max_history=7), max_active_steps=0)
    base = JobsOptions(max_step_attempts=4, step_retry_jitter=0.5)
    effective = effective_options(made, base)
    assert (effective.max_step_attempts, effective.max_history, effective.step_retry_jitter) == (1, 7, 0.5)
    assert effective.max_active_steps_per_job == 0
    assert effective_options(make_job(max_active_steps=10**30), base).max_active_steps_per_job == MAX_COUNT
    assert effective_options(Plan, base) == base


def test_the_engine_can_tell_a_hook_that_does_nothing() -> None:
    """Such a hook need not be called, which matters for the one that is called for each step."""
    made = make_job(on_step_completed_or_stopped=lambda self, step_id, result: None)
    assert is_overridden(made, "on_step_completed_or_stopped")
    assert not is_overridden(Plan, "on_step_completed_or_stopped")


def test_the_label_of_a_job_type_is_its_qualified_name_unless_it_has_one() -> None:
    """The label only shows; code is found by reference [S13]."""
    assert label_of(Plan) == "Plan"
    assert label_of(make_job(type_name="plans")) == "plans"


# plans


def test_a_step_of_a_plan_has_an_id_and_the_options_of_its_class() -> None:
    """Ids are drawn when not given; given Ray options go on top of the class's."""
    job = Plan()
    first, second = job.create_step(Work, Request()), job.create_step(Work, UrgentRequest())
    assert first.step_id != second.step_id
    assert len(first.step_id) == 32
    given = job.create_step(Work, Request(), stage=-3, step_id="$weird.id/ü", name="n", ray_options={"num_cpus": 2})
    assert (given.stage, given.step_id, given.name) == (-3, "$weird.id/ü", "n")
    assert given.ray_options == {"num_cpus": 2, "memory": 5}
    assert Work.ray_options == {"num_cpus": 1, "memory": 5}


@pytest.mark.parametrize(
    ("attempt", "error", "why"),
    [
        (lambda job: job.create_step(Work, Other()), InvalidJobType, "its request must be a Request, not a Other"),
        (lambda job: job.create_step(Work, None), InvalidJobType, "its request must be a Request, not a NoneType"),
        (lambda job: job.create_step(Plan, Request()), InvalidJobType, "create_step needs a subclass of JobStep"),
        (lambda job: job.create_step(Work(), Request()), InvalidJobType, "create_step needs a subclass of JobStep"),
        (lambda job: job.create_step(JobStep, Request()), InvalidJobType, "it is abstract"),
        (lambda job: job.create_step(Work, Request(), stage="1"), InvalidJobType, "the stage must be of type int"),
        (lambda job: job.create_step(Work, Request(), ray_options={"name": ""}), InvalidJobType, "cannot set name"),
        (
            lambda job: job.create_step(Work, Request(), step_id=""),
            InvalidId,
            "this step id cannot be used: it is empty",
        ),
        (lambda job: job.create_step(Work, Request(), stage=2**63), InvalidJobType, "takes more than 64 bits"),
        (lambda job: job.create_step(Work, Request(), name="ü" * 513), InvalidId, "takes more than 1,024 bytes"),
        (lambda job: job.create_step(Work, Request(), step_id=7), InvalidId, "it must be text, not 7"),
        (lambda job: job.create_step(Work, Request(), step_id="ü" * 513), InvalidId, "takes 1,026 bytes, the limit"),
        (lambda job: job.create_step(Work, Request(), step_id="\ud800"), InvalidId, "half of a surrogate pair"),
    ],
)
def test_a_step_that_cannot_be_planned_is_refused(
    attempt: Callable[[Any], Any], error: type[Exception], why: str
) -> None:
    """At run time too, since a plan is often written without annotations."""
    with pytest.raises(error, match=why):
        attempt(Plan())


def test_the_longest_id_is_a_kibibyte() -> None:
    """Up to 1,024 UTF-8 bytes, and an id that cannot be used is a ValueError as well."""
    assert check_id("job id", "ü" * 512) == "ü" * 512
    with pytest.raises(ValueError, match="this job id cannot be used"):
        check_id("job id", "")


# a runtime on a loop of its own thread


class Runtime:
    """A run as a host offers it, and a job's incarnation: notes what it is asked, on its own loop."""

    job_id = JobId("job")
    step_id = StepId("step")
    attempt = 2
    logger = logging.getLogger(__name__)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.seen: list[Any] = []
        self.turn = asyncio.Lock()
        self.refuse: CallbackReason | None = None
        self.finished = threading.Event()

    async def invoke(self, callback: Callable[[], Any], cancel: Cancellation | None) -> Any:
        assert asyncio.get_running_loop() is self.loop
        async with self.turn:
            if self.refuse or (cancel is not None and cancel.is_set()):
                raise CallbackRejected(self.refuse or CallbackReason.CANCELLED)
            if asyncio.iscoroutinefunction(callback):
                return await asyncio.to_thread(lambda: asyncio.run(callback()))
            value = await asyncio.to_thread(callback)
            self.finished.set()
            return value

    async def checkpoint(self, in_turn: bool) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.seen.append(("checkpoint", in_turn))

    async def progress(self, fraction: float, message: str) -> None:
        self.seen.append((fraction, message))

    async def read_results(self, stage: int | None, after: int) -> ResultsPage:
        self.seen.append((stage, after))
        first = after + 1
        page = [(StepId(str(n)), n) for n in range(first, min(first + 2, 5))]
        return ResultsPage(page, first + 1 if first + 2 < 5 else None)


class Incarnation:
    """A job's runtime."""

    job_id = JobId("job")
    progress = Progress(total=3)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.writes = 0

    async def write_state(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.writes += 1


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs on another thread, as an actor's does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def runtime(loop: asyncio.AbstractEventLoop) -> Runtime:
    return Runtime(loop)


def test_a_blocking_body_reaches_its_runtime(runtime: Runtime) -> None:
    """Callbacks return their value or raise, checkpoints know whether they hold the turn, results come in pages."""
    context = BlockingStepContext(runtime, Cancellation())
    assert (context.job_id, context.step_id, context.attempt) == ("job", "step", 2)

    def commit() -> str:
        context.write_checkpoint_debounced()
        return "done"

    assert context.invoke_on_actor(commit) == "done"
    context.write_checkpoint_debounced()
    context.report_progress(0.5, "half")
    assert runtime.seen == [("checkpoint", True), ("checkpoint", False), (0.5, "half")]
    with pytest.raises(ZeroDivisionError):
        context.invoke_on_actor(lambda: 1 // 0)
    assert [value for _, value in context.results(stage=3)] == [0, 1, 2, 3, 4]
    assert runtime.seen[3:] == [(3, -1), (3, 1), (3, 3)]


def test_an_awaiting_body_reaches_its_runtime(runtime: Runtime) -> None:
    """The same from another loop, with callbacks that are `def`, `async def`, or hand back an awaitable."""
    context = StepContext(runtime, Cancellation())

    async def commit() -> str:
        await context.write_checkpoint_debounced()
        return "done"

    async def body() -> list[Any]:
        assert await context.invoke_on_actor(commit) == "done"
        await context.write_checkpoint_debounced()
        await context.report_progress(1)
        values = [await context.invoke_on_actor(lambda: 7)]
        return values + [value async for _, value in context.results()]

    assert asyncio.run(body()) == [7, 0, 1, 2, 3, 4]
    assert runtime.seen[:3] == [("checkpoint", True), ("checkpoint", False), (1.0, "")]


def test_a_body_on_the_runtimes_own_loop_is_served_too(loop: asyncio.AbstractEventLoop, runtime: Runtime) -> None:
    """Awaiting works there; blocking would wait for itself, and raises at once."""

    async def body() -> int:
        with pytest.raises(RuntimeError, match="would block the very loop"):
            BlockingStepContext(runtime, Cancellation()).report_progress(0.1)
        return await StepContext(runtime, Cancellation()).invoke_on_actor(lambda: 3)

    assert asyncio.run_coroutine_threadsafe(body(), loop).result(10) == 3


def test_a_callback_that_waits_for_another_raises_at_once(runtime: Runtime) -> None:
    """The second could only wait for the first; also from a task or a thread that the callback started [S6.2]."""
    blocking = BlockingStepContext(runtime, Cancellation())
    with pytest.raises(NestedCallback):
        blocking.invoke_on_actor(lambda: blocking.invoke_on_actor(lambda: 1))
    context = StepContext(runtime, Cancellation())

    async def nested() -> int:
        return await asyncio.create_task(context.invoke_on_actor(lambda: 1))

    async def body() -> int:
        return await context.invoke_on_actor(nested)

    with pytest.raises(NestedCallback):
        asyncio.run(body())
    assert blocking.invoke_on_actor(lambda: 2) == 2, "the turn was given back"


@pytest.mark.parametrize("reason", [CallbackReason.CLOSED, CallbackReason.STALE_RUN])
def test_a_refused_callback_never_ran(runtime: Runtime, reason: CallbackReason) -> None:
    """What the runtime refuses reaches the body with its reason."""
    runtime.refuse = reason
    ran: list[int] = []
    with pytest.raises(CallbackRejected) as rejected:
        BlockingStepContext(runtime, Cancellation()).invoke_on_actor(lambda: ran.append(1))
    assert rejected.value.reason is reason
    assert ran == []


def test_a_callback_whose_cancel_was_set_is_refused(runtime: Runtime) -> None:
    """The step's own `cancelled` can serve as the cancel of a callback."""
    cancelled = Cancellation()
    context = BlockingStepContext(runtime, cancelled)
    cancelled.set()
    with pytest.raises(CallbackRejected) as rejected:
        context.invoke_on_actor(lambda: 1, cancel=context.cancelled)
    assert rejected.value.reason is CallbackReason.CANCELLED


def test_a_cancelled_body_does_not_cut_a_callback_that_has_started(runtime: Runtime) -> None:
    """asyncio cancellation ends the wait; the callback runs to its end [S6.2, S9.2]."""
    context = StepContext(runtime, Cancellation())
    started, go = threading.Event(), threading.Event()

    def commit() -> None:
        started.set()
        assert go.wait(10)

    async def body() -> None:
        waiting = asyncio.create_task(context.invoke_on_actor(commit))
        await asyncio.to_thread(started.wait, 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not runtime.finished.is_set()
        go.set()
        assert await asyncio.to_thread(runtime.finished.wait, 5), "the runtime's side of the callback was cut"

    asyncio.run(body())


def test_a_context_carried_into_another_process_has_no_run(runtime: Runtime) -> None:
    """It still tells whose it is, and everything else is refused as `NO_RUN`."""
    carried = pickle.loads(pickle.dumps(BlockingStepContext(runtime, Cancellation())))
    assert (carried.step_id, carried.attempt) == ("step", 2)
    with pytest.raises(CallbackRejected) as rejected:
        carried.invoke_on_actor(lambda: 1)
    assert rejected.value.reason is CallbackReason.NO_RUN


def test_a_context_of_a_host_that_is_gone_is_closed() -> None:
    """Its loop is closed, so nothing can be asked any more."""
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(CallbackRejected) as rejected:
        BlockingStepContext(Runtime(loop), Cancellation()).write_checkpoint_debounced()
    assert rejected.value.reason is CallbackReason.CLOSED


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_progress_is_a_fraction(runtime: Runtime, fraction: float) -> None:
    """Percent, by mistake, is an error and not a bar beyond its end."""
    with pytest.raises(ValueError, match="fraction from 0 to 1"):
        BlockingStepContext(runtime, Cancellation()).report_progress(fraction)


def test_a_job_asks_its_incarnation(loop: asyncio.AbstractEventLoop) -> None:
    """Ids, progress and writes come from the runtime that the engine bound; without one they say so."""
    incarnation = Incarnation(loop)
    job = bind_job(Plan, incarnation, Request(shard="s"))
    assert (job.job_id, job.progress.total, job.request.shard, job.state) == ("job", 3, "s", JobState())
    job.write_state_blocking()
    asyncio.run(job.write_state())
    assert incarnation.writes == 2
    with pytest.raises(RuntimeError, match="belongs to no started job"):
        _ = Plan().job_id


# stop


def test_a_stop_reaches_threads_and_loops() -> None:
    """One flag, two faces: both wake when it is set, from whatever thread."""
    flag = Cancellation()
    blocking, awaiting = BlockingCancellation(flag), AsyncCancellation(flag)
    assert blocking.wait(timeout=0) is False
    waiting = threading.Event()

    def set_when_both_wait() -> None:
        assert waiting.wait(10)
        flag.set()

    async def body() -> bool:
        assert await awaiting.wait(timeout=0.001) is False
        waiter = asyncio.create_task(awaiting.wait())
        thread = asyncio.create_task(asyncio.to_thread(blocking.wait, 10))
        asyncio.get_running_loop().call_soon(waiting.set)
        return await waiter and await thread and await awaiting.wait()

    setter = threading.Thread(target=set_when_both_wait)
    setter.start()
    assert asyncio.run(body())
    setter.join(10)
    assert blocking.is_set()
    with pytest.raises(StepCancelled):
        awaiting.raise_if_set()


def test_listeners_of_a_stop_are_told_once() -> None:
    """At once when the flag is set already; not at all when they took it back."""
    flag = Cancellation()
    told: list[str] = []
    flag.on_set(lambda: told.append("kept"))
    flag.on_set(lambda: told.append("forgotten"))()
    flag.set()
    flag.set()
    flag.on_set(lambda: told.append("late"))
    assert told == ["kept", "late"]


def test_a_loop_that_closed_while_it_waited_does_not_disturb_the_stop() -> None:
    """The waiter is gone; setting the flag is no error."""
    flag = Cancellation()
    loop = asyncio.new_event_loop()
    waiter = AsyncCancellation(flag).wait()
    task = loop.create_task(waiter)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    flag.set()
    assert flag.is_set()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


# results


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_results_tell_how_an_attempt_ended() -> None:
    """Kind, value and error, and a form that a person can read."""
    won, lost = JobStepResult.succeeded([1]), JobStepResult.failed(raised(KeyError("shard")), partial=3)
    stopped, told = JobStepResult.cancelled(), JobStepResult.failed("no luck")
    assert (won.is_success, won.is_failure, won.is_cancelled, won.value, won.error) == (True, False, False, [1], None)
    assert lost.is_failure
    assert lost.value == 3
    assert lost.error is not None
    assert (lost.error.error_type, lost.error.message) == ("KeyError", "'shard'")
    assert "raise error" in lost.error.traceback
    assert stopped.is_cancelled
    assert [repr(each) for each in (won, lost, stopped, told)] == [
        "JobStepResult.succeeded([1])",
        "JobStepResult.failed(\"KeyError: 'shard'\", partial=3)",
        "JobStepResult.cancelled()",
        "JobStepResult.failed('no luck')",
    ]
    assert pickle.loads(pickle.dumps(lost)) == lost


class Rude(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_what_is_kept_of_an_error_is_bounded_and_never_raises() -> None:
    """A message of megabytes is cut, and an exception without a text has none [S7.1]."""
    long = JobStepResult.failed(raised(ValueError("x" * 10**6))).error
    assert long is not None
    assert len(long.message) == MAX_MESSAGE
    assert len(long.traceback) <= MAX_TRACEBACK + 10
    rude = JobStepResult.failed(raised(Rude())).error
    assert rude is not None
    assert rude.error_type.endswith("Rude")
    assert "ValueError" in rude.message
