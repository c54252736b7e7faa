"""Does the supervisor bring jobs back, finish what was begun, end what is stuck and forget what is old, on real Ray?"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.state import actors

from choreography_ray import Choreography, ClusterOptions, JobHandle, JobNotFound, JobStatus
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.names import SUPERVISOR
from choreography_ray.client import asynchronous
from choreography_ray.engine.taking import give_status, take_over
from choreography_ray.model import JobId
from tests.integration.conftest import only_here
from tests.integration.control_jobs import Chores, ChoresRequest, Kind
from tests.integration.jobs import await_true
from tests.integration.test_control import await_lines, is_running

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

LEASE = timedelta(seconds=6)
NAMESPACE = "choreography-default"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster in this process whose leases are short, so that its supervisor looks often."""
    with (
        only_here(tmp_path_factory.mktemp("store")),
        Choreography.connect(cluster=ClusterOptions(step_lease_timeout=LEASE)) as client,
    ):
        yield client


def pid_of(name: str) -> int | None:
    """The process of a named actor that lives."""
    return next((a["Pid"] for a in actors().values() if a["Name"] == name and a["State"] == "ALIVE"), None)


def start(client: Choreography, log: Path, kind: Kind = Kind.QUICK, steps: int = 40) -> JobHandle:
    job = client.start(Chores, ChoresRequest(log=str(log), kind=kind, steps=steps, shared=True))
    await_lines(log, 1)
    return job


def check_done(job: JobHandle, log: Path, steps: int) -> None:
    """Every step succeeded, was counted once, and was performed once, as its hosts lived on."""
    record = job.wait(timeout=120, progress=False)
    assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert record.progress.succeeded == steps
    assert len(Counter(line.split()[0] for line in log.read_text().splitlines())) == steps


def environment_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")


def test_a_job_actor_that_was_ended_for_good_from_outside_is_brought_back(
    quick: Choreography, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray makes no new one of an actor that somebody killed; one supervisor, of which there is one, does.

    The supervisor has no runtime_env, and the job carries that of its driver all the same, as its hosts do [S13].
    """
    env = {"env_vars": {"MARKED": "yes"}, "working_dir": "gcs://_ray_pkg_of_a_lost_cluster.zip"}
    monkeypatch.setattr(asynchronous, "own_runtime_env", lambda: env)
    log = tmp_path / "marks"
    job = start(quick, log, steps=100)
    before = pid_of(job.record().actor_name)
    host = int(log.read_text().split()[1])
    assert before is not None
    assert all("MARKED=yes" in environment_of(pid) for pid in (before, host))
    ray.kill(ray.get_actor(job.record().actor_name, namespace=NAMESPACE), no_restart=True)
    await_true(lambda: pid_of(job.record().actor_name) not in (None, before), 60, "it is brought back")
    after = pid_of(job.record().actor_name)
    assert after is not None
    assert "MARKED=yes" in environment_of(after)
    check_done(job, log, 100)
    assert not is_running(before)
    assert [a["State"] for a in actors().values() if a["Name"] == SUPERVISOR] == ["ALIVE"]


def test_a_removal_that_nobody_works_on_is_finished(quick: Choreography, tmp_path: Path) -> None:
    """The job had come to rest, its actor had left, and whoever removed it died after the first write."""
    log = tmp_path / "marks"
    job = start(quick, log, steps=4)
    job.stop()
    job.drain()
    await_true(lambda: pid_of(job.record().actor_name) is None, 60, "its actor has left")
    connection: Any = quick._client._connection  # type: ignore[attr-defined]

    async def begin_to_remove() -> None:
        storage = Connection(connection.namespace, connection.mongo_url).storage()
        document = await storage.read_job(JobId(job.job_id))
        assert document is not None
        taken = await take_over(storage, document.job_id, document.fence)
        assert taken is not None
        assert await give_status(storage, taken, JobStatus.REMOVING, "removed", datetime.now(UTC)) is not None
        await storage.close()

    asyncio.run(begin_to_remove())

    def is_gone() -> bool:
        try:
            job.record()
        except JobNotFound:
            return True
        return False

    await_true(is_gone, 60, "it was removed")


@pytest.mark.chaos
def test_a_job_actor_whose_process_is_stopped_is_replaced(quick: Choreography, tmp_path: Path) -> None:
    """Ray takes it for alive. Its hosts lose their leases; each step counts once [S10.4]."""
    log = tmp_path / "marks"
    job = start(quick, log, steps=200)
    stuck = pid_of(job.record().actor_name)
    assert stuck is not None
    os.kill(stuck, signal.SIGSTOP)
    try:
        await_true(lambda: pid_of(job.record().actor_name) not in (None, stuck), 90, "it has a successor")
        check_done(job, log, 200)
        assert not is_running(stuck)
    finally:
        if is_running(stuck):
            os.kill(stuck, signal.SIGKILL)


def test_old_jobs_go_once_retention_says_so(quick: Choreography, tmp_path: Path) -> None:
    """The supervisor takes up the new values of a connect without a restart; a job that is stopped stays."""
    start(quick, tmp_path / "ended", steps=2).wait(timeout=60, progress=False)
    stopped = start(quick, tmp_path / "stopped", steps=40)
    stopped.stop()
    supervisor = pid_of(SUPERVISOR)
    options = ClusterOptions(terminal_job_retention=timedelta(0), cleanup_cadence=timedelta(seconds=1))
    with Choreography.connect(cluster=options) as client:
        await_true(lambda: [record.job_id for record in client.jobs()] == [stopped.job_id], 60, "the old jobs are gone")
        client.job(stopped.job_id).remove()
    assert pid_of(SUPERVISOR) == supervisor
