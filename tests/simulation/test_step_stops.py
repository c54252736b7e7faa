"""Stories of single steps that somebody stops while their job goes on, at every moment and over every cut [S9.7]."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from choreography_ray.codec import decode
from choreography_ray.core import events as e
from choreography_ray.core.policies import GroupSizer
from choreography_ray.core.stages import STEP_STOPPED
from choreography_ray.core.step_stops import StepStops
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.rest import NO_SUCH_STEP, RequestKind, StopStep
from choreography_ray.errors import Fenced
from choreography_ray.model import JobStatus, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import StepCode
from choreography_ray.testing.asking import ask, rest, retry
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from tests.simulation.check import RESOLVE, check_end, check_world
from tests.simulation.jobs import KeptPieces, PassingPieces, Piece, Work, batch
from tests.simulation.world import World

PATIENCE = 2.0
OPTIONS = JobsOptions(
    step_stop_timeout=timedelta(seconds=PATIENCE), max_step_attempts=2, step_retry_backoff=timedelta(seconds=30)
)


async def start(world: World, pieces: list[Piece], options: JobsOptions = OPTIONS) -> SimJob:
    Work.world = world
    return await world.start(KeptPieces, batch(pieces), options=options)


def stop(pieces: list[Piece], key: str) -> StopStep:
    """The request to stop the step of a key."""
    return StopStep([piece.key for piece in pieces].index(key), StepId(key))


def code(job: SimJob, ordinal: int) -> StepCode:
    """Where a step stands, as stored."""
    codes = job.cluster.codes(job.job_id)
    return StepCode(codes[ordinal]) if codes else StepCode.PREPARED


async def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something of the world; a story in which it never comes fails."""
    for _ in range(int(seconds / 0.01)):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


def engine_of(job: SimJob) -> JobEngine:
    """The engine of the incarnation that lives now."""
    assert job.current is not None
    assert job.current._engine is not None
    return job.current._engine


def begun(world: World) -> Counter[str]:
    """How often each body began."""
    return Counter(body.key for _, what, body in world.marks if what == "begin")


async def check_stopped_by_steps(world: World, job: SimJob, stopped: list[str]) -> None:
    """The job came to rest as nothing but stopped steps was left; each was told to its hook once, and none runs."""
    document = await world.document()
    assert document.status is JobStatus.STOPPED
    assert document.is_stop_finalized
    assert document.history[-1].why == STEP_STOPPED
    assert not document.journal
    assert document.counts.stopped == len(stopped)
    assert sorted(decode(document.state, RESOLVE).stopped) == sorted(stopped)
    assert not +world.running


THREE = [
    Piece(key="running", seconds=50.0),
    Piece(key="retrying", fail_first=1),
    *(Piece(key=f"busy{i}", seconds=20.0) for i in range(2)),
    Piece(key="prepared", seconds=1.0),
]


async def three_at_once(world: World, shared: int) -> SimJob:
    pieces = [piece.model_copy(update={"shared": shared}) for piece in THREE]
    job = await start(world, pieces, OPTIONS.model_copy(update={"max_active_steps_per_job": 3}))
    await until(lambda: code(job, 1) == StepCode.AWAITING_RETRY and world.running.total() == 3)
    assert code(job, 4) is StepCode.PREPARED
    return job


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_one_prepared_one_running_and_one_waiting_step_are_stopped_while_their_stage_is_open(shared: int) -> None:
    """Each counts once as its rule says, the others go on, and in the end the job rests until it is resumed [P14]."""

    async def story() -> None:
        world = World()
        job = await three_at_once(world, shared)
        keys = ["prepared", "running", "retrying"]
        began = world.now
        answers = await asyncio.gather(*(ask(job, stop(THREE, key)) for key in keys))
        assert answers == ["STOPPED", "STOPPED", "COMPLETED_WITH_FAILURE"]
        assert world.now - began < PATIENCE
        counts = (await world.document()).counts
        assert (counts.failed, counts.stopped) == (1, 2)
        assert (await world.document()).status is JobStatus.RUNNING
        assert await rest(job) is JobStatus.STOPPED
        await check_stopped_by_steps(world, job, ["prepared", "running"])
        assert begun(world) == {"running": 1, "retrying": 1, "busy0": 1, "busy1": 1}
        assert [await ask(job, stop(THREE, key)) for key in keys] == ["STOPPED", "STOPPED", "COMPLETED_WITH_FAILURE"]
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_WITH_FAILURES
        assert (await world.document()).counts.succeeded == 4
        await job.ended
        world.requests += 1
        await check_end(world)
        check_world(world)

    run(story())


