"""Stories of the supervisor: who comes back, in which order, who is ended for silence, and what is forgotten [S10]."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from choreography_ray.core.ownership import CRASHED
from choreography_ray.core.supervising import FIRST_DELAY
from choreography_ray.engine import supervisor as engine
from choreography_ray.engine.rest import RequestKind
from choreography_ray.engine.supervisor import SWEEP_AFTER
from choreography_ray.engine.taking import give_status, take_over
from choreography_ray.errors import ChoreographyError, UnknownJobType
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import ClusterOptions, JobsOptions
from choreography_ray.records import JobBrief, JobDocument, LedgerSegment, PreparedSegment
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.storage.protocol import JobStorage
from choreography_ray.testing.asking import ask, retry
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import Deadlock, run
from choreography_ray.testing.supervisor import SimJobActors, SimSupervisor
from tests.simulation.check import check_end, check_world
from tests.simulation.jobs import KeptPieces, PassingPieces, Piece, Pieces, SilentPieces, Work, batch
from tests.simulation.world import LEASE, MARGIN, World

DONE = JobStatus.COMPLETED_SUCCESSFULLY
SHORT = [Piece(key=str(i)) for i in range(2)]
LONG = [Piece(key=str(i), seconds=60.0, checkpoints=3) for i in range(2)]
RETENTION = timedelta(seconds=100)


async def start(
    world: World,
    job_id: str = "job",
    pieces: list[Piece] = SHORT,
    job_class: type[SilentPieces] = Pieces,
    **options: Any,
) -> SimJob:
    Work.world = world
    return await world.start(job_class, batch(pieces), options=JobsOptions(**options), job_id=job_id)


async def interrupted(world: World, count: int) -> list[SimJob]:
    """So many jobs at work, when everything goes dark."""
    jobs = [await start(world, f"j{n}", LONG) for n in range(count)]
    await asyncio.sleep(3.0)
    world.black_out()
    await asyncio.sleep(1.0)
    return jobs


def load_slowly(job: SimJob, seconds: float) -> None:
    """Its code takes so long to be loaded."""
    load = job.load

    async def slowly(ref: Any) -> Any:
        await asyncio.sleep(seconds)
        return await load(ref)

    job.load = slowly  # type: ignore[method-assign]


def lose_code(job: SimJob) -> None:
    """Its code cannot be loaded any more."""

    async def fail(ref: Any) -> Any:
        raise UnknownJobType(ref.qualname, "it is gone")

    job.load = fail  # type: ignore[method-assign]


async def until(world: World, job: SimJob, *statuses: JobStatus) -> None:
    """Until the job has one of these statuses, and its actor is gone."""
    while (await world.document(job.job_id)).status not in statuses or not job.is_over:
        await asyncio.sleep(0.2)


async def options(world: World, **changed: Any) -> None:
    await world.store.save_cluster_options(ClusterOptions(**changed))


def records(world: World) -> set[JobId]:
    """The jobs of which there is anything beside their document."""
    return {job_id for job_id, there in world.store._jobs.items() if there != type(there)()}


# The interrupted.


def test_interrupted_jobs_come_back_oldest_first_and_so_many_at_a_time() -> None:
    async def story() -> None:
        world = World()
        jobs = await interrupted(world, 7)
        for job in jobs:
            load_slowly(job, 5.0)
        await options(world, max_concurrent_rehydration=2)
        supervisor = SimSupervisor(world)
        for job in jobs:
            await until(world, job, DONE)
            await check_end(world, job.job_id)
        assert supervisor.revived == [job.job_id for job in jobs]
        assert supervisor.peak == 2
        await world.settle()
        check_world(world)

    run(story())


def test_one_bad_job_holds_up_no_other() -> None:
    """The oldest cannot be loaded, the next never comes up: the third does, with one place for all. What is bad is
    tried less and less often, and again soon when somebody connects.
    """

    async def story() -> None:
        world = World()
        jobs = await interrupted(world, 3)
        lose_code(jobs[0])
        load_slowly(jobs[1], 10_000.0)
        await options(world, max_concurrent_rehydration=1)
        supervisor = SimSupervisor(world)
        await until(world, jobs[2], DONE)
        await asyncio.sleep(600.0)
        assert supervisor.revived[:3] == [job.job_id for job in jobs]
        tries = supervisor.revived.count(jobs[0].job_id)
        assert 4 <= tries <= 8
        assert supervisor.revived.count(jobs[1].job_id) == 1  # its actor is there: nobody needs to make it
        del jobs[0].load
        supervisor.look()
        await asyncio.sleep(2 * FIRST_DELAY)
        assert supervisor.revived.count(jobs[0].job_id) == tries + 1
        await until(world, jobs[0], DONE)

    run(story())


def test_jobs_whose_actors_the_gcs_remembers_are_left_to_it() -> None:
    """Alive or on their way back: nobody makes a second one, or ends them."""

    async def story() -> None:
        world = World(job_restart=20.0)
        job = await start(world, pieces=LONG)
        supervisor = SimSupervisor(world)
        await asyncio.sleep(5.0)
        job.die()
        await until(world, job, DONE)
        assert job.incarnations == 2
        assert supervisor.revived == supervisor.ended == []

    run(story())


def test_a_job_actor_that_somebody_ended_for_good_is_made_anew() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, pieces=LONG)
        SimSupervisor(world)
        await asyncio.sleep(5.0)
        job.end_for_good()
        await until(world, job, DONE)
        await check_end(world)
        await world.settle()
        check_world(world)

    run(story())


def test_an_unfinished_stop_is_finished_and_not_resumed() -> None:
    async def story() -> None:
        world = World()
        pieces = [Piece(key=str(i), seconds=100.0, stubborn=True) for i in range(3)]
        job = await start(world, pieces=pieces)
        await asyncio.sleep(3.0)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        world.black_out()
        assert not (await world.document()).is_stop_finalized
        supervisor = SimSupervisor(world)
        while not (await world.document()).is_stop_finalized:
            await asyncio.sleep(0.2)
        await asyncio.sleep(200.0)
        document = await world.document()
        assert (document.status, document.counts.stopped) == (JobStatus.STOPPED, 3)
        assert job.is_over
        assert supervisor.revived == [job.job_id]

    run(story())


@pytest.mark.parametrize("at", [0.002, 0.01, 0.03])
def test_an_unfinished_removal_is_finished(at: float) -> None:
    async def story() -> None:
        world = World()
        job = await start(world, pieces=LONG)
        await asyncio.sleep(3.0)
        asked = asyncio.ensure_future(ask(job, RequestKind.REMOVE))
        await asyncio.sleep(at)
        asked.cancel()
        document = await world.store.read_job(job.job_id)
        world.black_out()
        SimSupervisor(world)
        if document is not None and document.status is not JobStatus.REMOVING:
            await until(world, job, DONE)
            return
        while await world.store.read_job(job.job_id) is not None:
            await asyncio.sleep(0.2)
        await asyncio.sleep(40.0)
        assert not records(world)

    run(story())


def test_a_forced_removal_is_finished_without_the_code_of_the_job() -> None:
    async def story() -> None:
        world = World()
        (job,) = await interrupted(world, 1)
        lose_code(job)
        document = await world.document(job.job_id)
        taken = await take_over(world.store, job.job_id, document.fence)
        assert taken is not None
        at = world.clock.instant().at
        assert await give_status(world.store, taken, JobStatus.REMOVING, "forced", at, is_forced=True) is not None
        supervisor = SimSupervisor(world)
        await asyncio.sleep(20.0)
        assert await world.store.read_job(job.job_id) is None
        assert not records(world)
        assert supervisor.revived == []

    run(story())


async def ended_and_not_cleared(world: World) -> SimJob:
    """Head and nodes were gone when the job had its final status, and nothing of it was cleared, or just so."""
    job = await start(world, job_class=PassingPieces)
    while (await world.document()).status is not DONE:
        await asyncio.sleep(0.0001)
    world.black_out()
    await asyncio.sleep(1.0)
    assert not (await world.document()).is_cleared
    return job


def test_what_a_job_leaves_is_cleared_although_its_process_died_at_its_end() -> None:
    """Nobody asks for a job that has ended; the supervisor sees that whoever ended it did not let go."""

    async def story() -> None:
        world = World()
        job = await ended_and_not_cleared(world)
        supervisor = SimSupervisor(world)
        await asyncio.sleep(300.0)
        assert supervisor.revived == [job.job_id]
        assert (await world.document()).is_cleared
        await check_end(world)
        await world.settle()
        check_world(world)

    run(story())


def test_an_ended_job_whose_code_is_gone_is_tried_once() -> None:
    """Not every hour, for as long as it is kept."""

    async def story() -> None:
        world = World()
        job = await ended_and_not_cleared(world)
        lose_code(job)
        supervisor = SimSupervisor(world)
        await asyncio.sleep(300.0)
        assert supervisor.revived == [job.job_id]
        document = await world.document()
        assert document.status is DONE
        assert "it is gone" in document.error

    run(story())


class BackgroundPieces(Pieces):
    """Its start returns before there is a plan."""

    start_steps_in_background = True


@pytest.mark.parametrize("after", [0.0, 0.008])
def test_a_start_that_died_without_a_plan_is_deleted_after_a_while(after: float) -> None:
    """Before its actor took it over, or after; then the id is free. One in the background goes on."""

    async def story() -> None:
        world = World()
        dead = await start(world, "dead")
        background = await start(world, "background", job_class=BackgroundPieces)
        await asyncio.sleep(after)
        world.black_out()
        assert (await world.document("dead")).plan is None
        assert ((await world.document("dead")).fence > 0) == (after > 0)
        await options(world, dead_job_threshold=timedelta(seconds=300))
        supervisor = SimSupervisor(world)
        await until(world, background, DONE)
        await asyncio.sleep(250.0)
        assert (await world.document("dead")).status is JobStatus.PREPARING_JOB
        await asyncio.sleep(60.0)
        assert await world.store.read_job(dead.job_id) is None
        again = await start(world, "dead")
        await until(world, again, DONE)
        assert supervisor.revived == [background.job_id]

    run(story())


# The silent.


def test_a_job_actor_that_is_stuck_is_replaced() -> None:
    """Ray takes it for alive, and its process never runs again. Its hosts lose their leases; the job ends right."""

    async def story() -> None:
        world = World()
        job = await start(world, pieces=LONG)
        supervisor = SimSupervisor(world)
        await asyncio.sleep(20.0)
        assert job.process is not None
        began = world.now
        job.cut(job.process, 5_000.0, noticed_after=6_000.0)
        while not supervisor.ended:
            await asyncio.sleep(0.1)
        assert LEASE - LEASE / 3 <= world.now - began <= LEASE + 15.0
        while not supervisor.revived:
            await asyncio.sleep(0.1)
        assert world.now - began >= 2 * LEASE + MARGIN - LEASE / 3
        await until(world, job, DONE)
        await check_end(world)
        assert supervisor.ended == [job.job_id]

    run(story())


def test_a_stuck_job_actor_that_wakes_up_beside_its_successor_does_no_harm() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, pieces=LONG)
        supervisor = SimSupervisor(world)
        await asyncio.sleep(20.0)
        assert job.process is not None
        job.cut(job.process, 100.0, noticed_after=6_000.0)
        await until(world, job, DONE)
        assert supervisor.ended == [job.job_id]
        await check_end(world)
        await world.settle()
        check_world(world)

    run(story())


def test_a_job_actor_that_is_stuck_when_its_job_has_ended_does_not_stay() -> None:
    """Of a job that has ended no actor is left, and none is made [S14.5]."""

    async def story() -> None:
        world = World()
        job = await start(world, pieces=[Piece(key="x", seconds=15.0)])
        supervisor = SimSupervisor(world)
        while (await world.document()).status is not DONE:
            await asyncio.sleep(0.0002)
        assert job.process is not None
        assert not job.is_over
        job.cut(job.process, 5_000.0, noticed_after=6_000.0)
        await asyncio.sleep(LEASE + 30.0)
        assert supervisor.ended == [job.job_id]
        await asyncio.sleep(200.0)
        assert job.is_over
        assert supervisor.revived == []
        await check_end(world)

    run(story())


class Stuck(Pieces):
    """Its hook holds its process up for ever, as one that never lets go of the interpreter's lock."""

    async def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:  # type: ignore[override]
        job = Work.world.jobs[self.job_id]
        assert job.process is not None
        job.cut(job.process, 50_000.0, noticed_after=60_000.0)
        await asyncio.Event().wait()


