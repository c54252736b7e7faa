"""Stories of two clusters on one database: who has a job, who may take it over, and who must let go [S10.3]."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from choreography_ray.core.ownership import OwnerWatch, Verdict
from choreography_ray.engine import takeover
from choreography_ray.engine.rest import RequestKind
from choreography_ray.errors import OwnedElsewhere, StorageUnavailable
from choreography_ray.model import JobStatus
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.asking import ask
from choreography_ray.testing.cluster import LEASE
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from tests.simulation.check import check_end, check_world
from tests.simulation.jobs import KeptPieces, PassingPieces, Piece, Work, batch
from tests.simulation.world import World

PIECES = [
    *(Piece(key=f"a{i}", seconds=20.0 + i, shared=i % 2, checkpoints=i % 3) for i in range(6)),
    *(Piece(key=f"b{i}", stage=1, seconds=1.0, shared=1) for i in range(4)),
]
FOR_EVER = 10**6


def second_cluster(first: World, **how: Any) -> World:
    """Another cluster on the store of the first; bodies of both leave their marks in the first."""
    second = World(name="second", **how)
    second.store = first.store
    second.invariants = first.invariants
    return second


def join(second: World, job: SimJob) -> SimJob:
    """The job's actor is made in the second cluster too."""
    other = SimJob(second, job.job_id, job.code)
    second.jobs[job.job_id] = other
    other.live()
    return other


async def start(world: World, pieces: list[Piece] = PIECES) -> SimJob:
    Work.world = world
    return await world.start(KeptPieces, batch(pieces))


def cut_off(job: SimJob, seconds: float) -> None:
    """The job actor and its hosts cannot be reached, and reach nothing; their own cluster does not notice."""
    assert job.process is not None
    job.cut(job.process, seconds, noticed_after=FOR_EVER, with_hosts=True)


async def check_over(*worlds: World) -> None:
    for world in worlds:
        await world.settle()
        check_world(world)


def test_a_living_owner_keeps_its_job() -> None:
    """The second cluster's actor ends for good, and says why; the first is not disturbed."""

    async def story() -> None:
        first = World()
        job = await start(first)
        await asyncio.sleep(5.0)
        second = second_cluster(first)
        other = join(second, job)
        began = first.now
        with pytest.raises(OwnedElsewhere, match="another cluster"):
            await other.ended
        assert first.now - began < LEASE / 2
        assert other.incarnations == 1
        report = await other.started
        assert "another cluster" in report.details[0]
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        assert job.incarnations == 1
        await check_end(first)
        await check_over(first, second)

    run(story())


def test_a_request_by_way_of_the_second_cluster_is_refused() -> None:
    async def story() -> None:
        first = World()
        job = await start(first)
        await asyncio.sleep(5.0)
        second = second_cluster(first)
        other = join(second, job)
        assert other.current is not None
        with pytest.raises(OwnedElsewhere):
            await other.current.request(RequestKind.STOP)
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        await check_over(first, second)

    run(story())


@pytest.mark.parametrize("at", [0.01, 0.2, 5.0, 21.5, 27.0])
def test_a_silent_owner_is_succeeded_after_a_lease_and_lets_go_when_it_wakes(at: float) -> None:
    """It finds itself fenced, ends its hosts and itself, and does not take the job back. Nothing counts twice."""

    async def story() -> None:
        first = World()
        job = await start(first)
        await asyncio.sleep(at)
        cut_off(job, 70.0)
        second = second_cluster(first)
        other = join(second, job)
        began = first.now
        assert await other.ended is JobStatus.COMPLETED_SUCCESSFULLY
        assert first.now - began >= LEASE
        if first.now - began < 70.0:
            await asyncio.sleep(71.0)
        with pytest.raises(OwnedElsewhere) if not at < 0.1 else _either():
            await asyncio.wait_for(job.ended, 60.0)
        assert job.incarnations <= 2
        assert not first.hosts
        await check_end(first)
        await check_over(first, second)

    run(story())


class _either:  # noqa: N801
    """Whether it had the job at all before it was cut off is open."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> bool:
        return True


def test_an_owner_that_wakes_up_while_the_second_works_lets_go() -> None:
    """The second has had the job for a moment only; the first's whole cluster wakes beside it."""

    async def story() -> None:
        first = World()
        job = await start(first)
        await asyncio.sleep(5.0)
        cut_off(job, 45.0)
        second = second_cluster(first)
        other = join(second, job)
        with pytest.raises(OwnedElsewhere):
            await job.ended
        assert not other.is_over
        assert await other.ended is JobStatus.COMPLETED_SUCCESSFULLY
        assert other.incarnations == 1
        await check_end(first)
        await check_over(first, second)

    run(story())


