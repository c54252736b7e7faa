"""Stories of warm hosts that perform many steps at a time: how many are there, and whom does a slow body hold up?"""

from __future__ import annotations

from typing import Any

import pytest

from choreography_ray.model import JobStatus, StepHosting
from choreography_ray.testing.asking import rest
from choreography_ray.testing.hosts import SimHost
from choreography_ray.testing.loop import run
from tests.simulation.jobs import Batch, Piece, Pieces, Work, batch
from tests.simulation.world import World


class WideWork(Work):
    """Ten at a time."""

    hosting = StepHosting.SHARED_ACTORS
    steps_per_actor = 10


class WidePieces(Pieces):
    """A job of such steps."""

    def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def]
        for piece in request.pieces:
            yield self.create_step(WideWork, piece, step_id=piece.key)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hosts that were made."""
    hosts: list[Any] = []
    make = SimHost.__init__

    def note(self: Any, *args: Any, **options: Any) -> None:
        hosts.append(self)
        make(self, *args, **options)

    monkeypatch.setattr(SimHost, "__init__", note)
    return hosts


@pytest.mark.parametrize("seconds", [0.05, 30.0])
def test_as_many_hosts_are_made_as_the_slots_take(made: list[Any], seconds: float) -> None:
    """Also for the last steps, which are too few to fill every host; and each performs ten at a time."""

    async def story() -> None:
        world = World(slots=20)
        Work.world = world
        job = await world.start(WidePieces, batch([Piece(key=f"{n}", seconds=seconds) for n in range(105)]))
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        assert len(made) == 2
        assert world.peak == 20

    run(story())


def test_a_slow_body_holds_one_slot_and_not_those_of_its_group(made: list[Any]) -> None:
    """What its neighbours leave goes to the steps that wait: where no warm host is free, to a new one."""

    async def story() -> None:
        world = World(slots=20)
        Work.world = world
        pieces = [Piece(key=f"{n}", seconds=200.0 if n in (0, 10) else 0.05) for n in range(60)]
        began = world.now
        job = await world.start(WidePieces, batch(pieces))
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        ends = sorted(at - began for at, what, _ in world.marks if what == "end")
        assert len(ends) == 60
        assert ends[-3] < 60.0
        assert len(made) > 2

    run(story())
