"""Jobs whose bodies do nothing: what is measured is everything around them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from choreography_ray import BlockingStepContext, Job, JobState, JobStep, JobStepState, StepDetails, StepHosting


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
