"""An event loop whose time is virtual: it never waits, and says so when nothing is left that could ever happen."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from choreography_ray.testing.process import task_of_its_process
from choreography_ray.testing.turns import Turns

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HORIZON = 3000.0
"""Virtual seconds after which a story that is not over never will be."""


class Deadlock(Exception):
    """Everybody waits for something, and no timer is set; or nothing but timers happens any more."""


class _NoSelector(selectors.SelectSelector):
    """Nothing comes from outside: with nothing ready it is the time of the next timer, once every thread waits."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        loop = self.loop
        allowed = loop.turns.take()  # while a thread computes, time stands still
        if allowed == math.inf and (timeout is None or loop.now > loop.ends_at):
            raise Deadlock
        loop.now += min(max(0.0, timeout or 0.0), allowed)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer whenever nothing is ready. Threads that it runs take turns with it."""

    def __init__(self, horizon: float = HORIZON) -> None:
        selector = _NoSelector()
        selector.loop = self
        self.now = 1000.0
        self.ends_at = self.now + horizon
        self.turns = Turns(self)
        super().__init__(selector)
        self.set_task_factory(task_of_its_process)

    def time(self) -> float:
        return self.now

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector that would have to be woken; but it may be a thread's turn."""
        self.turns.wake()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As `asyncio.to_thread` asks for: on a thread that takes turns with the loop."""
        return self.turns.begin(func, *args).future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a story to its end in virtual time."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        asyncio.set_event_loop(None)
        close(loop)


def close(loop: VirtualLoop) -> None:
    """End what still runs, and the loop."""
    loop.ends_at = math.inf  # a story that ran out of its time has to end its tasks too
    try:
        for _ in range(200):  # some take it for what a body raised, and go on
            loop.turns.release()
            if not (running := asyncio.all_tasks(loop)):
                break
            for task in running:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
