"""For each step that waits there is a reason, and it is the right one [S14.4]."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from choreography_ray.core.explaining import Explained, Waits, explain_stored
from choreography_ray.core.policies import MAX_GROUP
from choreography_ray.engine.rest import RequestKind
from choreography_ray.model import AdmissionMoment, JobId, JobStatus, WaitReason
from choreography_ray.options import JobsOptions
from choreography_ray.records import StepCode
from choreography_ray.testing.asking import ask
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from tests.simulation.chaos import play
from tests.simulation.jobs import Batch, BatchState, Piece, Pieces, PieceState, Work, batch
from tests.simulation.walks import draw_story
from tests.simulation.world import World

JOB = JobId("job")
USED = (Batch, BatchState, PieceState)  # classes of payloads are looked for in this module


def told(job: SimJob) -> Explained:
    """What the job's actor answers now."""
    assert job.current is not None
    return job.current.explain()


def reasons(explained: Explained) -> dict[WaitReason, int]:
    """Steps by reason."""
    found: dict[WaitReason, int] = {}
    for wait in explained.waits:
        found[wait.reason] = found.get(wait.reason, 0) + wait.steps
    return found


def wait_of(explained: Explained, reason: WaitReason) -> Waits:
    return next(wait for wait in explained.waits if wait.reason is reason)


async def started(world: World, pieces: list[Piece], at: float = 2.0, kind: Any = Pieces, **options: Any) -> SimJob:
    Work.world = world
    job = await world.start(kind, batch(pieces), options=JobsOptions(**options))
    await asyncio.sleep(at)
    return job


def test_steps_wait_a_moment_for_a_warm_host() -> None:
    """Two hosts of two are left with a slow body each; what waits then looks for a warm host, and gets a new one."""
    seconds = [300.0, 5.0, 300.0, 5.0, 5.0, 5.0, 5.0, 5.0]

    async def story() -> None:
        world = World(slots=4)
        job = await started(world, [Piece(key=f"{n}", seconds=s, shared=2) for n, s in enumerate(seconds)])

        def is_told() -> bool:
            return any(wait.told == "one of the warm actors is about to be free" for wait in told(job).waits)

        while not is_told():
            await asyncio.sleep(0.1)
        begun = world.now
        while is_told():
            await asyncio.sleep(0.1)
        assert 0.5 < world.now - begun < 1.5
        await asyncio.sleep(2.0)
        assert len(world.hosts) == 3

    run(story())


def test_slots_window_stages_and_running_steps_are_told_apart() -> None:
    """Twelve steps, a window of five, three slots: three run, two wait for a slot, the others for the window."""
    pieces = [Piece(key=f"a{i}", seconds=10.0) for i in range(12)]
    pieces += [Piece(key=f"b{i}", stage=7, seconds=1.0) for i in range(4)]

    async def story() -> None:
        job = await started(World(slots=3), pieces, max_active_steps_per_job=5)
        explained = told(job)
        assert explained.running == 3
        assert reasons(explained) == {WaitReason.SLOT: 2, WaitReason.WINDOW: 7, WaitReason.STAGE: 4}
        assert "holds 3" in wait_of(explained, WaitReason.SLOT).told
        assert wait_of(explained, WaitReason.SLOT).ordinals == (3, 4, 5)
        assert wait_of(explained, WaitReason.STAGE).ordinals == (12, 13, 14)
        assert "stage 7 waits for the 12 steps of stage 0" in wait_of(explained, WaitReason.STAGE).told

    run(story())


def test_resources_starts_and_a_hosts_own_queue_are_told_apart() -> None:
    """One host is placed and performs one of its steps; those of another kind wait for what no node has."""
    pieces = [Piece(key=f"a{i}", seconds=40.0) for i in range(4)]

    async def story() -> None:
        world = World(slots=9, placement=lambda kind: 1_000.0)
        job = await started(world, pieces, 20.0, max_concurrent_step_starts=2, placement_timeout=timedelta(seconds=500))
        assert reasons(told(job)) == {WaitReason.RESOURCES: 2, WaitReason.STARTS: 2}

    run(story())

    async def queue() -> None:
        pieces = [Piece(key=f"a{i}", seconds=0.0, shared=1) for i in range(100)]
        pieces += [Piece(key=f"b{i}", seconds=30.0, shared=1) for i in range(100)]
        job = await started(World(slots=1), pieces, 20.0)
        explained = told(job)
        assert explained.running == 1
        assert reasons(explained)[WaitReason.GROUP] > 0

    run(queue())


def test_a_retry_that_is_not_due_tells_when_it_is() -> None:
    async def story() -> None:
        world = World()
        pieces = [Piece(key=f"a{i}", fail_first=1) for i in range(3)]
        job = await started(world, pieces, 5.0, max_step_attempts=2, step_retry_backoff=timedelta(seconds=60))
        wait = wait_of(told(job), WaitReason.RETRY)
        assert (wait.steps, sorted(wait.ordinals)) == (3, [0, 1, 2])
        assert wait.due is not None
        left = (wait.due - world.clock.instant().at).total_seconds()
        assert 50 < left < 60
        assert await world.store.first_due(JOB) == pytest.approx(wait.due, abs=timedelta(milliseconds=1))

    run(story())


class Unwilling(Pieces):
    """Its resume hook always fails."""

    def on_before_resuming_job_steps(self) -> None:
        raise ValueError("the index is locked")


