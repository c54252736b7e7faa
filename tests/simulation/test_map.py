"""A map's items become its plan while they come: a start that ends on the way leaves nothing [S2.3]."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from choreography_ray.client.mapping import PAGE_STEPS, MapPlan, pages_of
from choreography_ray.code import type_reference
from choreography_ray.codec import Encoder, decode, encode
from choreography_ray.errors import StartJobError, StartJobReason, StorageUnavailable
from choreography_ray.mapping import MapRequest, classes_for
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument
from choreography_ray.storage.protocol import JobFilter
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from tests.simulation.world import World

JOB = JobId("job")


async def square(item: int) -> int:
    if item == 13:
        raise ValueError("unlucky")
    return item * item


def opened(world: World) -> tuple[MapPlan, SimJob]:
    """A map whose items are to be added, and its actor, which does not live yet."""
    job_class, step_class = classes_for(square)
    at = world.clock.instant().at
    request = encode(MapRequest(function="square"))
    state = encode(job_class.state_type())
    code = CodeRef("choreography_ray.mapping", "Mapping")
    document = JobDocument(JOB, "square", code, request, state, JobsOptions(), at, at, keep_results=True)
    actor = SimJob(world, JOB, LivingCode(job_class))
    actor.code.types[type_reference(step_class)] = step_class
    world.jobs[JOB] = actor
    return MapPlan(world.store, document, step_class, b"captured", Encoder()), actor


@asynccontextmanager
async def upload(plan: MapPlan, items: Any) -> AsyncIterator[None]:
    """What the client does."""
    try:
        for page in pages_of(items):
            await plan.add(page)
        await plan.finish()
        yield
    finally:
        await plan.give_up()


async def results(world: World) -> list[tuple[str, Any]]:
    found = await world.store.read_results(JOB, take=10_000)
    return [(kept.step_id, decode(kept.value)) for kept in found]


@pytest.mark.parametrize("count", [1, 250, PAGE_STEPS, 2 * PAGE_STEPS + 14])
def test_results_lie_in_the_order_of_the_items(count: int) -> None:
    """However many pages they fill; a failing item is that step's failure, and keeps no other from its result."""
    world = World(slots=3)

    async def play() -> None:
        plan, actor = opened(world)
        async with upload(plan, (i for i in range(count))):
            document = await world.document()
            assert (document.status, document.plan and document.plan.total) == (JobStatus.PREPARING_STEPS, count)
            actor.live()
        await actor.ended
        document = await world.document()
        assert document.counts.failed == (1 if count > 13 else 0)
        assert document.start_error == ""
        assert await results(world) == [(str(i), i * i) for i in range(count) if i != 13]
        assert document.is_cleared is (count <= 13)

    run(play())


def test_no_items_are_a_job_that_completes_at_once() -> None:
    """As an empty plan does [S4.1]."""
    world = World()

    async def play() -> None:
        plan, actor = opened(world)
        async with upload(plan, []):
            actor.live()
        await actor.ended
        document = await world.document()
        assert document.status is JobStatus.COMPLETED_SUCCESSFULLY
        assert document.start_error == "NO_JOB_STEPS_TO_START"

    run(play())


async def nothing_is_left(world: World) -> None:
    assert await world.store.list_jobs(JobFilter()) == []
    there = world.store._job(JOB)
    assert not there.segments
    assert not there.plans


def broken_off(after: int) -> Iterator[int]:
    yield from range(after)
    raise RuntimeError("the source is gone")


@pytest.mark.parametrize("after", [0, 10, PAGE_STEPS, PAGE_STEPS + 1])
def test_an_iterable_that_raises_leaves_nothing(after: int) -> None:
    """The caller gets what it raised."""
    world = World()

    async def play() -> None:
        plan, _ = opened(world)
        with pytest.raises(RuntimeError, match="the source is gone"):
            async with upload(plan, broken_off(after)):
                pass
        await nothing_is_left(world)

    run(play())


def test_an_item_that_cannot_be_stored_is_named_and_leaves_nothing() -> None:
    """Before any step starts [S12.3]."""
    world = World()

    async def play() -> None:
        plan, _ = opened(world)
        with pytest.raises(StartJobError) as caught:
            async with upload(plan, [*range(PAGE_STEPS), {"a": [len]}]):
                pass
        assert caught.value.reason is StartJobReason.INVALID_STEP_PLAN
        assert caught.value.details[0].startswith(f"items[{PAGE_STEPS}]['a'][0]: a builtins.builtin_function")
        await nothing_is_left(world)

    run(play())


def test_a_map_whose_starter_dies_is_never_begun_with_a_part_of_its_items() -> None:
    """Nobody goes on with it; whoever lets its actor live finds it failed, with the reason."""
    world = World()

    async def play() -> None:
        plan, actor = opened(world)
        for page in pages_of(range(2 * PAGE_STEPS)):
            await plan.add(page)
        document = await world.document()
        assert (document.status, document.plan, document.is_background) == (JobStatus.PREPARING_JOB, None, False)
        actor.live()
        await actor.ended
        document = await world.document()
        assert document.status is JobStatus.FAILED
        assert "not all items had been saved" in document.error
        assert not world.marks

    run(play())


def test_a_map_that_is_stopped_while_its_items_come_says_so_and_starts_nothing() -> None:
    """Whoever took the job over was first: the starter is fenced."""
    world = World()

    async def play() -> None:
        plan, _ = opened(world)
        await plan.add([1])
        assert await world.store.raise_fence(JOB, 0, 77)
        with pytest.raises(StartJobError, match="while its items were being saved") as caught:
            await plan.finish()
        assert caught.value.reason is StartJobReason.STOPPED
        await plan.give_up()
        assert (await world.document()).fence == 77, "what is another's is left to it"

    run(play())


def test_a_store_that_is_away_for_a_while_costs_time_and_nothing_else() -> None:
    """Every write is repeated unchanged until it is answered, applied or not [S10.1]."""
    world = World()
    real = world.store
    calls = 0

    class Flaky:
        def __getattr__(self, name: str) -> Any:
            method = getattr(real, name)

            async def call(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls % 3 == 1:
                    raise StorageUnavailable("store", "away")
                value = await method(*args)
                if calls % 3 == 2:
                    raise StorageUnavailable("store", "no reply")
                return value

            return call

    async def play() -> None:
        plan, actor = opened(world)
        flaky = MapPlan(Flaky(), replace(plan.document), plan._step_class, b"captured", Encoder())  # type: ignore[arg-type]
        async with upload(flaky, range(PAGE_STEPS + 7)):
            actor.live()
        await actor.ended
        assert len(await results(world)) == PAGE_STEPS + 6

    run(play())
