"""What can go wrong on demand: at a write, on the way of a message, or with the store for everybody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from choreography_ray.errors import StorageUnavailable
from choreography_ray.testing.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from choreography_ray.testing.cluster import Cluster

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
    """Nothing of it is in the store."""
    INSIDE = "inside"
    """Half of a bulk write is."""
    AFTER = "after"
    """All of it is, and whoever wrote does not learn that."""


@dataclass(frozen=True)
class Fault:
    """The `at`-th write by `who` (counted from 0): its caller's process dies there, or it gets no answer.

    One that `isolates` cuts the process off instead, as long as it takes for others to go on without it: then it wakes.
    """

    at: int
    cut: Cut
    kills: bool
    isolates: bool = False


class Fate(StrEnum):
    """What becomes of a message."""

    LOST = "lost"
    """It never arrives: whoever sent it is told that the call failed."""
    REPEATED = "repeated"
    """It arrives a second time, up to 40 seconds later. An answer is not repeated."""
    LATE = "late"
    """It takes 5 seconds."""
    OVERTAKEN = "overtaken"
    """It arrives after the message that is sent next, or after 5 seconds."""


@dataclass(frozen=True)
class Wire:
    """What may happen to a message, each as a probability."""

    loss: float = 0.0
    """It never arrives, or its reply does not."""
    copies: float = 0.0
    """It arrives a second time, up to 40 seconds later."""
    late: float = 0.0
    """It takes up to 5 seconds; a store's answer too."""
    stale: float = 0.0
    """A host's call reaches a job actor that was replaced, if one still runs."""


CALM = Wire()
ISOLATED_SECONDS = 60.0


class StoreClient:
    """One process's view of the shared store. `die` ends that process.

    A call that has left the process lands, whatever becomes of it; where the cluster is `late`, some take seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        process: Process,
        die: Callable[[], None],
        isolate: Callable[[], None],
        plan: list[Fault],
        count: list[int],
    ) -> None:
        self._cluster = cluster
        self._process = process
        self._die = die
        self._isolate = isolate
        self._plan = plan
        self._count = count

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cluster.store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._process.gate()
            if self._cluster.is_store_away(self._process):
                await self._fail(name, method, args, kwargs)
            if name in WRITES:
                await self._strike(name, method, args, kwargs)
            landing = self._cluster.spawn(self._land(name, method, args, kwargs))
            value = await asyncio.shield(landing)
            await self._process.gate()
            return value

        return call

    async def _land(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        await asyncio.sleep(self._cluster.latency(0.001))
        return await self._apply(name, method, args, kwargs)

    async def _apply(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        value = await method(*args, **kwargs)
        self._cluster.called(name)
        return value

    async def _fail(self, name: str, method: Any, args: Any, kwargs: Any) -> None:
        await asyncio.sleep(0.05)
        if name in WRITES and self._cluster.random.random() < self._cluster.landing:
            await self._apply(name, method, args, kwargs)
        raise StorageUnavailable("memory", "the store is away")

    async def _strike(self, name: str, method: Any, args: Any, kwargs: Any) -> None:
        number, self._count[0] = self._count[0], self._count[0] + 1
        fault = next((f for f in self._plan if f.at == number), None)
        if fault is None:
            return
        if fault.cut is Cut.INSIDE and name in BULK:
            where = BULK[name]
            items = args[where]
            await self._apply(name, method, (*args[:where], items[: len(items) // 2]), kwargs)
        elif fault.cut is Cut.AFTER:
            await self._apply(name, method, args, kwargs)
        self._cluster.note(f"the fault at write {number} ({name}) strikes, {fault.cut} it")
        if fault.isolates:
            self._isolate()
            await self._process.gate()
        elif fault.kills:
            self._die()
            await asyncio.Event().wait()
        raise StorageUnavailable("memory", f"the fault planned for write {number}")
