"""A step's records go one by one only when its job is gone for certain [S9.7]."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from choreography_ray.access.orphans import delete_orphan
from choreography_ray.errors import StepNotFound, StorageUnavailable
from choreography_ray.model import JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, FailedStep, JobDocument, KeptResult, Run, StepDocument
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.storage.protocol import JobStorage

JOB = JobId("job")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def left_over(storage: JobStorage) -> None:
    """What somebody who wrote late left of two steps."""
    await storage.save_failures(JOB, [FailedStep(n, StepId(f"s{n}"), 1, Run(5, n), ()) for n in (0, 1)])
    await storage.save_results(JOB, [KeptResult(n, StepId(f"s{n}"), n, fence=5) for n in (0, 1)])
    await storage.save_step_documents(JOB, [StepDocument(n, Run(5, n)) for n in (0, 1)])


async def ordinals(storage: JobStorage) -> list[list[int]]:
    """Of which steps there are failures, results and documents."""
    return [
        [record.ordinal for record in await storage.read_failures(JOB)],
        [record.ordinal for record in await storage.read_results(JOB)],
        [record.ordinal for record in await storage.read_step_documents(JOB)],
    ]


async def test_an_orphan_is_deleted_and_its_sibling_is_left(storage: JobStorage) -> None:
    await left_over(storage)
    assert await delete_orphan(storage, JOB, StepId("s1"))
    assert await ordinals(storage) == [[0], [0], [0]]
    with pytest.raises(StepNotFound):
        await delete_orphan(storage, JOB, StepId("s1"))


async def test_nothing_is_deleted_while_the_job_is_stored(storage: JobStorage) -> None:
    await left_over(storage)
    await storage.insert_job(JobDocument(JOB, "T", CodeRef("m", "T"), None, None, JobsOptions(), NOW, NOW))
    assert not await delete_orphan(storage, JOB, StepId("s1"))
    assert await ordinals(storage) == [[0, 1]] * 3


async def test_nothing_is_deleted_while_the_store_does_not_answer_for_certain() -> None:
    class Away(MemoryStorage):
        async def read_job(self, job_id: JobId) -> Any:
            raise StorageUnavailable("memory", "it is away")

    storage = Away()
    await left_over(storage)
    with pytest.raises(StorageUnavailable):
        await delete_orphan(storage, JOB, StepId("s1"))
    assert await ordinals(storage) == [[0, 1]] * 3


async def test_what_a_job_of_that_id_writes_that_was_started_meanwhile_stays() -> None:
    """The records are deleted only as they were read: those of the new job bear a higher fence."""

    class Raced(MemoryStorage):
        async def read_step_documents(self, job_id: JobId, ordinals: Any = None) -> Any:
            found = await super().read_step_documents(job_id, ordinals)
            await self.save_step_documents(JOB, [StepDocument(1, Run(9, 1))])
            await self.save_failures(JOB, [FailedStep(1, StepId("s1"), 1, Run(9, 1), ())])
            await self.save_results(JOB, [KeptResult(1, StepId("s1"), 1, fence=9)])
            return found

    storage = Raced()
    await left_over(storage)
    assert await delete_orphan(storage, JOB, StepId("s1"))
    assert await ordinals(storage) == [[0, 1]] * 3
