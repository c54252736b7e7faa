"""What is deleted of a single step whose job is gone? [S9.7]

Records of a step outlive its job only where somebody wrote late; whoever sweeps removed jobs finds them too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from choreography_ray.access.reading import kept_results
from choreography_ray.errors import StepNotFound
from choreography_ray.model import JobId, StepId
from choreography_ray.records import FailedStep
from choreography_ray.storage.protocol import JobStorage

PAGE = 1_000


async def delete_orphan(storage: JobStorage, job_id: JobId, step_id: StepId) -> bool:
    """Delete the records that name a step of a job that is not stored. False: the job is stored, all was kept.

    Everything is deleted only as it was read: what a later job of that id writes meanwhile stays. Raises
    `StepNotFound` when no record names the step, `StorageUnavailable` when the store does not answer.
    """
    if await storage.read_job(job_id) is not None:
        return False
    failures = [failed async for failed in _failures(storage, job_id) if failed.step_id == step_id]
    results = [kept async for kept in kept_results(storage, job_id) if kept.step_id == step_id]
    ordinals = sorted({failed.ordinal for failed in failures} | {kept.ordinal for kept in results})
    if not ordinals:
        raise StepNotFound(job_id, step_id)
    own = await storage.read_step_documents(job_id, ordinals)
    if await storage.read_job(job_id) is not None:
        return False  # a new one of that id was started meanwhile
    await storage.delete_step_documents(job_id, [(document.ordinal, document.run) for document in own])
    await storage.delete_failures(job_id, [(failed.ordinal, failed.run) for failed in failures])
    await storage.delete_results(job_id, [(kept.ordinal, kept.fence) for kept in results])
    return True


async def _failures(storage: JobStorage, job_id: JobId) -> AsyncIterator[FailedStep]:
    read = 0
    while page := await storage.read_failures(job_id, skip=read, take=PAGE):
        read += len(page)
        for failed in page:
            yield failed
