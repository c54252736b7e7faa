"""The store dies, hangs, is slow, fails or loses its replies: is anything lost, or counted twice [S10, row MongoDB]?"""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

from tests.chaos import stories
from tests.chaos.cluster import ClusterUnderTest
from tests.chaos.endings import check_counts, check_nothing_left
from tests.chaos.marks import Witness
from tests.chaos.processes import await_true
from tests.chaos.stories import Running

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(400)]

REFUSES, TOOK_IT = {"errorCode": 91}, {"writeConcernError": {"code": 64, "errmsg": "waiting timed out"}}
"""It is shutting down and did nothing; it did it, and cannot say that it will last."""
WRITES = ["insert", "update", "delete", "findAndModify"]


def finish(job: Running) -> None:
    """It ended as an undisturbed run does, and nothing is left."""
    job.finish()
    check_counts(job.cluster, job.witness, job.load, job.job_id)
    check_nothing_left(job.cluster, job.witness, job.driver, job.job_id)


@pytest.mark.parametrize("seconds", [3.0, 60.0], ids=["seconds", "a-minute"])
@pytest.mark.parametrize("happens", [stories.store_dies, stories.store_hangs])
def test_the_store_is_away(cluster: ClusterUnderTest, witness: Witness, happens: Any, seconds: float) -> None:
    """Killed or stopped: outcomes wait in their processes, whose leases the GCS confirms meanwhile."""
    job = Running(cluster, witness, "away")
    happens(job, seconds)
    finish(job)


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """A cluster that reaches its store by a line of the test."""
    with ClusterUnderTest(tmp_path, proxied=True) as cluster:
        cluster.add_node()
        yield cluster


def test_the_store_is_slow(proxied: ClusterUnderTest, witness: Witness) -> None:
    """Each request and each reply takes 0.2 s longer."""
    assert proxied.proxy is not None
    job = Running(proxied, witness, "slow")
    proxied.proxy.delay = 0.2
    finish(job)


def test_replies_of_the_store_are_lost(proxied: ClusterUnderTest, witness: Witness) -> None:
    """Connections break again and again, with requests on their way: what was written is found, not written twice."""
    assert proxied.proxy is not None
    proxy = proxied.proxy
    proxy.delay = 0.01  # so that there is something on its way
    job = Running(proxied, witness, "lost")
    over = threading.Event()
    draw = random.Random(1)

    def live() -> None:
        while not over.wait(draw.uniform(0.1, 0.8)):
            proxy.break_connections()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        job.finish()
    finally:
        over.set()
        thread.join()
    finish(job)


def test_the_line_to_the_store_is_blocked_and_cut(proxied: ClusterUnderTest, witness: Witness) -> None:
    """Requests that nobody answers, which arrive late; then a store that nobody reaches."""
    assert proxied.proxy is not None
    job = Running(proxied, witness, "line")
    with proxied.proxy.blocked():
        threading.Event().wait(8)
    job.until(lambda m: m.event == "told", stories.now())
    with proxied.proxy.cut():
        threading.Event().wait(8)
    job.until(lambda m: m.event == "told", stories.now())
    finish(job)


def test_a_step_is_stopped_while_its_job_cannot_write(proxied: ClusterUnderTest, witness: Witness) -> None:
    """Whoever stops it is told that the job cannot save it; with the store it is stopped after all, once [S9.7]."""
    assert proxied.proxy is not None
    job = Running(proxied, witness, "unsaved", steps=4, stages=1, flaky=0, rotten=0, is_gated=True)
    other = proxied.driver(is_direct=True)
    other.call("ping")
    with proxied.proxy.cut():
        told = other.call("stop_step", job_id=job.job_id, step_id="2", answer_timeout=10.0)
        assert told == "FAILED_TO_PERSIST"
    with proxied.reader() as reader:
        step = reader.job(job.job_id).step("2")
        await_true(lambda: step.record().status == "STOPPED", 60, "it is stopped")
        (witness.folder / "gate").touch()
        record = reader.job(job.job_id).wait(timeout=60, progress=False)
        assert (record.status, record.progress.succeeded, record.progress.stopped) == ("STOPPED", 3, 1)
        assert reader.job(job.job_id).verify().is_ok
    assert witness.count("told", job=job.job_id) == 4, "each step was told of once"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB, whose folder `store` a cluster below its parent uses."""
    folder = tmp_path / "store"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_the_disk_of_the_store_is_full_for_a_while(small: Path, witness: Witness) -> None:
    """Writes fail, or the store ends itself; with room on the disk and a store that runs the job goes on, complete."""
    with ClusterUnderTest(small.parent) as cluster:
        cluster.add_node()
        job = Running(cluster, witness, "full")
        filler = small / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(12)
        filler.unlink()
        cluster.store.start()  # it runs, or is started again, as its keeper does
        finish(job)


@pytest.mark.parametrize("how", [REFUSES, TOOK_IT], ids=["refused", "taken"])
def test_the_store_answers_writes_with_errors(tmp_path: Path, witness: Witness, how: dict[str, Any]) -> None:
    """Sixteen writes fail, with and without an effect: they are repeated, and each has its effect once."""
    with ClusterUnderTest(tmp_path, can_fail=True) as cluster:
        cluster.add_node()
        check_failing_writes(cluster, witness, how)


def check_failing_writes(cluster: ClusterUnderTest, witness: Witness, how: dict[str, Any]) -> None:
    """A job whose writes fail while it works."""
    job = Running(cluster, witness, "errors")
    with contextlib.closing(pymongo.MongoClient(cluster.url)) as client:  # type: ignore[var-annotated]
        data = {"failCommands": WRITES, **how}
        client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 16}, "data": data})
        job.until(lambda m: m.event == "told", stories.now(), 5)
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
    finish(job)
