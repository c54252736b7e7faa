"""Stop, drain, resume, retry and remove on real Ray: bodies that will not stop, and what is left of them [S9]."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from choreography_ray import (
    Choreography,
    DrainResult,
    JobNotFound,
    JobStatus,
    JobStepStatus,
    ResumeResult,
    StopJobError,
    StopJobReason,
)
from tests.integration.control_jobs import Chores, ChoresRequest, Kind

pytestmark = pytest.mark.ray


def await_lines(log: Path, count: int, seconds: float = 60.0) -> list[str]:
    """The witness's lines, once there are so many."""
    deadline = time.monotonic() + seconds
    while True:
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) >= count:
            return lines
        assert time.monotonic() < deadline, f"only {lines}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("kind", [Kind.SLEEPS, Kind.SPINS, Kind.HOLDS_THE_GIL])
def test_a_body_that_will_not_stop_is_ended_from_outside(local: Choreography, tmp_path: Path, kind: Kind) -> None:
    """Stop and status answer in under a second; the process is gone soon after; a resume performs it once more [P4]."""
    log = tmp_path / "marks"
    job = local.start(Chores, ChoresRequest(log=str(log), kind=kind, steps=1))
    pid = int(await_lines(log, 1)[0].split()[1])
    began = time.monotonic()
    job.stop()
    assert job.status() is JobStatus.STOPPED
    assert time.monotonic() - began < 1.0
    while is_running(pid):
        # The stop timeout of one second, and two on top.
        assert time.monotonic() - began < 3.0
        time.sleep(0.02)
    assert job.drain(timeout=30) is DrainResult.DRAINED
    assert job.progress().stopped == 1
    assert job.resume() is ResumeResult.RESUMED
    await_lines(log, 2)
    job.remove()
    with pytest.raises(JobNotFound):
        job.record()


def test_a_stopped_job_goes_on_where_it_was(local: Choreography, tmp_path: Path) -> None:
    """Stopped in the middle, over both hostings: each step counts once, and nothing runs twice after the resume."""
    log = tmp_path / "marks"
    job = local.start(Chores, ChoresRequest(log=str(log), kind=Kind.QUICK, steps=60, shared=True))
    await_lines(log, 5)
    job.stop()
    assert job.drain() in (DrainResult.DRAINED, DrainResult.COMPLETED)
    progress = job.progress()
    assert progress.succeeded + progress.stopped == 60
    lines = log.read_text()
    assert len(lines.splitlines()) == progress.succeeded
    job.resume()
    assert job.wait(timeout=120, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
    assert max(Counter(line.split()[0] for line in log.read_text().splitlines()).values()) == 1
    with pytest.raises(StopJobError) as refused:
        job.stop()
    assert refused.value.reason is StopJobReason.JOB_IS_COMPLETED


def test_failed_steps_run_again_over_a_killed_job_actor(local: Choreography, tmp_path: Path) -> None:
    """Only failed steps run, their attempts rise, and the counts stay right when the actor is killed in between."""
    log = tmp_path / "marks"
    request = ChoresRequest(log=str(log), kind=Kind.FAILS_TWICE, steps=6, shared=True)
    job = local.start(Chores, request)
    job.wait(timeout=60, progress=False)
    assert job.progress().failed == 6
    assert job.retry_failed_steps() == 6
    kill_actor(job.record().actor_name)
    job.wait(timeout=120, progress=False)
    assert (job.progress().failed, job.progress().succeeded) == (6, 0)
    assert job.retry_failed_steps() == 6
    assert job.wait(timeout=60, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
    assert {step.status for step in job.steps()} == {JobStepStatus.COMPLETED_SUCCESSFULLY}


def kill_actor(name: str) -> None:
    """kill -9 of a named actor's process."""
    import ray._private.state

    actors = ray._private.state.actors().values()
    pid = next((a["Pid"] for a in actors if a["Name"] == name and a["State"] == "ALIVE"), None)
    if pid:
        os.kill(pid, signal.SIGKILL)