def test_a_hook_that_silences_its_process_again_and_again_fails_its_job() -> None:
    """Each end for silence is counted as a death is: the fence that was raised for it hides none [S10]."""

    async def story() -> None:
        world = World()
        job = await start(world, job_class=Stuck, max_job_crashes=3)
        supervisor = SimSupervisor(world)
        await until(world, job, JobStatus.FAILED)
        assert len(supervisor.ended) == 3
        document = await world.document()
        assert document.history[-1].why == CRASHED
        assert "said nothing" in document.error
        await world.settle()
        check_world(world)

    run(story())


def test_a_lease_that_is_shortened_ends_no_job_actor_that_began_with_a_longer_one() -> None:
    """It speaks every third of the lease that it knows: that is more than the new one."""

    async def story() -> None:
        world = World()
        job = await start(world, pieces=[Piece(key="x", seconds=200.0)])
        supervisor = SimSupervisor(world)
        await asyncio.sleep(50.0)
        await options(world, step_lease_timeout=timedelta(seconds=LEASE / 10))
        supervisor.look()
        await until(world, job, DONE)
        assert job.incarnations == 1
        assert supervisor.ended == []

    run(story())


class Hooked(KeptPieces):
    """Its hooks take longer than a lease, each."""

    async def prepare_steps(self, request: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(100.0)
        return list(super().prepare_steps(request))

    async def on_before_starting_job_steps(self) -> None:  # type: ignore[override]
        await asyncio.sleep(100.0)

    async def on_before_resuming_job_steps(self) -> None:
        await asyncio.sleep(100.0)

    async def on_all_steps_completed(self) -> None:
        await asyncio.sleep(100.0)
        await super().on_all_steps_completed()


def test_no_healthy_job_is_ended_for_its_silence() -> None:
    """Its code, hooks and steps take longer than a lease; then store, throttle and supervisor go away in turn."""

    async def story() -> None:
        world = World()
        supervisor = SimSupervisor(world)
        job = await start(world, pieces=[Piece(key="x", seconds=200.0, checkpoints=4)], job_class=Hooked)
        load_slowly(job, 100.0)
        while (await world.document()).status is not JobStatus.RUNNING:
            await asyncio.sleep(1.0)
        job.die()  # the next one loads its code for long, and then runs its resume hook
        await asyncio.sleep(60.0)
        world.store_away_until = world.now + 80.0
        await asyncio.sleep(100.0)
        world.kill_throttle(50.0)
        await asyncio.sleep(100.0)
        supervisor.die()
        await until(world, job, DONE)
        assert job.incarnations == 2
        assert supervisor.ended == []

    run(story())


# The old.


async def ended_jobs(world: World, count: int, job_class: type[SilentPieces] = Pieces) -> list[SimJob]:
    jobs = [await start(world, f"old{n}", job_class=job_class) for n in range(count)]
    for job in jobs:
        await job.ended
    return jobs


@pytest.mark.parametrize("job_class", [Pieces, PassingPieces])
def test_ended_jobs_go_when_their_retention_is_over_so_many_per_round(job_class: type[SilentPieces]) -> None:
    """Summaries and kept jobs, the oldest first, with their records; younger, running and stopped ones stay."""

    async def story() -> None:
        world = World()
        jobs = await ended_jobs(world, 7, job_class)
        stopped, running = (
            await start(world, "stopped", LONG),
            await start(world, "running", [Piece(key="x", seconds=900)]),
        )
        await asyncio.sleep(2.0)
        await ask(stopped, RequestKind.STOP)
        await options(
            world,
            terminal_job_retention=RETENTION,
            cleanup_cadence=timedelta(seconds=60),
            max_terminal_jobs_per_cleanup=3,
        )
        SimSupervisor(world)
        await asyncio.sleep(RETENTION.total_seconds() - 10.0)
        young = await start(world, "young", job_class=job_class)
        assert len(world.store._documents) == 10
        left: list[int] = []
        for _ in range(4):
            await asyncio.sleep(60.0)
            left.append(sum(job.job_id in world.store._documents for job in jobs))
            assert [job.job_id in world.store._documents for job in jobs] == sorted(
                job.job_id in world.store._documents for job in jobs
            )
        assert left[:3] == [4, 1, 0]
        assert set(world.store._documents) == {"stopped", "running"}
        assert records(world) == {"stopped", "running"}
        assert young.is_over
        assert not running.is_over

    run(story())


def test_new_options_hold_without_a_restart() -> None:
    """Retention was infinite, and cleaning up switched off; each is told with a connect."""

    async def story() -> None:
        world = World()
        await options(world, terminal_job_retention=None, cleanup_cadence=timedelta(seconds=60))
        jobs = await ended_jobs(world, 2)
        supervisor = SimSupervisor(world)
        await asyncio.sleep(1_000.0)
        assert len(world.store._documents) == len(jobs)
        await options(world, terminal_job_retention=RETENTION, cleanup_cadence=timedelta(0))
        supervisor.look()
        await asyncio.sleep(200.0)
        assert len(world.store._documents) == len(jobs)
        await options(world, cleanup_cadence=timedelta(seconds=60))
        supervisor.look()
        await asyncio.sleep(1.0)
        assert not world.store._documents
        assert not records(world)

    run(story())


@pytest.mark.parametrize("threshold", [timedelta(0), timedelta(minutes=61)])
def test_code_that_no_job_points_at_goes_with_the_next_round(threshold: timedelta) -> None:
    """Not that of a start which may still be about to write its record, however short the threshold [S13]."""

    async def story() -> None:
        world = World()
        # In virtual time a story lasts 50 minutes: saved by a machine whose clock is half an hour behind.
        saved_at = world.clock.instant().at - timedelta(minutes=30)
        await options(world, dead_job_threshold=threshold, cleanup_cadence=timedelta(seconds=60))
        SimSupervisor(world)
        await world.store.save_code("digest", b"code", {}, saved_at)
        left = max(threshold, timedelta(hours=1)) - timedelta(minutes=30)
        await asyncio.sleep(left.total_seconds() - 10.0)
        assert await world.store.read_code("digest") == b"code"
        await asyncio.sleep(80.0)
        assert await world.store.read_code("digest") is None

    run(story())


async def clean_over(faults: list[Fault]) -> int:
    """Retention of three jobs, cut somewhere; then all is gone, and the ids are free."""
    world = World()
    await ended_jobs(world, 3)
    await options(world, terminal_job_retention=RETENTION, cleanup_cadence=timedelta(seconds=60))
    await asyncio.sleep(RETENTION.total_seconds() + 20.0)
    supervisor = SimSupervisor(world, faults)
    await asyncio.sleep(20.0)
    writes = supervisor.writes[0]
    if not faults:
        assert not world.store._documents
        return writes
    await asyncio.sleep(200.0)
    assert not world.store._documents
    assert not records(world)
    return writes


@pytest.mark.parametrize("cut", list(Cut))
def test_a_supervisor_that_dies_in_the_middle_of_cleaning_up_leaves_nothing(cut: Cut) -> None:
    writes = run(clean_over([]))
    assert writes >= 12
    for at in range(writes):
        run(clean_over([Fault(at, cut, kills=True)]))


async def clean_beside(faults: list[Fault]) -> int:
    """An old supervisor wakes up where it was cut off; its ids were given to new jobs meanwhile."""
    world = World()
    await ended_jobs(world, 2)
    await options(world, terminal_job_retention=RETENTION, cleanup_cadence=timedelta(seconds=20))
    await asyncio.sleep(RETENTION.total_seconds() + 20.0)
    supervisor = SimSupervisor(world, faults)
    await asyncio.sleep(50.0)
    assert not world.store._documents
    writes = supervisor.writes[0]
    again = [await start(world, f"old{n}", [Piece(key=str(i), seconds=15.0) for i in range(6)]) for n in range(2)]
    for job in again:
        assert await job.ended is DONE
        await check_end(world, job.job_id)
        assert job.incarnations == 1
    return writes


@pytest.mark.parametrize("cut", list(Cut))
def test_a_supervisor_that_wakes_up_beside_its_successor_hits_no_new_job_of_the_id(cut: Cut) -> None:
    writes = run(clean_beside([]))
    for at in range(writes):
        run(clean_beside([Fault(at, cut, kills=False, isolates=True)]))


async def retry_at(after: float) -> bool:
    """Failed steps are run again while retention takes the job; True: the retry was first."""
    world = World()
    Work.world = world
    job = await start(world, pieces=[Piece(key="x", fail_first=1, seconds=1.0)])
    await job.ended
    await asyncio.sleep(RETENTION.total_seconds() + 1.0)
    await options(world, terminal_job_retention=RETENTION, cleanup_cadence=timedelta(seconds=5))
    SimSupervisor(world)
    await asyncio.sleep(after)
    answer = await ask(job, retry())
    if answer == 1:
        await asyncio.sleep(20.0)
        document = await world.document()
        assert (document.status, document.counts.succeeded) == (DONE, 1)
        return True
    assert answer in ("REMOVED", "JOB_IS_NOT_COMPLETED_WITH_FAILURES")
    await asyncio.sleep(60.0)
    assert not world.store._documents
    assert not records(world)
    return False


def see_no_actor(patch: pytest.MonkeyPatch) -> None:
    """The list of actors is out of date whenever it is asked for."""

    async def listed(self: SimJobActors) -> dict[str, Any]:
        return {}

    patch.setattr(SimJobActors, "listed", listed)


@pytest.mark.parametrize("is_blind", [False, True])
def test_retention_and_a_retry_of_failed_steps_race_and_one_of_them_wins_whole(
    monkeypatch: pytest.MonkeyPatch, is_blind: bool
) -> None:
    """Whether the list of actors tells of the retry or not: what decides is the fence."""
    if is_blind:
        see_no_actor(monkeypatch)
    won = [run(retry_at(n * 0.0004)) for n in range(60)]
    assert 0 < sum(won) < len(won)


def test_what_a_late_writer_leaves_of_a_removed_job_is_neither_adopted_nor_kept() -> None:
    """It was held up before it inserted a segment; its job was removed, and another of that id begun [S10.1]."""

    async def story() -> None:
        world = World()
        first = await start(world, pieces=LONG)
        await asyncio.sleep(3.0)
        plan = (await world.document()).plan
        assert plan is not None
        (ledger,) = await world.store.read_ledger(first.job_id, plan.fence)
        prepared = await world.store.read_prepared(first.job_id, plan.fence, 0)
        assert prepared is not None
        assert await ask(first, RequestKind.REMOVE) == "REMOVED"

        async def land() -> None:
            spoilt = LedgerSegment(0, ledger.fence, 0, b"\3" * len(ledger.codes), ledger.kinds, plan=plan.fence)
            await world.store.insert_ledger(first.job_id, [spoilt])
            other = PreparedSegment(0, prepared.step_ids, (None,) * len(prepared.states), plan.fence)
            await world.store.save_prepared(first.job_id, [other])

        await land()
        again = await start(world)
        while (await world.document()).plan is None:
            await asyncio.sleep(0.0005)
        await land()
        assert await again.ended is DONE
        await check_end(world)
        assert world.store._jobs[again.job_id].ledger.keys() > {(plan.fence, 0)}
        SimSupervisor(world)
        await options(world, cleanup_cadence=timedelta(seconds=60))
        loop: Any = asyncio.get_running_loop()
        loop.ends_at += 2 * SWEEP_AFTER.total_seconds()
        await asyncio.sleep(SWEEP_AFTER.total_seconds() + 120.0)
        kept = world.store._jobs[again.job_id]
        assert {place[0] for place in (*kept.ledger, *kept.prepared)} == {(await world.document()).plan.fence}  # type: ignore[union-attr]

    run(story())


def test_a_brief_says_what_the_document_says() -> None:
    """Of which the supervisor makes sure before it deletes a start that nobody took over."""

    async def story() -> None:
        world = World()
        await start(world)
        (brief,) = await world.store.unfinished_jobs()
        document = await world.document()
        assert brief == JobBrief(JobId("job"), JobStatus.PREPARING_JOB, document.created_at, document.updated_at)

    run(story())


# The test of the tests.


def clears_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """Also what a later job of the id has."""
    clear = MemoryStorage.clear_job

    async def clear_all(self: MemoryStorage, job_id: JobId, fence: int, **kept: bool) -> None:
        await clear(self, job_id, 2**62, **kept)

    patch.setattr(MemoryStorage, "clear_job", clear_all)


def deletes_whoever_has_the_id(patch: pytest.MonkeyPatch) -> None:
    """Also a later job."""

    async def delete(self: MemoryStorage, document: JobDocument) -> None:
        self._documents.pop(document.job_id, None)

    patch.setattr(MemoryStorage, "delete_job", delete)


def deletes_the_document_first(patch: pytest.MonkeyPatch) -> None:
    """What a crash leaves then is found by nobody."""

    async def delete(storage: JobStorage, document: JobDocument) -> None:
        await storage.delete_job(document)
        await storage.clear_job(document.job_id, document.fence, keep_results=False)

    patch.setattr(engine, "delete_taken", delete)


def deletes_what_it_did_not_take(patch: pytest.MonkeyPatch) -> None:
    """A job that somebody took up after it was found old."""
    see_no_actor(patch)

    async def take(storage: JobStorage, job_id: JobId, known_fence: int) -> JobDocument | None:
        document = await storage.read_job(job_id)
        if document is None:
            return None
        return replace(document, status=DONE)

    async def give(storage: JobStorage, document: JobDocument, *_: Any, **__: Any) -> JobDocument:
        return document

    patch.setattr(engine, "take_over", take)
    patch.setattr(engine, "give_status", give)


WAKES = [Fault(at, Cut.BEFORE, kills=False, isolates=True) for at in range(16)]


@pytest.mark.parametrize(
    ("plant", "story", "moments"),
    [
        (clears_whatever_is_there, clean_beside, WAKES),
        (deletes_whoever_has_the_id, clean_beside, WAKES),
        (deletes_the_document_first, clean_over, [Fault(at, Cut.AFTER, kills=True) for at in range(16)]),
        (deletes_what_it_did_not_take, retry_at, [n * 0.0004 for n in range(60)]),
    ],
)
def test_a_planted_fault_of_a_deletion_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Any, story: Any, moments: list[Any]
) -> None:
    """At one of these moments at least."""
    plant(monkeypatch)

    def is_found(moment: Any) -> bool:
        try:
            run(story([moment] if isinstance(moment, Fault) else moment))
        except (AssertionError, Deadlock, LookupError, ChoreographyError):
            return True
        return False

    assert any(map(is_found, moments))
