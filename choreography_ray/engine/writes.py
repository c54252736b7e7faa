"""How a write becomes certain: repeated unchanged until the store has answered [S10.1]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

from choreography_ray.core.transitions import bounded, check_job
from choreography_ray.engine.ports import Clock
from choreography_ray.errors import Fenced, StorageUnavailable
from choreography_ray.model import HistoryEntry, JobStatus
from choreography_ray.records import JobDocument
from choreography_ray.storage.protocol import JobStorage

T = TypeVar("T")

FIRST_DELAY = 0.2
LONGEST_DELAY = 5.0


class Writer:
    """Repeats storage calls that got no answer. `trouble` tells the last error while one is being repeated, `errors`
    how many there were.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.trouble = ""
        self.errors = 0

    async def certain(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers. Errors other than `StorageUnavailable` are raised."""
        delay = FIRST_DELAY
        while True:
            try:
                value = await call()
            except StorageUnavailable as error:
                self.trouble = str(error)
                self.errors += 1
                await self._clock.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY)
            else:
                self.trouble = ""
                return value


class JobWriter:
    """Writes the job document under its fence and save number, for one incarnation."""

    def __init__(self, document: JobDocument, storage: JobStorage, clock: Clock, writer: Writer) -> None:
        self.document = document
        self._storage = storage
        self._clock = clock
        self._writer = writer

    async def save(self, document: JobDocument, changed: Collection[str]) -> None:
        """Write a document that the machine made. Raises `Fenced`."""
        if not await self._writer.certain(lambda: self._storage.save_job(document, changed)):
            raise Fenced(document.job_id)
        self.document = document

    async def change(self, **fields: Any) -> None:
        """Write some fields."""
        at = self._clock.instant().at
        document = replace(self.document, **fields, save=self.document.save + 1, updated_at=at)
        await self.save(document, tuple(fields))

    async def change_status(self, status: JobStatus, why: str = "", **fields: Any) -> None:
        """Write a new status, with its place in the history, and other fields with it."""
        check_job(self.document.status, status)
        entry = HistoryEntry(at=self._clock.instant().at, status=status, why=why)
        history = bounded((*self.document.history, entry), self.document.options.max_history)
        await self.change(status=status, history=history, **fields)