@pytest.mark.parametrize("checkpoints", [0, 3])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_stopped_step_goes_on_from_its_last_state(checkpoints: int, stubborn: bool) -> None:
    """A body that will not stop is ended from outside; the answer comes when the step is accounted."""

    async def story() -> None:
        world = World()
        pieces = [Piece(key="x", seconds=40.0, checkpoints=checkpoints, stubborn=stubborn), Piece(key="y", seconds=1.0)]
        job = await start(world, pieces)
        await until(lambda: world.running.total() == 2 or bool(world.checkpoints))
        await until(lambda: world.checkpoints.get((job.job_id, 0), 0) == checkpoints)
        began = world.now
        assert await ask(job, stop(pieces, "x")) == "STOPPED"
        assert (world.now - began < PATIENCE) is not stubborn
        assert world.now - began < PATIENCE + 2.0
        assert await rest(job) is JobStatus.STOPPED
        await check_stopped_by_steps(world, job, ["x"])
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        check_world(world)

    run(story())


GROUP = [
    *(Piece(key=f"warm{i}", shared=1) for i in range(12)),
    *(Piece(key=f"g{i}", seconds=0.05 if i else 9.0, shared=1, stubborn=not i) for i in range(40)),
]


async def group_behind_one(world: World) -> SimJob:
    """Many short steps wait in one host behind one that takes long and will not stop."""
    job = await start(world, GROUP, OPTIONS.model_copy(update={"max_active_steps_per_job": 30}))
    await until(lambda: world.running.get((job.job_id, 12), 0) == 1 and code(job, 14) is StepCode.SCHEDULED)
    return job


def test_a_step_that_waits_in_a_group_is_stopped_before_its_turn() -> None:
    """It is not told to wait for what runs before it, and its host goes on with the others."""

    async def story() -> None:
        world = World(slots=1)
        job = await group_behind_one(world)
        began = world.now
        assert await ask(job, stop(GROUP, "g2")) == "STOPPED"
        assert world.now - began < PATIENCE
        assert await rest(job) is JobStatus.STOPPED
        await check_stopped_by_steps(world, job, ["g2"])
        assert begun(world)["g2"] == 0
        assert max(begun(world).values()) == 1
        assert not world.host_kills

    run(story())


def test_siblings_of_a_body_that_will_not_stop_run_again_without_being_charged() -> None:
    async def story() -> None:
        world = World(slots=1)
        job = await group_behind_one(world)
        assert await ask(job, stop(GROUP, "g0")) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        await check_stopped_by_steps(world, job, ["g0"])
        document = await world.document()
        assert document.counts.succeeded == len(GROUP) - 1
        assert max(begun(world).values()) == 1  # what waited behind it had not begun
        check_world(world)

    run(story())


