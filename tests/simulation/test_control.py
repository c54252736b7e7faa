"""Stories of stop, drain, resume, retry of failed steps and removal, at every moment and over every cut [S9, S7.3]."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from choreography_ray.codec import decode
from choreography_ray.core import events as e
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.rest import RequestKind
from choreography_ray.engine.taking import give_status, take_over
from choreography_ray.errors import Fenced, JobNotFound
from choreography_ray.model import JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import StepCode
from choreography_ray.testing.asking import ask, rest, retry
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from tests.simulation.check import RESOLVE, check_end, check_world
from tests.simulation.jobs import (
    EndlessPlan,
    KeptPieces,
    PassingPieces,
    Piece,
    Pieces,
    SlowlyPlanned,
    StuckPreparation,
    StuckWork,
    Work,
    batch,
)
from tests.simulation.world import World

PIECES = [
    *(Piece(key=f"a{i}", seconds=0.5, shared=i % 2) for i in range(6)),
    *(Piece(key=f"b{i}", stage=1, seconds=0.3, shared=1) for i in range(6)),
]
RETRIED = [Piece(key=f"r{i}", fail_first=i % 4) for i in range(12)]
OPTIONS = JobsOptions(step_stop_timeout=timedelta(seconds=2))
TWO_ATTEMPTS = JobsOptions(max_step_attempts=2, step_retry_backoff=timedelta(seconds=30))


def every_third(cut: Cut, writes: int) -> range:
    """A share of the writes; over the three cuts each write is cut once."""
    return range(list(Cut).index(cut), writes, 3)


async def start(world: World, pieces: list[Piece], options: JobsOptions = OPTIONS) -> SimJob:
    Work.world = world
    return await world.start(KeptPieces, batch(pieces), options=options)


async def check_accounted(world: World, job: SimJob) -> None:
    """Stopped: every step of the reached stage is final or stopped, and every hook was told exactly once per stop."""
    document = await world.document()
    assert document.status is JobStatus.STOPPED
    assert document.is_stop_finalized
    assert not document.journal
    codes = Counter(world.codes(job.job_id))
    assert codes[StepCode.SCHEDULED] + codes[StepCode.AWAITING_RETRY] == 0
    assert document.counts.stopped == codes[StepCode.STOPPED]
    reached = [
        c
        for c, stage in zip(world.codes(job.job_id), world.planned[job.job_id].stages, strict=True)
        if stage == document.stage
    ]
    assert StepCode.PREPARED not in reached, "a step of the reached stage is not accounted"
    assert not +world.running, "a body runs after the stop was accounted"


@pytest.mark.parametrize("at", [0.05, 0.2, 0.4, 0.5, 0.6, 0.8, 0.9, 1.0, 1.1, 1.4, 1.8])
def test_a_job_is_stopped_at_any_moment_and_resumed_to_its_end(at: float) -> None:
    async def story() -> None:
        world = World()
        job = await start(world, PIECES)
        await asyncio.sleep(at)
        answer = await ask(job, RequestKind.STOP)
        assert answer in ("STOPPED", "JOB_IS_COMPLETED")
        if await rest(job) is JobStatus.STOPPED:
            await check_accounted(world, job)
            assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        document = await world.document()
        assert document.counts.succeeded == len(PIECES)
        await job.ended
        check_world(world)

    run(story())


def test_a_job_is_stopped_and_resumed_again_and_again() -> None:
    """Each stop within milliseconds of something else; the counts stay right."""

    async def story() -> None:
        world = World()
        job = await start(world, PIECES)
        for n in range(40):
            await asyncio.sleep(0.1 + 0.07 * (n % 11))
            if await ask(job, RequestKind.STOP) == "JOB_IS_COMPLETED":
                break
            if await rest(job) is not JobStatus.STOPPED:
                break
            await check_accounted(world, job)
            assert await ask(job, RequestKind.RESUME) in ("RESUMED", "COMPLETED")
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        assert (await world.document()).counts.succeeded == len(PIECES)

    run(story())


async def stop_and_resume(world: World) -> None:
    job = await start(world, PIECES)
    await asyncio.sleep(1.0)
    assert await ask(job, RequestKind.STOP) in ("STOPPED", "JOB_IS_COMPLETED", "JOB_IS_NOT_RUNNING")
    status = await rest(job)
    if status is JobStatus.FAILED:
        return  # the process died before a plan was saved
    if status is JobStatus.STOPPED:
        await check_accounted(world, job)
        assert await ask(job, RequestKind.RESUME) in ("RESUMED", "COMPLETED", "ALREADY_RUNNING", "JOB_IS_NOT_PREPARED")
    if (await world.document()).plan is None:
        return
    status = await rest(job)
    assert status is JobStatus.COMPLETED_SUCCESSFULLY, status
    assert (await world.document()).counts.succeeded == len(PIECES)
    await check_end(world)


@pytest.mark.parametrize("cut", list(Cut))
def test_a_stop_and_its_resume_are_cut_at_every_write(cut: Cut) -> None:
    world = World()
    run(stop_and_resume(world))
    for at in every_third(cut, world.job_writes[0]):
        run(stop_and_resume(World(job_faults=[Fault(at, cut, kills=True)])))


async def retry_twice(world: World) -> None:
    job = await start(world, RETRIED, JobsOptions())
    if await rest(job) is JobStatus.FAILED:
        return
    for round_ in (1, 2, 3):
        document = await world.document()
        failed = sum(piece.fail_first >= round_ for piece in RETRIED)
        assert document.counts.failed == failed
        assert document.counts.succeeded == len(RETRIED) - failed
        if not failed:
            break
        answer = await ask(job, retry())
        # An actor that died before it answered may have done it: then the job runs already.
        assert answer == failed or world.job_kills, answer
        await rest_after(job)
    begun = Counter(body.key for _, what, body in world.marks if what == "begin")
    assert all(begun[piece.key] == piece.fail_first + 1 for piece in RETRIED) or world.job_kills


async def rest_after(job: SimJob) -> None:
    """Until the job has gone on and come to its end."""
    while (await job.cluster.document()).status is not JobStatus.RUNNING and not job.is_over:
        await asyncio.sleep(0.01)
    await rest(job)


def test_failed_steps_run_again_and_only_those() -> None:
    """Attempts rise, counts stay right, and what succeeded is left alone [S7.3]."""
    run(retry_twice(World()))


@pytest.mark.parametrize("cut", list(Cut))
def test_a_retry_of_failed_steps_is_cut_at_every_write(cut: Cut) -> None:
    world = World()
    run(retry_twice(world))
    for at in every_third(cut, world.job_writes[0]):
        run(retry_twice(World(job_faults=[Fault(at, cut, kills=True)])))


def test_the_second_of_two_retries_is_refused() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key="x", fail_first=1)], JobsOptions())
        await rest(job)
        answers = await asyncio.gather(*(ask(job, retry()) for _ in range(2)))
        assert sorted(map(str, answers)) == ["1", "JOB_IS_NOT_COMPLETED_WITH_FAILURES"]

    run(story())


def test_what_is_asked_of_an_actor_that_leaves_is_refused() -> None:
    """A resume that came when its turns were over, and it still told the store that it goes, was never answered: the
    actor waited for that call to end, and nobody could reach the job any more.
    """

    async def story() -> None:
        world = World()
        job = await start(world, PIECES)
        await asyncio.sleep(0.5)
        incarnation = job.current
        assert incarnation is not None
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        while not incarnation._has_ended:
            await asyncio.sleep(0.0001)
        assert not job.is_over
        with pytest.raises(Fenced):
            async with asyncio.timeout(60):
                await incarnation.request(RequestKind.RESUME)
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY

    run(story())


@pytest.mark.parametrize("cut", list(Cut))
def test_a_retry_that_is_asked_for_once_is_done_once(cut: Cut) -> None:
    """Its job actor died before it answered: whoever asked again was refused, or had the steps that had failed once
    more run another time.
    """

    async def story(at: int | None) -> int:
        world = World()
        job = await start(world, [Piece(key=str(i), fail_first=9) for i in range(3)], JobsOptions())
        await rest(job)
        before = world.job_writes[0]
        if at is not None:
            world.job_faults.append(Fault(before + at, cut, kills=True))
        assert await ask(job, retry()) == 3
        await rest_after(job)
        attempts = {record.attempt for record in await world.store.read_failures(job.job_id)}
        assert attempts == {2}
        return world.job_writes[0] - before

    for at in range(run(story(None))):
        run(story(at))


def test_a_stop_counts_a_pending_retry_as_failed_at_once() -> None:
    """The next attempt was due in half a minute; the failure is told with what is known of it [S7.2]."""

    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key="x", fail_first=9), Piece(key="y", seconds=60.0)], TWO_ATTEMPTS)
        while StepCode.AWAITING_RETRY not in world.codes(job.job_id):
            await asyncio.sleep(0.05)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        document = await world.document()
        assert (document.counts.failed, document.counts.stopped) == (1, 1)
        state = decode(document.state, RESOLVE)
        assert "x" in state.failed
        (record,) = await world.store.read_failures(job.job_id)
        assert "fails on attempt 1" in record.attempts[0].message

    run(story())


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("cut", [None, *Cut])
def test_a_removed_job_leaves_nothing(at: float, cut: Cut | None) -> None:
    async def story(faults: list[Fault]) -> int:
        world = World(job_faults=faults)
        job = await start(world, PIECES)
        await asyncio.sleep(at)
        assert await ask(job, RequestKind.REMOVE) == "REMOVED" or faults
        await asyncio.sleep(40.0)
        assert await world.store.read_job(job.job_id) is None
        left = world.store._job(job.job_id)
        assert not any((left.plans, left.segments, left.prepared, left.ledger, left.steps, left.failures))
        assert not world.hosts
        return world.job_writes[0]

    writes = run(story([]))
    if cut is not None:
        for number in every_third(cut, writes)[::2]:
            run(story([Fault(number, cut, kills=True)]))


@pytest.mark.parametrize("at", [0.0, 0.5])
@pytest.mark.parametrize("what", [RequestKind.REMOVE, RequestKind.STOP])
def test_whoever_asks_again_as_an_answer_was_lost_means_no_later_job_of_the_id(what: RequestKind, at: float) -> None:
    """Also where the later job is still being taken over: a repeated removal deleted it."""

    async def story() -> None:
        world = World()
        job = await start(world, PIECES)
        born = (await world.document()).created_at
        assert await ask(job, RequestKind.REMOVE) == "REMOVED"
        await job.ended
        later = await start(world, PIECES)
        await asyncio.sleep(at)
        assert later.current is not None
        assert later.process is not None
        with pytest.raises(JobNotFound):
            await later.process.call(later.current.request(what, born))
        assert await later.process.call(later.current.request(what, (await world.document()).created_at))

    run(story())


def test_a_drain_refuses_a_resume_until_it_is_quiet() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key=str(i), seconds=1.0, stubborn=True) for i in range(8)])
        await asyncio.sleep(1.0)
        assert await ask(job, RequestKind.DRAIN) == "STOPPED"
        assert await ask(job, RequestKind.RESUME) == "DRAIN_PENDING"
        assert await rest(job) is JobStatus.STOPPED
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY

    run(story())


def test_answers_of_a_completed_job() -> None:
    async def story() -> None:
        world = World()
        Work.world = world
        job = await world.start(Pieces, batch([Piece(key="x")]), options=OPTIONS)
        await job.ended
        assert await ask(job, RequestKind.STOP) == "JOB_IS_COMPLETED"
        assert await ask(job, RequestKind.RESUME) == "COMPLETED"
        assert await ask(job, retry()) == "JOB_IS_NOT_COMPLETED_WITH_FAILURES"

    run(story())


@pytest.mark.parametrize("what", [RequestKind.STOP, RequestKind.REMOVE])
def test_a_stop_does_not_wait_for_a_plan_that_takes_its_time(what: RequestKind) -> None:
    """It was answered only when the user's code had come to the end of a segment of the plan, if ever."""

    async def story() -> None:
        world = World()
        Work.world = world
        job = await world.start(EndlessPlan, batch([Piece(key="x")]), options=OPTIONS)
        await asyncio.sleep(1.0)
        began = world.now
        answer = await ask(job, what)
        assert world.now - began < 1.0
        assert await rest(job) is (JobStatus.STOPPED if what is RequestKind.STOP else JobStatus.REMOVING)
        assert answer == ("STOPPED" if what is RequestKind.STOP else "REMOVED")
        await job.ended
        check_world(world)

    run(story())


