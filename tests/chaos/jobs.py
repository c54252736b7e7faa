"""The job that the chaos tests run: stages, retries and failures by rule, so that the right end is known beforehand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Job,
    JobState,
    JobStep,
    JobStepResult,
    JobStepState,
    StageFailureBehavior,
    StepDetails,
    StepHosting,
)
from tests.chaos.marks import mark, witnessed


class Load(BaseModel):
    """What a job does: `steps` bodies of `seconds` each, over `stages` stages of equal size.

    Every `rotten`-th step fails in each attempt, every `flaky`-th in its first one; 0: none. Bodies of the last stage
    wait for the file `gate` in the witness's folder when `is_gated`.
    """

    folder: str
    slots: int
    steps: int = 200
    stages: int = 1
    seconds: float = 0.1
    flaky: int = 0
    rotten: int = 0
    is_gated: bool = False
    is_shared: bool = True
    is_marked: bool = True

    def stage(self, number: int) -> int:
        """The stage of a step."""
        return number * self.stages // self.steps

    def is_rotten(self, number: int) -> bool:
        """Whether a step can never succeed."""
        return self.rotten > 0 and number % self.rotten == self.rotten - 1

    def is_flaky(self, number: int) -> bool:
        """Whether a step's first attempt fails."""
        return self.flaky > 0 and number % self.flaky == self.flaky - 1

    @property
    def failures(self) -> int:
        """How many steps fail for good."""
        return sum(map(self.is_rotten, range(self.steps)))


class Portion(BaseModel):
    """One step's share."""

    load: Load
    number: int


class PortionState(JobStepState):
    """The request, which the body does not see otherwise."""

    portion: Portion | None = None


class Rotten(Exception):
    """What a failing body raises."""


class OwnChaosStep(JobStep[Portion, str, PortionState]):
    """Waits, and tells the witness. It may be performed more than once."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Portion) -> None:
        self.state.portion = request

    def perform_step(self, state: PortionState, context: BlockingStepContext) -> str:
        portion = state.portion
        assert portion is not None
        load, number = portion.load, portion.number
        if not load.is_marked:
            time.sleep(load.seconds)
            return str(number)
        with witnessed(load.folder, load.slots, context.job_id, str(number), load.stage(number), context.attempt):
            time.sleep(load.seconds)
            gate = Path(load.folder, "gate")
            while load.is_gated and load.stage(number) == load.stages - 1 and not gate.exists():
                if context.cancelled.is_set():
                    break
                time.sleep(0.02)
            if load.is_rotten(number) or (load.is_flaky(number) and context.attempt == 1):
                raise Rotten(f"step {number} in attempt {context.attempt}")
        return str(number)


class SharedChaosStep(OwnChaosStep):
    """In warm hosts."""

    hosting = StepHosting.SHARED_ACTORS


class ChaosState(JobState):
    """What the hooks did, exactly once for each step; the keys only of jobs that are small enough."""

    succeeded: int = 0
    failed: int = 0
    seen: list[str] = []


class ChaosJob(Job[Load, ChaosState]):
    """Goes on after a stage with failures, so that every step is performed."""

    keep_after_completed = True

    def prepare_steps(self, request: Load) -> Iterator[StepDetails]:
        mark(request.folder, "plan", self.job_id)
        kind = SharedChaosStep if request.is_shared else OwnChaosStep
        for number in range(request.steps):
            stage = request.stage(number)
            yield self.create_step(kind, Portion(load=request, number=number), step_id=str(number), stage=stage)

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior:
        return StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE

    def get_step_retry_delay(self, failed_attempt: int) -> timedelta:
        return timedelta(seconds=0.2)

    def on_step_completed_or_stopped(self, step_id: str, result: JobStepResult[Any]) -> None:
        if self.request.is_marked:
            mark(self.request.folder, "told", self.job_id, step_id, self.request.stage(int(step_id)))
            self.state.seen.append(step_id)
        if result.is_success:
            self.state.succeeded += 1
        else:
            self.state.failed += 1