@pytest.mark.parametrize(("seconds", "begins"), [(PATIENCE * 1.6, 1), (PATIENCE * 5, 2)])
def test_siblings_at_work_beside_a_body_that_will_not_stop_have_one_more_timeout(
    seconds: float, begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that needs no longer ends in peace, the one that does is performed again, and no crash is counted."""
    monkeypatch.setattr(GroupSizer, "share", lambda self, pending, hosts, width: 4)
    monkeypatch.setattr(GroupSizer, "size", 4)
    monkeypatch.setattr(GroupSizer, "learn", lambda self, steps, seconds, width: None)
    monkeypatch.setattr(GroupSizer, "__init__", lambda self: None)

    async def story() -> None:
        world = World(slots=2)
        pieces = [
            Piece(key="x", seconds=60.0, shared=2, stubborn=True),
            Piece(key="y", seconds=seconds, shared=2),
            *(Piece(key=f"z{i}", seconds=0.1, shared=2) for i in range(6)),
        ]
        job = await start(world, pieces, OPTIONS.model_copy(update={"max_step_crashes": 1}))
        await until(lambda: world.running.total() == 2)
        assert len(world.hosts) == 1
        assert await ask(job, stop(pieces, "x")) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        await check_stopped_by_steps(world, job, ["x"])
        assert begun(world)["y"] == begins
        assert (await world.document()).counts.succeeded == len(pieces) - 1

    run(story())


@pytest.mark.parametrize("at", [0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 3.0])
@pytest.mark.parametrize("key", ["a1", "a4", "b2"])
def test_a_step_is_stopped_at_any_moment_and_resumed_to_the_jobs_end(at: float, key: str) -> None:
    """In its stage, before it and after it."""

    async def story() -> None:
        world = World()
        pieces = [
            *(Piece(key=f"a{i}", seconds=0.5, shared=i % 2) for i in range(6)),
            *(Piece(key=f"b{i}", stage=1, seconds=0.3, shared=1) for i in range(6)),
        ]
        job = await start(world, pieces)
        await asyncio.sleep(at)
        answer = await ask(job, stop(pieces, key))
        assert answer in ("STOPPED", "COMPLETED_SUCCESSFULLY")
        if answer == "STOPPED":
            assert await rest(job) is JobStatus.STOPPED
            await check_stopped_by_steps(world, job, [key])
            assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        assert begun(world)[key] in (1, 2)
        await job.ended
        check_world(world)

    run(story())


async def stop_three(world: World) -> None:
    job = await start(world, THREE, OPTIONS.model_copy(update={"max_active_steps_per_job": 3}))
    for _ in range(3000):
        if job.is_over or (code(job, 1) == StepCode.AWAITING_RETRY and world.running.total() == 3):
            break
        await asyncio.sleep(0.01)
    keys = ["prepared", "running", "retrying"]
    answers = await asyncio.gather(*(ask(job, stop(THREE, key)) for key in keys))
    if (await world.document()).plan is None:
        return  # the process died before a plan was saved
    assert answers[:2] == ["STOPPED", "STOPPED"] or world.job_kills, answers
    status = await rest(job)
    if status is JobStatus.STOPPED:
        document = await world.document()
        codes = Counter(world.codes(job.job_id))
        assert codes[StepCode.SCHEDULED] + codes[StepCode.AWAITING_RETRY] + codes[StepCode.PREPARED] == 0
        assert document.counts.stopped == codes[StepCode.STOPPED]
        state = decode(document.state, RESOLVE)
        assert len(state.stopped) == codes[StepCode.STOPPED]
        assert await ask(job, RequestKind.RESUME) in ("RESUMED", "ALREADY_RUNNING")
        status = await rest(job)
    assert status in (JobStatus.COMPLETED_WITH_FAILURES, JobStatus.COMPLETED_SUCCESSFULLY)
    world.requests += 1
    await check_end(world)
    await world.settle()
    check_world(world)


@pytest.mark.parametrize("cut", list(Cut))
def test_the_stops_of_steps_are_cut_at_every_write(cut: Cut) -> None:
    """The job actor is killed before, inside and after each; whoever asked asks the next one."""
    world = World()
    run(stop_three(world))
    for at in range(world.job_writes[0]):
        run(stop_three(World(job_faults=[Fault(at, cut, kills=True)])))


async def stop_and_die(with_host: bool, checkpoints: int) -> None:
    """The job actor dies as soon as the stop is saved, and whoever asked goes away."""
    world = World()
    pieces = [Piece(key="x", seconds=90.0, checkpoints=checkpoints), Piece(key="y", seconds=1.0)]
    job = await start(world, pieces)
    await until(lambda: world.running.total() == 2)
    asking = asyncio.create_task(ask(job, stop(pieces, "x")))
    steps = world.store._job(job.job_id).steps
    while not (0 in steps and steps[0].stop is not None):
        await asyncio.sleep(0.0001)
    asking.cancel()
    job.die()
    if with_host:
        next(host for host in list(world.hosts.values()) if host.host.startswith("step0-")).die()
    assert await rest(job) is JobStatus.STOPPED
    await check_stopped_by_steps(world, job, ["x"])
    assert begun(world)["x"] == 1


@pytest.mark.parametrize("with_host", [False, True])
@pytest.mark.parametrize("checkpoints", [0, 30])
def test_a_stop_that_was_saved_is_carried_out_by_the_next_incarnation(with_host: bool, checkpoints: int) -> None:
    """Nobody asks again: what the step document says is enough, also when the host has died with its job actor."""
    run(stop_and_die(with_host, checkpoints))


def test_that_story_fails_where_step_documents_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the next incarnation forgets the stop."""
    monkeypatch.setattr(StepStops, "restore", lambda self, documents: None)
    with pytest.raises(AssertionError):
        run(stop_and_die(with_host=False, checkpoints=0))


def test_a_resumed_step_is_not_stopped_by_the_stop_of_its_earlier_run() -> None:
    """The step document still tells of it, when the next incarnation of the job actor reads it."""

    async def story() -> None:
        world = World()
        pieces = [Piece(key="x", seconds=20.0, checkpoints=4)]
        job = await start(world, pieces)
        await until(lambda: bool(world.checkpoints))
        assert await ask(job, stop(pieces, "x")) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        await until(lambda: world.running.total() == 1)
        job.die()
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY

    run(story())


def test_a_step_of_a_later_stage_that_was_stopped_is_unreachable_when_its_stage_is() -> None:
    async def story() -> None:
        world = World()
        pieces = [Piece(key="a", seconds=3.0, fail_first=9), Piece(key="b", stage=1), Piece(key="c", stage=1)]
        job = await start(world, pieces, JobsOptions())
        await until(lambda: world.running.total() == 1)
        assert await ask(job, stop(pieces, "b")) == "STOPPED"
        assert await rest(job) is JobStatus.COMPLETED_WITH_FAILURES
        counts = (await world.document()).counts
        assert (counts.failed, counts.stopped, counts.unreachable) == (1, 0, 2)
        await check_end(world)

    run(story())


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.002, 0.01, 0.1, 1.0])
@pytest.mark.parametrize(
    "other", [RequestKind.STOP, RequestKind.DRAIN, RequestKind.RESUME, retry(), RequestKind.REMOVE]
)
def test_the_stops_of_steps_race_whatever_else_is_asked(seconds: float, other: RequestKind) -> None:
    """Everybody gets an answer, and each step counts once."""

    async def story(is_step_first: bool) -> None:
        world = World()
        job = await three_at_once(world, shared=1)
        stops = [stop(THREE, key) for key in ("prepared", "running", "retrying")]
        requests = [*stops, other] if is_step_first else [other, *stops]
        asking = []
        for request in requests:
            asking.append(asyncio.create_task(ask(job, request)))
            await asyncio.sleep(seconds)
        await asyncio.gather(*asking)
        if other is RequestKind.REMOVE:
            assert await world.store.read_job(job.job_id) is None
            return
        status = await rest(job)
        if status is JobStatus.STOPPED:
            state = decode((await world.document()).state, RESOLVE)
            assert max(Counter(state.stopped).values()) == 1
            assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) in (JobStatus.COMPLETED_WITH_FAILURES, JobStatus.STOPPED)
        while await rest(job) is JobStatus.STOPPED:
            await ask(job, RequestKind.RESUME)
            await asyncio.sleep(1.0)
        assert (await world.document()).counts.failed == 1
        world.requests += 1
        await job.ended
        await check_end(world)
        check_world(world)

    run(story(is_step_first=True))
    run(story(is_step_first=False))


