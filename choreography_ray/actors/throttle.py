"""The throttle of a cluster as an actor: a thin shell around `SlotTable` [S5.7]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from choreography_ray.actors.clean import create_cleanly
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.gcs import ActorInfo, RayTables
from choreography_ray.actors.logs import write_records
from choreography_ray.actors.metrics import SlotMetrics
from choreography_ray.actors.names import JOB_PREFIX, THROTTLE, job_actor
from choreography_ray.actors.ray_api import SERVICE, create, find, here, is_restarted
from choreography_ray.core.slot_messages import Exchange, ExchangeKey, Reply
from choreography_ray.core.throttle import Replies, SlotTable
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.writes import Writer
from choreography_ray.model import JobId

log = logging.getLogger(__name__)

T = TypeVar("T")

OBSERVE_SECONDS = 1.0
LISTED_STATES = ("ALIVE", "RESTARTING")


class ThrottleActor:
    """Grants slots. Nothing of it is durable: after a crash the job actors state again what they hold.

    `exchange` answers when slots are granted, when a newer exchange of the job makes it void, or after a third of a
    lease with none. A call that raises may have been received: the job states everything again with its next.
    """

    async def __init__(self, connection: Connection) -> None:  # type: ignore[misc]  # Ray awaits it
        write_records(service=THROTTLE, namespace=connection.namespace)
        self._connection = connection
        self._tables = RayTables()
        self._waiting: dict[ExchangeKey, asyncio.Future[Reply | None]] = {}
        self._workers: dict[str, str] = {}
        self._maximum: int | None = None
        self._ready = asyncio.Event()
        self._table: SlotTable
        self._observing = asyncio.Lock()
        self._life = asyncio.get_running_loop().create_task(self._live())

    async def _live(self) -> None:
        try:
            await self._serve()
        except Exception:
            log.exception("this process of the throttle ends")
            os._exit(1)  # Ray makes a new one; a throttle that only waits would hold up every job

    async def _serve(self) -> None:
        storage = self._connection.storage()
        writer = Writer(SystemClock())
        await writer.certain(storage.open)
        boot = await writer.certain(lambda: storage.next_number("throttle"))
        options = await writer.certain(storage.read_cluster_options)
        self._maximum = options.max_parallel_steps
        maximum = self._maximum if self._maximum is not None else await self._told(self._tables.cluster_cpus)
        lease, margin = options.step_lease_timeout.total_seconds(), options.lease_margin.total_seconds()
        # A boot number above 1 may mean a cluster that is gone: nobody can hold a slot of this one if Ray knows no
        # earlier throttle and no job actor of it.
        is_new = not await self._told(lambda: asyncio.to_thread(is_restarted))
        is_first = is_new and not await self._told(self._others)
        self._table = SlotTable(boot, maximum, lease, margin, time.monotonic(), is_first=is_first)
        await self._told(self._observe)
        self._ready.set()
        metrics = SlotMetrics(self._connection.namespace)
        while True:
            metrics.show(self._table.snapshot(time.monotonic()))
            await asyncio.sleep(OBSERVE_SECONDS)
            try:
                await self._observe()
                await self._follow_cpus()
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
                log.info("the GCS did not answer: %s", error)
            self._resolve(self._table.tick(time.monotonic()))

    async def _told(self, question: Callable[[], Awaitable[T]]) -> T:
        """What the GCS says, once it answers."""
        while True:
            try:
                return await question()
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
                log.info("the GCS did not answer: %s", error)
                await asyncio.sleep(OBSERVE_SECONDS)

    async def _others(self) -> list[ActorInfo]:
        me = here().actor_id
        rows = await self._tables.actors(self._connection.ray_namespace)
        return [row for row in rows if row.name == THROTTLE and row.actor_id != me]

    async def _follow_cpus(self) -> None:
        if self._maximum is None:
            cpus = await self._tables.cluster_cpus()
            if cpus != self._table.maximum:
                self._resolve(self._table.set_maximum(cpus, time.monotonic()))

    async def _observe(self, unless: Callable[[], bool] = lambda: False) -> None:
        async with self._observing:
            if unless():
                return  # one list serves all who waited for it: in a large cluster it takes a while
            asked = time.monotonic()
            rows = await self._tables.actors(self._connection.ray_namespace, *LISTED_STATES)
            jobs = [row for row in rows if row.name.startswith(JOB_PREFIX)]
            self._workers = {row.actor_id: row.worker_id for row in jobs}
            listed = {JobId(row.name): row.actor_id for row in jobs}
            self._resolve(self._table.observe(listed, time.monotonic(), asked))

    def _resolve(self, replies: Replies) -> None:
        for key, reply in replies:
            waiting = self._waiting.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)

    async def exchange(self, message: Exchange, worker_id: str) -> Reply | None:
        """One exchange; None when it was dropped as a copy or as out of date."""
        await self._ready.wait()
        # The table knows a job by the name of its actor, which is what Ray lists.
        message = replace(message, job=JobId(job_actor(message.job)))
        if message.key in self._waiting:
            return None

        def is_known() -> bool:
            return self._table.is_listed(message.job, message.actor) and self._workers.get(message.actor) == worker_id

        if not is_known():
            await self._observe(unless=is_known)
        waiting: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._waiting[message.key] = waiting
        is_current = self._workers.get(message.actor) == worker_id
        self._resolve(self._table.receive(message, is_current, time.monotonic()))
        if not waiting.done() and not self._table.is_parked(message.key):
            self._waiting.pop(message.key, None)
            return None
        return await waiting

    async def set_maximum(self, maximum: int | None) -> None:
        """Bound the cluster anew; None: its CPUs."""
        await self._ready.wait()
        self._maximum = maximum
        cpus = maximum if maximum is not None else await self._tables.cluster_cpus()
        self._resolve(self._table.set_maximum(cpus, time.monotonic()))

    async def silences(self) -> dict[str, float]:
        """Seconds since each job's actor has spoken, by its name; nobody is silent before the throttle is ready."""
        if not self._ready.is_set():
            return {}
        return {str(job): seconds for job, seconds in self._table.silences(time.monotonic()).items()}

    async def snapshot(self) -> dict[str, Any]:
        """The table for people."""
        await self._ready.wait()
        return asdict(self._table.snapshot(time.monotonic()))


def throttle_handle(connection: Connection) -> Any:
    """The namespace's throttle, made by whoever needs it first. Blocks."""
    with contextlib.suppress(ValueError):
        return find(THROTTLE, connection.ray_namespace)
    return create_cleanly(make_throttle, connection)


def make_throttle(connection: Connection) -> Any:
    """Create the throttle from this process, or find it. Blocks."""
    return create(ThrottleActor, {**SERVICE, "name": THROTTLE, "namespace": connection.ray_namespace}, connection)
