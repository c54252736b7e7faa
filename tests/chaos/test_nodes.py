"""A node, the head or everything dies, hangs or comes back: does the job go on, and end with the right counts [S10]?"""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import stories
from tests.chaos.cluster import HOST, JOB, ClusterUnderTest, Memory
from tests.chaos.endings import check_counts, check_nothing_left
from tests.chaos.marks import Witness
from tests.chaos.processes import Process, await_true
from tests.chaos.stories import Running

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(400)]


def finish(job: Running) -> None:
    """It ended as an undisturbed run does, and nothing is left."""
    job.finish()
    check_counts(job.cluster, job.witness, job.load, job.job_id)
    check_nothing_left(job.cluster, job.witness, job.driver, job.job_id)


def test_a_node_loses_its_power(cluster: ClusterUnderTest, witness: Witness) -> None:
    """Every process of a node is killed: its steps begin elsewhere, after lease and margin."""
    job = Running(cluster, witness, "power")
    assert stories.node_dies(job) > 0
    finish(job)


def test_a_raylet_is_killed(cluster: ClusterUnderTest, witness: Witness) -> None:
    """Its workers end with it, or when their leases do; none is taken for dead before."""
    job = Running(cluster, witness, "raylet")
    stories.raylet_dies(job)
    finish(job)


@pytest.mark.parametrize("seconds", [5.0, 25.0], ids=["for-a-moment", "until-declared-dead"])
def test_a_node_hangs_and_wakes_up(cluster: ClusterUnderTest, witness: Witness, seconds: float) -> None:
    """Every process of it is stopped, then woken: no body is at work beside the one that took its step over."""
    job = Running(cluster, witness, "hang", seconds=1.0)
    stories.node_hangs(job, seconds)
    finish(job)


def test_a_raylet_hangs_while_its_workers_go_on(cluster: ClusterUnderTest, witness: Witness) -> None:
    """A node that is declared dead is not dead: its hosts go on, and what they do counts once."""
    job = Running(cluster, witness, "zombie", seconds=3.0, steps=60)
    stories.raylet_hangs(job)
    finish(job)


def test_a_step_whose_node_hangs_is_stopped_and_accounted_later(cluster: ClusterUnderTest, witness: Witness) -> None:
    """No end of its process is confirmed in time, and whoever stops it is told so; then it counts, once [S9.7]."""
    job = Running(cluster, witness, "late", steps=4, stages=1, flaky=0, rotten=0, is_gated=True, is_shared=False)
    node, step = _step_away_from_its_job(job)
    stopped = cluster.pause_node(node)
    assert job.driver.call("stop_step", job_id=job.job_id, step_id=step, answer_timeout=60.0) == "STOP_TIMED_OUT"
    with cluster.reader() as reader:
        assert reader.job(job.job_id).step(step).record().status == "SCHEDULED"
        for each in stopped:
            each.send(signal.SIGCONT)
        await_true(lambda: reader.job(job.job_id).step(step).record().status == "STOPPED", 60, "it is accounted")
        (witness.folder / "gate").touch()
        record = reader.job(job.job_id).wait(timeout=60, progress=False)
        assert (record.status, record.progress.succeeded, record.progress.stopped) == ("STOPPED", 3, 1)
        assert reader.job(job.job_id).verify().is_ok
    assert witness.count("told", job=job.job_id) == 4, "each step was told of once"
    assert witness.count("twice", job=job.job_id) == 0


def _step_away_from_its_job(job: Running) -> tuple[Process, str]:
    """A node without the job's actor, and a step that it works on; hosts elsewhere are killed until there is one."""
    here = {each.pid: raylet for raylet in job.cluster.raylets for each in job.cluster.processes(raylet=raylet)}
    home = here[stories.one(job.cluster.processes(JOB)).pid]
    node = next(raylet for raylet in job.cluster.raylets if raylet != home)
    while True:
        working = job.workers()
        for host in job.cluster.processes(HOST, raylet=node):
            if host.pid in working:
                return node, working[host.pid]
        for host in job.cluster.processes(HOST, raylet=home):
            host.kill()
        await_true(lambda: len(job.at_work()) == job.load.steps, 60, "they work again, maybe there")