def test_a_failure_that_comes_with_the_stop_is_not_tried_again() -> None:
    """The body raised before it was told: the attempt that it would have had counts as failed [S7.2]."""

    async def story(seconds: float) -> None:
        world = World()
        pieces = [Piece(key="x", seconds=seconds, fail_first=9), Piece(key="y", seconds=30.0)]
        job = await start(world, pieces)
        await until(lambda: world.running.total() == 2)
        await asyncio.sleep(1.0)
        answer = await ask(job, stop(pieces, "x"))
        assert answer in ("STOPPED", "COMPLETED_WITH_FAILURE")
        assert code(job, 0) in (StepCode.STOPPED, StepCode.COMPLETED_WITH_FAILURE)
        await asyncio.sleep(50.0)
        assert begun(world)["x"] == 1

    for offset in range(-20, 45, 5):
        run(story(1.0 + offset / 100))


def test_refusals_and_unknown_steps() -> None:
    async def story() -> None:
        world = World()
        pieces = [Piece(key="x"), Piece(key="y", seconds=5.0)]
        job = await start(world, pieces)
        await until(lambda: code(job, 0).status.is_final)
        assert await ask(job, stop(pieces, "x")) == "COMPLETED_SUCCESSFULLY"
        assert await ask(job, StopStep(0, StepId("another"))) == NO_SUCH_STEP
        assert await ask(job, StopStep(2, StepId("z"))) == NO_SUCH_STEP
        await job.ended
        assert await ask(job, stop(pieces, "y")) == "COMPLETED_SUCCESSFULLY"

    run(story())


