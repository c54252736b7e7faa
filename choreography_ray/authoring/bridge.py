"""How does user code, on its own thread or loop, call the runtime that lives on another loop?"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Patience(Protocol):
    """How a thread waits whose time is not the real one [S17]."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that has the time."""
        ...

    def wait(self, future: Future[Any]) -> None:
        """Returns once the future is done."""
        ...


patience: ContextVar[Patience | None] = ContextVar("patience", default=None)
"""Set on the threads of the testing harness alone."""


async def await_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
    """Run `call` on `loop` and wait for it from this loop.

    Cancelling the wait does not cancel the call: what the runtime has begun it finishes [S6.2].
    Raises `RuntimeError` when `loop` is closed.
    """
    if asyncio.get_running_loop() is loop:
        return await asyncio.shield(asyncio.ensure_future(call))
    return await asyncio.shield(asyncio.wrap_future(_submit(loop, call)))


def block_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
    """Run `call` on `loop` and block this thread until it is done. Raises `RuntimeError` on the loop's own thread."""
    try:
        is_own_thread = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_own_thread = False
    if is_own_thread:
        call.close()
        raise RuntimeError("this call blocks, and would block the very loop that has to answer it")
    future = _submit(loop, call)
    if (thread := patience.get()) is not None:
        thread.wait(future)
    return future.result()


def _submit(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> Future[T]:
    try:
        return asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:
        call.close()
        raise
