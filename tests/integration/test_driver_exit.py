"""Does a job need its driver, and what is left when jobs and drivers have ended [P3, S4.6, S14.5]?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from choreography_ray import Choreography, JobRecord, JobStatus
from choreography_ray.cli import local_cluster
from tests.integration.conftest import only_here
from tests.integration.jobs import await_true, marks
from tests.support import is_alive

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

JOB = '''
import json, os, sys, time
from pathlib import Path
from pydantic import BaseModel
from choreography_ray import Choreography, Job, JobState, JobStep, JobStepState, StepHosting

def mark(log, event, key):
    told = os.environ.get("TOLD_BY_RUNTIME_ENV", "")
    line = json.dumps([event, key, 0, time.monotonic(), os.getpid(), told]) + "\\n"
    with open(log, "a") as file:
        file.write(line)

class Shard(BaseModel):
    folder: str
    key: str = ""

class ShardState(JobStepState):
    folder: str = ""
    key: str = ""

class Body(JobStep[Shard, str, ShardState]):
    """Waits until its driver is gone."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request):
        self.state.folder, self.state.key = request.folder, request.key

    def perform_step(self, state, context):
        log = Path(state.folder, "marks")
        mark(log, "begin", state.key)
        while not Path(state.folder, "go").exists():
            time.sleep(0.02)
        mark(log, "end", state.key)
        return state.key

class Warm(Body):
    hosting = StepHosting.SHARED_ACTORS

class Index(Job[Shard, JobState]):
    keep_after_completed = True

    def prepare_steps(self, request):
        mark(Path(request.folder, "marks"), "plan", "")
        for n in range(2):
            yield self.create_step(Body, Shard(folder=request.folder, key=f"own-{n}"), step_id=f"own-{n}")
        for n in range(4):
            yield self.create_step(Warm, Shard(folder=request.folder, key=f"warm-{n}"), step_id=f"warm-{n}", stage=1)
