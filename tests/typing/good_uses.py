"""Uses that mypy --strict and pyright must accept; checked by `tests/unit/test_typing.py`, and each import runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar, assert_type

from pydantic import BaseModel

from choreography_ray.job import Job, JobState, StepDetails
from choreography_ray.model import AdmissionMoment, StageFailureBehavior, StepHosting, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.step import (
    BlockingStepContext,
    Cancellation,
    JobStep,
    JobStepResult,
    JobStepState,
    StepContext,
)


class ShardRequest(BaseModel):
    index: str
    shard: str = ""


class UrgentRequest(ShardRequest):
    priority: int = 0


class ShardState(JobStepState):
    shard: str = ""
    position: int = 0


class RebuildShard(JobStep[ShardRequest, str, ShardState]):
    ray_options = {"num_cpus": 1}
    step_timeout = timedelta(minutes=5)

    async def prepare_step(self, request: ShardRequest) -> None:
        assert_type(request.index, str)

    def initialize_state(self, request: ShardRequest) -> None:
        assert_type(self.state, ShardState)
        self.state.shard = request.shard

    async def perform_step(self, state: ShardState, context: StepContext) -> str:
        async def commit() -> int:
            self.state.position += 1
            await context.write_checkpoint_debounced()
            return self.state.position

        assert_type(await context.invoke_on_actor(commit), int)
        assert_type(await context.invoke_on_actor(lambda: state.shard, cancel=context.cancelled), str)
        assert_type(await context.cancelled.wait(timeout=1.0), bool)
        async for step_id, _value in context.results(stage=0):
            assert_type(step_id, StepId)
        return state.shard

    def create_cancelled_result(self, state: ShardState) -> str | None:
        return state.shard or None


class Measure(JobStep[ShardRequest, int, ShardState]):
    hosting = StepHosting.SHARED_ACTORS
    steps_per_actor = 4

    async def initialize_state(self, request: ShardRequest) -> None:
        self.state.shard = request.shard

    def perform_step(self, state: ShardState, context: BlockingStepContext) -> JobStepResult[int]:
        def commit() -> str:
            context.write_checkpoint_debounced()
            return self.state.shard

        assert_type(context.invoke_on_actor(commit, Cancellation()), str)
        context.cancelled.raise_if_set()
        for step_id, _value in context.results():
            assert_type(step_id, StepId)
        if not state.shard:
            return JobStepResult.failed("no shard", partial=1)
        return JobStepResult.succeeded(len(state.shard))


class Unannotated(JobStep[ShardRequest, JobStepResult, ShardState]):
    def initialize_state(self, request):  # type: ignore[no-untyped-def]
        self.state.shard = request.shard

    def perform_step(self, state, context):  # type: ignore[no-untyped-def]
        return state.shard


TRequest = TypeVar("TRequest", bound=ShardRequest)


class Base(JobStep[TRequest, str, ShardState], Generic[TRequest]):
    def initialize_state(self, request: TRequest) -> None:
        self.state.shard = request.shard


class Urgent(Base[UrgentRequest]):
    def perform_step(self, state: ShardState, context: BlockingStepContext) -> str:
        return state.shard


class RebuildRequest(BaseModel):
    shards: list[str] = []


class RebuildState(JobState):
    rebuilt: list[str] = []


class Rebuild(Job[RebuildRequest, RebuildState]):
    options = JobsOptions(max_step_attempts=3)
    max_active_steps = 10
    keep_results = True

    def prepare_steps(self, request: RebuildRequest) -> Iterator[StepDetails]:
        assert_type(self.request, RebuildRequest)
        for shard in request.shards:
            yield self.create_step(RebuildShard, ShardRequest(index="i", shard=shard), stage=10)
            yield self.create_step(RebuildShard, UrgentRequest(index="i"), step_id=shard, ray_options={"num_gpus": 1})
            yield self.create_step(Urgent, UrgentRequest(index="i"), name="urgent")

    async def on_before_starting_job_steps(self) -> None:
        assert_type(self.state, RebuildState)
        await self.write_state()

    def on_step_completed_or_stopped(self, step_id: StepId, result: JobStepResult[Any]) -> None:
        if result.is_success:
            self.state.rebuilt.append(result.value)
        elif result.error is not None:
            assert_type(result.error.message, str)

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior:
        return StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE

    async def get_step_retry_delay(self, failed_attempt: int) -> timedelta:
        return timedelta(seconds=failed_attempt)

    async def may_run(self, moment: AdmissionMoment) -> bool:
        return moment is not AdmissionMoment.RECOVERY


class AsyncPlan(Job[RebuildRequest, RebuildState]):
    async def prepare_steps(self, request: RebuildRequest) -> Sequence[StepDetails]:
        return [self.create_step(Measure, ShardRequest(index="i"))]


assert_type(JobStepResult.succeeded(1), JobStepResult[int])
