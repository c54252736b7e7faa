"""Single steps are stopped on real Ray, while their stage is open [S9.7]."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from choreography_ray import (
    Choreography,
    JobStatus,
    JobStepStatus,
    ResumeResult,
    StepNotFound,
    StepStopError,
    StepStopReason,
)
from tests.integration.step_stop_jobs import Errands, ErrandsRequest

pytestmark = pytest.mark.ray


def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_a_prepared_a_running_and_a_waiting_step_are_stopped_while_their_stage_is_open(
    local: Choreography, tmp_path: Path, shared: bool
) -> None:
    """Each counts once as its rule says, the fourth goes on, nothing waits for ever; a resume runs the rest [P14]."""
    job = local.start(Errands, ErrandsRequest(directory=str(tmp_path), shared=shared))
    marks = tmp_path / "marks"
    until(lambda: marks.exists() and set(marks.read_text().split()) == {"retrying", "running", "busy"})
    until(lambda: job.step("retrying").record().status is JobStepStatus.AWAITING_RETRY)
    assert job.step("prepared").record().status is JobStepStatus.PREPARED
    assert job.step("prepared").stop() is JobStepStatus.STOPPED
    assert job.step("running").stop() is JobStepStatus.STOPPED
    assert job.step("retrying").stop() is JobStepStatus.COMPLETED_WITH_FAILURE
    assert job.step("running").stop() is JobStepStatus.STOPPED
    with pytest.raises(StepStopError) as refused:
        job.step("retrying").stop()
    assert refused.value.reason is StepStopReason.STEP_IS_FINAL
    with pytest.raises(StepNotFound):
        job.step("nobody").stop()
    assert job.status() is JobStatus.RUNNING
    (tmp_path / "release").touch()
    record = job.wait(timeout=60, progress=False)
    assert record.status is JobStatus.STOPPED
    assert record.history[-1].why == "STEP_STOPPED"
    told = [("busy", "succeeded"), ("prepared", "stopped"), ("retrying", "failed"), ("running", "stopped")]
    assert sorted(job.state().told) == told
    assert (record.progress.succeeded, record.progress.failed, record.progress.stopped) == (1, 1, 2)
    assert job.resume() is ResumeResult.RESUMED
    record = job.wait(timeout=60, progress=False)
    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    assert (record.progress.succeeded, record.progress.failed, record.progress.stopped) == (3, 1, 0)
    assert Counter(marks.read_text().split()) == {"retrying": 1, "running": 2, "busy": 1, "prepared": 1}
    assert sorted(job.state().told) == sorted([*told, ("prepared", "succeeded"), ("running", "succeeded")])
