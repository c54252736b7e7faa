"""A store that fails where the story wants it: before a write, in the middle of one, or after it without a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from choreography_ray.errors import StorageUnavailable
from choreography_ray.storage.memory import MemoryStorage

WRITES = frozenset(
    {
        "insert_job", "raise_fence", "save_job", "clear_job", "save_plan", "save_plan_segments", "save_prepared",
        "insert_ledger", "fence_ledger", "save_ledger", "insert_outcome", "delete_outcomes", "save_step_documents",
        "delete_step_documents", "save_failures", "delete_failures", "save_results",
    }
)  # fmt: skip
BULK = {
    "save_plan_segments": 2, "save_prepared": 1, "insert_ledger": 1, "save_ledger": 1, "save_step_documents": 1,
    "delete_step_documents": 1, "save_failures": 1, "save_results": 1, "delete_outcomes": 1,
}  # fmt: skip


class Cut(StrEnum):
    """Where a write is cut."""

    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"


@dataclass(slots=True)
class Fault:
    """The `at`-th write by `who` (counted from 0): its caller's process dies there, or it gets no answer."""

    at: int
    cut: Cut
    kills: bool


class StoreClient:
    """One process's view of the shared store. `die` ends that process."""

    def __init__(self, store: MemoryStorage, die: Callable[[], None], plan: list[Fault], count: list[int]) -> None:
        self._store = store
        self._die = die
        self._plan = plan
        self._count = count

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in WRITES:
            return self._reading(method)
        return self._writing(name, method)

    def _reading(self, method: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.0005)
            return await method(*args, **kwargs)

        return call

    def _writing(self, name: str, method: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.001)
            number, self._count[0] = self._count[0], self._count[0] + 1
            fault = next((f for f in self._plan if f.at == number), None)
            if fault is None:
                return await method(*args, **kwargs)
            if fault.cut is Cut.INSIDE and name in BULK:
                where = BULK[name]
                items = args[where]
                await method(*args[:where], items[: len(items) // 2], **kwargs)
            elif fault.cut is Cut.AFTER:
                await method(*args, **kwargs)
            if fault.kills:
                self._die()
                await asyncio.Event().wait()
            raise StorageUnavailable("memory", f"the fault planned for write {number}")

        return call
