"""What does `start` say when something is in the way, and is nothing begun then [S4]?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ray
from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Choreography,
    Job,
    JobHandle,
    JobsOptions,
    JobState,
    JobStatus,
    JobStep,
    JobStepState,
    JobStepStatus,
    StageFailureBehavior,
    StartJobError,
    StartJobReason,
    StartReport,
    StepDetails,
    StepHosting,
    StepRefused,
)
from tests.integration.jobs import OwnPiece, Piece, await_true, mark, marks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


class Ask(BaseModel):
    """Which way a start shall go, and where its bodies leave their marks."""

    log: str
    how: str = ""
    count: int = 4


class Item(BaseModel):
    """One step's request."""

    log: str
    key: str
    anything: Any = None


class ItemState(JobStepState):
    log: str = ""
    key: str = ""
    anything: Any = None


class SharedItem(JobStep[Item, str, ItemState]):
    """A step that can be refused, can raise while it is prepared, and can get a state that is not storable."""

    hosting = StepHosting.SHARED_ACTORS
    ray_options = {"num_cpus": 0}

    def prepare_step(self, request: Item) -> None:
        if request.anything == "refuse":
            raise StepRefused(f"{request.key} is not welcome")

    def initialize_state(self, request: Item) -> None:
        if request.anything == "raise":
            raise KeyError(request.key)
        self.state.log, self.state.key = request.log, request.key
        if request.anything == "bad state":
            self.state.anything = [0, open(os.devnull)]  # noqa: SIM115, PTH123 - it is never used

    def perform_step(self, state: ItemState, context: BlockingStepContext) -> str:
        mark(state.log, "begin", state.key, 0)
        return state.key


class TellsState(JobState):
    told: list[str] = []


class Starts(Job[Ask, TellsState]):
    """Goes wrong as its request says."""

    keep_after_completed = True

    def prepare_steps(self, request: Ask) -> Iterator[StepDetails]:
        if request.how == "prepare_steps":
            raise LookupError("there is no such index")
        for n in range(0 if request.how == "empty" else request.count):
            key = f"step-{n}"
            anything: Any = None
            if n % 2 and request.how in {"refuse", "raise", "bad state"}:
                anything = request.how
            if n == 2 and request.how == "bad request":
                anything = {"deep": [object()]}
            yield self.create_step(SharedItem, Item(log=request.log, key=key, anything=anything), step_id=key)

    def get_job_details(self) -> str:
        if self.request.how == "get_job_details":
            raise LookupError("no details")
        return "a job"

    def on_before_starting_job_steps(self) -> None:
        if self.request.how == "on_before_starting_job_steps":
            raise LookupError("not now")

    def on_before_dispatching_job_steps(self, initialization_may_be_incomplete: bool) -> None:
        if self.request.how == "on_before_dispatching_job_steps":
            raise LookupError("not yet")

    def on_failed_to_prepare(self) -> None:
        mark(self.request.log, "on_failed_to_prepare", "", 0)


def refused(client: Choreography, request: Ask) -> StartJobError:
    """The error of a start that started nothing: the job is `FAILED`, and no body began."""
    with pytest.raises(StartJobError) as caught:
        client.start(Starts, request)
    error = caught.value
    assert isinstance(error.job, JobHandle)
    record = error.job.record()
    assert record.status is JobStatus.FAILED
    assert record.error
    assert record.start_error == error.reason
    assert marks(Path(request.log), "begin") == []
    return error


@pytest.mark.parametrize(
    "hook",
    ["prepare_steps", "get_job_details", "on_before_starting_job_steps", "on_before_dispatching_job_steps"],
)
def test_a_start_hook_that_raises_is_told_with_its_cause(local: Choreography, tmp_path: Path, hook: str) -> None:
    """[S4.1] The cause is in the error and in the record."""
    error = refused(local, Ask(log=str(tmp_path / "marks"), how=hook))
    assert error.reason is StartJobReason.UNKNOWN
    assert "LookupError" in str(error)
    assert "LookupError" in error.job.record().error


def test_an_empty_plan_completes_at_once_and_says_so(local: Choreography, tmp_path: Path) -> None:
    """[S4.1]"""
    job = local.start(Starts, Ask(log=str(tmp_path / "marks"), how="empty"))
    assert job.start_error is StartReport.NO_JOB_STEPS_TO_START
    record = job.wait(timeout=30, progress=False)
    assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert record.progress.total == 0


@pytest.mark.parametrize(
    ("how", "step", "field"), [("bad request", "step-2", "anything"), ("bad state", "step-1", "anything")]
)
def test_what_cannot_be_stored_is_refused_with_step_field_and_reason(
    local: Choreography, tmp_path: Path, how: str, step: str, field: str
) -> None:
    """[S4.2] A request is refused before anything is prepared, a state before anything starts."""
    error = refused(local, Ask(log=str(tmp_path / "marks"), how=how))
    assert error.reason is StartJobReason.INVALID_STEP_PLAN
    assert repr(step) in str(error)
    assert field in str(error)
    assert ("object" if how == "bad request" else "TextIOWrapper") in str(error)
    assert error.job.progress().succeeded == 0


