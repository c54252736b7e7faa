"""Stories by chance: what jobs there are, and what strikes them when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from choreography_ray.engine.rest import NOT_PREPARED, Request, RequestKind, StopStep
from choreography_ray.errors import OwnedElsewhere
from choreography_ray.job import Job
from choreography_ray.model import JobStatus, JobStepStatus
from choreography_ray.options import JobsOptions
from choreography_ray.testing.asking import ask, revive
from choreography_ray.testing.faults import ISOLATED_SECONDS, Fault, Wire
from choreography_ray.testing.job_actor import SimJob
from tests.simulation.check import check_end, check_world
from tests.simulation.jobs import PassingPieces, Piece, Work, batch
from tests.simulation.world import World


class Blow(StrEnum):
    """What can strike."""

    KILL_JOB = "kill a job actor"
    KILL_HOST = "kill a host"
    CUT_JOB = "cut a job actor off"
    CUT_NODE = "cut a job actor off together with its hosts"
    CUT_HOST = "cut a host off"
    KILL_THROTTLE = "kill the throttle"
    STORE_AWAY = "the store answers nobody"
    STOP = "somebody stops a job"
    DRAIN = "somebody drains a job"
    RESUME = "somebody resumes a job"
    STOP_STEP = "somebody stops a step"
    JOB_WITHOUT_STORE = "the store does not answer a job actor"


@dataclass(frozen=True)
class Strike:
    """`at` seconds after the start; `pick` chooses the victim, `seconds` says how long it lasts."""

    at: float
    blow: Blow
    pick: int = 0
    seconds: float = 5.0


@dataclass(frozen=True)
class Plan:
    """One job of a story."""

    job_class: type[Job[Any, Any]]
    pieces: tuple[Piece, ...]
    continue_stages: tuple[int, ...] = ()
    window: int | None = None
    attempts: int = 1
    backoff: float = 2.0
    starts: int = 16
    begins_at: float = 0.0
    hook_seconds: float = 0.0


CALM_WIRE = Wire()


@dataclass(frozen=True)
class Story:
    """Everything that a world is told in advance."""

    plans: tuple[Plan, ...]
    strikes: tuple[Strike, ...] = ()
    job_faults: tuple[Fault, ...] = ()
    """At writes of all job actors, counted together."""
    host_faults: tuple[Fault, ...] = ()
    wire: Wire = CALM_WIRE
    slots: int = 3
    seed: int = 0
    failing: float = 0.0
    """Share of hosts that fail to start."""
    waiting: float = 0.0
    """Share of hosts that wait for their resources, some of them longer than `placement_timeout`."""
    options: dict[str, Any] = field(default_factory=dict)


REQUESTS = {Blow.STOP: RequestKind.STOP, Blow.DRAIN: RequestKind.DRAIN, Blow.RESUME: RequestKind.RESUME}


async def _stop_step(job: SimJob, ordinal: int) -> None:
    world = Work.world  # where people's marks are left, whichever cluster they ask
    asked = world.clock.instant().at
    world.open_step_stops += 1
    step = StopStep(ordinal, world.planned[job.job_id].step_ids[ordinal])
    if await _ask_here(job, step) == JobStepStatus.STOPPED:
        world.stopped_steps[job.job_id, ordinal] = asked
    world.open_step_stops -= 1


async def _ask_here(job: SimJob, what: Request) -> str | int | None:
    """The answer; None: it is another cluster's to give."""
    try:
        return await ask(job, what)
    except OwnedElsewhere:
        return None