@pytest.mark.parametrize("what", [RequestKind.STOP, RequestKind.REMOVE])
def test_a_stop_waits_for_a_step_that_is_being_prepared_as_long_as_for_a_body(what: RequestKind) -> None:
    """An `initialize_state` that never ends held up stop and remove for ever; a resume prepares it again."""

    async def story() -> None:
        world = World()
        Work.world = world
        StuckWork.is_stuck = True
        job = await world.start(StuckPreparation, batch([Piece(key="x"), Piece(key="y")]), options=OPTIONS)
        await asyncio.sleep(1.0)
        began = world.now
        answer = await ask(job, what)
        assert world.now - began < OPTIONS.step_stop_timeout.total_seconds() + 1
        assert answer == ("STOPPED" if what is RequestKind.STOP else "REMOVED")
        if what is RequestKind.STOP:
            assert await rest(job) is JobStatus.STOPPED
            StuckWork.is_stuck = False
            assert await ask(job, RequestKind.RESUME) == "RESUMED"
            assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        await job.ended
        check_world(world)

    run(story())


@pytest.mark.parametrize(("seconds", "position"), [(1.0, 1), (3.0, 1), (60.0, 0)])
def test_a_callback_that_has_begun_has_one_more_stop_timeout(seconds: float, position: int) -> None:
    """It was cut off with its body, and a body that did not wait for it left without what it committed [S6.2, S9.2]."""

    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key="x", checkpoints=1, callback_seconds=seconds)])
        await asyncio.sleep(1.0)
        began = world.now
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        patience = OPTIONS.step_stop_timeout.total_seconds()
        assert world.now - began < 2 * patience + 2
        await check_accounted(world, job)
        (document,) = await world.store.read_step_documents(job.job_id)
        state = decode(document.state, RESOLVE)
        assert (state.position if state else 0) == position

    run(story())


