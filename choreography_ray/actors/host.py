"""The actor that performs steps: a thin shell around `HostEngine` [S14.2]."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from choreography_ray.actors.connection import Connection, load_stored_code, settle_in
from choreography_ray.actors.deadman import Deadman
from choreography_ray.actors.logs import write_records
from choreography_ray.actors.names import job_actor
from choreography_ray.actors.ray_api import find, here
from choreography_ray.actors.threads import ThreadedUserCode, ThreadRunner
from choreography_ray.code import LoadedCode
from choreography_ray.core.policies import LEASE_SECONDS
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.host_engine import HostEngine
from choreography_ray.engine.ports import Lease, Whereabouts, Work
from choreography_ray.engine.writes import Writer
from choreography_ray.model import HostId, JobId
from choreography_ray.records import CodeRef, OutcomeDocument, Run


class HostProcess:
    """This process, which the kernel ends when the lease does."""

    def __init__(self) -> None:
        self._deadman = Deadman()
        self._deadman.arm(LEASE_SECONDS)
        self.whereabouts = Whereabouts(here().node_id, os.getpid())

    def live_until(self, seconds: float) -> None:
        """See `engine.ports.Process`."""
        self._deadman.arm(seconds)

    def end(self) -> None:
        """See `engine.ports.Process`."""
        os._exit(0)


class RayJob:
    """The job actor, looked up by name before each call: a handle may be of one that is gone."""

    def __init__(self, job_id: JobId, namespace: str) -> None:
        self._job_id = job_id
        self._name = job_actor(job_id)
        self._namespace = namespace
        place = here()
        self._me = (place.worker_id, place.node_id)
        self._handle: Any = None

    async def _job(self) -> Any:
        if self._handle is None:
            self._handle = await asyncio.to_thread(find, self._name, self._namespace)
        return self._handle

    async def ask(self, host: HostId, is_first: bool) -> Lease:
        """See `engine.ports.JobPort`."""
        try:
            job = await self._job()
        except ValueError:
            return Lease(None)  # no actor has the job's name: the job is over
        try:
            lease: Lease = await job.ask.remote(host, is_first, *self._me)
        except Exception:
            self._handle = None
            raise
        return lease

    async def deliver(self, document: OutcomeDocument) -> None:
        """See `engine.ports.JobPort`."""
        try:
            await (await self._job()).deliver.remote(document)
        except Exception:
            self._handle = None
            raise


class HostActor:
    """A host. Whatever it was told to begin is durable in the ledger; whatever it tells is durable before it tells it.

    Its calls may be lost and repeated. It restarts never: a host that died is replaced under another name.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it on the actor's loop
        self, job_id: JobId, host: HostId, connection: Connection, code: CodeRef
    ) -> None:
        process = HostProcess()  # before anything that may hang
        write_records(job=job_id, host=host)
        storage = connection.storage()
        clock = SystemClock()
        writer = Writer(clock)
        # What cannot be loaded here fails the constructor, and so the start: Ray tells the job actor why [S4.4].
        loaded = await settle_in(storage, writer, code)

        async def load(ref: CodeRef) -> LoadedCode:
            return loaded if ref == code else await load_stored_code(storage, writer, ref)

        self._engine = HostEngine(
            job_id,
            host,
            storage,
            load,
            RayJob(job_id, connection.ray_namespace),
            ThreadRunner(),
            ThreadedUserCode(),
            clock,
            process,
        )
        self._engine.spawn(self._engine.run())

    async def tell(self, work: Work) -> bool:
        """Begin a group, once."""
        return self._engine.accept(work)

    async def stop(self, run: Run, fence: int, ordinals: tuple[int, ...] = ()) -> None:
        """Stop steps of a run, all if none is named; what has not begun never will."""
        self._engine.stop(run, fence, ordinals)

    async def has_begun(self, run: Run, fence: int) -> bool:
        """Whether the run was begun here; it never will be if not."""
        return self._engine.has_begun(run, fence)

    async def is_in_callback(self) -> bool:
        """Whether a callback of a body runs."""
        return self._engine.is_in_callback

    async def watch(self) -> None:
        """Never answers: that it fails tells that the process may be gone."""
        await asyncio.Event().wait()
