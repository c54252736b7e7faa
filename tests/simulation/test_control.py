"""Stories of stop, drain, resume, retry of failed steps and removal, at every moment and over every cut [S9, S7.3]."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from choreography_ray.codec import decode
from choreography_ray.engine.rest import RequestKind
from choreography_ray.model import JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import StepCode
from tests.simulation.actors import SimJob
from tests.simulation.check import RESOLVE, check_end, check_world
from tests.simulation.control import ask, rest
from tests.simulation.faults import Cut, Fault
from tests.simulation.jobs import KeptPieces, Piece, Pieces, Work, batch
from tests.simulation.loop import run
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
        answer = await ask(job, RequestKind.RETRY)
        # An actor that died before it answered may have done it: then the job runs already.
        assert answer == failed or world.job_kills, answer
        await rest_after(job)
    begun = Counter(body.key for _, what, body in world.marks if what == "begin")
    assert all(begun[piece.key] == piece.fail_first + 1 for piece in RETRIED) or world.job_kills


async def rest_after(job: SimJob) -> None:
    """Until the job has gone on and come to its end."""
    while (await job.world.document()).status is not JobStatus.RUNNING and not job.is_over:
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
        answers = await asyncio.gather(*(ask(job, RequestKind.RETRY) for _ in range(2)))
        assert sorted(map(str, answers)) == ["1", "JOB_IS_NOT_COMPLETED_WITH_FAILURES"]

    run(story())


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
        assert await ask(job, RequestKind.RETRY) == "JOB_IS_NOT_COMPLETED_WITH_FAILURES"

    run(story())