# What fresh eyes have found, told shortly.


def engine_of(job: SimJob) -> JobEngine:
    """The engine of the incarnation that lives now."""
    assert job.current is not None
    assert job.current._engine is not None
    return job.current._engine


def test_a_step_that_a_stop_kills_goes_on_from_its_last_checkpoint() -> None:
    """The job settled it without knowing that its host had made checkpoints; the resume began from nothing."""

    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key="x", seconds=40.0, checkpoints=3, stubborn=True)])
        while world.checkpoints.get((job.job_id, 0), 0) < 3:
            await asyncio.sleep(0.1)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await ask(job, RequestKind.RESUME) == "RESUMED"  # the same incarnation finishes the stop and goes on
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        await world.settle()
        check_world(world)

    run(story())


async def stop_a_pending_retry(world: World) -> None:
    pieces = [Piece(key="x", fail_first=9, checkpoints=1, seconds=0.2), Piece(key="y", seconds=60.0)]
    job = await start(world, pieces, TWO_ATTEMPTS)
    for _ in range(200):
        if StepCode.AWAITING_RETRY in world.codes(job.job_id):
            break
        await asyncio.sleep(0.05)
    await ask(job, RequestKind.STOP)
    if await rest(job) is not JobStatus.STOPPED or StepCode.COMPLETED_WITH_FAILURE not in world.codes(job.job_id):
        return  # the process died before there was a retry to count
    await check_accounted(world, job)
    state = decode((await world.document()).state, RESOLVE)
    assert state.failed == ["x"]
    (record,) = await world.store.read_failures(job.job_id)
    assert [failure.attempt for failure in record.attempts] == [1]
    assert decode(record.state, RESOLVE).position == 1


