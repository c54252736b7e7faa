"""The supervisor of a namespace as an actor: a thin shell around `engine.supervisor` [S10.4]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from choreography_ray.actors.clean import create_cleanly
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.gcs import RayTables
from choreography_ray.actors.job import job_handle
from choreography_ray.actors.logs import write_records
from choreography_ray.actors.metrics import JobMetrics
from choreography_ray.actors.names import JOB_PREFIX, SUPERVISOR, THROTTLE, job_actor, job_of_actor
from choreography_ray.actors.nodes import Found, Nodes, installed_version
from choreography_ray.actors.ray_api import SERVICE, actor_id_of, call_on_node, create, end, find, here, live_nodes
from choreography_ray.core.supervising import ListedActor
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.supervisor import Supervisor
from choreography_ray.engine.tally import Numbers
from choreography_ray.engine.writes import Writer
from choreography_ray.errors import JobNotFound
from choreography_ray.model import JobId
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

NODES_INTERVAL = 30.0
"""Seconds between two looks for new nodes."""
NODE_SECONDS = 60.0
"""How long a node may take to start a process and say what it has."""
LISTED_STATES = ("ALIVE", "RESTARTING", "PENDING_CREATION", "DEPENDENCIES_UNREADY")
"""Of an actor that Ray runs, or will run by itself."""


class RayJobActors:
    """`JobActors` over Ray."""

    def __init__(self, connection: Connection, storage: JobStorage) -> None:
        self._connection = connection
        self._storage = storage
        self._tables = RayTables()

    @property
    def cluster(self) -> str:
        """See `engine.ports.JobActors`."""
        return here().cluster_id

    def name(self, job_id: JobId) -> str:
        """See `engine.ports.JobActors`."""
        return job_actor(job_id)

    def job_id(self, name: str) -> JobId | None:
        """See `engine.ports.JobActors`."""
        return job_of_actor(name)

    async def listed(self) -> Mapping[str, ListedActor]:
        """See `engine.ports.JobActors`."""
        rows = await self._tables.actors(self._connection.ray_namespace, *LISTED_STATES)
        return {
            row.name: ListedActor(row.actor_id, row.worker_id if row.state == "ALIVE" else "")
            for row in rows
            if row.name.startswith(JOB_PREFIX)
        }

    async def revive(self, job_id: JobId) -> None:
        """See `engine.ports.JobActors`."""
        document = await self._storage.read_job(job_id)
        if document is None:
            raise JobNotFound(job_id)
        actor = await asyncio.to_thread(job_handle, job_id, self._connection, document.runtime_env)
        await actor.taken_over.remote()

    async def end(self, job_id: JobId, actor_id: str) -> None:
        """See `engine.ports.JobActors`."""
        with contextlib.suppress(ValueError):
            handle = await asyncio.to_thread(find, job_actor(job_id), self._connection.ray_namespace)
            if actor_id_of(handle) == actor_id:
                await asyncio.to_thread(end, handle)

    async def silences(self) -> Mapping[str, float]:
        """See `engine.ports.JobActors`. Nobody is silent before there is a throttle."""
        try:
            throttle = await asyncio.to_thread(find, THROTTLE, self._connection.ray_namespace)
        except ValueError:
            return {}
        seconds: dict[str, float] = await throttle.silences.remote()
        return seconds


class SupervisorActor:
    """Brings interrupted jobs back, ends silent job actors, and forgets old jobs, as long as its cluster lives.

    It also exports what job actors count [S16]. Nothing of it is durable: after a crash it looks again. `look` may be
    called by anybody, however often.
    """

    async def __init__(self, connection: Connection) -> None:  # type: ignore[misc]  # Ray awaits it
        write_records(service=SUPERVISOR, namespace=connection.namespace)
        self._storage = connection.storage()
        self._metrics = JobMetrics(connection.namespace)
        self._supervisor = Supervisor(self._storage, RayJobActors(connection, self._storage), SystemClock())
        self._nodes = Nodes(
            here().node_id, live_nodes, lambda node: call_on_node(node, installed_version, timeout=NODE_SECONDS)
        )
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._looking = asyncio.get_running_loop().create_task(self._look_at_nodes())

    async def _look_at_nodes(self) -> None:
        while True:
            try:
                await self._nodes.look()
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
                log.info("nobody says which nodes there are: %s", error)
            await asyncio.sleep(NODES_INTERVAL)

    async def _live(self) -> None:
        try:
            await Writer(SystemClock()).certain(self._storage.open)
            await self._supervisor.run()
        except Exception:
            log.exception("this process of the supervisor ends")
            os._exit(1)  # Ray makes a new one

    async def count(self, numbers: Numbers) -> None:
        """Export what happened in a job."""
        self._metrics.add(numbers)

    async def look(self) -> None:
        """Look at once whether a job needs somebody, with the options as they are stored now."""
        self._supervisor.look()

    async def nodes(self) -> dict[str, Found]:
        """What every node has: those that are new are asked now."""
        return await self._nodes.look()


def supervisor_handle(connection: Connection) -> Any:
    """The namespace's supervisor, made by whoever needs it first. Blocks."""
    with contextlib.suppress(ValueError):
        return find(SUPERVISOR, connection.ray_namespace)
    return create_cleanly(make_supervisor, connection)


def make_supervisor(connection: Connection) -> Any:
    """Create the supervisor from this process, or find it. Blocks."""
    return create(SupervisorActor, {**SERVICE, "name": SUPERVISOR, "namespace": connection.ray_namespace}, connection)