async def cut_off_in_its_start(writes: int, pieces: list[Piece]) -> tuple[SimJob, SimJob]:
    """A job whose actor was cut off in its start, after so many writes, and the one that finished it meanwhile."""
    Work.world = first = World()
    job = await first.start(PassingPieces, batch(pieces))
    while first.job_writes[0] < writes:
        await asyncio.sleep(0.0001)
    assert job.process is not None
    job.zombies.append(job.process)
    cut_off(job, 70.0)
    other = join(second_cluster(first), job)
    await other.ended
    return job, other


@pytest.mark.parametrize("writes", range(6, 12))
def test_an_owner_that_misses_what_was_cleared_meanwhile_finds_itself_fenced(writes: int) -> None:
    """Nothing is broken: the job came to its end without it, and its next process finds it so."""

    async def story() -> None:
        job, other = await cut_off_in_its_start(writes, [Piece(key="a"), Piece(key="b")])
        assert other.ended.result() is JobStatus.COMPLETED_SUCCESSFULLY
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        assert job.incarnations == 2
        await check_end(job.cluster)  # type: ignore[arg-type]
        await check_over(job.cluster, other.cluster)  # type: ignore[arg-type]

    run(story())


def test_a_refusal_by_an_owner_that_was_succeeded_is_not_its_to_tell() -> None:
    async def story() -> None:
        job, other = await cut_off_in_its_start(6, [Piece(key="a", refuse=True)])
        assert other.ended.result() is JobStatus.FAILED
        assert await job.ended is JobStatus.FAILED
        assert job.incarnations == 2

    run(story())


def test_a_store_that_is_away_for_everybody_silences_nobody() -> None:
    async def story() -> None:
        first = World()
        job = await start(first)
        await asyncio.sleep(5.0)
        second = second_cluster(first)
        first.store_away_until = second.store_away_until = first.now + 100.0
        other = join(second, job)
        with pytest.raises(OwnedElsewhere):
            await other.ended
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(first)
        await check_over(first, second)

    run(story())


