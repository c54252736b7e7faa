"""What can a body ask of the runtime that performs it: callbacks, checkpoints, progress, results, its stop?"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, cast, overload

from choreography_ray.authoring.bridge import await_on, block_on
from choreography_ray.authoring.cancellation import AsyncCancellation, BlockingCancellation, Cancellation
from choreography_ray.errors import CallbackReason, CallbackRejected, NestedCallback
from choreography_ray.model import JobId, StepId

T = TypeVar("T")


class ResultsPage(NamedTuple):
    """Some kept results in plan order. `after` is what to ask with for the next page; None: there is none."""

    results: Sequence[tuple[StepId, Any]]
    after: int | None


class StepRuntime(Protocol):
    """One run of one step, as the host offers it to the step's context. Coroutines run on `loop`, the host's own."""

    @property
    def job_id(self) -> JobId: ...
    @property
    def step_id(self) -> StepId: ...
    @property
    def attempt(self) -> int: ...
    @property
    def logger(self) -> logging.Logger | logging.LoggerAdapter[Any]: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    async def invoke(self, callback: Callable[[], Any], cancel: Cancellation | None) -> Any:
        """Run the callback (`def` or `async def`) in turn, off this loop; its value.

        Raises `CallbackRejected` when it never ran [S6.2], else whatever the callback raised.
        """
        ...

    async def checkpoint(self, in_turn: bool) -> None:
        """Report a checkpoint [S6.3]. `in_turn`: from inside a callback, which has the turn and is not waited for."""
        ...

    async def progress(self, fraction: float, message: str) -> None:
        """Tell how far the body is."""
        ...

    async def read_results(self, stage: int | None, after: int) -> ResultsPage:
        """A page of kept results of earlier stages, or of the one given, beginning behind the ordinal `after`."""
        ...


_callback_of: ContextVar[StepRuntime | None] = ContextVar("_callback_of", default=None)
"""The run whose callback is running here. Copied into tasks and `asyncio.to_thread`, so that none escapes it."""


class _Detached:
    """Stands for the runtime where there is none: a context that was carried into another process."""

    def __init__(self, job_id: JobId, step_id: StepId, attempt: int) -> None:
        self.job_id = job_id
        self.step_id = step_id
        self.attempt = attempt

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CallbackRejected(CallbackReason.NO_RUN)


class _Context:
    """What both contexts share. One belongs to one run, and its calls are refused once that run is over."""

    def __init__(self, runtime: StepRuntime) -> None:
        self._runtime = runtime

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self._runtime.job_id

    @property
    def step_id(self) -> StepId:
        """The step's id."""
        return self._runtime.step_id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._runtime.attempt

    @property
    def logger(self) -> logging.Logger | logging.LoggerAdapter[Any]:
        """A logger whose records name job, step and attempt."""
        return self._runtime.logger

    def _guarded(self, callback: Callable[[], Any]) -> Callable[[], Any]:
        """The callback, marked as running while it runs."""
        if self._is_in_callback:
            raise NestedCallback
        runtime = self._runtime
        if inspect.iscoroutinefunction(callback):

            async def run_async() -> Any:
                token = _callback_of.set(runtime)
                try:
                    return await callback()
                finally:
                    _callback_of.reset(token)

            return run_async

        def run() -> Any:
            token = _callback_of.set(runtime)
            try:
                value = callback()
            finally:
                _callback_of.reset(token)
            return _marked(runtime, value) if inspect.isawaitable(value) else value

        return run

    @property
    def _is_in_callback(self) -> bool:
        return _callback_of.get() is self._runtime

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._runtime.loop
        if loop.is_closed():
            raise CallbackRejected(CallbackReason.CLOSED)
        return loop

    def __reduce__(self) -> tuple[Any, ...]:
        return (_detached, (type(self), self.job_id, self.step_id, self.attempt))


def _detached(cls: type[_Context], job_id: JobId, step_id: StepId, attempt: int) -> _Context:
    context = cls.__new__(cls)
    _Context.__init__(context, cast("StepRuntime", _Detached(job_id, step_id, attempt)))
    return context


async def _marked(runtime: StepRuntime, value: Awaitable[T]) -> T:
    # A `def` or lambda that returned an awaitable is still the callback while that is awaited.
    token = _callback_of.set(runtime)
    try:
        return await value
    finally:
        _callback_of.reset(token)