'''
"""A script's own job; the class of a script goes with it by value."""

START_AND_LEAVE = (
    JOB
    + """
choreography = Choreography.connect()
job = choreography.start(Index, Shard(folder=sys.argv[1]), job_id=sys.argv[2])
print("driver", os.getpid(), flush=True)
os._exit(0)
"""
)


class Head(NamedTuple):
    """A cluster that outlives its drivers, and where its store has its data."""

    cluster: local_cluster.LocalCluster
    store: Path


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """What `ray start --head` makes, with ports of its own and a dashboard, ended by its processes' ids."""
    folder = tmp_path_factory.mktemp("head")
    with only_here(folder / "store"):
        cluster = local_cluster.start(folder, with_dashboard=True, cpus=2)
        try:
            yield Head(cluster, folder / "store")
        finally:
            local_cluster.end(cluster)


def ended(job_id: str) -> JobRecord:
    """The job's record once it has ended, read from the store alone."""
    with Choreography.connect(use_ray=False) as reader:
        return reader.job(job_id).wait(timeout=60, progress=False)


def actor_processes(session: str) -> set[str]:
    """What runs for us below the raylet of a Ray session, as the processes' titles tell."""
    raylets = [pid for pid, (_, command) in processes().items() if "/raylet " in command and session in command]
    titles = {command.split()[0] for parent, command in processes().values() if parent in raylets and command}
    return {title for title in titles if title.startswith("ray::") and "IDLE" not in title}


def processes() -> dict[int, tuple[int, str]]:
    """Every process by its id: its parent, and its command line or title."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found[int(entry.name)] = parent, command
    return found


def check_that_it_ended_without_its_driver(folder: Path, job_id: str, session: str) -> None:
    """All of it was performed after the driver had gone, once, and of the job no process is left."""
    before = marks(folder / "marks", "end")
    assert before == []
    (folder / "go").touch()
    record = ended(job_id)
    assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert record.progress.succeeded == 6
    seen = marks(folder / "marks")
    assert sorted(m.key for m in seen if m.event == "end") == [
        f"{k}-{n}" for k, m in (("own", 2), ("warm", 4)) for n in range(m)
    ]
    assert len([m for m in seen if m.event == "begin"]) == 6
    pids = {m.pid for m in seen}
    assert len(pids) >= 4  # the job's own, two own actors, a warm one at least
    await_true(lambda: not any(map(is_alive, pids)), 20, "every process of the job has ended")
    left = actor_processes(session)
    assert not {title for title in left if "JobActor" in title or "HostActor" in title}
    assert any("ThrottleActor" in title for title in left)  # so that the look would have seen them


def test_a_script_that_starts_a_job_and_exits_at_once(head: Head, tmp_path: Path) -> None:
    """The bodies wait until it is gone: nothing of the job was done in its time."""
    script = tmp_path / "start.py"
    script.write_text(START_AND_LEAVE)
    environment = {**os.environ, "RAY_ADDRESS": head.cluster.address}
    driver = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "by-script"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    assert not is_alive(int(driver.stdout.split()[-1]))
    check_that_it_ended_without_its_driver(tmp_path, "by-script", head.cluster.session)


def test_a_script_submitted_with_ray_job_submit_that_exits_at_once(head: Head, tmp_path: Path) -> None:
    """As before; the script comes with its working directory, which Ray deletes some day, and with variables that reach
    its job and its steps.
    """
    code = tmp_path / "code"
    code.mkdir()
    (code / "start.py").write_text(START_AND_LEAVE)
    assert head.cluster.dashboard is not None
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", head.cluster.dashboard),
        *("--working-dir", str(code), "--runtime-env-json", '{"env_vars": {"TOLD_BY_RUNTIME_ENV": "this"}}'),
        *("--", sys.executable, "start.py", str(tmp_path), "by-submit"),
    ]
    # Ray would look there before it looks at its own --address.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    deadline = time.monotonic() + 60
    while True:
        submitted = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        # So Ray answers until the agent of a node that has just started is there.
        is_early = submitted.returncode != 0 and "No available agent to submit job" in submitted.stderr
        if not is_early or time.monotonic() > deadline:
            break
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert "succeeded" in submitted.stdout
    check_that_it_ended_without_its_driver(tmp_path, "by-submit", head.cluster.session)
    assert {mark.node for mark in marks(tmp_path / "marks")} == {"this"}


START_IN_NO_ENVIRONMENT = (
    JOB
    + """
import ray
from choreography_ray import StartJobError, StartJobReason

# Ray takes this, and cannot set it up for any process.
ray.init(runtime_env={"working_dir": "gcs://_ray_pkg_0000000000000000.zip"})
choreography = Choreography.connect()
try:
    choreography.start(Index, Shard(folder=sys.argv[1]), job_id=sys.argv[2])
except StartJobError as error:
    assert error.reason is StartJobReason.UNKNOWN
    print(error)
"""
)


def test_a_script_whose_runtime_env_cannot_be_made_starts_nothing(head: Head, tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(START_IN_NO_ENVIRONMENT)
    environment = {**os.environ, "RAY_ADDRESS": head.cluster.address}
    command = [sys.executable, script, tmp_path, "nowhere"]
    driver = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert driver.returncode == 0, driver.stderr
    assert "the runtime_env of its driver cannot be made" in driver.stdout
    assert "_ray_pkg_0000000000000000" in driver.stdout
    with Choreography.connect(use_ray=False) as reader:
        assert "nowhere" not in {record.job_id for record in reader.jobs()}


DRIVER = (
    JOB
    + """
from datetime import timedelta
from choreography_ray import ClusterOptions

# A successor on another cluster waits for the lease of every host that it cannot see.
choreography = Choreography.connect(cluster=ClusterOptions(step_lease_timeout=timedelta(seconds=6)))
job = choreography.start(Index, Shard(folder=sys.argv[1]), job_id="in-process")
print("started", flush=True)
sys.stdin.readline()
if sys.argv[2] == "closes":
    assert choreography.close() == ["in-process"]
"""
)


RAYS_AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""Ray's own: those of a node that was killed want to tell a GCS of it which is gone too, and give up after a minute."""


def processes_with(mark: str) -> list[str]:
    """Command lines or titles of the live processes that have inherited an environment with this mark."""
    found: list[str] = []
    for pid, (_, command) in processes().items():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment and is_alive(pid):
            found.append(command.strip())
    return found


def await_end_of_all_but(spared: set[str], mark: str) -> None:
    """And name those that are left, shortened."""
    with contextlib.suppress(AssertionError):
        await_true(lambda: spared.issuperset(processes_with(mark)), 40, "all has ended")
    assert [command[-150:] for command in processes_with(mark) if command not in spared] == []


@pytest.mark.parametrize("how", ["closes", "forgets to close", "is killed"])
def test_nothing_of_an_in_process_cluster_outlives_its_driver(tmp_path: Path, how: str) -> None:
    """It ends while a job is at work: Ray, store, job, hosts and bodies are gone with it. What they had written is
    not, and the next connect finishes the job.
    """
    (tmp_path / "driver.py").write_text(DRIVER)
    mark = f"choreography-test-{uuid.uuid4().hex}"
    with only_here(tmp_path / "store"):
        driver = subprocess.Popen(
            [sys.executable, "driver.py", str(tmp_path), how],
            env={**os.environ, "CHOREOGRAPHY_TEST_MARK": mark}, cwd=tmp_path,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert driver.stdout is not None
            # Ray may have something of its own to say first.
            assert "started\n" in iter(driver.stdout.readline, ""), driver.communicate()[1]
            await_true(lambda: len(marks(tmp_path / "marks", "begin")) == 2, 60, "two bodies are at work")
            at_work = processes_with(mark)
            for part in ("gcs_server", "raylet", "ray::JobActor", "ray::HostActor", "ThrottleActor", "secantusd"):
                assert any(part in command for command in at_work), (part, at_work)
            if how == "is killed":
                driver.kill()
            _, errors = driver.communicate("\n", timeout=60)
            assert driver.returncode == (-signal.SIGKILL if how == "is killed" else 0), errors
            await_end_of_all_but(RAYS_AGENTS if how == "is killed" else set(), mark)
        finally:
            driver.kill()
            driver.communicate()
        with Choreography.connect(use_ray=False) as reader:
            assert reader.job("in-process").status() is JobStatus.RUNNING
        if how == "closes":
            (tmp_path / "go").touch()
            with Choreography.connect() as client:
                record = client.job("in-process").wait(timeout=90, progress=False)
            assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
            assert record.progress.succeeded == 6
