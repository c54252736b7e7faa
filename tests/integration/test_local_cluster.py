"""Does `up` start a Ray that lasts, and does `down` end exactly that one and leave no process?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from choreography_ray.cli import local_cluster
from choreography_ray.errors import ClusterUnavailable
from tests.support import is_alive, processes_of, run_python

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

USE_IT = """
import os, sys
import ray
from choreography_ray.client import cluster
assert "RAY_AUTH_MODE" not in os.environ
cluster.read_ray_address = lambda _: sys.argv[1]  # Ray's own note may name another cluster of this machine
cluster.RayCluster(None)

@ray.remote(num_cpus=0)
class Stays:
    def child(self):
        import os, subprocess
        return os.getpid(), subprocess.Popen(["sleep", "600"]).pid

stays = Stays.options(name="stays", namespace="n", lifetime="detached").remote()
print(*ray.get(stays.child.remote()))
"""

REFUSED = """
import os, sys
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
from choreography_ray.client.cluster import RayCluster
from choreography_ray.errors import ClusterUnavailable
try:
    RayCluster(sys.argv[1])
except ClusterUnavailable as error:
    print(error.why.partition(":")[0], end="")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    yield tmp_path / ".choreography"
    local_cluster.stop(tmp_path / ".choreography")


def test_down_ends_what_up_started_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    """Two clusters on one machine, an actor in the first with a child of its own: after `down` of the first nothing
    of it is left, and the second still runs. A script is let in that says nothing of Ray's token; one with another
    is told.
    """
    other_folder = tmp_path / "other"
    first = local_cluster.start(folder, cpus=1)
    try:
        second = local_cluster.start(other_folder, cpus=1)
        assert first.address != second.address
        assert local_cluster.running(folder) == first
        used = run_python(tmp_path, "-c", USE_IT, first.address, own_ray=False)
        assert used.code == 0, used.err
        actor, child = map(int, used.out.split())
        with_another = run_python(tmp_path, "-c", REFUSED, first.address)
        assert with_another.out == "its token is another, or this process shows none"
        assert with_another.err.count("\n") <= 1, "Ray warns of each answer"
        assert is_alive(actor)
        assert is_alive(child)

        ended = local_cluster.stop(folder)

        assert ended
        assert not is_alive(actor)
        assert not is_alive(child)
        assert processes_of(first.session) == []
        assert local_cluster.running(folder) is None
        assert local_cluster.running(other_folder) == second
    finally:
        local_cluster.stop(other_folder)
    assert processes_of(second.session) == []


def test_a_record_of_a_cluster_that_is_gone_hits_nobody(folder: Path) -> None:
    """Its process ids belong to others by now: to this very process, as it happens."""
    folder.mkdir()
    gone = local_cluster.LocalCluster(
        address="192.0.2.1:1", session="/nowhere/session_gone", heads=(local_cluster.ProcessKey(os.getpid(), 1),)
    )
    (folder / local_cluster.RECORD_NAME).write_text(gone.model_dump_json())
    assert local_cluster.running(folder) is None
    assert local_cluster.stop(folder) is None
    assert not (folder / local_cluster.RECORD_NAME).exists()


def test_a_damaged_record_counts_as_none(folder: Path) -> None:
    folder.mkdir()
    (folder / local_cluster.RECORD_NAME).write_text(json.dumps({"address": 1}))
    assert local_cluster.running(folder) is None
    assert local_cluster.stop(folder) is None


def test_a_ray_that_cannot_start_is_told_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is written down."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClusterUnavailable, match="ray start ended with 1") as caught:
        local_cluster.start(folder)
    assert "\n" not in str(caught.value)
    assert not folder.exists()
