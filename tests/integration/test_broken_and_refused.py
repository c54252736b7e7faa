"""Jobs that are broken or refused: code that ends its process, a state too large, admission [S10, S11, S12.4]."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from choreography_ray import (
    AdmissionMoment,
    Choreography,
    Job,
    JobNotFound,
    JobsOptions,
    JobState,
    JobStatus,
    JobStep,
    JobStepState,
    ResumeJobError,
    ResumeJobReason,
    StartJobError,
    StartJobReason,
    StepHosting,
)
from choreography_ray.actors.names import host_prefix, ray_namespace
from choreography_ray.model import JobId, JobStepStatus
from tests.support import actor_names

pytestmark = pytest.mark.ray

LAST_WORDS = "the last words of this process"
MOST = 2


class Deaths(BaseModel):
    """Where a mark is left for each death."""

    directory: str
    steps: int = 3

    def note(self) -> None:
        """One more."""
        (Path(self.directory) / f"{time.monotonic_ns()}").touch()


class WarmStep(JobStep[Deaths, str, JobStepState]):
    """Succeeds."""

    hosting = StepHosting.SHARED_ACTORS
    ray_options = {"num_cpus": 0.1}

    def initialize_state(self, request: Deaths) -> None: ...

    def perform_step(self, state: JobStepState, context: object) -> str:
        return "done"


class DeadlyHook(Job[Deaths, JobState]):
    """Its hook ends the job's process, each time."""

    options = JobsOptions(max_job_crashes=MOST)

    def prepare_steps(self, request: Deaths):  # type: ignore[no-untyped-def]
        return [self.create_step(WarmStep, request) for _ in range(request.steps)]

    def on_step_completed_or_stopped(self, step_id: str, result: object) -> None:
        self.request.note()
        print(LAST_WORDS, file=sys.stderr, flush=True)
        os._exit(7)


class DeadlyPlan(DeadlyHook):
    """Its plan does."""

    def prepare_steps(self, request: Deaths):  # type: ignore[no-untyped-def]
        print(LAST_WORDS, file=sys.stderr, flush=True)
        os._exit(9)


class DeadlyStepState(JobStepState):
    """What the body sees."""

    directory: str = ""


class DeadlyStep(JobStep[Deaths, str, DeadlyStepState]):
    """Its body ends the host's process, each time."""

    ray_options = {"num_cpus": 0.1}

    def initialize_state(self, request: Deaths) -> None:
        self.state.directory = request.directory

    def perform_step(self, state: DeadlyStepState, context: object) -> str:
        Deaths(directory=state.directory).note()
        print(LAST_WORDS, file=sys.stderr, flush=True)
        os._exit(11)


class OneDeadlyStep(Job[Deaths, JobState]):
    """A job with one of them."""

    options = JobsOptions(max_step_crashes=MOST)

    def prepare_steps(self, request: Deaths):  # type: ignore[no-untyped-def]
        return [self.create_step(DeadlyStep, request, step_id="deadly")]


def test_a_hook_that_ends_its_process_fails_the_job(local: Choreography, tmp_path: Path) -> None:
    """As often as `max_job_crashes` says; then the job is readable and removable, and nothing of it runs."""
    job = local.start(DeadlyHook, Deaths(directory=str(tmp_path)), job_id="deadly-hook")
    record = job.wait(timeout=90, progress=False)
    assert record.status is JobStatus.FAILED
    assert record.history[-1].why == "JOB_CRASHED"
    assert LAST_WORDS in record.error
    assert "died 2 times" in record.error
    assert len(list(tmp_path.iterdir())) == MOST
    assert len(list(job.steps())) == 3
    prefix, namespace = host_prefix(JobId("deadly-hook")), ray_namespace("default")
    deadline = time.monotonic() + 60
    while any(name.startswith(prefix) for name in actor_names(namespace)):
        assert time.monotonic() < deadline, "hosts are left"
        time.sleep(0.1)
    job.remove()
    with pytest.raises(JobNotFound):
        job.record()
    assert len(list(tmp_path.iterdir())) == MOST, "its code was called again"


def test_a_plan_that_ends_its_process_fails_the_start(local: Choreography, tmp_path: Path) -> None:
    """Nothing is planned twice: the first death is the end of a start in the foreground."""
    with pytest.raises(StartJobError, match=LAST_WORDS) as caught:
        local.start(DeadlyPlan, Deaths(directory=str(tmp_path)), job_id="deadly-plan")
    assert caught.value.reason is StartJobReason.UNKNOWN
    local.job("deadly-plan").remove()


