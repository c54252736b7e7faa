"""Short stories of jobs over the real core and engine, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import JobsOptions
from tests.simulation.check import check_end, check_world
from tests.simulation.faults import Cut, Fault
from tests.simulation.jobs import PassingPieces, Piece, Pieces, Work, batch
from tests.simulation.loop import run
from tests.simulation.world import Wire, World


async def play(world: World, pieces: list[Piece], *, continue_stages: list[int] | None = None, hook_seconds: float = 0.0, **options: object):
    """Run one job to its end and check what must hold."""
    Work.world = world
    chosen = JobsOptions(**options)  # type: ignore[arg-type]
    job = await world.start(Pieces, batch(pieces, continue_stages or (), hook_seconds), options=chosen)
    await job.ended
    await check_end(world)
    await world.settle()
    check_world(world)
    return await world.document()


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_every_step_of_a_plain_job_succeeds(shared: int) -> None:
    pieces = [Piece(key=str(i), shared=shared) for i in range(30)]
    document = run(play(World(), pieces))
    assert document.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert document.counts.succeeded == 30


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_a_failed_stage_leaves_later_stages_unreachable(shared: int) -> None:
    pieces = [
        Piece(key=f"{s}-{i}", stage=s, shared=shared, fail_first=(s, i) == (10, 1)) for s in (0, 10, 20) for i in range(5)
    ]
    document = run(play(World(), pieces))
    assert document.status is JobStatus.COMPLETED_WITH_FAILURES
    assert (document.counts.succeeded, document.counts.failed, document.counts.unreachable) == (9, 1, 5)


def test_a_best_effort_stage_does_not_hold_up_the_next() -> None:
    pieces = [Piece(key=f"{s}-{i}", stage=s, fail_first=(s, i) == (10, 1)) for s in (0, 10, 20) for i in range(5)]
    document = run(play(World(), pieces, continue_stages=[10]))
    assert (document.counts.succeeded, document.counts.failed, document.counts.unreachable) == (14, 1, 0)


def test_attempts_are_used_up_before_a_failure_counts() -> None:
    pieces = [Piece(key=str(i), fail_first=i) for i in range(5)]
    document = run(play(World(), pieces, max_step_attempts=2, step_retry_backoff=timedelta(seconds=5)))
    assert (document.counts.succeeded, document.counts.failed) == (2, 3)


# What random stories have found, told shortly.


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_a_host_that_has_its_next_group_keeps_it_when_the_job_actor_dies(cut: Cut) -> None:
    """A host got the next group while hooks were still busy with the one before. The job actor that came back found
    both in its ledger, took the host for idle, and lost the steps of the second one: the job never ended.
    """
    pieces = [Piece(key=str(i), shared=1, seconds=0.3) for i in range(6)]
    for at in range(14, 34):
        world = World(slots=1, job_faults=[Fault(at, cut, kills=True)])
        run(play(world, pieces, hook_seconds=0.5))


def test_a_rounded_time_does_not_make_the_job_spin() -> None:
    """A moment that rounding put behind the one when it was due was waited for again and again, at full speed. In
    virtual time that story never ends.
    """
    for begin in (0.0190962279027, 0.3225021136695, 0.0180436456288, 0.1111):
        pieces = [Piece(key=str(i), shared=1, seconds=3.0 + begin) for i in range(3)]
        pieces.append(Piece(key="last", seconds=9.0 + begin))
        run(play(World(), pieces))


def test_a_job_actor_that_was_inserting_its_ledger_wakes_up_beside_its_successor() -> None:
    """Its segment landed after the successor had raised the fence: the successor took itself for fenced, and ended."""

    async def story(world: World) -> None:
        Work.world = world
        job = await world.start(Pieces, batch([Piece(key=str(i)) for i in range(3)]), options=JobsOptions())
        await job.ended
        if (await world.document()).plan is not None and not (await world.document()).start_error:
            await check_end(world)

    for at in range(4, 9):
        world = World(seed=at, job_faults=[Fault(at, Cut.BEFORE, kills=False, isolates=True)])
        run(story(world))
        assert world.jobs[JobId("job")].incarnations == 2


def test_a_job_actor_that_dies_between_its_last_status_and_clearing_clears_when_it_is_back() -> None:
    """A job that is not kept left its plan and its ledger for ever."""

    async def story(world: World) -> None:
        Work.world = world
        job = await world.start(PassingPieces, batch([Piece(key=str(i)) for i in range(3)]), options=JobsOptions())
        await job.ended
        document = await world.document()
        if document.plan is not None:
            await check_end(world)
            assert document.is_cleared

    calm = World()
    run(story(calm))
    for at in range(calm.job_writes[0]):
        run(story(World(job_faults=[Fault(at, Cut.AFTER, kills=True)])))


def test_a_cut_off_job_actor_ends_no_host_when_it_learns_that_it_is_replaced() -> None:
    """It told hosts that there was nothing more to do for them; they were its successor's, and their steps ran again."""
    pieces = [Piece(key=str(i), seconds=80.0) for i in range(3)]
    world = World(wire=Wire(stale=1.0))

    async def story() -> None:
        Work.world = world
        job = await world.start(Pieces, batch(pieces), options=JobsOptions())
        await asyncio.sleep(5.0)
        assert job.process is not None
        job.cut(job.process, 12.0, noticed_after=3.0)
        await job.ended
        await check_end(world)

    run(story())
    assert sum(what == "begin" for _, what, _ in world.marks) == len(pieces)
