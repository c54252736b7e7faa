"""Two clusters on one database, on real Ray: who has a job, and what becomes of an owner that was cut off [S10.3]."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import HOST, JOB, ClusterUnderTest
from tests.chaos.endings import check_counts
from tests.chaos.marks import Witness
from tests.chaos.processes import Process, await_true
from tests.chaos.stories import Running
from tests.support import is_alive

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(400)]

LEASE = 6.0
SAID = "is worked on by another cluster"


@pytest.fixture
def first(tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """A cluster of one node, whose way to the database can be cut."""
    folder = tmp_path / "first"
    folder.mkdir()
    with ClusterUnderTest(folder, lease=LEASE, proxied=True) as cluster:
        yield cluster


@pytest.fixture
def second(tmp_path: Path, first: ClusterUnderTest) -> Iterator[ClusterUnderTest]:
    """Another one on the database of the first."""
    folder = tmp_path / "second"
    folder.mkdir()
    cluster = ClusterUnderTest(folder, lease=LEASE)
    cluster.url = cluster.store_url = first.store_url
    with cluster:
        yield cluster


def printed(cluster: ClusterUnderTest) -> str:
    """What the workers of a cluster wrote as errors."""
    logs = cluster.temporary.glob("session_*/logs/worker-*.err")
    return "".join(path.read_text(errors="replace") for path in logs)


def end(first: ClusterUnderTest, second: ClusterUnderTest, job: Running) -> None:
    """By way of the second cluster; each outcome counts once, and nothing of the job is left in the first."""
    driver = second.driver()
    assert driver.call("wait", job_id=job.job_id, timeout=150.0) == "COMPLETED_WITH_FAILURES"
    await_true(lambda: not first.processes(JOB, HOST), 60, "nothing of the job is left in the first cluster")
    await_true(lambda: not second.processes(HOST), 60, "no host is left in the second cluster")


def stopped(cluster: ClusterUnderTest) -> list[Process]:
    """Stop every process of a cluster: its machines hang."""
    assert cluster.gcs is not None
    cluster.gcs.send(signal.SIGSTOP)
    return [*cluster.pause_node(cluster.raylets[0]), cluster.gcs]


def test_a_living_owner_is_not_disturbed(first: ClusterUnderTest, second: ClusterUnderTest, witness: Witness) -> None:
    """The second cluster neither takes the job over, nor stops it: it says who has it."""
    job = Running(first, witness, "living", steps=60)
    actors = [each.pid for each in first.processes(JOB)]
    other = second.driver()
    with pytest.raises(RuntimeError, match="OWNED_ELSEWHERE"):
        other.call("stop", job_id="living")
    job.finish()
    check_counts(first, witness, job.load, "living")
    assert not second.processes(HOST)
    await_true(lambda: not second.processes(JOB), 60, "no actor of the job is left in the second cluster")
    assert len(actors) == 1


def test_a_cluster_that_hangs_loses_its_job_and_lets_go_when_it_wakes(
    first: ClusterUnderTest, second: ClusterUnderTest, witness: Witness
) -> None:
    """Its bodies are ended by the kernel before others begin them anew; woken, its job actor ends for good."""
    job = Running(first, witness, "hangs", seconds=1.0, steps=40)
    paused = stopped(first)
    hosts = {m.pid for m in witness.marks("begin", job="hangs")}
    since = time.clock_gettime(time.CLOCK_BOOTTIME)
    second.driver().call("ping")  # its connect brings interrupted jobs back
    took = job.until(lambda m: m.event == "begin" and m.pid not in hosts, since)
    assert took >= LEASE
    assert not any(map(is_alive, hosts)), "bodies of the first cluster outlived their lease"
    for each in paused:
        each.send(signal.SIGCONT)
    end(first, second, job)
    check_counts(second, witness, job.load, "hangs")
    witness.check("hangs")


def test_an_owner_without_the_database_lets_go_when_it_learns_of_its_successor(
    first: ClusterUnderTest, second: ClusterUnderTest, witness: Witness
) -> None:
    """Its own cluster confirms it, so its bodies go on and may overlap; outcomes count once, and its hosts end."""
    job = Running(first, witness, "cut-off", steps=8, stages=1, flaky=0, rotten=3, is_gated=True)
    hosts = {m.pid for m in witness.marks("begin", job="cut-off")}
    assert first.proxy is not None
    since = time.clock_gettime(time.CLOCK_BOOTTIME)
    with first.proxy.cut():
        second.driver().call("ping")
        job.until(lambda m: m.event == "begin" and m.pid not in hosts, since)
        assert all(map(is_alive, hosts)), "the first cluster was to go on"
    await_true(lambda: SAID in printed(first), 60, "the first job actor says why it ends")
    await_true(lambda: not first.processes(JOB, HOST), 60, "the first cluster ends its hosts")
    (witness.folder / "gate").touch()
    end(first, second, job)
    with second.reader() as reader:
        record = reader.job("cut-off").record()
        state = reader.job("cut-off").state()
        assert reader.job("cut-off").verify().is_ok
    assert record.progress.succeeded + record.progress.failed == job.load.steps
    assert sorted(state.seen) == sorted(map(str, range(job.load.steps))), "an outcome was told twice, or never"
