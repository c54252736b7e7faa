"""Stories of jobs whose state outgrows its document: outcomes count; stop, read, remove work [S12.4, CASES P6]."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from choreography_ray.codec import decode, encode
from choreography_ray.engine import hooks
from choreography_ray.engine.rest import RequestKind
from choreography_ray.errors import JobNotFound, TooLarge
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.progress import record_of
from choreography_ray.records import CodeRef, JobDocument, StepCode
from choreography_ray.storage import memory, sizes
from choreography_ray.testing.asking import ask, rest
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from choreography_ray.testing.virtual import VirtualCluster
from tests.simulation.check import check_world
from tests.simulation.jobs import Batch, BatchState, Piece, Pieces, Work, batch
from tests.simulation.world import World

LIMIT = 20_000
PIECES = [Piece(key=f"a{i:02}", seconds=0.1 * i, shared=i % 2) for i in range(12)]


@pytest.fixture(autouse=True)
def _small_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document holds 20 kB, for the framework as for the store."""
    monkeypatch.setattr(sizes, "MAX_PAYLOAD_BYTES", LIMIT)
    monkeypatch.setattr(memory, "MAX_PAYLOAD_BYTES", LIMIT)


class GrowingState(BatchState):
    """Takes a note of each step."""

    notes: list[Any] = []


class Growing(Pieces):
    """Its outcome hook adds 3 kB for each step."""

    state: GrowingState  # type: ignore[assignment]

    def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def]
        return super().prepare_steps(request)

    async def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:  # type: ignore[override]
        await super().on_step_completed_or_stopped(step_id, result)
        self.state.notes.append(f"{step_id} " + "x" * 3_000)


class Unstorable(Growing):
    """What it adds is nothing that can be stored, once."""

    async def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:  # type: ignore[override]
        await Pieces.on_step_completed_or_stopped(self, step_id, result)
        if step_id == "a03":
            self.state.notes.append(object())


class HugeAtTheEnd(Growing):
    """Other hooks outgrow it."""

    async def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:  # type: ignore[override]
        await Pieces.on_step_completed_or_stopped(self, step_id, result)

    def on_stopped(self) -> None:
        self.state.notes.append("x" * LIMIT)

    async def on_all_steps_completed(self) -> None:
        self.state.notes.append("x" * LIMIT)


class HugeAtTheStart(HugeAtTheEnd):
    """Its start hook does."""

    def on_before_starting_job_steps(self) -> None:
        self.state.notes.append("x" * LIMIT)


async def start(world: World, job_class: type[Pieces]) -> SimJob:
    Work.world = world
    job_class.state_type = GrowingState  # type: ignore[assignment]
    return await world.start(job_class, batch(PIECES), options=JobsOptions(max_job_crashes=3))


async def state_of(world: World) -> GrowingState:
    state = decode((await world.document()).state, LivingCode(Growing).resolve)
    assert isinstance(state, GrowingState)
    return state


async def grown(world: World) -> None:
    job = await start(world, Growing)
    status = await rest(job)
    if (await world.document()).plan is None:
        return  # the process died before a plan was saved
    assert status is JobStatus.COMPLETED_SUCCESSFULLY
    document = await world.document()
    assert document.counts.succeeded == len(PIECES)
    assert set(world.codes(job.job_id)) == {StepCode.COMPLETED_SUCCESSFULLY}
    assert "on_step_completed_or_stopped raised choreography_ray.errors.TooLarge" in document.error
    assert "job 'job': state" in document.error
    assert f"the limit is {LIMIT - sizes.payload_size(document.request):,}" in document.error
    state = await state_of(world)
    assert 3 <= len(state.notes) <= 6, "what fitted is there, once"
    assert len(set(state.notes)) == len(state.notes)
    assert job.incarnations <= 2
    assert await ask(job, RequestKind.REMOVE) == "REMOVED"
    with contextlib.suppress(JobNotFound):
        await job.ended
    await world.settle()
    check_world(world)


def test_a_state_that_outgrows_its_document_keeps_what_fitted_and_the_outcomes_count() -> None:
    run(grown(World()))


@pytest.mark.parametrize("cut", list(Cut))
def test_an_outgrown_state_is_cut_at_every_write(cut: Cut) -> None:
    world = World()

    async def count() -> int:
        await grown(world)
        return world.job_writes[0]

    writes = run(count())
    for at in range(list(Cut).index(cut), writes, 3):
        run(grown(World(job_faults=[Fault(at, cut, kills=True)])))


def test_a_job_whose_state_outgrew_its_document_can_be_stopped_and_resumed() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, Growing)
        while "TooLarge" not in (await world.document()).error:
            await asyncio.sleep(0.05)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        if await rest(job) is JobStatus.STOPPED:
            assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        assert (await world.document()).counts.succeeded == len(PIECES)

    run(story())


