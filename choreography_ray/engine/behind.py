"""How does a write go on while the next one is being made?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self


class Behind:
    """At most one write under way, in the order in which they were put: the store and this process work side by side.

    As a context: at its end the last write is done. One that fails raises at the next `put`, or at the end.
    """

    def __init__(self) -> None:
        self._under_way: asyncio.Task[None] | None = None

    async def put(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a write, once the one before is done."""
        await self._finish()
        self._under_way = asyncio.get_running_loop().create_task(write())

    async def _finish(self) -> None:
        before, self._under_way = self._under_way, None
        if before is not None:
            await before

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._finish()
        else:
            with contextlib.suppress(Exception):  # what went wrong first is told
                await self._finish()
