"""Jobs for stories: their bodies leave marks in the world that runs them."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from pydantic import BaseModel

from choreography_ray.job import Job, JobState
from choreography_ray.model import StageFailureBehavior, StepHosting
from choreography_ray.step import JobStep, JobStepState
from tests.simulation.world import World


class Piece(BaseModel):
    """What a step is to do."""

    key: str
    stage: int = 0
    seconds: float = 0.0
    fail_first: int = 0
    shared: bool = False
    refuse: bool = False


class PieceState(JobStepState):
    """What the body sees."""

    piece: Piece | None = None


class Work(JobStep[Piece, str, PieceState]):
    """Takes its time, then fails or gives its key."""

    world: ClassVar[World]

    def prepare_step(self, request: Piece) -> None:
        if request.refuse:
            raise ValueError(f"{request.key} is refused")

    def initialize_state(self, request: Piece) -> None:
        self.state.piece = request

    async def perform_step(self, state: PieceState, context: object) -> str:
        piece = state.piece
        assert piece is not None
        attempt = context.attempt  # type: ignore[attr-defined]
        self.world.begin((piece.key, piece.stage, attempt))
        try:
            await asyncio.sleep(piece.seconds)
            if attempt <= piece.fail_first:
                raise ValueError(f"{piece.key} fails on attempt {attempt}")
            return piece.key
        finally:
            self.world.end((piece.key, piece.stage, attempt))


class SharedWork(Work):
    """The same on warm hosts."""

    hosting = StepHosting.SHARED_ACTORS


class Batch(BaseModel):
    """A job's request."""

    pieces: list[Piece]
    continue_stages: list[int] = []


class BatchState(JobState):
    """What the hook has seen."""

    done: list[str] = []
    failed: list[str] = []


class Pieces(Job[Batch, BatchState]):
    """A job of pieces, kept when it is over."""

    keep_after_completed = True

    def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def]
        for piece in request.pieces:
            yield self.create_step(
                SharedWork if piece.shared else Work, piece, stage=piece.stage, step_id=piece.key
            )

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior:
        if stage in self.request.continue_stages:
            return StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE
        return StageFailureBehavior.STOP_JOB

    def on_step_completed_or_stopped(self, step_id: str, result) -> None:  # type: ignore[no-untyped-def, override]
        (self.state.done if result.is_success else self.state.failed).append(step_id)