@pytest.mark.parametrize("cut", list(Cut))
def test_a_stop_that_counts_a_pending_retry_is_cut_at_every_write(cut: Cut) -> None:
    """The hook was told twice, and a failed-step record was written anew from a step document already deleted."""
    world = World()
    run(stop_a_pending_retry(world))
    for at in range(world.job_writes[0]):
        run(stop_a_pending_retry(World(job_faults=[Fault(at, cut, kills=True)])))


async def use_up_attempts(world: World) -> None:
    options = JobsOptions(max_step_attempts=3, step_retry_backoff=timedelta(0))
    job = await start(world, [Piece(key="x", fail_first=9)], options)
    if await rest(job) is not JobStatus.FAILED:
        (record,) = await world.store.read_failures(job.job_id)
        assert [failure.attempt for failure in record.attempts] == [1, 2, 3]


def test_the_record_of_a_failed_step_keeps_its_attempts_over_every_cut() -> None:
    world = World()
    run(use_up_attempts(world))
    for at in range(world.job_writes[0]):
        run(use_up_attempts(World(job_faults=[Fault(at, Cut.AFTER, kills=True)])))


def test_a_step_that_runs_again_keeps_its_fresh_budget_over_a_checkpoint_and_a_crash() -> None:
    """Its host's checkpoint wrote the attempts used up before as none, and the next job actor believed it [S7.3]."""

    async def story() -> None:
        world = World()
        options = JobsOptions(max_step_attempts=2, step_retry_backoff=timedelta(0))
        job = await start(world, [Piece(key="x", fail_first=3, seconds=4.0, checkpoints=1, fail_early=True)], options)
        assert await rest(job) is JobStatus.COMPLETED_WITH_FAILURES
        assert await ask(job, retry()) == 1
        while not world.checkpoints:
            await asyncio.sleep(0.1)
        job.die()
        await rest_after(job)
        assert (await world.document()).status is JobStatus.COMPLETED_SUCCESSFULLY

    run(story())


