"""What users hand over, from the first write to the last read: equal, or refused with the reason [S12.3, S12.4]."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from choreography_ray.access.reading import kept_results
from choreography_ray.job import Job, JobState
from choreography_ray.model import JobId, JobStatus, StepHosting
from choreography_ray.options import JobsOptions
from choreography_ray.records import OutcomeDocument, OutcomeKind
from choreography_ray.step import JobStep, JobStepResult, JobStepState
from choreography_ray.testing.loop import run
from tests.simulation.jobs import Piece
from tests.simulation.world import World

MIB = 1024 * 1024


class Load(BaseModel):
    """How much a step gives back: its result and its state, in MiB."""

    result: float = 0.0
    state: float = 0.0
    fails: bool = False


class LoadState(JobStepState):
    load: Load = Load()
    ballast: bytes = b""


class Carry(JobStep[Load, bytes, LoadState]):
    hosting = StepHosting.SHARED_ACTORS

    def initialize_state(self, request: Load) -> None:
        self.state.load = request

    async def perform_step(self, state: LoadState, context: Any) -> bytes | JobStepResult[bytes]:
        self.state.ballast = b"s" * int(state.load.state * MIB)
        result = b"r" * int(state.load.result * MIB)
        return JobStepResult.failed("gives up", partial=result) if state.load.fails else result


class Loads(BaseModel):
    loads: list[Load]
    pieces: list[Piece] = []


class Carrier(Job[Loads, JobState]):
    keep_after_completed = True
    keep_results = True

    def prepare_steps(self, request: Loads) -> Any:
        return [self.create_step(Carry, load, step_id=str(i)) for i, load in enumerate(request.loads)]


class Patient(Carrier):
    def get_step_retry_delay(self, failed_attempt: int) -> timedelta:
        return timedelta.max


async def carry(world: World, loads: list[Load], job_class: type[Carrier] = Carrier, **options: Any) -> None:
    job = await world.start(job_class, Loads(loads=loads), options=JobsOptions(**options))
    await job.ended


def test_results_of_a_group_that_no_document_could_hold_are_split() -> None:
    """60 results of 900 KiB from one warm host: its process does not end for it, and all are kept."""
    world = World(slots=1)
    inserted: list[OutcomeDocument] = []
    insert = world.store.insert_outcome

    async def note(document: OutcomeDocument) -> OutcomeDocument | None:
        there = await insert(document)
        inserted.append(document)
        return there

    world.store.insert_outcome = note  # type: ignore[method-assign]

    async def play() -> None:
        await carry(world, [Load(result=0.9)] * 60)
        document = await world.document()
        assert document.status is JobStatus.COMPLETED_SUCCESSFULLY
        assert len([kept async for kept in kept_results(world.store, JobId("job"))]) == 60
        assert {outcome.kind for one in inserted for outcome in one.outcomes} == {OutcomeKind.SUCCEEDED}
        assert max(len(one.outcomes) for one in inserted) > 4
        assert len({one.key.run for one in inserted}) < len(inserted), "a run reported in several documents"

    run(play())


def test_a_result_over_the_limit_fails_its_step_with_that_reason_and_the_job_ends() -> None:
    """It is the step's failure, with name and size, and no crash of its host [S12.4]."""
    world = World(slots=1)

    async def play() -> None:
        await carry(world, [Load(result=17), Load()])
        document = await world.document()
        assert (document.counts.succeeded, document.counts.failed) == (1, 1)
        (failed,) = await world.store.read_failures(JobId("job"))
        assert failed.attempts[0].error_type.endswith("TooLarge")
        assert "step '0': result" in failed.attempts[0].message

    run(play())


def test_a_partial_result_gives_way_to_the_state_when_both_are_too_much() -> None:
    """A retry goes on from the state: that is what must not be lost."""
    world = World(slots=1)

    async def play() -> None:
        await carry(world, [Load(result=9, state=9, fails=True), Load(result=3, state=3, fails=True)])
        first, second = await world.store.read_failures(JobId("job"))
        assert (first.value, len(first.state["ballast"])) == (None, 9 * MIB)
        assert (len(second.value), len(second.state["ballast"])) == (3 * MIB, 3 * MIB)
        assert [f.attempts[0].message for f in (first, second)] == ["gives up"] * 2

    run(play())


def test_a_retry_delay_beyond_every_calendar_is_due_at_its_end() -> None:
    """`get_step_retry_delay` is not capped [S7.2]; no delay may break the job's actor."""
    world = World(slots=1)

    async def play() -> None:
        job = await world.start(
            Patient,
            Loads(loads=[Load(fails=True)]),
            options=JobsOptions(max_step_attempts=2, job_watchdog_interval=None),
        )
        while not (waiting := await world.store.read_step_documents(JobId("job"))):
            await world.clock.sleep(0.1)
        assert waiting[0].due is not None
        assert waiting[0].due == datetime.max.replace(tzinfo=UTC)
        await world.clock.sleep(100)
        assert not job.ended.done()
        assert world.job_kills == 0
        job.process.kill()

    run(play())
