"""A process of the simulated cluster: what runs in it ends with it, and it can be cut off from the rest for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from choreography_ray.testing.turns import Turn

T = TypeVar("T")
P = ParamSpec("P")

_here: ContextVar[Process | None] = ContextVar("_here", default=None)
"""The process in which this runs. Tasks, timers and threads inherit it; None: in none of them."""


def context_in(process: Process | None) -> Context:
    """The present context, in a process or, with None, between them."""
    context = copy_context()
    context.run(_here.set, process)
    return context


def task_of_its_process(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T] | Generator[Any, None, T],
    /,
    *,
    context: Context | None = None,
    **how: Any,
) -> asyncio.Task[T]:
    """For a loop as its task factory: whatever a process begins, by whichever hand, ends with it."""
    task = asyncio.Task(work, loop=loop, context=context, **how)
    process = _here.get() if context is None else context.get(_here)
    if process is not None:
        process.adopt(task)
    return task


class Process:
    """What runs in it has one fate. Everything that goes in or out passes `gate`.

    A process that is cut off goes on computing, but nothing reaches it and nothing leaves it until it heals: what it
    had decided to write or to say happens then. That covers a partitioned node and a stopped process that wakes up.
    """

    def __init__(self) -> None:
        self.is_alive = True
        self.island: object | None = None
        """What it was cut off together with: those of one island still reach each other."""
        self.threads: list[Turn] = []
        """They end with it."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_reachable(self) -> bool:
        """Alive and not cut off."""
        return self.is_alive and self._open.is_set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in this process."""
        return asyncio.get_running_loop().create_task(work, context=context_in(self))

    def enter(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something in this process: what it begins is the process's."""
        return context_in(self).run(function, *args, **kwargs)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task that was begun in this process. In a dead one it ends before it has begun."""
        self._tasks[task] = None  # in order: one seed tells one story
        task.add_done_callback(self._forget)
        if not self.is_alive:
            task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def gate(self) -> None:
        """Returns once the process can reach the outside; in a dead one nothing goes on."""
        while not self.is_reachable:
            if not self.is_alive:
                raise asyncio.CancelledError
            await self._open.wait()

    async def call(self, work: Coroutine[Any, Any, T], *, is_near: bool = False) -> T:
        """Run a call of somebody else in this process. Raises `ConnectionError` when it dies before it has answered."""
        if not self.is_alive:
            work.close()
            raise ConnectionError("the process is gone")
        task = self.spawn(work)
        ends: list[asyncio.Future[Any]] = [task, self._end]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or task.cancelled():
            raise ConnectionError("the process died")
        value = task.result()
        if not is_near:
            await self.gate_or_death()
        return value

    async def gate_or_death(self) -> None:
        """As `gate`, for those outside: raises `ConnectionError` when the process is dead or dies."""
        passing = asyncio.get_running_loop().create_task(self.gate())
        await asyncio.wait({passing, self._end}, return_when=asyncio.FIRST_COMPLETED)
        if self._end.done():
            passing.cancel()
            raise ConnectionError("the process is gone")

    def cut(self, island: object | None = None) -> None:
        """Cut it off."""
        self.island = island
        self._open.clear()

    def heal(self) -> None:
        """Connect it again."""
        self.island = None
        self._open.set()

    def forsake(self) -> None:
        """Whoever calls it is told that it is gone, whether that is true or not."""
        if not self._end.done():
            self._end.set_result(None)

    def kill(self) -> None:
        """kill -9."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._open.set()  # for those who wait at the gate
        self.forsake()
        loop = asyncio.get_running_loop()
        for task in self._tasks:
            loop.call_soon(task.cancel)
        for thread in self.threads:
            thread.release()
