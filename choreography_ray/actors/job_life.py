"""What a process of a job's actor runs: one incarnation, and around it hosts and throttle over Ray [S10]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from choreography_ray.actors.connection import Connection, settle_in
from choreography_ray.actors.gcs import RayTables
from choreography_ray.actors.hosts import RayHosts
from choreography_ray.actors.last_words import obituary
from choreography_ray.actors.names import SUPERVISOR
from choreography_ray.actors.ray_api import find, here
from choreography_ray.actors.threads import ThreadedUserCode
from choreography_ray.actors.throttle import throttle_handle
from choreography_ray.core import events as e
from choreography_ray.core.slot_messages import Exchange, Reply
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.incarnation import Incarnation
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.ports import HostsPort, ThrottlePort
from choreography_ray.engine.writes import Writer
from choreography_ray.model import HostId, JobId, JobStatus
from choreography_ray.records import Owner
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

GOODBYE_SECONDS = 1.0
"""How long the throttle may take to hear that a finished job holds nothing; else it finds out by itself."""
NUMBERS_SECONDS = 5.0
"""How often the supervisor is told what to count: twice as often as Ray exports it."""


class RayThrottle:
    """`ThrottlePort` over Ray."""

    def __init__(self, connection: Connection, engine: JobEngine) -> None:
        self._connection = connection
        self._engine = engine
        self._worker_id = here().worker_id
        self._handle: Any = None
        self._failed: Exchange | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, message: Exchange) -> None:
        """See `engine.ports.ThrottlePort`."""
        task = asyncio.get_running_loop().create_task(self._send(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give the last statement, that nothing is held, time to arrive."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_SECONDS)
        if self._failed is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._send(self._failed)

    async def _send(self, message: Exchange) -> None:
        try:
            if self._handle is None:
                self._handle = await asyncio.to_thread(throttle_handle, self._connection)
            reply = await self._handle.exchange.remote(message, self._worker_id)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the next exchange says everything again
            log.info("exchange %s with the throttle failed: %s", message.n, error)
            self._handle = None
            self._failed = message
            self._engine.post(e.ExchangeFailed(message.n))
        else:
            self._failed = None
            if reply is not None:
                self._engine.post(e.ThrottleReplied(reply))


class JobLife:
    """One life of a job's actor, from the take-over of the job to the end of the job or of the process."""

    def __init__(
        self, job_id: JobId, connection: Connection, storage: JobStorage, is_current: Callable[[], Awaitable[bool]]
    ) -> None:
        self._job_id = job_id
        self._connection = connection
        self._storage = storage
        self._is_current = is_current
        self._hosts: RayHosts | None = None
        self._throttle: RayThrottle | None = None

    async def incarnation(self) -> Incarnation:
        """The incarnation, to be run. Waits for the store, which knows the cluster's options."""
        clock = SystemClock()
        writer = Writer(clock)
        options = await writer.certain(self._storage.read_cluster_options)
        lease = options.step_lease_timeout.total_seconds()
        margin = options.lease_margin.total_seconds()

        def ports(engine: JobEngine) -> tuple[HostsPort, ThrottlePort]:
            self._hosts = RayHosts(self._job_id, self._connection, engine, RayTables(), lease, margin)
            self._throttle = RayThrottle(self._connection, engine)
            return self._hosts, self._throttle

        return Incarnation(
            self._job_id,
            _myself(),
            self._storage,
            lambda ref: settle_in(self._storage, writer, ref),
            ThreadedUserCode(),
            clock,
            ports,
            lease,
            self._is_current,
            self._speak,
            obituary,
        )

    async def run(self, incarnation: Incarnation) -> JobStatus:
        """Run it to its end, and tell the throttle and the supervisor."""
        counting = asyncio.get_running_loop().create_task(self._tell_numbers(incarnation))
        try:
            return await incarnation.run()
        finally:
            counting.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._send_numbers(incarnation)
            if self._hosts is not None:
                await self._hosts.close()
            if self._throttle is not None:
                await self._throttle.close()

    def has_host(self, host: HostId, worker_id: str, node_id: str) -> bool:
        """Whether a process that asks for its lease is the one of that host; any is, before there are hosts."""
        return self._hosts is None or self._hosts.asked(host, worker_id, node_id)

    async def _tell_numbers(self, incarnation: Incarnation) -> None:
        while True:
            await asyncio.sleep(NUMBERS_SECONDS)
            await self._send_numbers(incarnation)

    async def _send_numbers(self, incarnation: Incarnation) -> None:
        """To the supervisor, which outlives jobs: Ray loses what a process counted shortly before its end."""
        numbers = incarnation.numbers()
        if not numbers:
            return
        try:
            supervisor = await asyncio.to_thread(find, SUPERVISOR, self._connection.ray_namespace)
            await supervisor.count.remote(numbers)
        except Exception as error:  # noqa: BLE001 - it may have counted them: what is not sure is not counted twice
            log.info("numbers of job %s are lost: %s", self._job_id, error)

    async def _speak(self, message: Exchange) -> Reply | None:
        throttle = await asyncio.to_thread(throttle_handle, self._connection)
        reply: Reply | None = await throttle.exchange.remote(message, here().worker_id)
        return reply


def _myself() -> Owner:
    place = here()
    return Owner(place.cluster_id, place.actor_id, place.worker_id, place.node_id, os.getpid())
