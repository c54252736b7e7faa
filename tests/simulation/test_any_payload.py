"""Any value that a user may hand over, through a job that crashes, stops and goes on: equal or refused [S12.3]."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from choreography_ray.codec import decode
from choreography_ray.engine.rest import RequestKind
from choreography_ray.errors import NotStorable
from choreography_ray.job import Job, JobState
from choreography_ray.model import JobId, JobStatus, StepHosting
from choreography_ray.options import JobsOptions
from choreography_ray.step import JobStep, JobStepState
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.asking import ask, rest
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.loop import run
from tests.simulation.jobs import Piece
from tests.simulation.world import World
from tests.unit.test_codec import (
    Access,
    Anything,
    Base,
    Box,
    Color,
    Everything,
    Level,
    Name,
    Pair,
    Point,
    Sub,
    same,
    spoiled,
    values,
)

JOB = JobId("job")
CLASSES = (Access, Anything, Base, Box, Color, Everything, Level, Name, Pair, Point, Sub)
"""So that the simulation finds them in this module."""


class Parcel(BaseModel):
    """A step's request."""

    value: Any = None


class Sent(NamedTuple):
    """What a step is given and gives back; whether the second is to be refused."""

    value: Any
    result: Any
    is_refused: bool


class ParcelState(JobStepState):
    parcel: Parcel = Parcel()
    seen: list[Any] = []


class Deliver(JobStep[Parcel, Any, ParcelState]):
    """Checkpoints its value, and gives another back."""

    hosting = StepHosting.SHARED_ACTORS
    checkpoint_after_every_batch = True
    sent: ClassVar[dict[str, Sent]] = {}
    wrong: ClassVar[list[str]] = []

    def initialize_state(self, request: Parcel) -> None:
        self.check(self.state.parcel.value is None, "a fresh state")
        self.state.parcel = request

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    async def perform_step(self, state: ParcelState, context: Any) -> Any:
        sent = self.sent[context.step_id].value
        self.check(same(state.parcel.value, sent), f"{context.step_id}: its request")
        self.check(all(same(one, sent) for one in state.seen), f"{context.step_id}: its checkpoint")
        await asyncio.sleep(0.5)

        async def note() -> None:
            self.state.seen.append(sent)
            await context.write_checkpoint_debounced()

        await context.invoke_on_actor(note)
        await asyncio.sleep(0.5)
        return self.sent[context.step_id].result


class Parcels(BaseModel):
    parcels: dict[str, Parcel]
    """By the ids of their steps."""
    pieces: list[Piece] = []


class Received(JobState):
    values: dict[str, Any] = {}
    refused: list[str] = []


class Post(Job[Parcels, Received]):
    keep_after_completed = True
    keep_results = True

    def prepare_steps(self, request: Parcels) -> Any:
        return [self.create_step(Deliver, parcel, step_id=step_id) for step_id, parcel in request.parcels.items()]

    def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:  # type: ignore[override]
        if result.is_success:
            self.state.values[step_id] = result.value
        elif not result.is_cancelled:
            self.state.refused.append(step_id)


async def deliver(world: World, sent: dict[str, Sent], stop_at: float, job_id: JobId = JOB) -> None:
    """Start, stop, resume, and look at all that came back. `sent` is by the ids of the steps."""
    Deliver.sent = sent
    Deliver.wrong.clear()
    parcels = Parcels(parcels={step_id: Parcel(value=one.value) for step_id, one in sent.items()})
    job = await world.start(Post, parcels, options=JobsOptions(max_step_crashes=9), job_id=job_id)
    await asyncio.sleep(stop_at)
    await ask(job, RequestKind.STOP)
    if await rest(job) is JobStatus.STOPPED:
        await ask(job, RequestKind.RESUME)
    await rest(job)
    document = await world.document(job_id)
    assert not Deliver.wrong
    assert document.status.is_final
    resolve = job.code.resolve
    expected = {step_id: one.result for step_id, one in Deliver.sent.items() if not one.is_refused}
    results = {kept.step_id: decode(kept.value, resolve) for kept in await world.store.read_results(job_id)}
    state = decode(document.state, resolve)
    for found in (results, state.values):
        assert set(found) == set(expected)
        assert all(same(found[step_id], expected[step_id]) for step_id in expected)
    failures = await world.store.read_failures(job_id)
    assert [f.step_id for f in failures] == sorted(state.refused) == sorted(Deliver.sent.keys() - expected.keys())
    assert all("NotStorable" in f.attempts[-1].error_type and "result" in f.attempts[-1].message for f in failures)
    for failure in failures:
        kept = decode(failure.state, resolve)
        assert same(kept.parcel.value, Deliver.sent[failure.step_id].value)


anything_sent = st.builds(Sent, values, values, st.just(False)) | st.builds(Sent, values, spoiled, st.just(True))
"""A step that is given, and gives back, whatever there is."""
deliveries: dict[str, Any] = {
    "sent": st.lists(anything_sent, min_size=1, max_size=4),
    "job_fault": st.integers(6, 25),
    "host_fault": st.integers(0, 8),
    "cut": st.sampled_from(Cut),
    "stop_at": st.floats(0.5, 3.0),
}


def play(store: MemoryStorage, sent: list[Sent], job_fault: int, host_fault: int, cut: Cut, stop_at: float) -> None:
    """A delivery whose job and whose host die at a write."""
    job_faults, host_faults = ([Fault(at, cut, kills=True)] for at in (job_fault, host_fault))
    world = World(slots=2, job_faults=job_faults, host_faults=host_faults)
    world.store = store
    run(deliver(world, {str(i): one for i, one in enumerate(sent)}, stop_at))
    assert not world.violations


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(**deliveries)
def test_any_value_comes_back_from_a_job_that_crashes_stops_and_goes_on(**delivery: Any) -> None:
    """As request, state, checkpoint, result and job state; what cannot be stored fails its step by its path."""
    play(MemoryStorage(), **delivery)


def test_a_request_that_cannot_be_stored_is_refused_before_the_job_is() -> None:
    """With the path of its place."""
    with pytest.raises(NotStorable, match=r"parcels\['0'\]\.value\['a\.b'\]\[0\]: a builtins\.builtin_function"):
        run(deliver(World(), {"0": Sent({"a.b": [len]}, None, is_refused=False)}, 1.0))
