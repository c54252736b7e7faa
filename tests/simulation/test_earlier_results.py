"""What does a body read of the results of earlier stages, through engine and store [S18.8]?"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Job,
    JobState,
    JobStatus,
    JobStep,
    JobStepState,
    StageFailureBehavior,
    StepContext,
)
from choreography_ray.testing import VirtualCluster

MADE = 130
"""More than a page holds."""
FAILED = 3
ASKED = (None, -5, 0, 7, 10, 99)
"""All, the stages that made something, the reader's own, a later one, and one that no step is of."""


class Which(BaseModel):
    """A number of no meaning but to `Make`."""

    number: int = 0


class WhichState(JobStepState):
    """The same."""

    number: int = 0


class Make(JobStep[Which, Any, WhichState]):
    """One of them fails; the others return what only a faithful store gives back."""

    def initialize_state(self, request: Which) -> None:
        self.state.number = request.number

    async def perform_step(self, state: WhichState, context: StepContext) -> Any:
        if state.number == FAILED:
            raise ValueError("no result")
        return made(state.number)


class Read(JobStep[Which, Any, WhichState]):
    """Reads late, when all else of its stage has its result."""

    def initialize_state(self, request: Which) -> None:
        """It needs nothing."""

    async def perform_step(self, state: WhichState, context: StepContext) -> Any:
        await asyncio.sleep(3600)
        return [[result async for result in context.results(stage)] for stage in ASKED]


class ReadBlocking(JobStep[Which, Any, WhichState]):
    """The same in calls that block."""

    def initialize_state(self, request: Which) -> None:
        """It needs nothing."""

    def perform_step(self, state: WhichState, context: BlockingStepContext) -> Any:
        return [list(context.results(stage)) for stage in ASKED]


class Stages(Job[Which, JobState]):
    """Makers in two stages, in the plan by turns; readers in the two after them."""

    keep_results = True

    def prepare_steps(self, request: Which) -> Any:
        for number in range(MADE):
            stage = 0 if number % 2 else -5
            yield self.create_step(Make, Which(number=number), stage=stage, step_id=f"made {number}")
        yield self.create_step(Read, Which(), stage=7, step_id="late")
        yield self.create_step(ReadBlocking, Which(), stage=7, step_id="early")
        yield self.create_step(ReadBlocking, Which(), stage=10, step_id="last")

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior:
        return StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE


def made(number: int) -> Any:
    """A value that is no plain document."""
    return {"a.b": number, number: (number,)}


def test_a_body_reads_what_earlier_stages_made_and_nothing_of_its_own() -> None:
    """In plan order over all pages, failures left out; the same to both kinds of bodies, and to each of a stage."""
    with VirtualCluster() as cluster:
        job = cluster.start(Stages, Which())
        assert job.wait().status is JobStatus.COMPLETED_WITH_FAILURES
        kept = dict(job.results())
    numbers = [number for number in range(MADE) if number != FAILED]
    results = [(f"made {number}", made(number)) for number in numbers]
    of_stage = {
        None: results,
        -5: [result for result, number in zip(results, numbers, strict=True) if number % 2 == 0],
        0: [result for result, number in zip(results, numbers, strict=True) if number % 2],
    }
    wanted = [of_stage.get(stage, []) for stage in ASKED]
    assert list(kept) == [*dict(results), "late", "early", "last"]
    assert kept["early"] == wanted
    assert kept["late"] == wanted
    readers = [("late", wanted), ("early", wanted)]
    last: Any = {**of_stage, None: [*results, *readers], 7: readers}
    assert kept["last"] == [last.get(stage, []) for stage in ASKED]
