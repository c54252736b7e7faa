"""A process of the simulated cluster: what runs in it ends with it, and it can be cut off from the rest for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from choreography_ray.testing.turns import Turn

T = TypeVar("T")


class Process:
    """Tasks with one fate. Everything that goes in or out passes `gate`.

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
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None  # in order: one seed tells one story
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def gate(self) -> None:
        """Returns once the process can reach the outside; never when it is dead."""
        while not self.is_reachable:
            if not self.is_alive:
                await asyncio.Event().wait()
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
        self.forsake()
        loop = asyncio.get_running_loop()
        for task in self._tasks:
            loop.call_soon(task.cancel)
        for thread in self.threads:
            thread.release()
