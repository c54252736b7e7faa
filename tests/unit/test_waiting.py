"""Does a wait outlive a store that is away for a moment [S10]?"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from choreography_ray.actors.connection import Connection
from choreography_ray.client import handle
from choreography_ray.client.handle import AsyncJobHandle
from choreography_ray.errors import StorageUnavailable
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument
from choreography_ray.storage.memory import MemoryStorage

AT = datetime(2030, 1, 1, tzinfo=UTC)


class Leaving(MemoryStorage):
    """Shows a job that runs, is away for some reads, and then shows one that has ended."""

    def __init__(self, away: int) -> None:
        super().__init__()
        self.reads = 0
        self.away = away

    async def read_job(self, job_id: JobId) -> JobDocument | None:
        self.reads += 1
        if 1 < self.reads <= self.away + 1:
            raise StorageUnavailable("there", "it is away")
        status = JobStatus.RUNNING if self.reads == 1 else JobStatus.FAILED
        return JobDocument(job_id, "J", CodeRef("m", "J"), None, None, JobsOptions(), AT, AT, status=status)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "FIRST_STORE_DELAY", 0.001)
    monkeypatch.setattr(handle, "POLL_SECONDS", 0.001)


def wait(store: Leaving) -> JobStatus:
    """What a wait for its job tells."""
    job = AsyncJobHandle(store, Connection("default", "mongodb://nowhere"), JobId("job"))
    return asyncio.run(job.wait(progress=False)).status


def test_a_wait_asks_a_store_again_that_does_not_answer() -> None:
    """Five times in a row are no reason to give up."""
    assert wait(Leaving(away=5)) is JobStatus.FAILED


def test_a_store_that_stays_away_is_told() -> None:
    with pytest.raises(StorageUnavailable):
        wait(Leaving(away=6))