@pytest.mark.parametrize("what", [RequestKind.RESUME, retry()])
def test_a_stop_beside_a_mark_is_accounted_whole(what: RequestKind) -> None:
    """Steps that a resume or a retry had just prepared were neither started nor counted as stopped."""

    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key=str(i), seconds=3.0, fail_first=1) for i in range(8)])
        if what is RequestKind.RESUME:
            await asyncio.sleep(1.0)
            assert await ask(job, RequestKind.STOP) == "STOPPED"
        await rest(job)
        asked = asyncio.create_task(ask(job, what))
        while not (await world.document()).mark:
            await asyncio.sleep(0.0001)
        stopped, late = await asyncio.gather(engine_of(job).request(e.StopAsked), engine_of(job).request(e.ResumeAsked))
        assert stopped == "STOPPED"
        assert await asked == ("RESUMED" if what is RequestKind.RESUME else 8)
        # Whoever asked for a resume after the stop gets it: told so while nothing runs would be untrue.
        assert late == "RESUMED"
        document = await world.document()
        assert document.status is JobStatus.RUNNING
        assert [entry.status for entry in document.history[-3:]] == [
            JobStatus.RUNNING, JobStatus.STOPPED, JobStatus.RUNNING
        ]  # fmt: skip
        state = decode(document.state, RESOLVE)
        assert len(state.stopped) == (16 if what is RequestKind.RESUME else 8)
        await rest(job)
        counts = (await world.document()).counts
        assert (counts.failed, counts.succeeded) == ((8, 0) if what is RequestKind.RESUME else (0, 8))
        check_world(world)

    run(story())


