"""What does a client do for a job that nobody works on? Without Ray: what would be asked of it is told here."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from choreography_ray.access.asker import NobodyWorks
from choreography_ray.actors.connection import Connection
from choreography_ray.client import control
from choreography_ray.client.control import Controller
from choreography_ray.engine.rest import RequestKind, StopStep
from choreography_ray.errors import UnknownJobType
from choreography_ray.model import JobId, JobStatus, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument
from choreography_ray.storage.memory import MemoryStorage

JOB = JobId("job")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of which jobs an actor was made; there is none before."""
    made: list[Any] = []

    def find(*_: Any) -> Any:
        raise ValueError("no such actor")

    monkeypatch.setattr(control, "find", find)
    monkeypatch.setattr(control, "here", lambda: SimpleNamespace(cluster_id=""))
    monkeypatch.setattr(control, "job_handle", lambda job_id, _: made.append(job_id))
    return made


async def controller(storage: MemoryStorage) -> Controller:
    document = JobDocument(JOB, "T", CodeRef("m", "T"), None, None, JobsOptions(), NOW, NOW, status=JobStatus.RUNNING)
    await storage.insert_job(document)
    return Controller(storage, Connection("n", "mongodb://nowhere"), JOB)


def test_a_removal_of_a_job_whose_code_cannot_be_loaded_changes_nothing(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`REMOVING` was written before anybody knew: the job could not be resumed any more [S9.6]."""

    def check_code(*_: Any) -> None:
        raise UnknownJobType("T", "no module m")

    monkeypatch.setattr(control, "check_code", check_code)

    async def story() -> None:
        storage = MemoryStorage()
        asking = await controller(storage)
        before = await storage.read_job(JOB)
        with pytest.raises(UnknownJobType):
            await asking.ask(RequestKind.REMOVE, 1.0)
        assert await storage.read_job(JOB) == before
        assert not made

    asyncio.run(story())


def test_a_removal_is_written_before_an_actor_is_made_that_would_go_on_with_the_job(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "check_code", lambda *_: None)

    async def story() -> None:
        storage = MemoryStorage()
        asking = await controller(storage)
        await asking._actor(RequestKind.REMOVE)
        document = await storage.read_job(JOB)
        assert document is not None
        assert document.status is JobStatus.REMOVING
        assert made == [JOB]

    asyncio.run(story())


def test_a_step_of_a_job_that_nobody_works_on_is_not_stopped_by_going_on_with_it(made: list[Any]) -> None:
    """An actor made for the request would resume the job by accident [S2.3]."""

    async def story() -> None:
        asking = await controller(MemoryStorage())
        with pytest.raises(NobodyWorks):
            await asking.ask(StopStep(0, StepId("s")), 1.0)
        assert not made

    asyncio.run(story())
