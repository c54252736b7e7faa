"""A job whose one body reports batches: what is counted is what makes them durable."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from choreography_ray import BlockingStepContext, Job, JobState, JobStep, JobStepState, StepDetails, StepHosting


class Reports(BaseModel):
    """How many batches."""

    batches: int


class Position(JobStepState):
    """How far the body is."""

    batches: int = 0
    position: int = 0


class Debounced(JobStep[Reports, int, Position]):
    """Commits each batch in turn; durable every hundredth, or after five seconds."""

    hosting = StepHosting.SHARED_ACTORS
    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Reports) -> None:
        self.state.batches = request.batches

    def perform_step(self, state: Position, context: BlockingStepContext) -> int:
        def commit() -> None:
            self.state.position += 1
            context.write_checkpoint_debounced()

        for _ in range(state.position, state.batches):
            context.invoke_on_actor(commit)
        return state.batches


class Checkpointed(Debounced):
    """The same, each batch durable before the next."""

    checkpoint_after_every_batch = True


class DebouncedJob(Job[Reports, JobState]):
    """One step."""

    keep_after_completed = True

    def prepare_steps(self, request: Reports) -> Iterator[StepDetails]:
        yield self.create_step(Debounced, request)


class CheckpointedJob(Job[Reports, JobState]):
    """One step."""

    keep_after_completed = True

    def prepare_steps(self, request: Reports) -> Iterator[StepDetails]:
        yield self.create_step(Checkpointed, request)
