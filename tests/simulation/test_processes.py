"""What ends with a simulated process: everything that it had begun, by whichever hand."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import Any

import pytest

from choreography_ray.model import JobStatus
from choreography_ray.testing.asking import rest
from choreography_ray.testing.loop import run
from tests.simulation.jobs import Piece, Pieces, Work, batch
from tests.simulation.world import World


@pytest.mark.parametrize("victim", ["host", "job"])
def test_nothing_of_a_killed_process_is_left_to_the_garbage_collector(
    victim: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that waited in it told of a context that was not its own, and tasks were destroyed while pending."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    async def story() -> None:
        world = World()
        Work.world = world
        piece = Piece(key="a", seconds=30.0, checkpoints=5, callback_seconds=4.0)
        job = await world.start(Pieces, batch([piece, piece.model_copy(update={"key": "b", "shared": 1})]))
        for _ in range(4):
            await asyncio.sleep(11.0)
            for host in [*world.hosts.values()]:
                if victim == "host":
                    host.die()
            if victim == "job":
                job.die()
        assert world.host_kills >= 4 or world.job_kills == 4
        assert await rest(job) in (JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES)

    gc.collect()  # what earlier tests left is not this one's
    with caplog.at_level(logging.ERROR, "asyncio"):
        run(story())
        gc.collect()
    assert not unraisable, unraisable
    assert not [record for record in caplog.records if "destroyed" in record.message]
