"""Where user code runs in a simulated process: on the loop, or `def` on threads that take turns with it [S17]."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

from choreography_ray.engine.ports import BodyRunner, StepWork, UserCode
from choreography_ray.testing.loop import VirtualLoop
from choreography_ray.testing.process import Process

T = TypeVar("T")


class _Caller(Protocol):
    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Call a `def`."""
        ...


async def call_inline(function: Callable[..., T], *args: Any) -> T:
    """Where it is called: fast, and nothing in it may block."""
    return function(*args)


def on_threads_of(process: Process) -> _Caller:
    """On a thread that ends with the process. `time.sleep`, and whatever a context waits for, take virtual time."""

    async def call(function: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        turn = loop.turns.begin(function, *args)
        process.threads.append(turn)
        # A hook over its time goes on, as it would in production, and nobody hears of it.
        value: T = await asyncio.shield(turn.future)
        return value

    return call


class SimUserCode(UserCode):
    """Hooks and callbacks."""

    def __init__(self, call_plain: _Caller) -> None:
        self._call_plain = call_plain

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """See `engine.ports.UserCode`."""
        async with asyncio.timeout(timeout):
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            value = await self._call_plain(function, *args)
            return await value if inspect.isawaitable(value) else value

    async def pull(self, iterator: Iterator[T] | AsyncIterator[T], most: int) -> list[T]:
        """See `engine.ports.UserCode`."""
        if isinstance(iterator, AsyncIterator):
            return [item async for item in _first(iterator, most)]
        return await self._call_plain(lambda: list(islice(iterator, most)))


async def _first(iterator: AsyncIterator[T], most: int) -> AsyncIterator[T]:
    for _ in range(most):
        try:
            yield await anext(iterator)
        except StopAsyncIteration:
            return


class SimBodyRunner(BodyRunner):
    """Bodies, `width` at a time, as long as their process lives."""

    def __init__(self, process: Process, call_plain: _Caller) -> None:
        self._process = process
        self._call_plain = call_plain

    async def run_blocking(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], None]) -> None:
        """See `engine.ports.BodyRunner`."""

        async def perform_one(step: StepWork) -> None:
            await asyncio.sleep(0.001)
            if self._process.is_alive:
                await self._call_plain(perform, step)

        await self.run_async(steps, width, perform_one)

    async def run_async(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], Any]) -> None:
        """See `engine.ports.BodyRunner`."""
        left = iter(steps)

        async def lane() -> None:
            for step in left:
                if self._process.is_alive:
                    await perform(step)

        await asyncio.gather(*(lane() for _ in range(width)))


def caller_in(process: Process, *, has_threads: bool) -> _Caller:
    """How a process calls a `def` of the user's."""
    return on_threads_of(process) if has_threads else call_inline
