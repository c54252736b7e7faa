"""Random stories beside a supervisor that has its own troubles; some job actors only it can bring back [S10.4]."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from choreography_ray.testing.loop import run
from choreography_ray.testing.supervisor import SimSupervisor
from tests.simulation.chaos import play
from tests.simulation.walks import draw_story
from tests.simulation.world import World

WALKS = 20
"""Stories per test."""


async def supervised(world: World) -> None:
    """A supervisor looks after the jobs; job actors are ended for good or stuck, and the supervisor is struck too."""
    chance = random.Random(world.seed)
    supervisor = SimSupervisor(world)
    blows: list[Callable[[], None]] = [
        lambda: end_a_job_actor(world, chance),
        lambda: end_a_job_actor(world, chance),
        lambda: stick_a_job_actor(world, chance),
        supervisor.die,
        lambda: supervisor.cut(supervisor.process),
        supervisor.look,
    ]
    for _ in range(chance.randrange(7)):
        await asyncio.sleep(chance.choice((3.0, 20.0, 60.0)) * chance.random())
        chance.choice(blows)()


def end_a_job_actor(world: World, chance: random.Random) -> None:
    """Somebody kills it without a restart. Before there is a plan nobody could go on with its job."""
    planned = [job for job in world.jobs.values() if not job.is_over and world.store._documents[job.job_id].plan]
    if planned:
        chance.choice(planned).end_for_good()


def stick_a_job_actor(world: World, chance: random.Random) -> None:
    """Its process never runs again, and Ray does not see that."""
    planned = [job for job in world.jobs.values() if job.process and world.store._documents[job.job_id].plan]
    if planned:
        job = chance.choice(planned)
        assert job.process is not None
        job.cut(job.process, 10_000.0, noticed_after=20_000.0)


def walk(begin: int) -> None:
    for seed in range(begin, begin + WALKS):
        try:
            run(play(draw_story(seed), supervised))
        except BaseException as error:
            error.add_note(f"the story of seed {seed}")
            raise


@pytest.mark.parametrize("begin", range(1_000_000, 1_000_000 + 3 * WALKS, WALKS))
def test_seeded_stories_under_a_supervisor_come_to_their_end(begin: int) -> None:
    """Every job ends, each outcome counts once, and nothing is left of it."""
    walk(begin)


@pytest.mark.long
@pytest.mark.parametrize("begin", range(2_000_000, 2_000_000 + 100 * WALKS, WALKS))
def test_many_more_seeded_stories_under_a_supervisor_come_to_their_end(begin: int) -> None:
    """The same for the big run."""
    walk(begin)
