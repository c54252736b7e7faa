"""How a simulated job is asked for something: as the client does it, over lost calls, dead actors and finished ones."""

from __future__ import annotations

import asyncio
from itertools import count

from choreography_ray.engine.rest import Request, RetryFailed
from choreography_ray.errors import Fenced, JobNotFound
from choreography_ray.model import JobStatus
from choreography_ray.testing.job_actor import SimJob

_calls = count()


def retry() -> RetryFailed:
    """The failed steps are to run again: a call of its own."""
    return RetryFailed(str(next(_calls)))


async def ask(job: SimJob, what: Request) -> str | int:
    """The job's answer, from whichever incarnation gives one."""
    while True:
        if await job.cluster.store.read_job(job.job_id) is None:
            return "REMOVED"
        if job.is_over:
            revive(job)
        current, process = job.current, job.process
        if current is None or process is None:
            await asyncio.sleep(0.2)
            continue
        try:
            await job.cluster.hop(f"{job.job_id} is asked: {what}")
            return await process.call(current.request(what))
        except (Fenced, JobNotFound, ConnectionError):
            await asyncio.sleep(0.1)


def revive(job: SimJob) -> None:
    """The client makes an actor for a job that has none."""
    job.is_over = False
    job.actor += "'"  # a new actor, with an id of its own: what the one before still says is not its word
    if job.ended.done():
        job.ended.exception()  # what kept the one before from going on was nobody's question
        job.ended = asyncio.get_running_loop().create_future()
    job.live()


async def rest(job: SimJob) -> JobStatus:
    """Until the job is over, or stopped and accounted: its status."""
    while True:
        document = await job.cluster.store.read_job(job.job_id)
        if document is None:
            return JobStatus.REMOVING
        is_accounted = document.status is JobStatus.STOPPED and document.is_stop_finalized
        if is_accounted or (document.status.is_final and job.is_over):
            return document.status
        await asyncio.sleep(0.05)
