"""An event loop whose time is virtual: it never waits, and says so when nothing is left that could ever happen."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


HORIZON = 3000.0
"""Virtual seconds after which a story that is not over never will be."""


class Deadlock(Exception):
    """Everybody waits for something, and no timer is set; or nothing but timers happens any more."""


class _NoSelector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or self.loop.now > self.loop.ends_at:
            raise Deadlock
        self.loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer whenever nothing is ready."""

    def __init__(self) -> None:
        selector = _NoSelector()
        selector.loop = self
        self.now = 1000.0
        self.ends_at = self.now + HORIZON
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector that would have to be woken."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a story to its end in virtual time."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            for _ in range(20):  # some take it for what a body raised, and go on
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                loop.run_until_complete(asyncio.sleep(0))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
