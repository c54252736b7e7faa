"""Every write of a story cut before, inside and after it: the job is built anew and comes to the same end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from choreography_ray.model import JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import Counts
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.loop import run
from tests.simulation.check import check_end
from tests.simulation.jobs import Piece, Pieces, SilentPieces, Work, batch
from tests.simulation.world import World

PIECES = [
    *(Piece(key=f"a{i}", stage=0, fail_first=1 if i == 2 else 0) for i in range(4)),
    *(Piece(key=f"b{i}", stage=10, shared=1, fail_first=9 if i == 1 else 0) for i in range(8)),
    *(Piece(key=f"c{i}", stage=20, shared=1 - i % 2) for i in range(4)),
    Piece(key="d", stage=30, fail_first=9),
    Piece(key="e", stage=40),
]
OPTIONS = JobsOptions(max_step_attempts=2, step_retry_backoff=timedelta(seconds=3))
EXPECTED = Counts(succeeded=15, failed=2, unreachable=1)


KINDS = (Pieces, SilentPieces)


async def play(world: World, kind: type[SilentPieces] = Pieces) -> None:
    Work.world = world
    job = await world.start(kind, batch(PIECES, [10]), options=OPTIONS)
    await job.ended
    document = await world.document()
    if document.plan is None or (document.status is JobStatus.FAILED and document.start_error):
        # The process died before a plan was saved: nothing ran, and nothing is planned again [S4].
        assert world.job_kills
        assert not world.marks
        return
    await check_end(world)
    assert document.counts == EXPECTED


def writes_of_the_story(kind: type[SilentPieces]) -> tuple[int, int]:
    world = World()
    run(play(world, kind))
    return world.job_writes[0], world.host_writes[0]


JOB_WRITES = {kind: writes_of_the_story(kind)[0] for kind in KINDS}
HOST_WRITES = writes_of_the_story(Pieces)[1]


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_job_actor_is_cut_at_every_write(kind: type[SilentPieces], cut: Cut, kills: bool) -> None:
    """A killed job actor is built anew; one whose write got no answer repeats it unchanged."""
    for at in range(JOB_WRITES[kind]):
        world = World(job_faults=[Fault(at, cut, kills)])
        run(play(world, kind))
        assert world.job_kills == kills, f"the fault at write {at} did not strike"


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("kills", [True, False])
def test_a_host_is_cut_at_every_write(cut: Cut, kills: bool) -> None:
    """What a killed host had persisted counts; its other steps run again."""
    for at in range(HOST_WRITES):
        world = World(host_faults=[Fault(at, cut, kills)])
        run(play(world))
        assert world.host_kills == kills, f"the fault at write {at} did not strike"


@pytest.mark.parametrize("second", range(1, 12))
@pytest.mark.parametrize("kind", KINDS)
def test_the_job_actor_is_cut_twice(kind: type[SilentPieces], second: int) -> None:
    """Recovery itself is cut: what it repeats can be repeated again."""
    for at in range(0, JOB_WRITES[kind], 3):
        world = World(job_faults=[Fault(at, Cut.AFTER, True), Fault(at + second, Cut.INSIDE, True)])
        run(play(world, kind))