def test_a_store_that_takes_no_writes_silences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read: what is read proves nothing of owners that cannot write."""

    async def story() -> None:
        first = World()
        job = await start(first)
        await asyncio.sleep(5.0)
        second = second_cluster(first)
        other = join(second, job)
        # Reads go on; writes fail, for both clusters, longer than a lease.
        await _without_writes(monkeypatch, 60.0)
        with pytest.raises(OwnedElsewhere):
            await other.ended
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(first)

    run(story())


async def _without_writes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    async def away(self: MemoryStorage, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.01)
        raise StorageUnavailable("memory", "no primary")

    with monkeypatch.context() as patch:
        for name in ("beat", "next_number", "raise_fence", "save_job", "save_ledger", "insert_outcome"):
            patch.setattr(MemoryStorage, name, away)
        await asyncio.sleep(seconds)


def test_an_owner_without_the_store_is_succeeded_and_learns_of_it() -> None:
    """Its own cluster confirms it, so its bodies go on until it is told: they may overlap, and count once."""

    async def story() -> None:
        first = World(slots=20, landing=0.0)
        job = await start(first, [Piece(key=f"long{i}", seconds=100.0, shared=i % 2) for i in range(4)])
        await asyncio.sleep(5.0)
        assert job.process is not None
        first.without_store[job.process] = first.now + 60.0
        second = second_cluster(first, slots=20)
        other = join(second, job)
        with pytest.raises(OwnedElsewhere):
            await job.ended
        assert not other.is_over
        assert await other.ended is JobStatus.COMPLETED_SUCCESSFULLY
        assert not first.hosts
        await check_end(first)

    run(story())


def test_two_bodies_are_excused_only_while_one_that_does_not_own_the_job_is_cut_off() -> None:
    """A test of the tests: what the walks of two clusters let pass [S10.3]."""

    async def story() -> None:
        first = World(slots=20)
        await start(first, [Piece(key="long", seconds=300.0)])
        second = second_cluster(first, slots=20)
        first.neighbours.append(second)
        await asyncio.sleep(5.0)
        (body,) = (body for _, what, body in first.marks if what == "begin")
        for cut_off, is_seen in ((None, True), (first, True), (second, False)):
            if cut_off is not None:
                cut_off.store_away_until = first.now + 10.0
            first.begin(body)
            first.end(body)
            assert any("two bodies" in one for one in first.violations) is is_seen
            first.violations.clear()
            first.store_away_until = 0.0

    run(story())


def test_a_job_that_came_to_rest_waits_for_nobody() -> None:
    """Its last owner let go: the second cluster can control it at once."""

    async def story() -> None:
        first = World()
        job = await start(first)
        await job.ended
        second = second_cluster(first)
        began = first.now
        other = join(second, job)
        assert await ask(other, RequestKind.REMOVE) == "REMOVED"
        assert first.now - began < 1.0

    run(story())


def test_two_that_wait_for_the_same_silence_do_not_both_get_the_job() -> None:
    async def story() -> None:
        first = World()
        job = await start(first)
        await asyncio.sleep(5.0)
        cut_off(job, FOR_EVER)
        second, third = second_cluster(first), second_cluster(first)
        third.name = "third"
        both = [join(second, job), join(third, job)]
        ends = await asyncio.gather(*(other.ended for other in both), return_exceptions=True)
        assert sorted(map(type, ends), key=str) == sorted([JobStatus, OwnedElsewhere], key=str)
        await check_end(first)

    run(story())


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("kills", [True, False])
def test_a_succession_is_cut_at_every_write(cut: Cut, kills: bool) -> None:
    async def story(faults: list[Fault]) -> int:
        first = World()
        job = await start(first)
        await asyncio.sleep(21.5)
        cut_off(job, FOR_EVER)
        second = second_cluster(first, job_faults=faults)
        other = join(second, job)
        assert await other.ended is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(first)
        return second.job_writes[0]

    writes = run(story([]))
    for at in range(list(Cut).index(cut), writes, 3):
        run(story([Fault(at, cut, kills=kills)]))


# The clock of the observer, without any world.


def test_silence_counts_only_between_answers_that_follow_each_other() -> None:
    watch, sign = OwnerWatch(30.0), (1, 2, 3)
    times = [float(t) for t in range(0, 30, 5)]
    assert [watch.saw(sign, t, t + 0.1) for t in times] == [Verdict.UNKNOWN] * 6
    assert watch.saw(sign, 30.0, 30.1) is Verdict.UNKNOWN  # since 0.1: not yet a whole lease
    assert watch.saw(sign, 31.0, 31.1) is Verdict.SILENT
    watch.missed()
    assert watch.saw(sign, 36.0, 36.1) is Verdict.UNKNOWN
    assert watch.saw(sign, 70.0, 70.1) is Verdict.UNKNOWN  # the observer itself was stopped meanwhile
    assert watch.saw((1, 2, 4), 75.0, 75.1) is Verdict.ALIVE


# Planted faults: what would be seen if a rule were missing.


def _is_seen(story: Coroutine[Any, Any, None]) -> bool:
    try:
        run(story)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return True
    return False


async def _awoken() -> None:
    first = World()
    job = await start(first)
    await asyncio.sleep(5.0)
    cut_off(job, 45.0)
    second = second_cluster(first)
    other = join(second, job)
    await other.ended
    assert other.incarnations == 1, "the woken owner took the job back"
    await asyncio.sleep(100.0)
    assert isinstance(job.ended.exception(), OwnedElsewhere)


async def _living() -> None:
    first = World()
    job = await start(first)
    await asyncio.sleep(5.0)
    second = second_cluster(first)
    join(second, job)
    await job.ended
    assert job.incarnations == 1, "a living owner lost its job"


def test_without_a_planted_fault_these_stories_pass() -> None:
    run(_awoken())
    run(_living())


def test_a_takeover_without_patience_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "is_elsewhere", lambda document, cluster: False)
    assert _is_seen(_living())
    assert _is_seen(_awoken())


def test_an_owner_that_gives_no_sign_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def still(self: MemoryStorage, job_id: Any, fence: int) -> bool:
        there = self._documents.get(job_id)
        return there is not None and there.fence == fence

    monkeypatch.setattr(MemoryStorage, "beat", still)

    async def quiet() -> None:
        first = World()
        job = await start(first, [Piece(key="long", seconds=100.0)])
        await asyncio.sleep(5.0)
        join(second_cluster(first), job)
        await job.ended
        assert job.incarnations == 1

    assert _is_seen(quiet())
