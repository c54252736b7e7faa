"""How somebody who is not a job's actor takes a job over, to give it a status or to delete it: fence first [S10.1]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from choreography_ray.core.transitions import bounded, check_job
from choreography_ray.errors import JobNotFound, StartJobReason
from choreography_ray.model import HistoryEntry, JobId, JobStatus
from choreography_ray.records import JobDocument
from choreography_ray.storage.protocol import JobStorage

NOT_STARTED = (JobStatus.PREPARING_JOB, JobStatus.PREPARING_STEPS, JobStatus.STARTING_STEPS)
"""Statuses in which no step has been started: somebody may still wait for the start."""


async def take_over(
    storage: JobStorage, job_id: JobId, known_fence: int, crashes: int | None = None
) -> JobDocument | None:
    """The job under a fence of our own, read after it was raised: nobody else can write it any more. `crashes`, where
    given, is written with the fence.

    None when its fence is not the known one: somebody else works on it, or it is gone. Raises `StorageUnavailable`.
    """
    fence = await storage.next_number("fence")
    if not await storage.raise_fence(job_id, known_fence, fence, crashes=crashes):
        return None
    document = await storage.read_job(job_id)
    return document if document is not None and document.fence == fence else None


async def give_status(
    storage: JobStorage, document: JobDocument, status: JobStatus, why: str, at: datetime, *, is_forced: bool = False
) -> JobDocument | None:
    """Give a job that was taken over a status that is not accounted yet. None when somebody has taken it since.

    Raises `InvalidTransition`, `StorageUnavailable`.
    """
    if document.status is not status:
        check_job(document.status, status)
    entry = HistoryEntry(at=at, status=status, why=why)
    changed = replace(
        document,
        save=document.save + 1,
        status=status,
        history=bounded((*document.history, entry), document.options.max_history),
        updated_at=at,
        is_stop_finalized=False,
        is_forced=is_forced,
    )
    names = ["status", "history", "is_stop_finalized", "is_forced"]
    if status is JobStatus.STOPPED and document.status in NOT_STARTED:
        changed = replace(changed, start_error=StartJobReason.STOPPED)
        names.append("start_error")
    return changed if await storage.save_job(changed, names) else None


async def take_by_force(storage: JobStorage, job_id: JobId, now: Callable[[], datetime], pause: float) -> JobDocument:
    """The job under a fence of our own, `REMOVING`, whatever its status and whoever works on it [S9.6].

    Tried again after `pause` seconds as long as others are faster; no later job of the id is meant then. Raises
    `JobNotFound`, `StorageUnavailable`.
    """
    born: datetime | None = None
    while True:
        document = await storage.read_job(job_id)
        if document is None or born not in (None, document.created_at):
            raise JobNotFound(job_id)
        born = document.created_at
        taken = await take_over(storage, job_id, document.fence)
        if taken is not None:
            removing = await give_status(storage, taken, JobStatus.REMOVING, "removed by force", now(), is_forced=True)
            if removing is not None:
                return removing
        await asyncio.sleep(pause)


async def delete_taken(storage: JobStorage, document: JobDocument) -> None:
    """Delete a job that was taken over: its records first, so that what a crash leaves is found by its document.

    Nothing of a later job of the same id is hit, however late this is done: its fences are higher.
    """
    await storage.clear_job(document.job_id, document.fence, keep_results=False)
    await storage.delete_job(document)
