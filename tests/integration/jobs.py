"""The job that the tests on real Ray run: bodies and hooks write marks to a file outside the framework, the witness."""

from __future__ import annotations

import asyncio
import json
import os
import time
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import ray
from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Job,
    JobState,
    JobStep,
    JobStepResult,
    JobStepState,
    StageFailureBehavior,
    StepContext,
    StepDetails,
    StepHosting,
)


class Mark(NamedTuple):
    """`at` is of the machine's monotonic clock, which all its processes share."""

    event: str
    key: str
    stage: int
    at: float
    pid: int
    node: str


def mark(log: str, event: str, key: str, stage: int) -> None:
    """Add a line, whole or not at all."""
    node = ray.get_runtime_context().get_node_id()
    line = json.dumps(Mark(event, key, stage, time.monotonic(), os.getpid(), node)) + "\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def marks(log: Path, *events: str) -> list[Mark]:
    """What was marked, in the order of time."""
    lines = log.read_text().splitlines() if log.exists() else []
    found = (Mark(*json.loads(line)) for line in lines)
    return sorted((m for m in found if not events or m.event in events), key=lambda m: m.at)


def peak(seen: Iterable[Mark]) -> int:
    """The most bodies that were at work at one moment."""
    level = highest = 0
    for each in seen:
        level += {"begin": 1, "end": -1}.get(each.event, 0)
        highest = max(highest, level)
    return highest


def await_true(holds: Callable[[], Any], seconds: float, what: str) -> None:
    """Ask again until it holds; what is awaited here has no event of its own."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


class Piece(BaseModel):
    """What one step does: wait until the file `gate` is there and `meets` bodies have begun, take `seconds`, then
    raise or return its key.

    With `meets` the first bodies are at work at the same time for certain, however long their actors take to start.
    """

    log: str
    key: str
    stage: int = 0
    gate: str = ""
    meets: int = 0
    seconds: float = 0.0
    fails: bool = False
    says: str = ""


class PieceState(JobStepState):
    """The request, which the body does not see otherwise."""

    piece: Piece | None = None


class PieceFailed(Exception):
    """What a failing body raises."""


def work(state: PieceState) -> str:
    """The body of every step."""
    piece = state.piece
    assert piece is not None
    mark(piece.log, "begin", piece.key, piece.stage)
    if piece.says:
        print(piece.says, flush=True)
    await_true(lambda: not piece.gate or Path(piece.gate).exists(), 60, "the gate opens")
    await_true(lambda: len(marks(Path(piece.log), "begin")) >= piece.meets, 30, "the other bodies begin")
    time.sleep(piece.seconds)
    mark(piece.log, "end", piece.key, piece.stage)
    if piece.fails:
        raise PieceFailed(f"piece {piece.key} is rotten")
    return piece.key


class BlockingPiece(JobStep[Piece, str, PieceState], ABC):
    """What steps with a `def` body have in common."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Piece) -> None:
        self.state.piece = request

    def perform_step(self, state: PieceState, context: BlockingStepContext) -> str:
        if state.piece and state.piece.says:
            context.logger.info("%s to the log", state.piece.says)
        return work(state)


class OwnPiece(BlockingPiece):
    """In an actor of its own."""


class SharedPiece(BlockingPiece):
    """In warm actors."""

    hosting = StepHosting.SHARED_ACTORS


class SlowPiece(BlockingPiece):
    """A `def` body that may take a second, and hears nothing."""

    step_timeout = timedelta(seconds=1)


class SlowAsyncPiece(JobStep[Piece, str, PieceState]):
    """An `async def` body that may take a second."""

    ray_options = {"num_cpus": 0}
    step_timeout = timedelta(seconds=1)

    def initialize_state(self, request: Piece) -> None:
        self.state.piece = request

    async def perform_step(self, state: PieceState, context: StepContext) -> str:
        piece = state.piece
        assert piece is not None
        mark(piece.log, "begin", piece.key, piece.stage)
        try:
            await asyncio.sleep(piece.seconds)
        except asyncio.CancelledError:
            mark(piece.log, "cancelled", piece.key, piece.stage)
            raise
        mark(piece.log, "end", piece.key, piece.stage)
        return piece.key


KINDS = {cls.__name__: cls for cls in (OwnPiece, SharedPiece, SlowPiece, SlowAsyncPiece)}
HOSTINGS = ("OwnPiece", "SharedPiece")


class Batch(BaseModel):
    """A job's pieces; a failed stage stops it unless it is among `go_on_after`."""

    kind: str
    pieces: list[Piece]
    go_on_after: list[int] = []


class BatchState(JobState):
    """What the outcome hook saw."""

    done: list[str] = []
    failed: list[str] = []


class PieceJob(Job[Batch, BatchState], ABC):
    """Performs pieces of one kind, and tells the witness of each outcome."""

    keep_after_completed = True

    def prepare_steps(self, request: Batch) -> Iterator[StepDetails]:
        for piece in request.pieces:
            yield self.create_step(KINDS[request.kind], piece, stage=piece.stage, step_id=piece.key)

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior:
        goes_on = stage in self.request.go_on_after
        return StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE if goes_on else StageFailureBehavior.STOP_JOB

    def on_step_completed_or_stopped(self, step_id: str, result: JobStepResult[Any]) -> None:
        piece = next(piece for piece in self.request.pieces if piece.key == step_id)
        mark(piece.log, "told", step_id, piece.stage)
        (self.state.done if result.is_success else self.state.failed).append(step_id)


class Pieces(PieceJob):
    """As many at a time as get slots."""


class NarrowPieces(PieceJob):
    """At most three of its steps are active."""

    max_active_steps = 3


class OnePiece(PieceJob):
    """One of its steps is active at a time."""

    max_active_steps = 1