@pytest.mark.parametrize(("how", "reason"), [("refuse", "{} is not welcome"), ("raise", "KeyError: '{}'")])
def test_a_step_that_cannot_be_prepared_fails_the_start_with_each_reason(
    local: Choreography, tmp_path: Path, how: str, reason: str
) -> None:
    """[S4.3] Two of four: both are named, the hook is told once."""
    log = tmp_path / "marks"
    error = refused(local, Ask(log=str(log), how=how))
    assert error.reason is StartJobReason.COULD_NOT_PREPARE_JOB_STEPS
    assert list(error.details) == [f"step 'step-{n}': {reason.format(f'step-{n}')}" for n in (1, 3)]
    assert len(marks(log, "on_failed_to_prepare")) == 1


NOWHERE = {"runtime_env": {"working_dir": "gcs://_ray_pkg_0000000000000000.zip"}}
"""A runtime environment that Ray accepts and cannot set up."""


class BadHosts(BaseModel):
    """How many steps' actors cannot start, and how many can; stage 1 follows if it is said. They may only be slow:
    until the file `opens` is there.
    """

    log: str
    bad: int
    good: int = 0
    after: int = 0
    opens: str = ""


class Unplaceable(Job[BadHosts, TellsState]):
    """Steps with a runtime environment that cannot be set up, beside good ones."""

    def prepare_steps(self, request: BadHosts) -> Iterator[StepDetails]:
        for n in range(request.bad):
            piece = Piece(log=request.log, key=f"bad-{n}")
            yield self.create_step(OwnPiece, piece, step_id=piece.key, ray_options=NOWHERE)
        for n in range(request.good):
            piece = Piece(log=request.log, key=f"good-{n}")
            yield self.create_step(OwnPiece, piece, step_id=piece.key)
        for n in range(request.after):
            piece = Piece(log=request.log, key=f"after-{n}", stage=1)
            yield self.create_step(OwnPiece, piece, step_id=piece.key, stage=1)

    def get_failure_behavior_for(self, stage: int) -> StageFailureBehavior:
        return StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE


def test_a_job_that_can_start_none_of_its_steps_says_why(local: Choreography, tmp_path: Path) -> None:
    """[S4.4] The job has completed with failures, each step is `FAILED` with the reason."""
    with pytest.raises(StartJobError) as caught:
        local.start(Unplaceable, BadHosts(log=str(tmp_path / "marks"), bad=2))
    error = caught.value
    assert error.reason is StartJobReason.ALL_JOB_STEPS_FAILED_STARTING
    assert len(error.details) == 2
    assert all("runtime" in detail.lower() for detail in error.details)
    record = error.job.wait(timeout=30, progress=False)
    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    assert record.progress.failed == 2
    steps = error.job.steps(JobStepStatus.FAILED)
    assert len(steps) == 2
    assert all(step.failure is not None and "runtime" in step.failure.message.lower() for step in steps)


@pytest.mark.parametrize(("good", "after"), [(1, 0), (0, 1)])
def test_a_job_that_can_start_some_of_its_steps_runs(
    local: Choreography, tmp_path: Path, good: int, after: int
) -> None:
    """[S4.4] Some of a stage, or all of a stage that continues while a later one starts."""
    log = tmp_path / "marks"
    job = local.start(Unplaceable, BadHosts(log=str(log), bad=2, good=good, after=after))
    assert job.start_error is StartReport.FAILED_STARTING_SOME_JOB_STEPS
    record = job.wait(timeout=60, progress=False)
    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    assert record.start_error == StartReport.FAILED_STARTING_SOME_JOB_STEPS
    assert (record.progress.succeeded, record.progress.failed) == (1, 2)
    assert [m.key for m in marks(log, "begin")] == ["good-0" if good else "after-0"]


class _Picky:
    """What a process can only load where it is welcome, like a library that one machine lacks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _welcome, ()


def _welcome() -> _Picky:
    door = os.environ.get("DOOR")
    if door == "closed":
        raise ImportError("libpicky.so.7: cannot open shared object file")
    if door:
        await_true(Path(door).exists, 25, "the test opens the door")
    return _Picky()


PICKY = _Picky()


class Homesick(Job[BadHosts, TellsState]):
    """Steps whose class cannot be loaded in their actors, or not soon, though the job's own process can."""

    keep_after_completed = True

    def prepare_steps(self, request: BadHosts) -> Iterator[StepDetails]:
        assert PICKY
        for n in range(request.bad):
            piece = Piece(log=request.log, key=f"bad-{n}")
            env = {"runtime_env": {"env_vars": {"DOOR": request.opens or "closed"}}}
            yield self.create_step(OwnPiece, piece, step_id=piece.key, ray_options=env)


