"""The actor of a job: it lives one life after another. Ray restarts it, storage tells it where it was [S10].

Whoever looks an actor up by its name loads its class, and with it this module: each host of the job, and each client.
What only the actor needs is therefore imported where its life begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from choreography_ray.actors.clean import create_cleanly
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.gcs import RayTables
from choreography_ray.actors.logs import write_records
from choreography_ray.actors.names import host_prefix, job_actor
from choreography_ray.actors.ray_api import SERVICE, create, end, find, here, own_runtime_env
from choreography_ray.actors.runtime_envs import lasting
from choreography_ray.codec import decode
from choreography_ray.engine.ports import Lease
from choreography_ray.errors import Fenced, JobNotFound, OwnedElsewhere, StorageUnavailable, UnknownJobType
from choreography_ray.model import HostId, JobId, JobStatus
from choreography_ray.records import OutcomeDocument, Payload

if TYPE_CHECKING:
    from choreography_ray.actors.job_life import JobLife
    from choreography_ray.core.commands import ReportStart
    from choreography_ray.core.explaining import Explained
    from choreography_ray.engine.incarnation import Incarnation
    from choreography_ray.engine.rest import Request

log = logging.getLogger(__name__)

LAST_SECONDS = 10.0
"""How long Ray may take to end a process that asked for it."""
REPLY_SECONDS = 0.2
"""What a finished actor gives its last replies to leave the process."""


class JobActor:
    """One job. What `deliver` has answered is recorded for good; what raised may have been.

    A call to an incarnation that is not ready raises: it is repeated. When the job has ended the actor ends itself.
    """

    async def __init__(self, job_id: JobId, connection: Connection) -> None:  # type: ignore[misc]  # Ray awaits it
        write_records(job=job_id)
        self._job_id = job_id
        self._connection = connection
        self._storage = connection.storage()
        self._life: JobLife | None = None
        self._incarnation: Incarnation | None = None
        self._begun = asyncio.Event()
        self._calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._ended: asyncio.Future[JobStatus] = asyncio.get_running_loop().create_future()
        self._living = asyncio.get_running_loop().create_task(self._live())

    async def _live(self) -> None:
        try:
            self._ended.set_result(await self._run())
        except (JobNotFound, UnknownJobType, OwnedElsewhere) as over:
            log.warning("this actor ends: %s", over)
            self._ended.set_exception(over)
            if isinstance(over, OwnedElsewhere):
                await self._end_hosts()
        except Exception as error:
            # Whatever broke, and also when fenced: if this is the actor's current process Ray makes a new one, which
            # goes on from what is stored; if it is an old one that woke up, nothing but itself may end.
            log.exception("this process of the actor of job %r ends", self._job_id)
            self._ended.set_exception(error)
            await self._drain_calls()
            os._exit(1)
        finally:
            self._ended.exception()
        await self._drain_calls()
        await self._leave()

    async def _run(self) -> JobStatus:
        from choreography_ray.actors.job_life import JobLife  # here: see above

        self._life = JobLife(self._job_id, self._connection, self._storage, self._is_current)
        self._incarnation = await self._life.incarnation()
        self._begun.set()
        return await self._life.run(self._incarnation)

    async def _drain_calls(self) -> None:
        self._begun.set()
        await self._quiet.wait()
        await asyncio.sleep(REPLY_SECONDS)

    async def _leave(self) -> None:
        """End this actor for good, unless it is no more than an old process of one that lives on."""
        while True:
            try:
                if await self._is_current() and not await self._is_awaited():
                    me = await asyncio.to_thread(find, job_actor(self._job_id), self._connection.ray_namespace)
                    await asyncio.to_thread(end, me)
                    await asyncio.sleep(LAST_SECONDS)  # Ray ends this process meanwhile
                os._exit(0)
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
                log.info("this actor cannot leave yet: %s", error)
                await asyncio.sleep(1.0)

    async def _is_awaited(self) -> bool:
        """Whether the id was given to a new job meanwhile, of which nobody knows but whoever found this actor by its
        name: it is for Ray's next process of this actor.
        """
        with contextlib.suppress(StorageUnavailable):
            stored = await self._storage.read_job(self._job_id)
            return stored is not None and not stored.fence
        return False

    async def _end_hosts(self) -> None:
        """The job is another cluster's: nothing of it may run in this one [S10.3]. What is missed here ends itself."""
        namespace, prefix = self._connection.ray_namespace, host_prefix(self._job_id)
        try:
            for row in await RayTables().actors(namespace):
                if row.name.startswith(prefix) and not row.is_gone:
                    with contextlib.suppress(ValueError):
                        await asyncio.to_thread(end, await asyncio.to_thread(find, row.name, namespace))
        except Exception as error:  # noqa: BLE001 - they find no job actor any more, and end
            log.warning("hosts of job %r could not be ended: %s", self._job_id, error)

    async def _is_current(self) -> bool:
        """Whether the GCS takes this process for the actor's [S10.1]. Raises when it does not answer."""
        place = here()
        row = await RayTables().actor(place.actor_id)
        return row is not None and row.worker_id == place.worker_id and not row.is_gone

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncGenerator[Incarnation]:
        self._calls += 1
        self._quiet.clear()
        try:
            await self._begun.wait()
            if self._incarnation is None:
                raise Fenced(self._job_id)
            yield self._incarnation
        finally:
            self._calls -= 1
            if not self._calls:
                self._quiet.set()

    async def started(self) -> ReportStart:
        """What there is to say about the start, once it is settled [S4.4]."""
        async with self._call() as incarnation:
            report: ReportStart = await asyncio.shield(incarnation.started)
            return report

    async def taken_over(self) -> None:
        """Returns once this actor owns the job and has its code. Raises when it cannot."""
        async with self._call() as incarnation:
            await asyncio.shield(incarnation.taken_over)

    async def ended(self) -> JobStatus:
        """The status that the job ended with, once it is durable."""
        return await asyncio.shield(self._ended)

    async def ask(self, host: HostId, is_first: bool, worker_id: str, node_id: str) -> Lease:
        """A host asks for its lease."""
        async with self._call() as incarnation:
            if self._life is not None and not self._life.has_host(host, worker_id, node_id):
                return Lease(None)
            lease: Lease = await incarnation.ask(host, is_first)
            return lease

    async def deliver(self, document: OutcomeDocument) -> None:
        """A host delivers outcomes; answers once they are recorded."""
        async with self._call() as incarnation:
            await incarnation.deliver(document)

    async def request(self, what: Request, born: datetime | None = None) -> str | int:
        """Somebody asks for a change of the job; the answer, once what it says is durable [S9].

        `born`: of the job that was created then, should the id have been given to another since.
        """
        async with self._call() as incarnation:
            return await incarnation.request(what, born)

    async def explain(self) -> Explained:
        """Why steps of the job do not run, as far as its actor knows [S14.4]."""
        async with self._call() as incarnation:
            return incarnation.explain()


def job_handle(job_id: JobId, connection: Connection, runtime_env: Payload) -> Any:
    """The job's actor, made if there is none, with the runtime_env that is stored with the job [S13]. Blocks."""
    order = (job_id, connection, decode(runtime_env))
    if not here().has_runtime_env or lasting(own_runtime_env()) == order[2]:
        return make_job(order)
    with contextlib.suppress(ValueError):
        return find(job_actor(job_id), connection.ray_namespace)
    return create_cleanly(make_job, order)


def make_job(order: tuple[JobId, Connection, dict[str, Any] | None]) -> Any:
    """Create the job's actor from this process, with a runtime_env on top of its own, or find it. Blocks."""
    job_id, connection, runtime_env = order
    options = {**SERVICE, "name": job_actor(job_id), "namespace": connection.ray_namespace}
    if runtime_env is not None:
        options["runtime_env"] = runtime_env
    return create(JobActor, options, job_id, connection)