class Doubtful(Pieces):
    """Its admission to a later stage, or after an interruption, raises."""

    def may_run(self, moment: AdmissionMoment) -> bool:
        if moment is AdmissionMoment.START:
            return True
        raise ValueError("nobody knows")


def test_admission_that_was_not_given_tells_when_it_is_asked_again() -> None:
    async def story() -> None:
        pieces = [Piece(key="a"), *(Piece(key=f"b{i}", stage=3, seconds=60.0) for i in range(5))]
        world = World()
        job = await started(world, pieces, 20.0, kind=Doubtful)
        wait = wait_of(told(job), WaitReason.ADMISSION)
        assert (wait.steps, wait.ordinals) == (5, (1, 2, 3))
        assert wait.due is not None
        assert wait.due > world.clock.instant().at

    run(story())

    async def recovery() -> None:
        job = await started(World(slots=1), [Piece(key=f"a{i}", seconds=60.0) for i in range(5)], kind=Doubtful)
        job.die()
        await asyncio.sleep(10.0)
        assert reasons(told(job)) == {WaitReason.ADMISSION: 4}

    run(recovery())


def test_a_resume_hook_that_is_owed_tells_its_error() -> None:
    async def story() -> None:
        job = await started(World(slots=1), [Piece(key=f"a{i}", seconds=9.0) for i in range(4)], kind=Unwilling)
        job.die()
        await asyncio.sleep(6.0)
        wait = wait_of(told(job), WaitReason.HOOK)
        assert wait.steps == 3
        assert "the index is locked" in wait.told

    run(story())


def test_a_stop_that_is_pending_and_stopped_steps_are_told() -> None:
    pieces = [Piece(key=f"a{i}", seconds=50.0, stubborn=True) for i in range(6)]

    async def story() -> None:
        job = await started(World(slots=2), pieces, step_stop_timeout=timedelta(seconds=20))
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        explained = told(job)
        assert explained.status is JobStatus.STOPPED
        assert explained.running == 2
        assert reasons(explained) == {WaitReason.STOPPED: 4}

    run(story())


def test_steps_that_a_stop_has_not_accounted_yet_are_told() -> None:
    """Their hooks take a second each: some are before the hooks, some wait for them, and the rest for their turn."""
    pieces = [Piece(key=f"a{i}", seconds=50.0) for i in range(2 * MAX_GROUP)]

    async def story() -> None:
        world = World(slots=1)
        Work.world = world
        job = await world.start(Pieces, batch(pieces, hook_seconds=1.0), options=JobsOptions())
        await asyncio.sleep(2.0)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        await asyncio.sleep(5.0)
        found = reasons(told(job))
        assert sum(found.values()) == 2 * MAX_GROUP
        assert found[WaitReason.OUTCOME] > 0
        assert found[WaitReason.STOP] > 0

    run(story())


def test_while_the_store_is_away_its_error_is_told() -> None:
    async def story() -> None:
        world = World(slots=2)
        job = await started(world, [Piece(key=f"a{i}", seconds=1.0) for i in range(6)])
        assert told(job).trouble == ""
        assert job.process is not None
        world.without_store[job.process] = world.now + 20.0
        await asyncio.sleep(5.0)
        explained = told(job)
        assert "the store is away" in explained.trouble
        assert reasons(explained)
        await job.ended

    run(story())


def test_before_there_is_a_machine_the_phase_is_told() -> None:
    async def story() -> None:
        world = World()
        world.store_away_until = world.now + 30.0
        job = await started(world, [Piece(key="a")], 1.0)
        explained = told(job)
        assert (explained.waits, bool(explained.phase)) == ((), True)
        assert "the store is away" in explained.trouble

    run(story())


async def explain_again_and_again(world: World) -> None:
    """Running and waiting steps are always all that are not final; what the store tells names as many."""
    while True:
        await asyncio.sleep(world.random.random())
        for job in list(world.jobs.values()):
            engine = None if job.current is None else job.current._engine
            if engine is None or job.is_over or engine.machine.is_finished:
                continue
            ledger, explained = engine.machine.ledger, told(job)
            steps = explained.running + sum(wait.steps for wait in explained.waits)
            status = engine.machine.document.status
            if status not in (JobStatus.STARTING_STEPS, JobStatus.REMOVING) and steps != ledger.open_steps():
                world.violations.append(f"{world.now:.3f}: {status}: {ledger.open_steps()} open, {explained}")
            wrong = [o for wait in explained.waits for o in wait.ordinals if StepCode(ledger.code(o)).status.is_final]
            if wrong:
                world.violations.append(f"{world.now:.3f}: {wrong} are final, {explained}")
            document = await world.store.read_job(job.job_id)
            if document is not None and document.plan is not None and not document.is_cleared:
                plan = document.plan.fence
                kinds = await world.store.read_plan(job.job_id, plan)
                segments = await world.store.read_ledger(job.job_id, plan)
                stored = explain_stored(document, kinds, segments, None)
                codes = b"".join(segment.codes for segment in segments)
                left = sum(not StepCode(code).status.is_final for code in codes)
                if sum(wait.steps for wait in stored.waits) != left:
                    world.violations.append(f"{world.now:.3f}: {left} open in the store, {stored}")


@pytest.mark.parametrize("seed", range(100, 125))
def test_every_step_that_is_not_final_runs_or_has_a_reason(seed: int) -> None:
    run(play(draw_story(seed), explain_again_and_again))
