"""How a client asks a job's actor for a change, and what it does where there is no actor [S9]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Any

from ray.exceptions import RayError

from choreography_ray.access.asker import Asker, NobodyWorks, Unanswered
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.job import job_handle
from choreography_ray.actors.names import job_actor
from choreography_ray.actors.probe import check_code
from choreography_ray.actors.ray_api import end, find, here
from choreography_ray.core.control import REMOVED
from choreography_ray.core.explaining import Explained
from choreography_ray.core.ownership import is_elsewhere
from choreography_ray.core.transitions import check_job
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.ownership import read_when_free
from choreography_ray.engine.rest import Request, RequestKind, StopStep
from choreography_ray.engine.taking import delete_taken, give_status, take_by_force, take_over
from choreography_ray.errors import Fenced, JobNotFound, OwnedElsewhere, StorageUnavailable, UnknownJobType
from choreography_ray.model import JobId, JobStatus
from choreography_ray.records import JobDocument
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 0.2
TROUBLE_SECONDS = 5.0


class Controller(Asker):
    """Requests about one job. A dead handle is looked up again, so that each call reaches a live incarnation."""

    def __init__(self, storage: JobStorage, connection: Connection, job_id: JobId) -> None:
        self._storage = storage
        self._connection = connection
        self.job_id = job_id

    async def ask(self, what: Request, timeout: float) -> str | int:
        """See `access.asker.Asker`."""
        try:
            async with asyncio.timeout(timeout):
                return await self._ask_until_answered(what)
        except TimeoutError as error:
            raise Unanswered from error

    async def trouble(self) -> str:
        """See `access.asker.Asker`."""
        try:
            async with asyncio.timeout(TROUBLE_SECONDS):
                actor = await asyncio.to_thread(find, job_actor(self.job_id), self._connection.ray_namespace)
                explained: Explained = await actor.explain.remote()
                return explained.trouble
        except (ValueError, RayError, Fenced, TimeoutError):
            return ""

    async def _ask_until_answered(self, what: Request) -> str | int:
        born = await self._born()
        is_asked = False
        while True:
            try:
                actor = await self._actor(what, born)
                is_asked = True
                answer: str | int = await actor.request.remote(what, born)
                return answer
            except JobNotFound:
                if is_asked and what is RequestKind.REMOVE:
                    return REMOVED  # it was gone before its actor could say so
                raise
            except (UnknownJobType, OwnedElsewhere):
                raise
            except (RayError, Fenced) as error:
                log.info("job %r is asked again: %s", self.job_id, error)
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _born(self) -> datetime | None:
        """What tells the job from any other of its id. None while the store is away: its actor may answer without."""
        try:
            return (await self.document()).created_at
        except StorageUnavailable:
            return None

    async def _actor(self, what: Request, born: datetime | None) -> Any:
        with contextlib.suppress(ValueError):
            return await asyncio.to_thread(find, job_actor(self.job_id), self._connection.ray_namespace)
        # Nobody works on it. An actor made now would go on with the job before it hears what is wanted: say it first.
        document = await self._free_document()
        if born not in (None, document.created_at):
            raise JobNotFound(self.job_id)
        if document.status.is_interruptible:
            if isinstance(what, StopStep):
                raise NobodyWorks
            if what is RequestKind.REMOVE:
                # Its hooks must run: nothing is lost when its code cannot be loaded.
                await asyncio.to_thread(check_code, self._connection, document)
                await self.take(document, JobStatus.REMOVING, "removed")
            elif what in (RequestKind.STOP, RequestKind.DRAIN):
                await self.take(document, JobStatus.STOPPED, "stopped while nobody worked on it")
        return await asyncio.to_thread(job_handle, self.job_id, self._connection, document.runtime_env)

    async def _free_document(self) -> JobDocument:
        """The stored job, once it is certain that no other cluster works on it. Raises `OwnedElsewhere` [S10.3]."""
        document = await self.document()
        cluster = here().cluster_id
        if not is_elsewhere(document, cluster):
            return document
        options = await self._storage.read_cluster_options()
        lease = options.step_lease_timeout.total_seconds()
        return await read_when_free(self._storage, self.job_id, cluster, SystemClock(), lease)

    async def document(self) -> JobDocument:
        """The stored job. Raises `JobNotFound`."""
        document = await self._storage.read_job(self.job_id)
        if document is None:
            raise JobNotFound(self.job_id)
        return document

    async def take(
        self, document: JobDocument, status: JobStatus, why: str, *, is_forced: bool = False
    ) -> JobDocument | None:
        """Give the job a status under a fence of our own: whoever else worked on it must stop [S10.1].

        The job as it is then; None when somebody was faster.
        """
        check_job(document.status, status)
        taken = await take_over(self._storage, self.job_id, document.fence)
        if taken is None or taken.status is not document.status:
            return None  # somebody works on it after all
        return await give_status(self._storage, taken, status, why, datetime.now(UTC), is_forced=is_forced)

    async def remove_by_force(self) -> None:
        """See `access.asker.Asker`."""
        taken = await take_by_force(self._storage, self.job_id, lambda: datetime.now(UTC), ASK_AGAIN_SECONDS)
        with contextlib.suppress(ValueError, RayError):
            handle = await asyncio.to_thread(find, job_actor(self.job_id), self._connection.ray_namespace)
            await asyncio.to_thread(end, handle)
        await delete_taken(self._storage, taken)
