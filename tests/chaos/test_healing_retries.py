"""When does a retry run whose time comes while everything is dead [S7.2, S10]?"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from choreography_ray import Choreography, JobStatus
from choreography_ray.model import JobStepStatus
from tests.chaos.deeds import await_true, marks
from tests.integration.conftest import only_here
from tests.integration.test_driver_exit import processes_with

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(300)]

DRIVER = """
import sys
from datetime import timedelta
from choreography_ray import Choreography, JobsOptions
from tests.chaos.deeds import Deeds, order
from pathlib import Path

options = JobsOptions(step_retry_backoff=timedelta(seconds=float(sys.argv[2])), max_step_attempts=2)
choreography = Choreography.connect(options=options)
choreography.start(Deeds, order(Path(sys.argv[1]), [{"fail_first": 1}, {}]), job_id="due")
print("started", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("due", [5.0, 75.0])
def test_a_due_retry_keeps_its_time_when_the_whole_cluster_is_killed(tmp_path: Path, due: float) -> None:
    """Driver, Ray, store and all actors are killed at once; what is due meanwhile runs when the next connect has
    brought the job back, what is due later at its time.
    """
    token = f"choreography-test-{uuid.uuid4().hex}"
    folder = tmp_path / "witness"
    with only_here(tmp_path / "store"):
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder), str(due)],
            env={**os.environ, "CHOREOGRAPHY_TEST_MARK": token, "PYTHONPATH": str(Path.cwd())},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "started\n", driver.communicate()[1]
            with Choreography.connect(use_ray=False) as reader:
                job = reader.job("due")
                await_true(
                    lambda: job.step("s0").record().status is JobStepStatus.AWAITING_RETRY, 30, "s0 waits", pause=0.1
                )
        finally:
            driver.kill()
            driver.communicate()
        parts = ("gcs_server", "raylet/raylet", "ray::JobActor", "ray::HostActor", "secantusd")
        await_true(
            lambda: not any(part in command for command in processes_with(token) for part in parts),
            60, "all is gone", pause=0.2,
        )  # fmt: skip
        with Choreography.connect() as client:
            job = client.job("due")
            record = job.wait(timeout=120, progress=False)
            assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
            assert record.progress.succeeded == 2
    (failed,) = marks(folder, "fail")
    again = [mark for mark in marks(folder, "begin") if mark["attempt"] == 2]
    assert [mark["key"] for mark in again] == ["s0"]
    late = again[0]["at"] - failed["at"] - due
    (resuming,) = marks(folder, "resuming")
    print(f"due after {due:g} s: begun {late:.1f} s after its time")
    assert late >= 0.0
    # A host must come up first; a job that comes back later than the due time needs no more than that.
    assert late < 6.0 or again[0]["at"] - resuming["at"] < 6.0