def test_a_step_that_ends_its_process_fails_with_what_is_known(local: Choreography, tmp_path: Path) -> None:
    """What Ray tells, and the end of what its process printed."""
    job = local.start(OneDeadlyStep, Deaths(directory=str(tmp_path)), job_id="deadly-step")
    assert job.wait(timeout=90, progress=False).status is JobStatus.COMPLETED_WITH_FAILURES
    step = job.step("deadly").record()
    assert step.status is JobStepStatus.FAILED
    assert step.failure is not None
    assert step.failure.error_type == "HostDied"
    assert "SYSTEM_ERROR" in step.failure.message
    assert LAST_WORDS in step.failure.message
    assert len(list(tmp_path.iterdir())) == MOST
    job.remove()


class Growth(BaseModel):
    """How many steps there are; the hook adds 1 MB for each."""

    steps: int = 20


class GrownState(JobState):
    """Grows."""

    seen: int = 0
    notes: list[str] = []


class QuickStep(JobStep[Growth, str, JobStepState]):
    """Succeeds."""

    hosting = StepHosting.SHARED_ACTORS
    ray_options = {"num_cpus": 0.1}

    def initialize_state(self, request: Growth) -> None: ...

    def perform_step(self, state: JobStepState, context: object) -> str:
        return "done"


class Growing(Job[Growth, GrownState]):
    """Its state outgrows a document of the database."""

    keep_after_completed = True

    def prepare_steps(self, request: Growth):  # type: ignore[no-untyped-def]
        for number in range(request.steps):
            yield self.create_step(QuickStep, request, stage=number)

    def on_step_completed_or_stopped(self, step_id: str, result: object) -> None:
        self.state.seen += 1
        self.state.notes.append("x" * 1024 * 1024)


@pytest.mark.chaos  # a minute of writing some MiB at a time; its rule has stories in tests/simulation
def test_a_state_that_outgrows_its_document(local: Choreography) -> None:
    """CASES P6: a typed error that names field and size; outcomes count, and the job can be read and removed."""
    job = local.start(Growing, Growth(), job_id="growing")
    record = job.wait(timeout=120, progress=False)
    assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert record.progress.succeeded == 20
    assert "TooLarge: job 'growing': state" in record.error
    state = job.state()
    assert state.seen == len(state.notes) == 14
    job.remove()
    with pytest.raises(JobNotFound):
        job.record()


class Gate(BaseModel):
    """A file that says which moments are refused, a line each; "silent" stands for all."""

    path: str


class GatedStep(JobStep[Gate, str, JobStepState]):
    """Succeeds."""

    hosting = StepHosting.SHARED_ACTORS
    ray_options = {"num_cpus": 0.1}

    def initialize_state(self, request: Gate) -> None: ...

    def perform_step(self, state: JobStepState, context: object) -> str:
        return "done"


class Gated(Job[Gate, JobState]):
    """Runs as its gate says."""

    options = JobsOptions(admission_timeout=timedelta(seconds=5))

    def prepare_steps(self, request: Gate):  # type: ignore[no-untyped-def]
        return [self.create_step(GatedStep, request, stage=stage) for stage in (0, 1)]

    def may_run(self, moment: AdmissionMoment) -> bool:
        closed = Path(self.request.path).read_text().split()
        if "silent" in closed:
            raise ConnectionError("nobody answers")
        return moment not in closed


def test_what_is_refused_in_the_driver_and_in_the_job(local: Choreography, tmp_path: Path) -> None:
    """The same id is refused, unanswered, started, stopped at its second stage, and resumed to its end."""
    gate = tmp_path / "gate"
    request = Gate(path=str(gate))
    for closed, reason in (("START", StartJobReason.NOT_ADMITTED), ("silent", StartJobReason.ADMISSION_UNANSWERED)):
        gate.write_text(closed)
        with pytest.raises(StartJobError, match="may_run") as refused:
            local.start(Gated, request, job_id="gated")
        assert refused.value.reason is reason
        assert refused.value.job is None
        with pytest.raises(JobNotFound):
            local.job("gated").record()
    gate.write_text("STAGE RESUME")
    job = local.start(Gated, request, job_id="gated")
    record = job.wait(timeout=60, progress=False)
    assert record.status is JobStatus.STOPPED
    assert record.history[-1].why == "NOT_ADMITTED"
    with pytest.raises(ResumeJobError) as not_resumed:
        job.resume()
    assert not_resumed.value.reason is ResumeJobReason.NOT_ADMITTED
    gate.write_text("")
    job.resume()
    assert job.wait(timeout=60, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY


def test_a_callable_that_is_not_there_is_a_sentence(local: Choreography, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.write_text("")

    class Elsewhere(Gated):
        options = JobsOptions(admissions=("no_such_module:admits",))

    with pytest.raises(StartJobError, match=r"'no_such_module:admits' .* cannot be imported"):
        local.start(Elsewhere, Gate(path=str(gate)))
