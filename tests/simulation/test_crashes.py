"""Stories of jobs whose own code ends their process, again and again: they end `FAILED`, and leave nothing [S10]."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, NoReturn

import pytest

from choreography_ray.core import job_machine
from choreography_ray.core.ownership import CRASHED
from choreography_ray.engine.rest import RequestKind
from choreography_ray.errors import StartJobReason, UnknownJobType
from choreography_ray.model import JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import StepCode
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.asking import ask, rest, revive
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from tests.simulation.check import check_end, check_world
from tests.simulation.jobs import Batch, Piece, Pieces, Work, batch
from tests.simulation.world import World

PIECES = [Piece(key=f"a{i}", seconds=0.2 + 30.0 * (i > 3), shared=i % 2) for i in range(8)]
MOST = 5


class Deadly(Pieces):
    """Its code ends its own process, where and as often as a story says."""

    where: ClassVar[str] = ""
    left: ClassVar[int] = 10**9
    calls: ClassVar[int] = 0

    async def _at(self, where: str) -> None:
        if where != self.where or not self.left:
            return
        type(self).left -= 1
        type(self).calls += 1
        Work.world.jobs[self.job_id].die()
        await _never()

    async def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def, override]
        await self._at("prepare_steps")
        return list(super().prepare_steps(request))

    async def on_before_resuming_job_steps(self) -> None:
        await self._at("on_before_resuming_job_steps")

    async def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:  # type: ignore[override]
        await self._at("on_step_completed_or_stopped")
        await super().on_step_completed_or_stopped(step_id, result)

    async def can_resume(self) -> bool:  # type: ignore[override]
        await self._at("can_resume")
        return True

    async def on_stopped(self) -> None:
        await self._at("on_stopped")


class DeadlyInBackground(Deadly):
    """The same, started in the background: it is planned again after a crash."""

    start_steps_in_background = True


async def _never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def start(
    world: World, where: str, times: int = 10**9, job_class: type[Deadly] = Deadly, pieces: list[Piece] = PIECES
) -> SimJob:
    Work.world = world
    job_class.where, job_class.left, job_class.calls = where, times, 0
    Deadly.calls = 0
    return await world.start(job_class, batch(pieces), options=JobsOptions(max_job_crashes=MOST))


async def check_failed(world: World, job: SimJob) -> None:
    """`FAILED` with its cause, everything that ran accounted, no host and no slot left."""
    document = await world.document()
    assert document.status is JobStatus.FAILED
    assert document.history[-1].why == CRASHED
    assert "killed" in document.error, "what the cluster told of the death is missing"
    assert document.crashes >= MOST
    assert not +world.running, "a body runs although the job failed"
    if document.plan is not None and (codes := world.codes(job.job_id)):
        assert StepCode.SCHEDULED not in codes
        assert StepCode.AWAITING_RETRY not in codes
    await job.ended
    await world.settle()
    check_world(world)


@pytest.mark.parametrize("where", ["on_step_completed_or_stopped", "on_before_resuming_job_steps"])
def test_a_hook_that_ends_its_process_again_and_again_fails_its_job(where: str) -> None:
    async def story() -> None:
        world = World()
        job = await start(world, where)
        if where == "on_before_resuming_job_steps":
            await asyncio.sleep(0.4)
            job.die()
        assert await rest(job) is JobStatus.FAILED
        await check_failed(world, job)
        assert job.incarnations == MOST + 1
        assert await ask(job, RequestKind.RESUME) == "JOB_CANNOT_BE_RESUMED"
        assert await ask(job, RequestKind.STOP) == "JOB_IS_NOT_RUNNING"
        called = Deadly.calls
        assert await ask(job, RequestKind.REMOVE) == "REMOVED"
        assert Deadly.calls == called, "its code was called again"

    run(story())


def test_a_plan_that_ends_its_process_is_tried_again_only_in_the_background() -> None:
    async def story(job_class: type[Deadly], incarnations: int) -> None:
        world = World()
        job = await start(world, "prepare_steps", job_class=job_class)
        assert await rest(job) is JobStatus.FAILED
        document = await world.document()
        assert document.start_error == StartJobReason.UNKNOWN
        assert "killed" in document.start_details[0]
        assert job.incarnations == incarnations
        await job.ended
        await world.settle()
        check_world(world)

    run(story(Deadly, 2))
    run(story(DeadlyInBackground, MOST + 1))


def test_a_removal_goes_on_without_the_hook_that_ends_its_process() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, "on_stopped")
        await asyncio.sleep(0.5)
        assert await ask(job, RequestKind.REMOVE) == "REMOVED"
        assert await world.store.read_job(job.job_id) is None
        await job.ended
        await world.settle()
        check_world(world)
        assert Deadly.calls == MOST

    run(story())


def test_a_stop_that_cannot_be_accounted_fails_the_job() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, "on_stopped")
        await asyncio.sleep(0.5)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await rest(job) is JobStatus.FAILED
        await check_failed(world, job)

    run(story())


@pytest.mark.parametrize("where", ["on_step_completed_or_stopped", "on_before_resuming_job_steps"])
def test_deaths_within_the_budget_leave_no_trace(where: str) -> None:
    """One less than the budget; once outcomes are recorded the count begins anew."""

    async def story() -> None:
        world = World()
        job = await start(world, where, times=MOST - 2)
        await asyncio.sleep(0.4)
        job.die()
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        document = await world.document()
        assert document.crashes == 0
        await check_end(world)

    run(story())


def test_deaths_that_are_nobodys_fault_are_not_charged() -> None:
    """Its node is lost, or somebody ends it, more often than the budget allows deaths."""

    async def story() -> None:
        world = World()
        job = await start(world, "")
        for _ in range(2 * MOST):
            await asyncio.sleep(0.1)
            while job.process is None:
                await asyncio.sleep(0.1)
            job.blameless.add(f"worker-{job.incarnations}")
            job.die()
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(world)

    run(story())


def test_one_that_was_fenced_is_not_charged() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, "", pieces=[Piece(key="long", seconds=300.0)])
        await asyncio.sleep(0.3)
        for _ in range(2 * MOST):
            document = await world.document()
            fence = await world.store.next_number("fence")
            assert await world.store.raise_fence(job.job_id, document.fence, fence)
            incarnations = job.incarnations
            while job.incarnations == incarnations:
                await asyncio.sleep(1.0)
            await asyncio.sleep(0.1)
        assert (await world.document()).crashes == 0
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(world)

    run(story())


class Stranger(LivingCode):
    """Code without the classes that were stored."""

    def resolve(self, name: str) -> type:
        raise KeyError(name)


def test_a_state_that_the_code_cannot_read_is_a_sentence_and_no_crash() -> None:
    """The actor ends; once the code can read it the job goes on where it was."""

    async def story() -> None:
        world = World()
        job = await start(world, "")
        code = job.code
        await asyncio.sleep(0.5)
        job.code = Stranger(code.job_class)
        job.die()
        with pytest.raises(UnknownJobType, match="its request or state cannot be read with this code"):
            await job.ended
        document = await world.document()
        assert document.status is JobStatus.RUNNING
        assert "cannot be read with this code" in document.error
        job.code = code
        revive(job)
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(world)

    run(story())


async def until_failed(world: World) -> None:
    job = await start(world, "on_step_completed_or_stopped")
    status = await rest(job)
    assert status is JobStatus.FAILED
    if (await world.document()).history[-1].why == CRASHED:
        await check_failed(world, job)


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("kills", [True, False])
def test_the_end_of_a_broken_job_is_cut_at_every_write(cut: Cut, kills: bool) -> None:
    """A death while it is given up counts too, and changes nothing: its code is loaded no more."""
    world = World()

    async def count() -> int:
        await until_failed(world)
        return world.job_writes[0]

    writes = run(count())
    for at in range(5 + list(Cut).index(cut), writes, 3):
        run(until_failed(World(job_faults=[Fault(at, cut, kills=kills)])))


def test_a_count_that_is_not_kept_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: deaths are not counted with the fence."""
    raise_fence = MemoryStorage.raise_fence

    async def forgetting(self: MemoryStorage, job_id: Any, expected: int, fence: int, *owner: Any) -> bool:
        return await raise_fence(self, job_id, expected, fence, *owner[:1])

    monkeypatch.setattr(MemoryStorage, "raise_fence", forgetting)

    async def story() -> bool:
        job = await start(World(), "on_step_completed_or_stopped")
        await asyncio.sleep(300.0)
        return job.is_over

    assert not run(story())


def test_a_count_that_never_begins_anew_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: recorded outcomes leave the count as it was."""
    decide = job_machine.JobMachine._decide

    def remembering(self: job_machine.JobMachine, event: Any, time: Any) -> None:
        decide(self, event, time)
        self._job.turn.changes.pop("crashes", None)

    monkeypatch.setattr(job_machine.JobMachine, "_decide", remembering)

    async def story() -> int:
        world = World()
        job = await start(world, "on_step_completed_or_stopped", times=1)
        await rest(job)
        return (await world.document()).crashes

    assert run(story())
