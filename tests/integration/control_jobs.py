"""A job whose bodies stop, or will not."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from enum import StrEnum
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


class Kind(StrEnum):
    """What a body does after it has left its mark."""

    QUICK = "QUICK"
    SLEEPS = "SLEEPS"
    SPINS = "SPINS"
    HOLDS_THE_GIL = "HOLDS_THE_GIL"
    FAILS_TWICE = "FAILS_TWICE"


class Chore(BaseModel):
    """A step's request."""

    log: str
    key: str
    kind: Kind


class ChoreState(JobStepState):
    """What the body sees."""

    chore: Chore | None = None


class OwnChore(JobStep[Chore, str, ChoreState]):
    """In an actor of its own."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Chore) -> None:
        self.state.chore = request

    def perform_step(self, state: ChoreState, context: BlockingStepContext) -> str:
        chore = state.chore
        assert chore is not None
        with open(chore.log, "a", encoding="utf-8") as log:  # noqa: PTH123 - one short write, atomic at its end
            log.write(f"{chore.key} {os.getpid()} {context.attempt}\n")
        match chore.kind:
            case Kind.QUICK:
                time.sleep(0.05)
            case Kind.SLEEPS:
                time.sleep(60)
            case Kind.SPINS:
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    pass
            case Kind.HOLDS_THE_GIL:
                ctypes.PyDLL(None).sleep(60)
            case Kind.FAILS_TWICE:
                if context.attempt < 3:
                    raise ValueError(f"attempt {context.attempt} fails")
        return chore.key


class SharedChore(OwnChore):
    """On warm actors."""

    hosting = StepHosting.SHARED_ACTORS


class ChoresRequest(BaseModel):
    """A job's request."""

    log: str
    kind: Kind
    steps: int
    shared: bool = False


class Chores(Job[ChoresRequest, JobState]):
    """So many chores of one kind."""

    keep_after_completed = True
    options = JobsOptions(step_stop_timeout="PT1S", job_watchdog_interval="PT5S")  # type: ignore[arg-type]

    def prepare_steps(self, request: ChoresRequest) -> Iterator[StepDetails]:
        chore: Any = SharedChore if request.shared else OwnChore
        for n in range(request.steps):
            yield self.create_step(chore, Chore(log=request.log, key=str(n), kind=request.kind), step_id=str(n))

    def can_retry_failed_steps(self) -> bool:
        return True