def test_a_resume_that_comes_with_a_drain_is_refused() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key=str(i), seconds=9.0) for i in range(3)])
        await asyncio.sleep(1.0)
        engine = engine_of(job)
        answers = await asyncio.gather(
            engine.request(lambda receipt: e.StopAsked(receipt, is_drain=True)), engine.request(e.ResumeAsked)
        )
        assert answers == ["STOPPED", "DRAIN_PENDING"]

    run(story())


def test_a_job_is_removed_while_its_completion_hook_runs() -> None:
    """The hook's answer gave a job that was being removed a final status: the actor broke."""

    async def story() -> None:
        world = World()
        Work.world = world
        request = batch([Piece(key="x")]).model_copy(update={"closing_seconds": 5.0})
        job = await world.start(KeptPieces, request, options=OPTIONS)
        while not world.marks or world.running.total():
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        assert await ask(job, RequestKind.REMOVE) == "REMOVED"
        assert await job.ended is JobStatus.REMOVING
        assert job.incarnations == 1
        assert await world.store.read_job(job.job_id) is None

    run(story())


def test_failed_steps_of_a_job_that_is_being_cleared_do_not_run_again() -> None:
    """Between its last status and its summary a job that is not kept said yes, and had nothing left to run."""

    async def story() -> None:
        world = World()
        Work.world = world
        job = await world.start(PassingPieces, batch([Piece(key="x", fail_first=1)]), options=OPTIONS)
        while (await world.document()).status is not JobStatus.COMPLETED_WITH_FAILURES:
            await asyncio.sleep(0.0001)
        assert await engine_of(job).request(e.RetryAsked) == "NOT_SUPPORTED"
        assert await job.ended is JobStatus.COMPLETED_WITH_FAILURES
        await check_end(world)

    run(story())


def test_a_job_stopped_between_preparation_and_start_runs_its_start_hook_when_it_is_resumed() -> None:
    """Nobody worked on it: the client wrote the stop. The resume took prepared for begun [S2.1]."""

    async def story() -> None:
        world = World()
        job = await start(world, PIECES)
        while (await world.document()).status is not JobStatus.STARTING_STEPS:
            await asyncio.sleep(0.0001)
        job.die()
        document = await world.document()
        assert not document.has_started_hook
        fence = await world.store.next_number("fence")
        assert await world.store.raise_fence(job.job_id, document.fence, fence)
        stopped = replace(document, fence=fence, save=document.save + 1, status=JobStatus.STOPPED)
        assert await world.store.save_job(stopped, ("status",))
        assert await rest(job) is JobStatus.STOPPED
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        assert decode((await world.document()).state, RESOLVE).begun == 1

    run(story())


class Impatient(KeptPieces):
    """Its hook asks somebody who does not answer in time."""

    async def on_step_completed_or_stopped(self, step_id: str, result) -> None:  # type: ignore[no-untyped-def, override]
        await super().on_step_completed_or_stopped(step_id, result)
        raise TimeoutError("the index did not answer")


def test_a_hook_that_raises_a_timeout_of_its_own_is_told_as_that() -> None:
    """It was told that it had taken longer than hook_timeout, five minutes, a second after its begin [S14.3]."""

    async def story() -> None:
        world = World()
        Work.world = world
        job = await world.start(Impatient, batch([Piece(key="x")]), options=OPTIONS)
        await job.ended
        assert (await world.document()).error == (
            "on_step_completed_or_stopped raised TimeoutError: the index did not answer"
        )

    run(story())


def test_a_hook_that_takes_longer_than_it_may_is_told_as_that() -> None:
    """It counts as raised, and the step counts all the same [S14.3]."""

    async def story() -> None:
        world = World()
        Work.world = world
        hurried = OPTIONS.model_copy(update={"hook_timeout": timedelta(seconds=1)})
        job = await world.start(KeptPieces, batch([Piece(key="x")], hook_seconds=5.0), options=hurried)
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        document = await world.document()
        assert document.error.endswith("on_step_completed_or_stopped took longer than hook_timeout (1 s)")
        assert decode(document.state, RESOLVE).done == []

    run(story())


