"""How the writes of a turn reach the store: each one certain before the next begins [S10.1]."""

from __future__ import annotations

from typing import assert_never

from choreography_ray.core import commands as c
from choreography_ray.core.ledger import Ledger
from choreography_ray.engine.plans import Plans
from choreography_ray.engine.writes import JobWriter, Writer
from choreography_ray.errors import Fenced
from choreography_ray.storage.protocol import JobStorage

Write = (
    c.SaveJob
    | c.SaveRetries
    | c.SaveFailures
    | c.SaveResults
    | c.SaveStops
    | c.SaveStepDocuments
    | c.DeleteStepDocuments
    | c.SaveLedger
    | c.DeleteFailures
    | c.ClearJob
    | c.DeleteJob
)
"""The commands that block: what follows them rests on them."""


class Recorder:
    """Carries out the writes of one incarnation. Raises `Fenced` when a newer one owns what was to be written."""

    def __init__(self, storage: JobStorage, job: JobWriter, writer: Writer, plans: Plans, ledger: Ledger) -> None:
        self._storage = storage
        self._job = job
        self._writer = writer
        self._plans = plans
        self._ledger = ledger

    async def write(self, command: Write) -> None:
        """Do one write; it is durable when this returns."""
        match command:
            case c.SaveJob(document, changed):
                await self._job.save(document, changed)
            case c.SaveLedger(segments):
                job_id = self._job.document.job_id
                if not await self._writer.certain(lambda: self._storage.save_ledger(job_id, segments)):
                    raise Fenced(job_id)
            case _:
                await self._write_beside(command)

    async def _write_beside(
        self,
        command: c.SaveRetries
        | c.SaveFailures
        | c.SaveResults
        | c.SaveStops
        | c.SaveStepDocuments
        | c.DeleteStepDocuments
        | c.DeleteFailures
        | c.ClearJob
        | c.DeleteJob,
    ) -> None:
        storage, certain, job_id = self._storage, self._writer.certain, self._job.document.job_id
        match command:
            case c.SaveRetries(items):
                documents = await self._plans.retries(items)
                await certain(lambda: storage.save_step_documents(job_id, documents))
            case c.SaveStops(items):
                stops = await self._plans.stops(items)
                await certain(lambda: storage.save_step_documents(job_id, stops))
            case c.SaveFailures(items):
                failures = await self._plans.failures(items)
                await certain(lambda: storage.save_failures(job_id, failures))
            case c.SaveResults(items):
                results = await self._plans.results(items, self._ledger.stage)
                await certain(lambda: storage.save_results(job_id, results))
            case c.SaveStepDocuments(raised):
                if await certain(lambda: storage.save_step_documents(job_id, raised)):
                    raise Fenced(job_id)
            case c.DeleteStepDocuments(closed):
                await certain(lambda: storage.delete_step_documents(job_id, closed))
            case c.DeleteFailures(read):
                await certain(lambda: storage.delete_failures(job_id, read))
            case c.ClearJob(keep_results):
                fence = self._job.document.fence
                await certain(lambda: storage.clear_job(job_id, fence, keep_results=keep_results))
            case c.DeleteJob():
                await certain(lambda: storage.delete_job(self._job.document))
            case _:
                assert_never(command)