def test_a_class_that_cannot_be_loaded_in_its_actor_fails_the_start(local: Choreography, tmp_path: Path) -> None:
    """[S4.4, S13] As a constructor that raises: a sentence that names the cause, and nobody loops."""
    with pytest.raises(StartJobError) as caught:
        local.start(Homesick, BadHosts(log=str(tmp_path / "marks"), bad=2))
    error = caught.value
    assert error.reason is StartJobReason.ALL_JOB_STEPS_FAILED_STARTING
    assert len(error.details) == 2
    assert all("libpicky.so.7" in detail for detail in error.details)
    assert error.job.wait(timeout=30, progress=False).progress.failed == 2
    assert len(error.job.steps(JobStepStatus.FAILED)) == 2


def test_of_32_concurrent_starts_of_one_id_one_starts_the_job(local: Choreography, tmp_path: Path) -> None:
    """[P5, S4.7] 31 get a handle of the same job with `ALREADY_STARTED`; every step is performed once."""
    log = tmp_path / "marks"

    def start(_: int) -> StartReport | JobHandle | StartJobError:
        try:
            return local.start(Starts, Ask(log=str(log)), job_id="the one")
        except StartJobError as error:
            return error

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(start, range(32)))
    errors = [answer for answer in answers if isinstance(answer, StartJobError)]
    handles = [answer for answer in answers if isinstance(answer, JobHandle)]
    assert len(handles) == 1
    assert [error.reason for error in errors] == [StartJobReason.ALREADY_STARTED] * 31
    for handle in [*handles, *(error.job for error in errors)]:
        assert handle.job_id == "the one"
        record = handle.wait(timeout=30, progress=False)
        assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
        assert record.progress.succeeded == 4
    assert sorted(m.key for m in marks(log, "begin")) == [f"step-{n}" for n in range(4)]


class SlowPlan(Starts):
    """A background start whose plan waits for a file to appear."""

    start_steps_in_background = True

    def prepare_steps(self, request: Ask) -> Iterator[StepDetails]:
        await_true(Path(request.log).with_name("go").exists, 60, "the test lets the plan go on")
        yield from super().prepare_steps(request)


def test_a_background_start_returns_before_the_plan_is_made(local: Choreography, tmp_path: Path) -> None:
    """[S4.5] The record is there already; the job then runs as any other, and failures show in the record."""
    ran, failed = tmp_path / "ran", tmp_path / "failed"
    ran.mkdir()
    failed.mkdir()
    job = local.start(SlowPlan, Ask(log=str(ran / "marks")))
    broken = local.start(SlowPlan, Ask(log=str(failed / "marks"), how="refuse"))
    assert job.status() is JobStatus.PREPARING_JOB
    assert broken.status() is JobStatus.PREPARING_JOB
    (ran / "go").touch()
    (failed / "go").touch()
    record = job.wait(timeout=60, progress=False)
    assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert record.progress.succeeded == 4
    record = broken.wait(timeout=60, progress=False)
    assert record.status is JobStatus.FAILED
    assert record.start_error == StartJobReason.COULD_NOT_PREPARE_JOB_STEPS
    assert marks(failed / "marks", "begin") == []


class Crowded(Job[Ask, TellsState]):
    """Steps that each want every CPU of the machine, and wait for a file while they have them."""

    keep_after_completed = True

    def prepare_steps(self, request: Ask) -> Iterator[StepDetails]:
        for n in range(request.count):
            piece = Piece(log=request.log, key=str(n), gate=str(Path(request.log).with_name("go")))
            yield self.create_step(OwnPiece, piece, step_id=piece.key, ray_options={"num_cpus": float(request.how)})


def test_start_returns_while_steps_wait_for_resources(local: Choreography, tmp_path: Path) -> None:
    """[S4.4] One body is at work and the other has no place, until the first has been let go."""
    log = tmp_path / "marks"
    cpus = ray.cluster_resources()["CPU"]
    with Choreography.connect(options=JobsOptions(start_timeout=timedelta(seconds=55))) as client:
        job = client.start(Crowded, Ask(log=str(log), how=str(cpus), count=2))
        assert job.start_error is None
        await_true(lambda: marks(log, "begin"), 30, "the first body begins")
        assert len(marks(log, "begin")) == 1
        assert marks(log, "end") == []
        (tmp_path / "go").touch()
        assert job.wait(timeout=60, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
    assert [m.event for m in marks(log, "begin", "end")] == ["begin", "end"] * 2


def test_start_waits_no_longer_than_its_timeout_for_a_slow_actor(local: Choreography, tmp_path: Path) -> None:
    """[S4.4] Its constructor is still at work, as it neither waits for resources nor has failed."""
    log = tmp_path / "marks"
    with Choreography.connect(options=JobsOptions(start_timeout=timedelta(seconds=2))) as client:
        job = client.start(Homesick, BadHosts(log=str(log), bad=1, opens=str(tmp_path / "go")))
        assert job.start_error is None
        assert job.status() is JobStatus.RUNNING
        assert marks(log, "begin") == []
        (tmp_path / "go").touch()
        assert job.wait(timeout=60, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