@pytest.mark.parametrize("write", range(4, 12))
def test_a_start_that_was_stopped_while_it_planned_is_told_so_whoever_tells_it(write: int) -> None:
    """The actor died after it had saved the stop: its next process told the caller that the job had started [S2.4]."""

    async def story() -> None:
        world = World(job_faults=[Fault(write, Cut.AFTER, kills=True)])
        Work.world = world
        job = await world.start(EndlessPlan, batch([Piece(key="x")]), options=OPTIONS)
        await asyncio.sleep(1.0)
        await ask(job, RequestKind.STOP)
        assert (await job.started).error in ("STOPPED", "UNKNOWN")  # one that dies before it is stopped has failed

    run(story())


def test_a_start_that_was_stopped_before_anybody_worked_on_it_is_told_so() -> None:
    """The client that stops a job without an actor writes the stop; whoever waits for the start was told of success."""

    async def story() -> None:
        world = World()
        job = await start(world, PIECES)
        job.die()
        document = await world.document()
        taken = await take_over(world.store, job.job_id, document.fence)
        assert taken is not None
        assert await give_status(world.store, taken, JobStatus.STOPPED, "stopped", world.clock.instant().at)
        assert (await job.started).error == "STOPPED"

    run(story())


def test_who_asks_a_job_that_has_just_ended_is_sent_to_the_next_incarnation() -> None:
    """Asked while the finished actor let the job go, it never answered, and as it waited for that, never left."""

    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key="x")])
        incarnation = job.current
        assert incarnation is not None
        while not incarnation._has_ended:
            await asyncio.sleep(0.0001)
        with pytest.raises(Fenced):
            await asyncio.wait_for(incarnation.request(RequestKind.STOP), 1.0)

    run(story())


def test_a_stop_long_after_the_start_is_no_error_of_the_start() -> None:
    """An actor that had just come back was stopped before it found its hosts: "it was not started"."""

    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key=str(i), seconds=30.0) for i in range(3)])
        await asyncio.sleep(5.0)
        job.die()
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        await rest(job)
        assert not (await world.document()).start_error

    run(story())


@pytest.mark.parametrize("what", [RequestKind.STOP, RequestKind.DRAIN, RequestKind.REMOVE])
def test_a_stop_while_the_plan_is_made_takes_effect_with_the_next_step(what: RequestKind) -> None:
    """Not with the next page of the plan, which may be minutes away; a removal is no stop before it [S9.1, S9.6]."""

    async def story() -> None:
        world = World()
        Work.world = world
        SlowlyPlanned.stopped_hooks = 0
        request = batch([Piece(key=str(i)) for i in range(1_000)])
        job = await world.start(SlowlyPlanned, request, options=OPTIONS)
        await asyncio.sleep(10.5)
        document = await world.document()
        began = world.now
        answer = await ask(job, what)
        assert world.now - began < 2.0
        assert SlowlyPlanned.stopped_hooks == 1
        if what is RequestKind.REMOVE:
            assert answer == "REMOVED"
            assert (await job.started).error == "REMOVED"
            assert await world.store.read_job(job.job_id) is None
            assert JobStatus.STOPPED not in {entry.status for entry in document.history}
        else:
            assert answer == "STOPPED"
            assert (await job.started).error == "STOPPED"
            assert await ask(job, RequestKind.RESUME) == "JOB_IS_NOT_PREPARED"

    run(story())


def test_whoever_waits_for_the_start_of_a_job_that_is_removed_is_told_so() -> None:
    """Its first host had not come up; the start was reported as one that had nothing to say."""

    async def story() -> None:
        world = World(placement=lambda kind: 50.0)
        job = await start(world, [Piece(key="x", seconds=9.0)])
        await until_scheduled(job)
        assert await ask(job, RequestKind.REMOVE) == "REMOVED"
        assert (await job.started).error == "REMOVED"

    run(story())


async def until_scheduled(job: SimJob) -> None:
    while StepCode.SCHEDULED not in job.cluster.codes(job.job_id):
        await asyncio.sleep(0.001)
