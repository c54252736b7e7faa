"""What a handle makes of what it is answered, without a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from choreography_ray.client.handle import AsyncJobHandle
from choreography_ray.errors import StopJobError, StopJobReason
from choreography_ray.model import DrainResult, JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument
from choreography_ray.storage.memory import MemoryStorage

AT = datetime(2026, 1, 1, tzinfo=UTC)


def drain(document: JobDocument) -> DrainResult:
    """Drain a job that answers that it stops, and is found like this."""

    async def story() -> DrainResult:
        storage = MemoryStorage()
        await storage.insert_job(document)
        no_cluster: Any = None
        handle = AsyncJobHandle(storage, no_cluster, document.job_id)

        async def answer(*_: object) -> str:
            return "STOPPED"

        handle._ask = answer  # type: ignore[method-assign]
        return await handle.drain(0.0)

    return asyncio.run(story())


DOCUMENT = JobDocument(JobId("job"), "Job", CodeRef("app", "Job"), None, None, JobsOptions(), AT, AT)


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.REMOVING])
def test_a_drain_of_a_job_that_failed_or_is_removed_meanwhile_says_so(status: JobStatus) -> None:
    """It said `COMPLETED`, and `choreography drain job && ./deploy` deployed while bodies were still being ended."""
    with pytest.raises(StopJobError) as raised:
        drain(replace(DOCUMENT, status=status))
    assert raised.value.reason is StopJobReason.JOB_IS_NOT_RUNNING


@pytest.mark.parametrize(
    ("status", "is_accounted", "result"),
    [
        (JobStatus.STOPPED, True, DrainResult.DRAINED),
        (JobStatus.STOPPED, False, DrainResult.TIMED_OUT),
        (JobStatus.COMPLETED_SUCCESSFULLY, False, DrainResult.COMPLETED),
        (JobStatus.COMPLETED_WITH_FAILURES, False, DrainResult.COMPLETED),
        (JobStatus.RUNNING, False, DrainResult.DRAINED),  # drained, and resumed before we looked
    ],
)
def test_a_drain_tells_what_became_of_the_job(status: JobStatus, is_accounted: bool, result: DrainResult) -> None:
    """Zero seconds look once."""
    assert drain(replace(DOCUMENT, status=status, is_stop_finalized=is_accounted)) is result
