"""The actor of a job: a thin shell around one incarnation. Ray restarts it, storage tells it where it was [S10]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

from choreography_ray.actors.clean import create_cleanly
from choreography_ray.actors.connection import Connection, load_stored_code
from choreography_ray.actors.gcs import RayTables
from choreography_ray.actors.hosts import RayHosts
from choreography_ray.actors.last_words import obituary
from choreography_ray.actors.logs import write_records
from choreography_ray.actors.names import SUPERVISOR, host_prefix, job_actor
from choreography_ray.actors.ray_api import SERVICE, create, end, find, here, own_runtime_env
from choreography_ray.actors.runtime_envs import lasting
from choreography_ray.actors.threads import ThreadedUserCode
from choreography_ray.actors.throttle import throttle_handle
from choreography_ray.codec import decode
from choreography_ray.core import events as e
from choreography_ray.core.commands import ReportStart
from choreography_ray.core.explaining import Explained
from choreography_ray.core.slot_messages import Exchange, Reply
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.incarnation import Incarnation
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.ports import HostsPort, Lease, ThrottlePort
from choreography_ray.engine.rest import Request
from choreography_ray.engine.writes import Writer
from choreography_ray.errors import Fenced, JobNotFound, OwnedElsewhere, StorageUnavailable, UnknownJobType
from choreography_ray.model import HostId, JobId, JobStatus
from choreography_ray.records import OutcomeDocument, Owner, Payload

log = logging.getLogger(__name__)

GOODBYE_SECONDS = 1.0
"""How long the throttle may take to hear that a finished job holds nothing; else it finds out by itself."""
NUMBERS_SECONDS = 5.0
"""How often the supervisor is told what to count: twice as often as Ray exports it."""
LAST_SECONDS = 10.0
"""How long Ray may take to end a process that asked for it."""
REPLY_SECONDS = 0.2
"""What a finished actor gives its last replies to leave the process."""


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


class JobActor:
    """One job. What `deliver` has answered is recorded for good; what raised may have been.

    A call to an incarnation that is not ready raises: it is repeated. When the job has ended the actor ends itself.
    """

    async def __init__(self, job_id: JobId, connection: Connection) -> None:  # type: ignore[misc]  # Ray awaits it
        write_records(job=job_id)
        self._job_id = job_id
        self._connection = connection
        self._storage = connection.storage()
        self._hosts: RayHosts | None = None
        self._throttle: RayThrottle | None = None
        self._incarnation: Incarnation | None = None
        self._begun = asyncio.Event()
        self._calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._ended: asyncio.Future[JobStatus] = asyncio.get_running_loop().create_future()
        self._life = asyncio.get_running_loop().create_task(self._live())

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
        storage = self._storage
        clock = SystemClock()
        writer = Writer(clock)
        options = await writer.certain(storage.read_cluster_options)
        lease = options.step_lease_timeout.total_seconds()
        margin = options.lease_margin.total_seconds()

        def ports(engine: JobEngine) -> tuple[HostsPort, ThrottlePort]:
            self._hosts = RayHosts(self._job_id, self._connection, engine, RayTables(), lease, margin)
            self._throttle = RayThrottle(self._connection, engine)
            return self._hosts, self._throttle

        self._incarnation = Incarnation(
            self._job_id,
            _myself(),
            storage,
            lambda ref: load_stored_code(storage, writer, ref),
            ThreadedUserCode(),
            clock,
            ports,
            lease,
            self._is_current,
            self._speak,
            obituary,
        )
        self._begun.set()
        counting = asyncio.get_running_loop().create_task(self._tell_numbers(self._incarnation))
        try:
            return await self._incarnation.run()
        finally:
            counting.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._send_numbers(self._incarnation)
            if self._hosts is not None:
                await self._hosts.close()
            if self._throttle is not None:
                await self._throttle.close()

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
            if self._hosts is not None and not self._hosts.asked(host, worker_id, node_id):
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


def _myself() -> Owner:
    place = here()
    return Owner(place.cluster_id, place.actor_id, place.worker_id, place.node_id, os.getpid())


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
