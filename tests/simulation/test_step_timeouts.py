"""Stories of bodies that take longer than they may, and do not care [S6.8]."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from choreography_ray.core.policies import GroupSizer
from choreography_ray.model import JobStatus, StepHosting
from choreography_ray.options import JobsOptions
from choreography_ray.testing.asking import rest
from choreography_ray.testing.loop import run
from tests.simulation.jobs import Batch, Piece, Pieces, SharedPairs, Work, batch
from tests.simulation.world import World

TIMEOUT = 3.0
PATIENCE = 2.0
OPTIONS = JobsOptions(step_stop_timeout=timedelta(seconds=PATIENCE))


class Deaf(Work):
    """Goes on whatever it is told."""

    step_timeout = timedelta(seconds=TIMEOUT)

    async def _work(self, seconds: float, context: Any, *, stubborn: bool) -> None:
        until = self.world.now + seconds
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await asyncio.sleep(until - self.world.now)  # what cancels this too is the end of its process


class DeafPairs(Deaf):
    """The same on warm hosts, two at a time."""

    hosting = StepHosting.SHARED_ACTORS
    steps_per_actor = SharedPairs.steps_per_actor


CLASSES = (Deaf, DeafPairs)


class DeafPieces(Pieces):
    """A job of such bodies."""

    def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def]
        for piece in request.pieces:
            yield self.create_step(CLASSES[piece.shared], piece, step_id=piece.key)


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("seconds", [4.0, 900.0])
def test_a_body_that_swallows_its_timeout_is_ended_with_its_process(shared: int, seconds: float) -> None:
    """The attempt has failed at the timeout. A body that ends meanwhile changes nothing; one that does not is ended."""

    async def story() -> None:
        world = World()
        Work.world = world
        pieces = [
            Piece(key="deaf", seconds=seconds, stubborn=True, shared=shared),
            Piece(key="slow", seconds=seconds, shared=shared),
            Piece(key="quick", seconds=1.0, shared=shared),
        ]
        began = world.now
        job = await world.start(DeafPieces, batch(pieces), options=OPTIONS)
        assert await rest(job) is JobStatus.COMPLETED_WITH_FAILURES
        assert world.now - began < TIMEOUT + PATIENCE + 25.0
        document = await world.document()
        assert (document.counts.succeeded, document.counts.failed) == (1, 2)
        failures = await world.store.read_failures(job.job_id)
        assert [failure.attempts[-1].error_type for failure in failures] == ["choreography_ray.errors.StepTimedOut"] * 2
        assert not +world.running

    run(story())


def test_what_a_neighbour_returned_is_kept_when_a_body_ends_while_its_process_is_being_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outcomes that are being persisted with the timeout are persisted, whenever the body itself ends."""
    monkeypatch.setattr(GroupSizer, "share", lambda self, pending, hosts, width: 3)
    monkeypatch.setattr(GroupSizer, "size", 1)
    monkeypatch.setattr(GroupSizer, "learn", lambda self, steps, seconds, width: None)
    monkeypatch.setattr(GroupSizer, "__init__", lambda self: None)

    async def story(late: float) -> None:
        world = World(slots=2)
        Work.world = world
        pieces = [
            Piece(key="deaf", seconds=TIMEOUT + PATIENCE + late, stubborn=True, shared=1),
            Piece(key="in time", seconds=TIMEOUT - 0.1, shared=1),
            Piece(key="unsaved yet", seconds=PATIENCE, shared=1),
        ]
        began = world.now
        job = await world.start(DeafPieces, batch(pieces), options=OPTIONS)
        assert await rest(job) is JobStatus.COMPLETED_WITH_FAILURES
        assert world.now - began < TIMEOUT + PATIENCE + 5.0  # nothing is left for the watchdog to find
        document = await world.document()
        assert (document.counts.succeeded, document.counts.failed) == (2, 1)
        assert max(body.attempt for _, _, body in world.marks) == 1
        assert [what for _, what, body in world.marks if body.key == "unsaved yet"] == ["begin", "end"]

    for step in range(-4, 12):
        run(story(step * 0.00025))