def strike(world: World, one: Strike) -> None:
    """Let it happen."""
    if one.blow is Blow.STOP_STEP:
        everybody = list(world.jobs.values())
        if everybody:
            Work.world.requests += 1
            job = everybody[one.pick % len(everybody)]
            world.spawn(_stop_step(job, one.pick // len(everybody) % len(world.planned[job.job_id].step_ids)))
        return
    if one.blow in REQUESTS:
        everybody = list(world.jobs.values())
        if everybody:
            Work.world.requests += 1
            world.spawn(_ask_here(everybody[one.pick % len(everybody)], REQUESTS[one.blow]))
        return
    jobs = [job for job in world.jobs.values() if not job.is_over]
    hosts = list(world.hosts.values())
    if one.blow is Blow.KILL_THROTTLE:
        world.kill_throttle(one.seconds / 4)
    elif one.blow is Blow.STORE_AWAY:
        world.store_away_until = world.now + one.seconds
    elif one.blow in (Blow.KILL_HOST, Blow.CUT_HOST):
        if hosts:
            host = hosts[one.pick % len(hosts)]
            if one.blow is Blow.KILL_HOST:
                host.die()
            else:
                host.cut(one.seconds)
    elif jobs:
        job = jobs[one.pick % len(jobs)]
        if one.blow is Blow.KILL_JOB:
            job.die()
        elif job.process is None:
            return
        elif one.blow in (Blow.CUT_JOB, Blow.CUT_NODE):
            with_hosts = one.blow is Blow.CUT_NODE
            job.cut(job.process, one.seconds, noticed_after=2.0 + one.pick % 7, with_hosts=with_hosts)
        else:
            world.without_store[job.process] = world.now + one.seconds


async def _strike_all(world: World, strikes: Sequence[Strike]) -> None:
    begin = world.now
    for one in sorted(strikes, key=lambda s: s.at):
        await asyncio.sleep(max(0.0, begin + one.at - world.now))
        strike(world, one)


def make(story: Story) -> World:
    """The world of a story."""
    world = World(
        slots=story.slots,
        seed=story.seed,
        wire=story.wire,
        job_faults=list(story.job_faults),
        host_faults=list(story.host_faults),
    )
    Work.world = world

    def placement(kind: object) -> float:
        return world.random.choice((3.0, 30.0, 100.0)) if world.random.random() < story.waiting else 0.0

    world.placement = placement
    world.failing_hosts = lambda kind: world.random.random() < story.failing
    return world


async def _end_of(job: SimJob) -> tuple[SimJob, JobStatus]:
    """How it ended, and in which cluster: those that leave it to others do not tell."""
    clusters = (Work.world, *Work.world.neighbours)
    while True:
        actors = [world.jobs[job.job_id] for world in clusters if job.job_id in world.jobs]
        for actor in actors:
            if actor.ended.done() and not isinstance(actor.ended.exception(), OwnedElsewhere):
                return actor, actor.ended.result()
        if pending := [actor.ended for actor in actors if not actor.ended.done()]:
            await asyncio.wait(pending, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(1.0)


async def _await_start(job: SimJob) -> None:
    """The driver: until its start is answered it has an actor made where there is none, as the client does."""
    while not job.started.done():
        if job.is_over and not job.ended.done():
            revive(job)
        await asyncio.sleep(1.0)


async def _until_ended(job: SimJob) -> None:
    """Until it has ended; one that was stopped is resumed, as often as it takes."""
    while True:
        job, status = await _end_of(job)
        if status is not JobStatus.STOPPED:
            return
        document = await job.cluster.document(job.job_id)
        running = sum(n for (job_id, _), n in Work.world.running.items() if job_id == job.job_id)
        # Somebody else may have resumed it since: then it is not stopped any more.
        is_stopped = document.status is JobStatus.STOPPED and document.is_stop_finalized
        assert not (running and is_stopped), f"{running} bodies of {job.job_id} run although it is stopped"
        await asyncio.sleep(1.0)
        if await _ask_here(job, RequestKind.RESUME) == NOT_PREPARED:
            return  # stopped before there was a plan: nothing can be resumed


async def _until_answered(world: World) -> None:
    """Whoever stopped a step when all was over may have asked a job actor that was cut off then: until it wakes."""
    if world.open_step_stops:
        await asyncio.sleep(ISOLATED_SECONDS)
        await world.settle()


async def play(story: Story, *witnesses: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """Tell the story to its end: every job ends, and all that must hold does. `witnesses` look on meanwhile."""
    world = make(story)
    for witness in witnesses:
        world.spawn(witness(world))
    world.spawn(_strike_all(world, story.strikes))
    begin = world.now
    jobs = {}
    for number, plan in enumerate(sorted(story.plans, key=lambda p: p.begins_at)):
        await asyncio.sleep(max(0.0, begin + plan.begins_at - world.now))
        options = JobsOptions(
            max_active_steps_per_job=plan.window,
            max_step_attempts=plan.attempts,
            step_retry_backoff=timedelta(seconds=plan.backoff),
            max_concurrent_step_starts=plan.starts,
            max_step_crashes=50,
            max_job_crashes=50,
            **story.options,
        )
        request = batch(plan.pieces, plan.continue_stages, plan.hook_seconds)
        job = await world.start(plan.job_class, request, options=options, job_id=f"job{number}")
        jobs[f"job{number}"] = job
        world.spawn(_await_start(job))
    await asyncio.gather(*(_until_ended(job) for job in jobs.values()))
    await world.settle()
    await asyncio.gather(*(_until_ended(job) for job in jobs.values()))
    await _until_answered(world)
    for job_id, job in jobs.items():
        document = await world.document(job_id)
        if document.plan is None:
            # The process died before a plan was saved: nothing ran, and nothing is planned again [S4].
            assert world.requests or job.incarnations > 1 or document.start_error, document
            continue
        await check_end(world, job_id)
        assert document.is_cleared == (job.code.job_class is PassingPieces)
    check_world(world)
    assert not world.open_step_stops, "somebody who stopped a step was never answered"
    is_calm = not (story.strikes or story.job_faults or story.host_faults) and story.wire == CALM_WIRE
    assert not is_calm or world.neighbours or not world.held_soon, "slots outlive their jobs"
    return world