def test_whoever_stops_a_step_that_cannot_be_ended_yet_is_told_so_and_it_is_accounted_once_later() -> None:
    """Its host's node is cut off: its end is confirmed only by its lease."""

    async def story() -> None:
        world = World()
        pieces = [Piece(key="x", seconds=200.0), Piece(key="y", seconds=1.0)]
        job = await start(world, pieces)
        await until(lambda: world.running.total() == 2)
        next(host for host in world.hosts.values() if host.host.startswith("step0-")).cut(100.0)
        assert await ask(job, stop(pieces, "x")) == "STOP_TIMED_OUT"
        assert code(job, 0) is StepCode.SCHEDULED
        assert await rest(job) is JobStatus.STOPPED
        await check_stopped_by_steps(world, job, ["x"])

    run(story())


def test_steps_that_had_been_running_start_first_after_a_resume() -> None:
    """Also when the job actor dies between the resume and the first start [S5.6]."""

    async def story(dies: bool) -> None:
        world = World(slots=2)
        pieces = [Piece(key=f"p{i}", seconds=5.0 if i in (8, 9) else 0.2, shared=i % 2) for i in range(12)]
        # Two that take long come in the middle of the plan: what goes first is not what the plan says.
        job = await start(world, [pieces[i] for i in (0, 1, 2, 8, 9, 3, 4, 5, 6, 7, 10, 11)])
        await until(lambda: {key for key, n in _running(world).items() if n} == {"p8", "p9"})
        had = {key for key, n in _running(world).items() if n}
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        marks = len(world.marks)
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        if dies:
            job.die()
        await until(lambda: sum(what == "begin" for _, what, _ in world.marks[marks:]) >= 2)
        first = [body.key for _, what, body in world.marks[marks:] if what == "begin"][:2]
        assert set(first) == had == {"p8", "p9"}

    run(story(dies=False))
    run(story(dies=True))


def _running(world: World) -> Counter[str]:
    running: Counter[str] = Counter()
    for _, what, body in world.marks:
        running[body.key] += 1 if what == "begin" else -1
    return running


def test_whoever_asks_an_engine_that_has_ended_is_refused_rather_than_forgotten() -> None:
    """A stop looked up its step while the last turn was made, and then waited for ever, and its actor with it."""

    async def story() -> None:
        world = World()
        job = await start(world, [Piece(key="x")])
        await job.ended
        with pytest.raises(Fenced):
            await asyncio.wait_for(engine_of(job).request(lambda receipt: e.StepStopAsked(receipt, 0)), 60.0)

    run(story())


def test_a_step_of_a_job_that_is_being_cleared_is_refused_with_a_reason() -> None:
    """Its plan was gone already: whoever stopped the step was told of a segment that was never prepared."""

    async def story() -> None:
        world = World()
        Work.world = world
        pieces = [Piece(key="x")]
        job = await world.start(PassingPieces, batch(pieces), options=OPTIONS)
        while world.store._job(job.job_id).prepared or not world.marks:
            await asyncio.sleep(0.0001)
        assert job.current is not None
        job.current._plans._kept.clear()  # type: ignore[union-attr]
        assert await ask(job, stop(pieces, "x")) == "JOB_IS_COMPLETED"

    run(story())
