"""Jobs for stories: their bodies leave marks in the world that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from choreography_ray.job import Job, JobState, StepDetails
from choreography_ray.model import StageFailureBehavior, StepHosting
from choreography_ray.step import JobStep, JobStepState
from tests.simulation.world import Body, World


class Piece(BaseModel):
    """What a step is to do. `checkpoints`: it makes so many durable, and goes on from the last."""

    key: str
    ordinal: int = 0
    stage: int = 0
    seconds: float = 0.0
    fail_first: int = 0
    shared: int = 0
    """How many steps its actor performs at a time; 0: it has one of its own."""
    checkpoints: int = 0
    refuse: bool = False
    stubborn: bool = False
    """The body does not care that it is told to stop."""
    callback_seconds: float = 0.0
    """How long it takes to commit a checkpoint."""
    fail_early: bool = False
    """Attempts that fail do so before their first checkpoint; only the last of them fails at its end."""


class PieceState(JobStepState):
    """What the body sees."""

    piece: Piece | None = None
    position: int = 0


class Work(JobStep[Piece, str, PieceState]):
    """Takes its time, then fails or gives its key."""

    world: ClassVar[World]
    checkpoint_after_every_batch = True

    def prepare_step(self, request: Piece) -> None:
        if request.refuse:
            raise ValueError(f"{request.key} is refused")

    def initialize_state(self, request: Piece) -> None:
        self.state.piece = request

    async def perform_step(self, state: PieceState, context: Any) -> str:
        piece = state.piece
        assert piece is not None
        body = Body(context.job_id, piece.key, piece.ordinal, piece.stage, context.attempt)
        self.world.begin(body)
        try:
            self.world.resumed(body, state.position)
            if piece.fail_early and context.attempt < piece.fail_first:
                raise ValueError(f"{piece.key} fails on attempt {context.attempt}")
            for position in range(state.position + 1, piece.checkpoints + 1):
                await asyncio.sleep(piece.seconds / (piece.checkpoints + 1))
                await self._reach(body, position, context, piece.callback_seconds)
            await self._work(piece.seconds / (piece.checkpoints + 1), context, stubborn=piece.stubborn)
            if context.attempt <= piece.fail_first:
                raise ValueError(f"{piece.key} fails on attempt {context.attempt}")
            return piece.key
        finally:
            self.world.end(body)

    async def _work(self, seconds: float, context: Any, *, stubborn: bool) -> None:
        until = self.world.now + seconds
        while True:
            try:
                await asyncio.sleep(until - self.world.now)
            except asyncio.CancelledError:
                if not stubborn or not context.cancelled.is_set():
                    raise
                stubborn = False  # told to stop, it goes on; the next is the end of its process
            else:
                return

    async def _reach(self, body: Body, position: int, context: Any, seconds: float) -> None:
        async def commit() -> None:
            if seconds:
                await asyncio.sleep(seconds)
            self.state.position = position
            await context.write_checkpoint_debounced()

        await context.invoke_on_actor(commit)
        self.world.reached(body, position)


class SharedWork(Work):
    """The same on warm hosts."""

    hosting = StepHosting.SHARED_ACTORS


class SharedPairs(Work):
    """The same on warm hosts, two at a time."""

    hosting = StepHosting.SHARED_ACTORS
    steps_per_actor = 2


CLASSES = (Work, SharedWork, SharedPairs)


class Batch(BaseModel):
    """A job's request."""

    pieces: list[Piece]
    continue_stages: list[int] = []
    hook_seconds: float = 0.0
    closing_seconds: float = 0.0
    """How long the completion hook takes."""


class BatchState(JobState):
    """What the hook has seen."""

    done: list[str] = []
    failed: list[str] = []
    stopped: list[str] = []
    is_complete: bool = False
    begun: int = 0
    """How often the start hook was called."""


class SilentPieces(Job[Batch, BatchState]):
    """A job of pieces that is told of none, kept with its results when it is over."""

    keep_after_completed = True
    keep_results = True

    def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def]
        for piece in request.pieces:
            yield self.create_step(CLASSES[piece.shared], piece, stage=piece.stage, step_id=piece.key)

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior:
        if stage in self.request.continue_stages:
            return StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE
        return StageFailureBehavior.STOP_JOB

    def can_retry_failed_steps(self) -> bool:
        return True

    def on_before_starting_job_steps(self) -> None:
        self.state.begun += 1

    async def on_all_steps_completed(self) -> None:
        if self.request.closing_seconds:
            await asyncio.sleep(self.request.closing_seconds)
        self.state.is_complete = True


class Pieces(SilentPieces):
    """The same, told of each piece."""

    keep_results = False

    async def on_step_completed_or_stopped(self, step_id: str, result) -> None:  # type: ignore[no-untyped-def, override]
        if self.request.hook_seconds:
            await asyncio.sleep(self.request.hook_seconds)
        if result.is_success:
            self.state.done.append(step_id)
        elif result.is_cancelled:
            self.state.stopped.append(step_id)
        else:
            self.state.failed.append(step_id)


class KeptPieces(Pieces):
    """Its results are kept too."""

    keep_results = True


class PassingPieces(Pieces):
    """Cleared when it is over, whatever became of it; only its results are kept."""

    keep_after_completed = False
    keep_after_completed_with_failures = False
    keep_results = True


class EndlessPlan(Pieces):
    """Planning never comes to an end."""

    async def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def, override]
        yield self.create_step(Work, request.pieces[0])
        await asyncio.Event().wait()


class StuckWork(Work):
    """Is not prepared as long as it is stuck."""

    is_stuck: ClassVar[bool] = True

    async def initialize_state(self, request: Piece) -> None:  # type: ignore[override]
        while self.is_stuck:
            await asyncio.sleep(60)
        self.state.piece = request


class StuckPreparation(Pieces):
    """Its last step is not prepared as long as it is stuck."""

    def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def, override]
        for piece in request.pieces:
            yield self.create_step(StuckWork if piece is request.pieces[-1] else Work, piece)


class SlowlyPlanned(KeptPieces):
    """Its plan takes a second per step to think of."""

    stopped_hooks: ClassVar[int] = 0

    async def prepare_steps(self, request: Batch) -> AsyncIterator[StepDetails]:  # type: ignore[override]
        for piece in request.pieces:
            await asyncio.sleep(1.0)
            yield self.create_step(Work, piece, stage=piece.stage, step_id=piece.key)

    def on_stopped(self) -> None:
        type(self).stopped_hooks += 1


def batch(pieces: Sequence[Piece], continue_stages: Sequence[int] = (), hook_seconds: float = 0.0) -> Batch:
    """A request whose pieces know their ordinals."""
    numbered = [piece.model_copy(update={"ordinal": i}) for i, piece in enumerate(pieces)]
    return Batch(pieces=numbered, continue_stages=list(continue_stages), hook_seconds=hook_seconds)