def test_a_state_that_cannot_be_stored_discards_what_one_group_did_to_it() -> None:
    """The group's outcomes count; the hooks of later groups go on from the last state that was stored."""

    async def story() -> None:
        world = World()
        job = await start(world, Unstorable)
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        document = await world.document()
        assert document.counts.succeeded == len(PIECES)
        assert "on_step_completed_or_stopped raised choreography_ray.errors.NotStorable" in document.error
        state = await state_of(world)
        assert "a03" not in state.done
        assert len(state.done) >= len(PIECES) - 4
        assert job.incarnations == 1

    run(story())


def test_other_hooks_that_outgrow_the_state_count_as_raised() -> None:
    async def at_the_end() -> None:
        world = World()
        job = await start(world, HugeAtTheEnd)
        assert await rest(job) is JobStatus.FAILED
        document = await world.document()
        assert "on_all_steps_completed raised choreography_ray.errors.TooLarge" in document.error
        assert document.counts.succeeded == len(PIECES)
        assert job.incarnations == 1

    async def at_a_stop() -> None:
        world = World()
        job = await start(world, HugeAtTheEnd)
        await asyncio.sleep(0.6)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        assert "on_stopped raised choreography_ray.errors.TooLarge" in (await world.document()).error
        assert job.incarnations == 1

    async def at_the_start() -> None:
        world = World()
        job = await start(world, HugeAtTheStart)
        assert await rest(job) is JobStatus.FAILED
        document = await world.document()
        assert document.start_error == "UNKNOWN"
        assert "a start hook raised job .job.: state" in document.start_details[0].replace("'", ".")
        assert job.incarnations == 1

    run(at_the_end())
    run(at_a_stop())
    run(at_the_start())


def test_a_request_that_leaves_no_room_for_the_state_is_refused_by_name() -> None:
    """Before anything is saved: the document could never hold both."""

    async def story() -> None:
        world = World()
        at = world.clock.instant().at
        request, state = encode(batch(PIECES * 2)), encode(GrowingState(notes=["x" * 15_000]))
        document = JobDocument(JobId("job"), "Growing", CodeRef("m", "q"), request, state, JobsOptions(), at, at)
        with pytest.raises(TooLarge, match=r"job 'job': state .beside a request of") as refused:
            await world.store.insert_job(document)
        assert refused.value.size > refused.value.limit > 0
        assert await world.store.read_job(JobId("job")) is None

    run(story())


def test_who_comes_near_the_limit_is_warned_once_and_readers_see_how_near(caplog: pytest.LogCaptureFixture) -> None:
    """The same number for the warning, the gauge and the refusal."""

    async def story() -> None:
        world = World()
        job = await start(world, Growing)
        gauges: set[tuple[bool, bool]] = set()
        while not job.is_over:
            record = record_of(await world.document())
            assert record.max_document_bytes == LIMIT
            assert record.document_bytes <= LIMIT
            is_warned = "that they may" in caplog.text
            gauges.add((record.is_nearly_full, is_warned))
            await asyncio.sleep(0.05)
        assert gauges == {(False, False), (True, True)}
        warnings = [told.getMessage() for told in caplog.records if "that they may" in told.getMessage()]
        assert len(warnings) == 1
        assert warnings[0].startswith("request and state of job 'job' take ")
        assert f" of the {LIMIT:,} bytes that they may" in warnings[0]

    run(story())


def test_a_start_is_refused_by_job_field_and_size_and_leaves_nothing() -> None:
    """Of a request that is too large alone, as a user starts it."""
    with VirtualCluster() as cluster:
        with pytest.raises(TooLarge) as refused:
            cluster.start(Growing, batch([Piece(key="x" * LIMIT)]), job_id="fat")
        assert refused.value.what == "job 'fat': request"
        assert refused.value.size > refused.value.limit == LIMIT
        assert cluster.jobs() == []


def test_a_record_over_the_limit_is_read_stopped_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's, or an older version's, which took more: reading it refuses nothing."""

    async def story() -> None:
        world = World()
        job = await start(world, Growing)
        await asyncio.sleep(0.3)
        monkeypatch.setattr(sizes, "MAX_PAYLOAD_BYTES", 1_000)
        record = record_of(await world.document())
        assert record.document_bytes > record.max_document_bytes == 1_000
        assert record.is_nearly_full
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        assert await ask(job, RequestKind.REMOVE) == "REMOVED"
        with contextlib.suppress(JobNotFound):
            await job.ended
        assert await world.store.read_job(JobId("job")) is None

    run(story())


def test_a_state_that_nobody_measures_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the store is the first to say that it is too large."""
    monkeypatch.setattr(hooks, "check_job", lambda *args: 0)

    async def story() -> None:
        job = await start(World(), Growing)
        await job.ended

    with pytest.raises(TooLarge):
        run(story())
