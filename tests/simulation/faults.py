"""A store that fails where the story wants it: before a write, in the middle of one, or after it without a reply."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from choreography_ray.errors import StorageUnavailable
from tests.simulation.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World

WRITES = frozenset(
    {
        "insert_job", "raise_fence", "save_job", "clear_job", "delete_job", "save_plan", "save_plan_segments",
        "save_prepared", "insert_ledger", "fence_ledger", "save_ledger", "insert_outcome", "delete_outcomes",
        "save_step_documents", "delete_step_documents", "save_failures", "delete_failures", "save_results",
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


@dataclass(frozen=True)
class Fault:
    """The `at`-th write by `who` (counted from 0): its caller's process dies there, or it gets no answer.

    One that `isolates` cuts the process off instead, as long as it takes for others to go on without it: then it wakes.
    """

    at: int
    cut: Cut
    kills: bool
    isolates: bool = False


ISOLATED_SECONDS = 60.0


class StoreClient:
    """One process's view of the shared store. `die` ends that process.

    A call that has left the process lands, whatever becomes of it; where the world is `late`, some take seconds.
    """

    def __init__(
        self,
        world: World,
        process: Process,
        die: Callable[[], None],
        isolate: Callable[[], None],
        plan: list[Fault],
        count: list[int],
    ) -> None:
        self._world = world
        self._process = process
        self._die = die
        self._isolate = isolate
        self._plan = plan
        self._count = count

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._world.store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._process.gate()
            if self._world.is_store_away(self._process):
                await self._fail(name, method, args, kwargs)
            if name in WRITES:
                await self._strike(name, method, args, kwargs)
            landing = self._world.spawn(self._land(method, args, kwargs))
            value = await asyncio.shield(landing)
            await self._process.gate()
            return value

        return call

    async def _land(self, method: Any, args: Any, kwargs: Any) -> Any:
        await asyncio.sleep(self._world.latency(0.001))
        return await method(*args, **kwargs)

    async def _fail(self, name: str, method: Any, args: Any, kwargs: Any) -> None:
        await asyncio.sleep(0.05)
        if name in WRITES and self._world.random.random() < self._world.landing:
            await method(*args, **kwargs)
        raise StorageUnavailable("memory", "the store is away")

    async def _strike(self, name: str, method: Any, args: Any, kwargs: Any) -> None:
        number, self._count[0] = self._count[0], self._count[0] + 1
        fault = next((f for f in self._plan if f.at == number), None)
        if fault is None:
            return
        if fault.cut is Cut.INSIDE and name in BULK:
            where = BULK[name]
            items = args[where]
            await method(*args[:where], items[: len(items) // 2], **kwargs)
        elif fault.cut is Cut.AFTER:
            await method(*args, **kwargs)
        if fault.isolates:
            self._isolate()
            await self._process.gate()
        elif fault.kills:
            self._die()
            await asyncio.Event().wait()
        raise StorageUnavailable("memory", f"the fault planned for write {number}")
