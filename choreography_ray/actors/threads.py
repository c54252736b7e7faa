"""Where user code runs: never on an actor's loop. `def` on threads, `async def` on a loop of its own thread [S14.3]."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from choreography_ray.engine.ports import StepWork

T = TypeVar("T")

MAX_LOST_THREADS = 64
"""Hooks that ran over their time keep a thread each; with so many the next one waits."""


BLOCKED_SECONDS = 1.0
"""A user's loop that takes no call for so long, after one that was given up, is held up by it."""


class _UserLoop:
    """A loop on a thread of its own, made when first needed; made anew when what was given up on it blocks it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_suspect = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run there; await the result here."""
        if self._loop is not None and self._is_suspect:
            await self._look_at(self._loop)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="choreography-user-loop", daemon=True).start()
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except asyncio.CancelledError:
            self._is_suspect = True
            raise

    async def _look_at(self, loop: asyncio.AbstractEventLoop) -> None:
        pulse = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
        try:
            async with asyncio.timeout(BLOCKED_SECONDS):
                await asyncio.wrap_future(pulse)
        except TimeoutError:
            self._loop = None
        self._is_suspect = False


async def _awaited(value: Awaitable[T]) -> T:
    return await value


class ThreadedUserCode:
    """Runs hooks and callbacks."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MAX_LOST_THREADS, thread_name_prefix="choreography-hook")
        self._loop = _UserLoop()

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """See `engine.ports.UserCode`."""
        async with asyncio.timeout(timeout):
            if inspect.iscoroutinefunction(function):
                return await self._loop.run(function(*args))
            value = await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
            if inspect.isawaitable(value):
                return await self._loop.run(_awaited(value))
            return value

    async def pull(self, iterator: Iterator[T] | AsyncIterator[T], most: int) -> list[T]:
        """See `engine.ports.UserCode`."""
        if isinstance(iterator, AsyncIterator):
            return await self._loop.run(_pull_async(iterator, most))
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: list(islice(iterator, most)))


async def _pull_async(iterator: AsyncIterator[T], most: int) -> list[T]:
    taken: list[T] = []
    while len(taken) < most:
        try:
            taken.append(await anext(iterator))
        except StopAsyncIteration:
            break
    return taken


class ThreadRunner:
    """Performs the bodies of a group in lanes that share its steps."""

    def __init__(self) -> None:
        self._loop = _UserLoop()

    async def run_blocking(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], None]) -> None:
        """See `engine.ports.BodyRunner`."""
        left = iter(steps)
        lock = threading.Lock()

        def lane() -> None:
            while True:
                with lock:
                    step = next(left, None)
                if step is None:
                    return
                perform(step)

        with ThreadPoolExecutor(width, thread_name_prefix="choreography-body") as pool:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(pool, lane) for _ in range(width)))

    async def run_async(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], Any]) -> None:
        """See `engine.ports.BodyRunner`."""
        left = iter(steps)

        async def lane() -> None:
            for step in left:
                await perform(step)

        async def all_lanes() -> None:
            await asyncio.gather(*(lane() for _ in range(width)))

        await self._loop.run(all_lanes())
