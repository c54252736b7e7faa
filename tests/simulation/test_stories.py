"""Short stories of jobs over the real core and engine, in virtual time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from choreography_ray.model import JobStatus
from choreography_ray.options import JobsOptions
from tests.simulation.check import check_end, check_world
from tests.simulation.jobs import Piece, Pieces, Work, batch
from tests.simulation.loop import run
from tests.simulation.world import World


async def play(world: World, pieces: list[Piece], *, continue_stages: list[int] | None = None, **options: object):
    """Run one job to its end and check what must hold."""
    Work.world = world
    chosen = JobsOptions(**options)  # type: ignore[arg-type]
    job = await world.start(Pieces, batch(pieces, continue_stages or ()), options=chosen)
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
        Piece(key=f"{s}-{i}", stage=s, shared=shared, fail_first=(s, i) == (10, 1)) for s in (0, 10, 20) for i in range(5)
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
