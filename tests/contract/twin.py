"""Two stores that must answer alike: a story in virtual time whose every read and write goes to both."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable
from typing import Any, Self

from choreography_ray.errors import ChoreographyError
from choreography_ray.model import JobId
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.storage.protocol import JobStorage


class TwinStorage(MemoryStorage):
    """The story goes on with what the other store answers; memory's answer must be the same, types included.

    The other store works on a thread of its own, and the story stands still meanwhile: each call is one atomic step.
    """

    def __init__(self, other: JobStorage) -> None:
        super().__init__()
        self.other = other
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.ask(self.other.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.ask(self.other.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, call: Any) -> Any:
        """What the other store answers."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(60)

    async def forget(self, job_id: JobId) -> None:
        """Nothing is left of a job, in either store."""
        document = await self.read_job(job_id)
        if document is not None:
            await self.delete_job(document)
        await self.clear_job(job_id, 2**62, keep_results=False)


def _told(answer: Any) -> str:
    """NaN is not equal to itself, so answers are compared by what they show; a text may be a member of an enum."""
    return re.sub(r"<\w+\.\w+: ('\w*')>", r"\1", repr(answer))


def _in_both(name: str) -> Callable[..., Any]:
    memory = getattr(MemoryStorage, name)

    async def call(self: TwinStorage, *args: Any, **kwargs: Any) -> Any:
        expected: Any
        try:
            expected = await memory(self, *args, **kwargs)
        except ChoreographyError as error:
            expected = error
        try:
            answer = self.ask(getattr(self.other, name)(*args, **kwargs))
        except ChoreographyError as error:
            if type(error) is type(expected):
                raise
            answer = error
        assert _told(answer) == _told(expected), f"{name}{args}: {answer!r}, in memory {expected!r}"
        return answer

    return call


for _name, _ in inspect.getmembers(JobStorage, inspect.iscoroutinefunction):
    if _name not in {"open", "close"}:
        setattr(TwinStorage, _name, _in_both(_name))
