"""Random stories of two clusters on one database, each with a supervisor and troubles of its own [S10.3]."""

from __future__ import annotations

import asyncio
import random

import pytest

from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from choreography_ray.testing.supervisor import SimSupervisor
from tests.simulation.chaos import Blow, Story, Strike, play, strike
from tests.simulation.check import check_world
from tests.simulation.walks import draw_story
from tests.simulation.world import World

WALKS = 20
"""Stories per test."""


class Second(World):
    """Another cluster on the store of the first: an actor of each job can be made in it, too."""

    def __init__(self, first: World) -> None:
        super().__init__(name="second", slots=first.slots, seed=first.seed + 1, wire=first.wire)
        self.store = first.store
        self.invariants = first.invariants  # one store, one memory of what was written
        self.first = first
        self.planned = first.planned
        first.neighbours.append(self)
        first.spawn(self._learn())

    async def _learn(self) -> None:
        """Of the first cluster's jobs, as they come: no actor of them is here yet."""
        while True:
            for job_id, job in self.first.jobs.items():
                if job_id not in self.jobs:
                    mine = self.jobs[job_id] = SimJob(self, job_id, job.code)
                    mine.is_over = True
            await asyncio.sleep(0.5)


BLOWS = (
    *(Blow.KILL_JOB, Blow.KILL_HOST, Blow.CUT_JOB, Blow.CUT_NODE, Blow.CUT_HOST, Blow.KILL_THROTTLE),
    *(Blow.STOP, Blow.DRAIN, Blow.RESUME, Blow.STOP_STEP),
)


async def beside_a_second(first: World) -> None:
    """A second cluster comes up; a supervisor of each looks for jobs, and each hangs now and then."""
    chance = random.Random(first.seed)
    supervisors = [SimSupervisor(first), SimSupervisor(Second(first))]
    await asyncio.sleep(10.0 * chance.random())
    hang(supervisors[0], chance)
    for _ in range(chance.randrange(7)):
        await asyncio.sleep(chance.choice((3.0, 20.0, 60.0)) * chance.random())
        supervisor = chance.choice(supervisors)
        if chance.random() < 0.3:
            hang(supervisor, chance)
        else:
            blow, seconds = chance.choice(BLOWS), chance.choice((5.0, 45.0, 90.0))
            strike(supervisor.cluster, Strike(0.0, blow, chance.randrange(1000), seconds))


def hang(supervisor: SimSupervisor, chance: random.Random) -> None:
    """The processes of a cluster are stopped for a while: supervisor, job actors and their hosts. Not of jobs that have
    no plan yet, with which nobody could go on.
    """
    seconds = chance.choice((25.0, 90.0, 150.0))
    asyncio.get_running_loop().call_later(seconds, supervisor.process.heal)
    supervisor.process.cut()
    for job in supervisor.cluster.jobs.values():
        if job.process is not None and supervisor.cluster.store._documents[job.job_id].plan:
            job.zombies.append(job.process)  # whoever took the job over meets it
            job.cut(job.process, seconds, noticed_after=10_000.0, with_hosts=True)


async def tell(story: Story) -> None:
    """To its end, in both clusters."""
    world = await play(story, beside_a_second)
    for second in world.neighbours:
        await second.settle()
        check_world(second)


def walk(begin: int) -> None:
    for seed in range(begin, begin + WALKS):
        try:
            run(tell(draw_story(seed)))
        except BaseException as error:
            error.add_note(f"the story of seed {seed}")
            raise


@pytest.mark.parametrize("begin", range(3_000_000, 3_000_000 + 2 * WALKS, WALKS))
def test_seeded_stories_of_two_clusters_come_to_their_end(begin: int) -> None:
    """Every job ends, in either cluster; each outcome counts once, no body runs twice at once, and nothing is left."""
    walk(begin)


@pytest.mark.long
@pytest.mark.parametrize("begin", range(4_000_000, 4_000_000 + 100 * WALKS, WALKS))
def test_many_more_seeded_stories_of_two_clusters_come_to_their_end(begin: int) -> None:
    """The same for the big run."""
    walk(begin)
