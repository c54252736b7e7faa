"""Jobs whose bodies do nothing, or only wait: what is measured is everything around them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Job,
    JobState,
    JobStep,
    JobStepState,
    StepContext,
    StepDetails,
    StepHosting,
)


class Number(BaseModel):
    """A step's request."""

    n: int = 0


class NumberState(JobStepState):
    """What the body sees."""

    n: int = 0


class OwnNoOp(JobStep[Number, int, NumberState]):
    """An actor for each step."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Number) -> None:
        self.state.n = request.n

    def perform_step(self, state: NumberState, context: BlockingStepContext) -> int:
        return state.n


class WarmNoOp(OwnNoOp):
    """Warm actors that perform many."""

    hosting = StepHosting.SHARED_ACTORS


class Count(BaseModel):
    """A job's request: how many steps."""

    steps: int


class OwnJob(Job[Count, JobState]):
    """Nothing, in actors of its own."""

    keep_after_completed = True

    def prepare_steps(self, request: Count) -> Iterator[StepDetails]:
        for n in range(request.steps):
            yield self.create_step(OwnNoOp, Number(n=n))


class WarmJob(Job[Count, JobState]):
    """Nothing, in warm actors."""

    keep_after_completed = True

    def prepare_steps(self, request: Count) -> Iterator[StepDetails]:
        for n in range(request.steps):
            yield self.create_step(WarmNoOp, Number(n=n))


class KeptJob(WarmJob):
    """The same, and the results are kept."""

    keep_results = True


class Timed(BaseModel):
    """A step's request: where its process leaves a mark when its first body begins, and how long bodies wait."""

    folder: str
    seconds: float = 0.0


class TimedState(JobStepState):
    """What the body sees."""

    folder: str = ""
    seconds: float = 0.0


class OwnTimed(JobStep[Timed, int, TimedState]):
    """Marks its beginning in an actor of its own, and holds its thread for a while."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Timed) -> None:
        self.state.folder, self.state.seconds = request.folder, request.seconds

    def perform_step(self, state: TimedState, context: BlockingStepContext) -> int:
        leave_mark(state.folder)
        if state.seconds:
            time.sleep(state.seconds)
        return 0


class WarmTimed(OwnTimed):
    """The same in warm actors."""

    hosting = StepHosting.SHARED_ACTORS


class WaitingTimed(JobStep[Timed, int, TimedState]):
    """Waits on a loop, as bodies do that ask others; a hundred at once in a host."""

    hosting = StepHosting.SHARED_ACTORS
    steps_per_actor = 100
    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Timed) -> None:
        self.state.folder, self.state.seconds = request.folder, request.seconds

    async def perform_step(self, state: TimedState, context: StepContext) -> int:
        leave_mark(state.folder)
        await asyncio.sleep(state.seconds)
        return 0


class TimedCount(Timed):
    """A job's request: so many steps, each with the rest of it."""

    steps: int


class OwnTimedJob(Job[TimedCount, JobState]):
    """Bodies that mark their beginning."""

    keep_after_completed = True
    step_class: type[JobStep[Timed, int, TimedState]] = OwnTimed

    def prepare_steps(self, request: TimedCount) -> Iterator[StepDetails]:
        for _ in range(request.steps):
            yield self.create_step(self.step_class, Timed(folder=request.folder, seconds=request.seconds))


class WarmTimedJob(OwnTimedJob):
    """The same in warm actors."""

    step_class = WarmTimed


class WaitingTimedJob(OwnTimedJob):
    """The same with bodies that wait on a loop."""

    step_class = WaitingTimed


def leave_mark(folder: str) -> None:
    """Write down when the first body of this process begins."""
    mark = Path(folder, str(os.getpid()))
    if not mark.exists():
        mark.write_text(repr(time.time()))
