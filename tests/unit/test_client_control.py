"""What does a client do for a job that nobody works on? Without Ray: what would be asked of it is told here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

from choreography_ray.access.asker import NobodyWorks
from choreography_ray.access.reading import Reader
from choreography_ray.access.step import AsyncStepHandle
from choreography_ray.actors.connection import Connection
from choreography_ray.client import control
from choreography_ray.client.control import Controller
from choreography_ray.core.explaining import Explained
from choreography_ray.engine import taking
from choreography_ray.engine.rest import RequestKind, StopStep
from choreography_ray.errors import JobNotFound, StepStopError, StepStopReason, UnknownJobType
from choreography_ray.model import JobId, JobStatus, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument
from choreography_ray.storage.memory import MemoryStorage

JOB = JobId("job")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def nobody(*_: Any) -> Any:
    """No actor has the name."""
    raise ValueError("no such actor")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of which jobs an actor was made; there is none before."""
    made: list[Any] = []

    monkeypatch.setattr(control, "find", nobody)
    monkeypatch.setattr(control, "here", lambda: SimpleNamespace(cluster_id=""))
    monkeypatch.setattr(control, "job_handle", lambda job_id, *_: made.append(job_id))
    return made


def document(at: datetime = NOW) -> JobDocument:
    """A job that runs, created at a moment."""
    return JobDocument(JOB, "T", CodeRef("m", "T"), None, None, JobsOptions(), at, at, status=JobStatus.RUNNING)


async def controller(storage: MemoryStorage) -> Controller:
    await storage.insert_job(document())
    return Controller(storage, Connection("n", "mongodb://nowhere"), JOB)


def method(answer: Callable[..., Awaitable[Any]]) -> SimpleNamespace:
    """As a handle of Ray has it."""
    return SimpleNamespace(remote=answer)


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
        await asking._actor(RequestKind.REMOVE, None)
        stored = await storage.read_job(JOB)
        assert stored is not None
        assert stored.status is JobStatus.REMOVING
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


def test_a_removal_whose_answer_was_lost_hits_no_later_job_of_the_id(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its actor was gone before it could say so, and somebody gave the id to another job."""

    async def story() -> None:
        storage = MemoryStorage()
        asking = await controller(storage)
        later = document(NOW + timedelta(microseconds=1))

        async def request(*_: Any) -> str:
            await storage.delete_job(document())
            await storage.insert_job(later)
            monkeypatch.setattr(control, "find", nobody)
            raise RayError("the actor died")

        monkeypatch.setattr(control, "find", lambda *_: SimpleNamespace(request=method(request)))
        assert await asking.ask(RequestKind.REMOVE, 5.0) == "REMOVED"
        assert await storage.read_job(JOB) == later
        assert not made

    asyncio.run(story())


def test_a_forced_removal_that_loses_a_race_hits_no_later_job_of_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        storage = MemoryStorage()
        asking = await controller(storage)
        later = document(NOW + timedelta(microseconds=1))

        async def lose(*_: Any) -> None:
            await storage.delete_job(document())
            await storage.insert_job(later)

        monkeypatch.setattr(taking, "take_over", lose)
        with pytest.raises(JobNotFound):
            await asking.remove_by_force()
        assert await storage.read_job(JOB) == later

    asyncio.run(story())


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("the store is away", StepStopReason.FAILED_TO_PERSIST), ("", StepStopReason.FAILED_TO_REPORT_TO_JOB)],
)
def test_a_stop_of_a_step_that_nobody_confirms_tells_whether_the_job_can_write(
    monkeypatch: pytest.MonkeyPatch, trouble: str, reason: StepStopReason
) -> None:
    """With the store's error, where that is what keeps the job from saving the stop [S9.7]."""

    async def story() -> None:
        async def request(*_: Any) -> str:
            await asyncio.Event().wait()
            raise AssertionError

        async def explain() -> Explained:
            return Explained(trouble=trouble)

        actor = SimpleNamespace(request=method(request), explain=method(explain))
        monkeypatch.setattr(control, "find", lambda *_: actor)
        storage = MemoryStorage()
        step = AsyncStepHandle(storage, Reader(storage, JOB), await controller(storage), StepId("s"))
        with pytest.raises(StepStopError) as failed:
            await step._ask(StopStep(0, StepId("s")), 0.01)
        assert failed.value.reason is reason
        assert trouble in str(failed.value)

    asyncio.run(story())
