"""What is kept of steps that fail again and again, and when they are tried anew [S7, CASES P6]."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import bson
import pytest

from choreography_ray.authoring.result import JobStepResult
from choreography_ray.codec import decode
from choreography_ray.engine.verification import verify_job
from choreography_ray.model import AttemptRecord, JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.storage import documents as docs
from choreography_ray.testing.asking import ask, rest, retry
from choreography_ray.testing.loop import run
from tests.simulation.jobs import Batch, BatchState, Piece, Pieces, PieceState, SilentPieces, Work, batch
from tests.simulation.world import World

JOB = JobId("job")
USED = (Batch, BatchState, PieceState)  # classes of payloads are looked for in this module


class Loud(Work):
    """Fails with a traceback of 200 KB, raised or told, each time."""

    async def perform_step(self, state: PieceState, context: Any) -> Any:
        noise = f"attempt {context.attempt} " + "x" * 200_000
        assert state.piece is not None
        if state.piece.key == "told":
            return JobStepResult.failed(AttemptRecord(attempt=0, error_type="Told", message=noise, traceback=noise))
        raise ValueError(noise)


class LoudPieces(Pieces):
    """A job of them."""

    def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def]
        for piece in request.pieces:
            yield self.create_step(Loud, piece, step_id=piece.key)


@pytest.mark.parametrize("key", ["raised", "told"])
def test_a_step_that_fails_a_hundred_times_with_a_large_traceback_stays_small(key: str) -> None:
    """Its document at every moment, its record at the end, and the job's history."""
    sizes: list[int] = []

    async def story() -> None:
        world = World()
        Work.world = world
        options = JobsOptions(max_step_attempts=100, step_retry_backoff=timedelta(seconds=1))
        options = options.model_copy(update={"max_step_retry_backoff": timedelta(seconds=2)})
        job = await world.start(LoudPieces, batch([Piece(key=key)]), options=options)
        while not job.ended.done():
            documents = await world.store.read_step_documents(JOB)
            sizes.extend(len(bson.encode(docs.step_update(JOB, document)["$set"])) for document in documents)
            await asyncio.sleep(0.5)
        (failed,) = await world.store.read_failures(JOB)
        assert failed.attempt == 100
        assert [failure.attempt for failure in failed.attempts] == [1, *range(92, 101)]
        assert all(f"attempt {f.attempt} " in f.message for f in failed.attempts)
        assert failed.attempts[-1].traceback.endswith("xxx" if key == "told" else "xxx\n")
        sizes.append(len(bson.encode(docs.failed_step_document(JOB, failed))))
        assert len((await world.document()).history) < 10

    run(story())
    assert len(sizes) > 100
    assert max(sizes) < 110_000


def test_the_delay_before_a_retry_doubles_anew_when_failed_steps_are_run_again() -> None:
    """After three attempts the delays were 5 and 10 s. Run again, they are 5 and 10 s once more, not 40 and 80."""

    async def story() -> None:
        world = World()
        Work.world = world
        job = await world.start(
            Pieces, batch([Piece(key="a", fail_first=99)]), options=JobsOptions(max_step_attempts=3)
        )
        assert await rest(job) is JobStatus.COMPLETED_WITH_FAILURES
        assert await ask(job, retry()) == 1
        assert await rest(job) is JobStatus.COMPLETED_WITH_FAILURES
        began = [at for at, what, _ in world.marks if what == "begin"]
        pauses = [after - before for before, after in pairwise(began)]
        assert [round(pause / 5) for pause in (*pauses[:2], *pauses[3:])] == [1, 2, 1, 2], pauses
        assert [body.attempt for _, what, body in world.marks if what == "begin"] == [1, 2, 3, 4, 5, 6]
        assert (await verify_job(world.store, JOB)).findings == ()

    run(story())


class Counting(SilentPieces):
    """Nothing of it is told of outcomes, but how long to wait; it notes for which attempts it was asked."""

    def get_step_retry_delay(self, failed_attempt: int) -> timedelta:
        self.state.failed.append(str(failed_attempt))
        return timedelta(seconds=1)


def test_what_the_delay_hook_does_to_the_state_is_saved_with_the_retry() -> None:
    """Without another hook beside it, its change was lost [S6.5]."""

    async def story() -> None:
        world = World()
        Work.world = world
        job = await world.start(
            Counting, batch([Piece(key="x", fail_first=2)]), options=JobsOptions(max_step_attempts=3)
        )
        await job.ended
        state = decode((await world.document()).state, job.code.resolve)
        assert state.failed == ["1", "2"]

    run(story())
