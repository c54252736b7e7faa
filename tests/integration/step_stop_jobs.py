"""A job one of whose steps waits, one runs, one is to be tried again, and one holds the stage open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Job,
    JobsOptions,
    JobState,
    JobStep,
    JobStepState,
    StepDetails,
    StepHosting,
)

KEYS = ("retrying", "running", "busy", "prepared")


class Errand(BaseModel):
    """A step's request: where marks are left, and who it is."""

    directory: str
    key: str


class ErrandState(JobStepState):
    """What the body sees."""

    errand: Errand | None = None


class OwnErrand(JobStep[Errand, str, ErrandState]):
    """In an actor of its own. All but the one that fails wait until they are released or told to stop."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Errand) -> None:
        self.state.errand = request

    def perform_step(self, state: ErrandState, context: BlockingStepContext) -> str:
        errand = state.errand
        assert errand is not None
        directory = Path(errand.directory)
        with (directory / "marks").open("a", encoding="utf-8") as marks:
            marks.write(f"{errand.key}\n")
        if errand.key == "retrying":
            raise ValueError("it fails")
        while not (directory / "release").exists():
            context.cancelled.raise_if_set()
            time.sleep(0.02)
        return errand.key


class SharedErrand(OwnErrand):
    """On warm actors."""

    hosting = StepHosting.SHARED_ACTORS


class ErrandsRequest(BaseModel):
    """A job's request."""

    directory: str
    shared: bool


class ErrandsState(JobState):
    """What the job's hook was told: the step, and how it ended."""

    told: list[tuple[str, str]] = []


class Errands(Job[ErrandsRequest, ErrandsState]):
    """Two at once, so that the last has no place; the next attempt of the one that fails is an hour away."""

    keep_after_completed = True
    max_active_steps = 2
    options = JobsOptions(max_step_attempts=2, step_retry_backoff="PT1H", max_step_retry_backoff="PT1H")  # type: ignore[arg-type]

    def prepare_steps(self, request: ErrandsRequest) -> Iterator[StepDetails]:
        errand: Any = SharedErrand if request.shared else OwnErrand
        for key in KEYS:
            yield self.create_step(errand, Errand(directory=request.directory, key=key), step_id=key)

    def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:
        kind = "succeeded" if result.is_success else "stopped" if result.is_cancelled else "failed"
        self.state.told.append((step_id, kind))