def _fraction(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"progress is told as a fraction from 0 to 1, not {value!r}")
    return float(value)


class StepContext(_Context):
    """What an `async def perform_step` gets."""

    def __init__(self, runtime: StepRuntime, cancelled: Cancellation) -> None:
        super().__init__(runtime)
        self._cancelled = AsyncCancellation(cancelled)

    @property
    def cancelled(self) -> AsyncCancellation:
        """Set when the step is told to stop [S9.2]."""
        return self._cancelled

    @overload
    async def invoke_on_actor(
        self, callback: Callable[[], Coroutine[Any, Any, T]], cancel: Cancellation | None = None
    ) -> T: ...
    @overload
    async def invoke_on_actor(self, callback: Callable[[], T], cancel: Cancellation | None = None) -> T: ...
    async def invoke_on_actor(self, callback: Callable[[], Any], cancel: Cancellation | None = None) -> Any:
        """Run `callback` in turn with every other callback and write of this step; its value [S6.2].

        The callback changes `self.state` and writes it, nothing else. Raises `CallbackRejected` when it never ran:
        stop working then. `cancel`, set while it waits, refuses it. Inside a callback: `NestedCallback`.
        """
        guarded = self._guarded(callback)
        return await await_on(self._loop, self._runtime.invoke(guarded, cancel))

    async def write_checkpoint_debounced(self) -> None:
        """Report that the state moved on; when it becomes durable stands in S6.3. Also from inside a callback."""
        await await_on(self._loop, self._runtime.checkpoint(self._is_in_callback))

    async def report_progress(self, fraction: float, message: str = "") -> None:
        """Tell how far the body is, from 0 to 1. Volatile."""
        await await_on(self._loop, self._runtime.progress(_fraction(fraction), message))

    async def results(self, stage: int | None = None) -> AsyncIterator[tuple[StepId, Any]]:
        """Kept results of earlier stages, or of one of them, in plan order, read page by page [S18.8]."""
        after: int | None = -1
        while after is not None:
            page = await await_on(self._loop, self._runtime.read_results(stage, after))
            for result in page.results:
                yield result
            after = page.after


class BlockingStepContext(_Context):
    """What a `def perform_step` gets: the same as `StepContext`, in calls that block."""

    def __init__(self, runtime: StepRuntime, cancelled: Cancellation) -> None:
        super().__init__(runtime)
        self._cancelled = BlockingCancellation(cancelled)

    @property
    def cancelled(self) -> BlockingCancellation:
        """Set when the step is told to stop [S9.2]."""
        return self._cancelled

    @overload
    def invoke_on_actor(
        self, callback: Callable[[], Coroutine[Any, Any, T]], cancel: Cancellation | None = None
    ) -> T: ...
    @overload
    def invoke_on_actor(self, callback: Callable[[], T], cancel: Cancellation | None = None) -> T: ...
    def invoke_on_actor(self, callback: Callable[[], Any], cancel: Cancellation | None = None) -> Any:
        """Run `callback` in turn with every other callback and write of this step; its value [S6.2].

        The callback changes `self.state` and writes it, nothing else. Raises `CallbackRejected` when it never ran:
        stop working then. `cancel`, set while it waits, refuses it. Inside a callback: `NestedCallback`.
        """
        guarded = self._guarded(callback)
        return block_on(self._loop, self._runtime.invoke(guarded, cancel))

    def write_checkpoint_debounced(self) -> None:
        """Report that the state moved on; when it becomes durable stands in S6.3. Also from inside a callback."""
        block_on(self._loop, self._runtime.checkpoint(self._is_in_callback))

    def report_progress(self, fraction: float, message: str = "") -> None:
        """Tell how far the body is, from 0 to 1. Volatile."""
        block_on(self._loop, self._runtime.progress(_fraction(fraction), message))

    def results(self, stage: int | None = None) -> Iterator[tuple[StepId, Any]]:
        """Kept results of earlier stages, or of one of them, in plan order, read page by page [S18.8]."""
        after: int | None = -1
        while after is not None:
            page = block_on(self._loop, self._runtime.read_results(stage, after))
            yield from page.results
            after = page.after
