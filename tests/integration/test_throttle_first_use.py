"""Is there one throttle, and one supervisor, however many need them first [P5]?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray._private.state import actors

from choreography_ray import Choreography, ClusterOptions
from choreography_ray.actors.names import SUPERVISOR, THROTTLE
from tests.integration.conftest import only_here
from tests.integration.jobs import await_true

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

PROCESSES = 4
THREADS = 8

USERS = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import ray
from choreography_ray import Choreography

address, folder, number, threads = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
ray.init(address=address, log_to_driver=False, configure_logging=False)
(folder / f"ready-{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)

def use(_):
    with Choreography.connect() as client:
        return client.throttle()

with ThreadPoolExecutor(threads) as pool:
    print(json.dumps(list(pool.map(use, range(threads)))))
"""


def states(name: str) -> list[str]:
    """Of every actor that ever had the name."""
    return [each["State"] for each in actors().values() if each["Name"] == name]


def test_32_first_users_of_a_fresh_cluster_make_one_throttle(tmp_path: Path) -> None:
    """Four drivers of eight threads connect at one moment, to a cluster that has no throttle and no store yet."""
    with only_here(tmp_path / "store"):
        ray.init(address="local", include_dashboard=False, object_store_memory=100 * 1024 * 1024, log_to_driver=False)
        users: list[subprocess.Popen[str]] = []
        try:
            address = ray.get_runtime_context().gcs_address
            for number in range(PROCESSES):
                command = [sys.executable, "-c", USERS, address, str(tmp_path), str(number), str(THREADS)]
                users.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            await_true(lambda: len(list(tmp_path.glob("ready-*"))) == PROCESSES, 60, "all drivers are there")
            assert [each for each in actors().values() if each["Name"]] == []
            (tmp_path / "go").touch()
            snapshots = []
            for user in users:
                out, err = user.communicate(timeout=90)
                assert user.returncode == 0, err
                snapshots += json.loads(out.splitlines()[-1])
            assert len(snapshots) == PROCESSES * THREADS
            assert {snapshot["boot"] for snapshot in snapshots} == {1}
            assert len({snapshot["maximum"] for snapshot in snapshots}) == 1
            for service in (THROTTLE, SUPERVISOR):
                await_true(lambda name=service: states(name) == ["ALIVE"], 60, f"one {service} lives")
            with Choreography.connect(cluster=ClusterOptions(max_parallel_steps=5)) as client:
                throttle = client.throttle()
            assert throttle is not None
            assert (throttle["boot"], throttle["maximum"]) == (1, 5)
        finally:
            for user in users:
                user.kill()
                user.communicate()
            ray.shutdown()
