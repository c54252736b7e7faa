"""Uses that mypy must refuse: each line marked `# E: code` has that error, and no other line has any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from good_uses import RebuildRequest, RebuildShard, RebuildState, ShardRequest, ShardState
from pydantic import BaseModel

from choreography_ray.job import Job, JobState, StepDetails
from choreography_ray.step import BlockingStepContext, JobStep, JobStepState, StepContext

if TYPE_CHECKING:

    class WrongRequest(BaseModel):
        other: int = 0

    class NoState(BaseModel):
        shard: str = ""

    class Plain(Job[RebuildRequest, RebuildState]):
        def prepare_steps(self, request: RebuildRequest) -> Iterator[StepDetails]:
            yield self.create_step(RebuildShard, WrongRequest())  # E: misc
            yield self.create_step(RebuildShard, "text")  # E: misc
            yield self.create_step(ShardRequest, ShardRequest(index="i"))  # E: arg-type
            yield self.create_step(RebuildShard, ShardRequest(index="i"), 10)  # E: call-arg
            yield self.create_step(RebuildShard, ShardRequest(index="i"), step_id=7)  # E: arg-type
            self.state.absent.append("x")  # E: attr-defined

    class WrongPlan(Job[RebuildRequest, RebuildState]):
        def prepare_steps(self, request: ShardRequest) -> list[StepDetails]:  # E: override
            return []

    class NotAModel(JobStep[str, str, ShardState]):  # E: type-var
        pass

    class NotAState(JobStep[ShardRequest, str, NoState]):  # E: type-var
        pass

    class NotAJobState(Job[RebuildRequest, JobStepState]):  # E: type-var
        pass

    class WrongResult(JobStep[ShardRequest, str, ShardState]):
        def initialize_state(self, request: ShardRequest) -> None:
            self.state.absent = 1  # E: attr-defined

        def perform_step(self, state: ShardState, context: BlockingStepContext) -> int:  # E: override
            return 1

    class WrongRequestType(JobStep[ShardRequest, str, ShardState]):
        def initialize_state(self, request: WrongRequest) -> None:  # E: override
            pass

        async def perform_step(self, state: ShardState, context: StepContext) -> str:
            context.cancelled.wait()  # E: unused-coroutine
            context.write_checkpoint_debounced()  # E: unused-coroutine
            return state.shard

    class Incomplete(JobStep[ShardRequest, str, ShardState]):
        def initialize_state(self, request: ShardRequest) -> None:
            pass

    Incomplete()  # E: abstract

    class Empty(JobState):
        pass
