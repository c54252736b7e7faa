"""Values and moments that other systems lost, through whole jobs on both stores [S12.3, CASES P8, P9, P10, P12]."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel

from choreography_ray.access.reading import kept_results
from choreography_ray.codec import decode
from choreography_ray.engine.clock import SystemClock
from choreography_ray.job import Job, JobState
from choreography_ray.model import JobId, JobStatus, StepHosting
from choreography_ray.options import JobsOptions
from choreography_ray.step import JobStep, JobStepState
from choreography_ray.storage.mongo import MongoStorage
from choreography_ray.testing.loop import run
from tests.contract.twin import TwinStorage
from tests.simulation.jobs import Piece
from tests.simulation.test_any_payload import Sent, deliver
from tests.simulation.world import World
from tests.unit.test_codec import Base, Sub

STOP_AT = 1.0


@pytest.fixture
def twin(mongo_url: str, namespace: str) -> Iterator[TwinStorage]:
    """Memory and MongoDB, whose answers must be the same."""
    with TwinStorage(MongoStorage(mongo_url, namespace)) as made:
        yield made


def world_of(twin: TwinStorage, **faults: Any) -> World:
    world = World(slots=2, **faults)
    world.store = twin
    return world


ODD = {"model.v1/a.b": 1, "$set": {"$inc": {"a.0.b": 2}}, "": [3], 7: "int", (1, "a.b"): "tuple", "модель.索引": None}
"""Keys that are paths, operators, or nothing to MongoDB."""
BIG = {"signed": 2**63, "hash": np.uint64(2**64 - 1), "plain": 2**64 - 1, "far": [10**30, -(10**30)]}
MOMENTS = {
    "utc": datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC),
    "offset": datetime(2026, 3, 1, 1, 2, 3, 999_999, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    "before": datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=timezone(-timedelta(hours=9, minutes=30))),
}


@pytest.mark.parametrize(
    ("step_ids", "value"),
    [
        pytest.param(("model.v1/a.b", "$set", " ", "インデックス", "a%2Fb\\c"), ODD, id="P8"),
        pytest.param(("0",), BIG, id="P9"),
        pytest.param(("0",), MOMENTS, id="P10"),
        pytest.param(("0",), {"any": Sub(b="kept"), "list": [Base(), Sub(a=2)]}, id="P12"),
    ],
)
def test_it_comes_back_as_request_state_checkpoint_result_and_job_state(
    twin: TwinStorage, step_ids: tuple[str, ...], value: Any
) -> None:
    """CASES P8, P9, P10, P12: equal in value and type after a stop and a resume; the job ends."""
    sent = {step_id: Sent(value, value, is_refused=False) for step_id in step_ids}
    world = world_of(twin)
    run(deliver(world, sent, STOP_AT, JobId("model.v1/$set ключ")))
    assert not world.violations


class Drawing(BaseModel):
    """A request whose fields are typed by a base class."""

    shapes: list[Base]
    pieces: list[Piece] = []


class DrawState(JobStepState):
    shapes: list[Base] = []


class Draw(JobStep[Drawing, BaseModel, DrawState]):
    """Gives back the last of its shapes."""

    hosting = StepHosting.SHARED_ACTORS

    def initialize_state(self, request: Drawing) -> None:
        self.state.shapes = request.shapes

    async def perform_step(self, state: DrawState, context: Any) -> BaseModel:
        return state.shapes[-1]


class Draft(Job[Drawing, JobState]):
    keep_results = True

    def prepare_steps(self, request: Drawing) -> Any:
        return [self.create_step(Draw, request)]


def test_subclasses_in_fields_of_their_base_come_back_as_what_they_are(twin: TwinStorage) -> None:
    """CASES P12: `list[Base]` with subclasses in request and state, a result typed `BaseModel`."""

    async def story() -> None:
        world = world_of(twin)
        job = await world.start(Draft, Drawing(shapes=[Base(a=3), Sub(a=2, b="kept")]))
        await job.ended
        (kept,) = [one async for one in kept_results(twin, job.job_id)]
        result = decode(kept.value, job.code.resolve)
        assert type(result) is Sub
        assert result == Sub(a=2, b="kept")

    run(story())


class Late(JobStep[Drawing, int, DrawState]):
    """Fails once; notes when each attempt begins."""

    hosting = StepHosting.SHARED_ACTORS
    began: ClassVar[list[int]] = []

    def initialize_state(self, request: Drawing) -> None: ...

    async def perform_step(self, state: DrawState, context: Any) -> int:
        self.began.append(context.attempt)
        if context.attempt == 1:
            raise OSError("later")
        return context.attempt


class Again(Job[Drawing, JobState]):
    def prepare_steps(self, request: Drawing) -> Any:
        return [self.create_step(Late, request)]

    def get_step_retry_delay(self, failed_attempt: int) -> timedelta:
        return timedelta(seconds=5)


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's local time is nine hours ahead of UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert datetime.now().astimezone().utcoffset() == timedelta(hours=9)
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_a_retry_in_five_seconds_is_in_five_seconds_wherever_it_is_noon(twin: TwinStorage) -> None:
    """CASES P10: the due time is stored, the job's process dies, and the next one finds it; all moments are UTC."""
    assert abs(SystemClock().instant().at.timestamp() - time.time()) < 1
    assert SystemClock().instant().at.tzinfo is UTC

    async def story() -> None:
        world = world_of(twin)
        options = JobsOptions(max_step_attempts=2)
        job = await world.start(Again, Drawing(shapes=[]), options=options)
        while not (waiting := await twin.read_step_documents(job.job_id)):
            await world.clock.sleep(0.01)
        failed_at = world.clock.instant().at
        due = waiting[0].due
        assert due is not None
        assert due.utcoffset() == timedelta(0)
        assert due - failed_at == pytest.approx(timedelta(seconds=5), abs=timedelta(seconds=0.1))
        job.die()
        Late.began.clear()
        while not Late.began:
            await world.clock.sleep(0.01)
        assert timedelta(0) <= world.clock.instant().at - due < timedelta(seconds=0.5)
        await job.ended
        assert Late.began == [2]
        document = await world.document()
        assert document.status is JobStatus.COMPLETED_SUCCESSFULLY
        moments = [document.created_at, document.updated_at, *(entry.at for entry in document.history)]
        assert {moment.utcoffset() for moment in moments} == {timedelta(0)}

    run(story())
