"""One job on Ray: what its actor and its processes tell beside the store, and how it is waited for [S2.3]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from datetime import timedelta
from typing import Any

from ray.exceptions import RayError

from choreography_ray.access.job import JobAccess
from choreography_ray.access.reading import Reader
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.names import job_actor
from choreography_ray.actors.ray_api import find, is_connected
from choreography_ray.client.control import Controller
from choreography_ray.client.logs import output_of
from choreography_ray.client.timeline import timeline_of
from choreography_ray.core.explaining import Explained
from choreography_ray.core.instant import seconds_of
from choreography_ray.display import SHOWN_FAILURES, LiveView, live_view
from choreography_ray.engine.rest import Request
from choreography_ray.errors import (
    ChoreographyError,
    ClusterUnavailable,
    JobNotFound,
    JobRemoved,
    StorageUnavailable,
)
from choreography_ray.model import (
    JobId,
    JobRecord,
    JobStatus,
    StepId,
    StepOutput,
    StepRecord,
    Timeline,
)
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

EXPLAIN_SECONDS = 10.0
"""How long a job's actor may take to say what its steps wait for; else the store tells what it can."""
POLL_SECONDS = 0.5
"""How often a wait looks into the store while nothing tells it that the job has ended."""
STORE_TRIES = 5
FIRST_STORE_DELAY = 0.2
"""How often a wait asks a store again that does not answer, and after how many seconds first; each doubles it [S10]."""


class AsyncJobHandle(JobAccess):
    """One job, by id. Reading works without a cluster; everything read is from the store."""

    def __init__(self, storage: JobStorage, connection: Connection, job_id: JobId) -> None:
        super().__init__(storage, Reader(storage, job_id), Controller(storage, connection, job_id))
        self._connection = connection

    async def _explained(self) -> Explained | None:
        if is_connected():
            with contextlib.suppress(ValueError, RayError, ChoreographyError, TimeoutError):
                async with asyncio.timeout(EXPLAIN_SECONDS):
                    actor = await asyncio.to_thread(find, job_actor(self.job_id), self._connection.ray_namespace)
                    explained: Explained = await actor.explain.remote()
                    return explained
        return None

    async def timeline(self) -> Timeline:
        """When what happened, as far as store and cluster know it, and what they do not know.

        A notebook shows it as a plot. Raises `JobNotFound`, `StorageUnavailable`.
        """
        return await timeline_of(self._reader, self._connection.ray_namespace)

    async def output(self, step_id: str, size: int = 65_536) -> StepOutput:
        """The last `size` bytes of what a step's process printed and logged, or why it cannot be had [S16].

        Raises `StepNotFound`, `JobNotFound`.
        """
        step = await self._reader.step(StepId(step_id))
        return await output_of(self.job_id, step, self._connection.ray_namespace, size)

    async def _ask(self, what: Request, error: Any, reasons: Any, timeout: float) -> str | int:
        if not is_connected():
            raise ClusterUnavailable("", "this client was connected for reading only")
        return await super()._ask(what, error, reasons, timeout)

    async def wait(self, timeout: float | timedelta | None = None, progress: bool = True) -> JobRecord:
        """Wait until the job has ended or is stopped and accounted; `timeout` in seconds, else `TimeoutError`.

        Raises `JobNotFound`, and `JobRemoved` when it is removed meanwhile [S9.6].
        """
        seconds = None if timeout is None else seconds_of(timeout)
        try:
            async with asyncio.timeout(seconds):
                return await self._wait(progress)
        except TimeoutError as error:
            status = await self.status()
            raise TimeoutError(f"job {self.job_id!r} is still {status} after {seconds or 0:g} s") from error

    async def _wait(self, progress: bool) -> JobRecord:
        record = await self.record()
        with contextlib.ExitStack() as stack:
            live = stack.enter_context(live_view()) if progress else None
            ended = asyncio.ensure_future(self._ended())

            def give_up() -> None:  # on whichever it is by then
                ended.cancel()

            stack.callback(give_up)
            while True:
                if live is not None:
                    live.update(record, await self._new_failures(record, live))
                if record.status.is_final or (record.status is JobStatus.STOPPED and record.is_accounted):
                    return record
                # The actor's word only ends the pause: what counts is what the store says.
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
                if ended.done():
                    ended = asyncio.ensure_future(self._pause())
                record = await self._after_removal()

    async def _new_failures(self, record: JobRecord, live: LiveView) -> list[StepRecord]:
        """What to tell of failures: nothing is read while there is nothing new."""
        if record.progress.failed <= live.failures_told or not live.wants_failures:
            return []
        with contextlib.suppress(StorageUnavailable):  # they are told with the next look
            return await self._reader.failed_steps(SHOWN_FAILURES)
        return []

    async def _after_removal(self) -> JobRecord:
        """The record; a store that is away for a moment ends nobody's wait [S10]."""
        failed = 0
        while True:
            try:
                return await self.record()
            except JobNotFound as error:
                raise JobRemoved(self.job_id) from error
            except StorageUnavailable as error:
                failed += 1
                if failed > STORE_TRIES:
                    raise
                log.info("job %r is looked at again: %s", self.job_id, error)
                await asyncio.sleep(FIRST_STORE_DELAY * 2.0 ** (failed - 1) * (0.5 + random.random()))

    async def _pause(self) -> None:
        await asyncio.sleep(POLL_SECONDS)

    async def _ended(self) -> None:
        """Until the job's actor says that it has ended, or cannot be asked."""
        if not is_connected():
            await self._pause()
            return
        try:
            actor = await asyncio.to_thread(find, job_actor(self.job_id), self._connection.ray_namespace)
            await actor.ended.remote()
        except (ValueError, RayError, ChoreographyError):
            await self._pause()
