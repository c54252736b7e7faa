"""Does what an incarnation counts agree with what became of its job [S16]?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from choreography_ray.engine.tally import Counted, Measured, Numbers
from choreography_ray.options import JobsOptions
from choreography_ray.testing.loop import run
from tests.simulation.jobs import Piece, Pieces, Work, batch
from tests.simulation.world import World


def test_a_host_that_dies_under_its_step_is_counted() -> None:
    async def story(world: World) -> Numbers:
        Work.world = world
        job = await world.start(
            Pieces, batch([Piece(key=str(i), seconds=2.0) for i in range(3)]), options=JobsOptions()
        )
        await asyncio.sleep(2.0)
        next(iter(world.hosts.values())).die()
        await job.ended
        assert job.current is not None
        numbers = job.current.numbers()
        assert numbers is not None
        return numbers

    counts = run(story(World())).counts
    assert counts[Counted.LOST_HOSTS, "died"] == 1
    assert counts[Counted.STEPS, "COMPLETED_SUCCESSFULLY"] == 3


def test_steps_retries_deliveries_and_troubles_are_counted() -> None:
    """The store is away for a while in the middle; what is not told in time the watchdog finds."""

    async def story(world: World) -> Numbers:
        Work.world = world
        pieces = [Piece(key=str(i), seconds=2.0, fail_first=i) for i in range(4)]
        options = JobsOptions(max_step_attempts=3, step_retry_backoff=timedelta(seconds=5))
        job = await world.start(Pieces, batch(pieces), options=options)
        await asyncio.sleep(1.0)
        world.store_away_until = world.now + 10
        await job.ended
        assert job.current is not None
        numbers = job.current.numbers()
        assert numbers is not None
        return numbers

    numbers = run(story(World()))
    counts = numbers.counts
    assert counts[Counted.STEPS, "COMPLETED_SUCCESSFULLY"] == 3
    assert counts[Counted.STEPS, "COMPLETED_WITH_FAILURE"] == 1
    assert counts[Counted.JOBS, "COMPLETED_WITH_FAILURES"] == counts[Counted.JOBS, "RUNNING"] == 1
    # The attempts that failed: 1 + 2 + 3 of which the last is final.
    assert counts[Counted.RETRIES, ""] == 5
    assert counts[Counted.STORE_ERRORS, ""] > 0
    assert counts[Counted.DELIVERIES, ""] == len(numbers.seconds[Measured.STEP])
    assert counts[Counted.DELIVERIES, ""] + counts[Counted.WATCHDOG_FINDINGS, ""] == 3 + counts[Counted.RETRIES, ""] + 1
    assert counts[Counted.WATCHDOG_FINDINGS, ""] > 0
    assert (Counted.LOST_HOSTS, "died") not in counts, "a host that was ended because it had nothing left to do"
    assert all(2.0 <= seconds < 3.0 for seconds in numbers.seconds[Measured.STEP])
    assert len(numbers.seconds[Measured.RECORDING]) == counts[Counted.DELIVERIES, ""]
