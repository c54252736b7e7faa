"""A node, the head or everything dies, hangs or comes back: does the job go on, and end with the right counts [S10]?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import stories
from tests.chaos.cluster import ClusterUnderTest
from tests.chaos.endings import check_counts, check_nothing_left
from tests.chaos.marks import Witness
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


def test_the_head_restarts_and_remembers_nothing(cluster: ClusterUnderTest, witness: Witness) -> None:
    """The next connect brings the job back; it knows of no actor, only the store does."""
    job = Running(cluster, witness, "head")
    stories.head_restarts(job)
    finish(job)


def test_the_head_restarts_and_remembers_its_actors(tmp_path: Path, witness: Witness) -> None:
    """With a GCS that keeps its tables on disk the job comes back by itself: nobody connects."""
    with ClusterUnderTest(tmp_path, rocksdb=True) as cluster:
        cluster.add_node()
        job = Running(cluster, witness, "remembered")
        stories.head_restarts_by_itself(job)
        finish(job)


def test_the_gcs_restarts_below_living_nodes(tmp_path: Path, witness: Witness) -> None:
    """The GCS is away for some seconds: hosts keep working, and nothing is taken for dead."""
    with ClusterUnderTest(tmp_path, rocksdb=True) as cluster:
        cluster.add_node()
        job = Running(cluster, witness, "gcs")
        stories.gcs_restarts(job)
        finish(job)