def test_the_head_restarts_and_remembers_nothing(cluster: ClusterUnderTest, witness: Witness) -> None:
    """The next connect brings the job back; it knows of no actor, only the store does."""
    job = Running(cluster, witness, "head")
    stories.head_restarts(job)
    finish(job)


REMEMBERS = pytest.mark.parametrize("memory", [Memory.ROCKSDB, Memory.REDIS])


@contextlib.contextmanager
def remembering(folder: Path, memory: Memory) -> Iterator[ClusterUnderTest]:
    """A head and another node; the GCS keeps its tables when it dies."""
    if memory is Memory.REDIS and shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server here")
    with ClusterUnderTest(folder, memory=memory) as cluster:
        cluster.add_node()
        yield cluster


@REMEMBERS
def test_the_head_restarts_and_remembers_its_actors(tmp_path: Path, witness: Witness, memory: Memory) -> None:
    """With a GCS that keeps its tables the job comes back by itself: nobody connects."""
    with remembering(tmp_path, memory) as cluster:
        job = Running(cluster, witness, "remembered")
        stories.head_restarts_by_itself(job)
        finish(job)


@REMEMBERS
def test_the_gcs_restarts_below_living_nodes(tmp_path: Path, witness: Witness, memory: Memory) -> None:
    """The GCS is away for some seconds: hosts keep working, and nothing is taken for dead."""
    with remembering(tmp_path, memory) as cluster:
        job = Running(cluster, witness, "gcs")
        stories.gcs_restarts(job)
        finish(job)


def test_the_job_actors_node_hangs_and_its_successor_meets_it(cluster: ClusterUnderTest, witness: Witness) -> None:
    """The node of the job actor is stopped until Ray has made another one, then woken: the old one changes nothing."""
    job = elsewhere(cluster, witness, "old")
    stopped = cluster.pause_node(cluster.raylets[-1])
    await_true(lambda: cluster.processes(JOB, raylet=cluster.raylets[0]), 60, "Ray makes another job actor")
    since = stories.now()
    job.until(lambda m: m.event == "told" and m.at > since, since)
    for each in stopped:
        each.send(signal.SIGCONT)
    finish(job)


def test_two_prepare_one_job_at_once(cluster: ClusterUnderTest, witness: Witness) -> None:
    """A job actor hangs while it prepares 30,000 steps, and wakes while its successor does: one plan, each step once
    [P7].
    """
    driver = cluster.driver()
    driver.call("ping")
    load = cluster.load(witness, steps=30_000, seconds=0.0, is_marked=False)
    for n in range(12):
        job_id = f"prepared-{n}"
        driver.send("start", load=load.model_dump(), job_id=job_id)
        await_true(lambda: witness.marks("plan", job=job_id), 60, "the plan is made")  # noqa: B023
        pid = witness.marks("plan", job=job_id)[0].pid
        if pid in {each.pid for each in cluster.processes(JOB, raylet=cluster.raylets[-1])}:
            break
        driver.receive()
        assert driver.call("wait", job_id=job_id, timeout=120) == "COMPLETED_SUCCESSFULLY"
    else:
        pytest.skip("no job actor came to the other node")
    stopped = cluster.pause_node(cluster.raylets[-1])
    await_true(lambda: cluster.processes(JOB, raylet=cluster.raylets[0]), 60, "Ray makes another job actor")
    for each in stopped:
        each.send(signal.SIGCONT)
    with contextlib.suppress(RuntimeError):  # it died before its plan was saved: the start says so, and nothing runs
        driver.receive()
    if driver.call("status", job_id=job_id) == "FAILED":
        assert witness.count("begin", job=job_id) == 0
        return
    assert driver.call("wait", job_id=job_id, timeout=200) == "COMPLETED_SUCCESSFULLY"
    assert witness.count("plan", job=job_id) == 1
    check_counts(cluster, witness, load, job_id)
    check_nothing_left(cluster, witness, driver, job_id)


def elsewhere(cluster: ClusterUnderTest, witness: Witness, name: str) -> Running:
    """A job whose actor is on the second node, which the driver does not need."""
    for n in range(12):
        job = Running(cluster, witness, f"{name}-{n}", steps=160)
        if cluster.processes(JOB, raylet=cluster.raylets[-1]):
            return job
        job.driver.call("remove", job_id=job.job_id)
    pytest.skip("no job actor came to the other node")
