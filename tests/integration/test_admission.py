"""Admission on real Ray: a start that is refused leaves nothing, a stage that is refused stops the job [S11]."""

from __future__ import annotations

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

pytestmark = pytest.mark.ray


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
