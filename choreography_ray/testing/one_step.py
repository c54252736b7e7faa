"""One step by itself: performed by the same engine as in a job, and what it left [S17]."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from choreography_ray.authoring.result import JobStepResult
from choreography_ray.codec import decode
from choreography_ray.core.instant import seconds_of
from choreography_ray.job import Job, JobState
from choreography_ray.model import AttemptRecord, JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import FailedStep, PreparedSegment, StepDocument
from choreography_ray.step import JobStep, JobStepState
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.virtual import TEST_OPTIONS, VirtualCluster

TRequest = TypeVar("TRequest", bound=BaseModel)
TResult = TypeVar("TResult")
TState = TypeVar("TState", bound=JobStepState)

JOB = "one-step"
STEP = "step"


@dataclass(frozen=True)
class StepTrial(Generic[TResult, TState]):
    """What became of a step that was run by itself."""

    result: JobStepResult[TResult]
    """Of its last attempt, as a job's hooks get it."""
    state: TState
    """The step's own state, as it was last made durable."""
    checkpoints: tuple[TState, ...]
    """Every state that the body made durable, over all attempts and crashes, in order."""
    attempts: tuple[AttemptRecord, ...]
    """Those that failed."""
    took: timedelta
    """Virtual time from its start to its end."""
    story: str
    """What a failed assertion prints."""

    @property
    def value(self) -> TResult:
        """The result's value. Raises `AssertionError` with the story unless the step succeeded."""
        if not self.result.is_success:
            raise AssertionError(f"the step did not succeed: {self.result!r}\n{self.story}")
        return self.result.value


class _Witness(MemoryStorage):
    """A store that remembers which states of the step were made durable."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: list[Any] = []
        self.last: Any = None
        """What a retry or a resume begins from."""

    async def save_prepared(self, job_id: JobId, segments: Sequence[PreparedSegment]) -> None:
        """See `MemoryStorage`."""
        self.last = segments[0].states[0]
        await super().save_prepared(job_id, segments)

    async def save_step_documents(self, job_id: JobId, documents: Sequence[StepDocument]) -> list[int]:
        """See `MemoryStorage`."""
        refused = await super().save_step_documents(job_id, documents)
        for one in documents:
            if one.state is not None and one.ordinal not in refused:
                self.last = one.state
                if not one.is_closed:
                    self.checkpoints.append(one.state)
        return refused

    async def save_failures(self, job_id: JobId, failures: Sequence[FailedStep]) -> None:
        """See `MemoryStorage`."""
        await super().save_failures(job_id, failures)
        self.last = failures[0].state or self.last


def _job_of(step_class: type[JobStep[Any, Any, Any]], results: list[JobStepResult[Any]]) -> type[Job[Any, Any]]:
    generic: Any = Job
    base: Any = generic[step_class.request_type, JobState]

    class OneStep(base):  # type: ignore[misc]
        """A job of this one step."""

        keep_after_completed = True

        def prepare_steps(self, request: Any) -> Any:
            return [self.create_step(step_class, request, step_id=STEP)]

        def on_step_completed_or_stopped(self, step_id: StepId, result: JobStepResult[Any]) -> None:
            results.append(result)

    made: type[Job[Any, Any]] = OneStep
    return made


def run_step(
    step_class: type[JobStep[TRequest, TResult, TState]],
    request: TRequest,
    *,
    options: JobsOptions = TEST_OPTIONS,
    stop_after: float | timedelta | None = None,
    crash_after_checkpoints: Collection[int] = (),
    seed: int = 0,
) -> StepTrial[TResult, TState]:
    """Perform one step in virtual time, with its attempts and backoff as the options say.

    It is stopped `stop_after` so much time, in seconds, unless it ends before. Its process dies right after each of
    `crash_after_checkpoints`, counted from 1 over the whole life of the step, and it runs again from there.
    Raises `StartJobError` when the step is refused or cannot be prepared, `TimeoutError` when it does not end.
    """
    results: list[JobStepResult[Any]] = []
    job_class = _job_of(step_class, results)
    resolve = LivingCode(job_class).resolve
    store = _Witness()
    with VirtualCluster(options=options, seed=seed, store=store) as cluster:
        began = cluster.now
        job = cluster.start(job_class, request, job_id=JOB)
        for n in sorted(crash_after_checkpoints):
            _advance_to_checkpoint(cluster, store, n, results)
            if not results:
                job.crash_step(STEP)
        if stop_after is not None:
            left = began + timedelta(seconds=seconds_of(stop_after)) - cluster.now
            cluster.advance(max(left, timedelta(0)))
            if not job.status().is_final:
                job.stop()
        job.wait()
        step = job.step(STEP)
        return StepTrial(
            result=results[-1],
            state=decode(store.last, resolve),
            checkpoints=tuple(decode(state, resolve) for state in store.checkpoints),
            attempts=step.attempts,
            took=cluster.now - began,
            story=job.story(),
        )


def _advance_to_checkpoint(
    cluster: VirtualCluster, store: _Witness, n: int, results: Sequence[JobStepResult[Any]]
) -> None:
    cluster.advance_until(lambda: len(store.checkpoints) >= n or bool(results), step=0.001)
