"""Short stories of jobs over the real core and engine, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from choreography_ray.errors import Fenced, StartReport
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.cluster import LEASE
from choreography_ray.testing.faults import Cut, Fault, Wire
from choreography_ray.testing.hosts import SimJobPort
from choreography_ray.testing.loop import run
from tests.simulation.check import check_end, check_world
from tests.simulation.jobs import PassingPieces, Piece, Pieces, Work, batch
from tests.simulation.world import World


async def play(
    world: World,
    pieces: list[Piece],
    *,
    continue_stages: list[int] | None = None,
    hook_seconds: float = 0.0,
    **options: object,
):
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
        Piece(key=f"{s}-{i}", stage=s, shared=shared, fail_first=(s, i) == (10, 1))
        for s in (0, 10, 20)
        for i in range(5)
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


def test_a_ledger_segment_that_lands_late_does_not_fence_the_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job actor died while it inserted its ledger, and what was on its way landed after the successor had raised the
    fence: the successor then took itself for fenced, and nobody was left.
    """
    insert, fence = MemoryStorage.insert_ledger, MemoryStorage.fence_ledger
    on_its_way: list[Any] = []
    world = World()

    async def insert_later(store: MemoryStorage, *segments: Any) -> None:
        if world.job_kills:
            await insert(store, *segments)
        else:
            on_its_way.append(segments)
            world.jobs[JobId("job")].die()

    async def fence_first(store: MemoryStorage, *to: Any) -> None:
        await fence(store, *to)
        while on_its_way:
            await insert(store, *on_its_way.pop())

    monkeypatch.setattr(MemoryStorage, "insert_ledger", insert_later)
    monkeypatch.setattr(MemoryStorage, "fence_ledger", fence_first)
    document = run(play(world, [Piece(key=str(i)) for i in range(3)]))
    assert world.job_kills == 1
    assert not on_its_way
    assert world.jobs[JobId("job")].incarnations == 2
    assert document.counts.succeeded == 3


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
    """It told hosts that there was nothing more to do for them; they were its successor's, and they began again."""
    pieces = [Piece(key=str(i), seconds=80.0) for i in range(3)]
    world = World(wire=Wire(stale=0.5))

    async def story() -> None:
        Work.world = world
        job = await world.start(Pieces, batch(pieces), options=JobsOptions())
        await asyncio.sleep(5.0)
        assert job.process is not None
        job.cut(job.process, 12.0, noticed_after=3.0)
        await job.ended
        await check_end(world)
        assert (await world.document()).counts.succeeded == len(pieces)

    run(story())
    assert sum(what == "begin" for _, what, _ in world.marks) == len(pieces)


def test_a_start_whose_job_actor_is_fenced_is_answered_by_the_next_one() -> None:
    """Somebody raises the fence once the plan is saved: this actor must end, and the start that waits goes on."""

    async def story(world: World) -> None:
        Work.world = world
        job = await world.start(Pieces, batch([Piece(key=str(i)) for i in range(5)]))
        while (document := await world.store.read_job(JobId("job"))) is None or document.plan is None:
            await asyncio.sleep(0.001)
        first = job.current
        assert first is not None
        assert not first.started.done()
        assert await world.store.raise_fence(JobId("job"), document.fence, document.fence + 1)
        await job.ended
        assert isinstance(first.started.exception(), Fenced)
        assert (await job.started).error == ""

    run(story(World()))


def test_a_persisted_outcome_counts_when_the_lease_runs_out_while_the_watchdog_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its report was lost, and its host was ended before the look was over: settled as the success it is, and the step
    is not started again [P15].
    """
    ask, read = SimJobPort.ask, MemoryStorage.read_outcomes
    world = World()
    looked_at: list[float] = []

    async def report(port: SimJobPort, document: Any) -> None:
        raise ConnectionError("the report is lost")

    async def ask_once(port: SimJobPort, host: Any, is_first: bool) -> Any:
        if not is_first:
            raise ConnectionError("the job actor does not answer")
        return await ask(port, host, is_first)

    async def look(store: MemoryStorage, job_id: JobId, *run: Any) -> Any:
        if run:
            looked_at.append(world.now)
            while world.hosts:
                await asyncio.sleep(0.5)
        return await read(store, job_id, *run)

    monkeypatch.setattr(SimJobPort, "deliver", report)
    monkeypatch.setattr(SimJobPort, "ask", ask_once)
    monkeypatch.setattr(MemoryStorage, "read_outcomes", look)
    document = run(play(world, [Piece(key="x", seconds=0.2)], job_watchdog_interval=timedelta(seconds=2)))
    assert document.counts.succeeded == 1
    (begun, _, _), _ = world.marks
    assert looked_at[0] < begun + LEASE
    assert [what for _, what, _ in world.marks] == ["begin", "end"]


def test_a_start_of_which_some_failed_names_their_steps() -> None:
    """One host of two cannot be made [S4.4]."""

    async def story() -> None:
        world = World()
        Work.world = world
        world.failing_hosts = lambda kind: kind.step_type.endswith("SharedWork")
        job = await world.start(Pieces, batch([Piece(key="good"), Piece(key="bad", shared=1)]))
        report = await job.started
        assert report.error == StartReport.FAILED_STARTING_SOME_JOB_STEPS
        assert [told.partition(":")[0] for told in report.details] == ["step 'bad'"]
        assert await job.ended is JobStatus.COMPLETED_WITH_FAILURES

    run(story())
