"""Is a step's failure recorded state that stops what it should and nothing else [S5.3, S6.8, S7.1]?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
import ray

from choreography_ray import Choreography, JobsOptions, JobStatus, JobStepStatus, StageProgress, WaitReason
from tests.integration.jobs import HOSTINGS, Batch, OnePiece, Piece, Pieces, await_true, marks
from tests.support import is_alive

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


@pytest.fixture
def impatient(local: Choreography) -> Iterator[Choreography]:
    """Bodies that are told to stop are given half a second."""
    with Choreography.connect(options=JobsOptions(step_stop_timeout=timedelta(seconds=0.5))) as client:
        yield client


@pytest.mark.parametrize(("kind", "total", "rotten"), [("SharedPiece", 200, 20), ("OwnPiece", 10, 3)])
def test_failures_are_counted_and_readable_and_the_others_go_on(
    local: Choreography, tmp_path: Path, kind: str, total: int, rotten: int
) -> None:
    """Some of many steps raise: exact counts, in progress, state and ledger, and each failure says what happened."""
    log = tmp_path / "marks"
    every = total // rotten
    failing = {str(n) for n in range(0, every * rotten, every)}
    pieces = [Piece(log=str(log), key=str(n), fails=str(n) in failing) for n in range(total)]
    began = datetime.now(UTC)
    job = local.start(Pieces, Batch(kind=kind, pieces=pieces))
    record = job.wait(timeout=120, progress=False)

    assert job.start_error is None
    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    counts = (record.progress.total, record.progress.succeeded, record.progress.failed, record.progress.unreachable)
    assert counts == (total, total - rotten, rotten, 0)
    assert record.progress.is_completed
    state = job.state()
    assert sorted(state.done + state.failed) == sorted(piece.key for piece in pieces)
    assert set(state.failed) == failing
    assert len(job.steps(JobStepStatus.COMPLETED_SUCCESSFULLY)) == total - rotten
    failed = job.steps(JobStepStatus.COMPLETED_WITH_FAILURE)
    assert {step.step_id for step in failed} == failing
    pids = {m.key: m.pid for m in marks(log, "begin")}
    for step in failed:
        assert len(step.attempts) == 1
        failure = step.failure
        assert failure is not None
        assert failure.error_type.endswith("PieceFailed")
        assert failure.message == f"piece {step.step_id} is rotten"
        assert "in perform_step" in failure.traceback
        assert failure.attempt == step.attempt == 1
        assert failure.pid == pids[step.step_id]
        assert failure.node
        assert failure.began_at is not None
        assert failure.ended_at is not None
        assert began <= failure.began_at <= failure.ended_at <= datetime.now(UTC)
    assert len(marks(log, "begin")) == len(marks(log, "end")) == total


@pytest.mark.parametrize("kind", HOSTINGS)
def test_a_failed_stage_stops_the_job_unless_it_says_go_on(local: Choreography, tmp_path: Path, kind: str) -> None:
    """Stage 0 fails and the job goes on; stage 1 fails and stops it: the steps of 2 and 3 are unreachable."""
    log = tmp_path / "marks"
    pieces = [
        Piece(log=str(log), key=f"{stage}-{n}", stage=stage, fails=n == 0 and stage < 2)
        for stage in range(4)
        for n in range(2)
    ]
    job = local.start(Pieces, Batch(kind=kind, pieces=pieces, go_on_after=[0]))
    record = job.wait(timeout=90, progress=False)

    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    assert record.progress.stages == {
        0: StageProgress(total=2, succeeded=1, failed=1),
        1: StageProgress(total=2, succeeded=1, failed=1),
        2: StageProgress(total=2, unreachable=2),
        3: StageProgress(total=2, unreachable=2),
    }
    counts = (record.progress.total, record.progress.succeeded, record.progress.failed, record.progress.unreachable)
    assert counts == (8, 2, 2, 4)
    assert {step.step_id for step in job.steps(JobStepStatus.UNREACHABLE)} == {"2-0", "2-1", "3-0", "3-1"}
    assert {m.stage for m in marks(log)} == {0, 1}
    assert {*job.state().done, *job.state().failed} == {"0-0", "0-1", "1-0", "1-1"}


@pytest.mark.parametrize("kind", ["SlowPiece", "SlowAsyncPiece"])
def test_an_attempt_over_its_timeout_fails_and_its_body_is_gone(
    impatient: Choreography, tmp_path: Path, kind: str
) -> None:
    """A `def` body that sleeps hears nothing and is ended from outside; an `async def` body is cancelled. Their
    neighbour, which is in time, succeeds.
    """
    log = tmp_path / "marks"
    pieces = [Piece(log=str(log), key="slow", seconds=60), Piece(log=str(log), key="quick")]
    job = impatient.start(Pieces, Batch(kind=kind, pieces=pieces))
    record = job.wait(timeout=60, progress=False)

    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    assert (record.progress.succeeded, record.progress.failed) == (1, 1)
    failure = job.step("slow").record().failure
    assert failure is not None
    assert failure.error_type.endswith("StepTimedOut")
    assert "1 s" in failure.message
    assert job.step("quick").record().status is JobStepStatus.COMPLETED_SUCCESSFULLY
    slow = [m for m in marks(log) if m.key == "slow"]
    assert len([m for m in slow if m.event == "begin"]) == 1
    assert not [m for m in slow if m.event == "end"]
    assert [m.event for m in slow if m.event == "cancelled"] == (["cancelled"] if kind == "SlowAsyncPiece" else [])
    await_true(lambda: not is_alive(slow[0].pid), 10, "the process of the slow body is gone")


def test_what_steps_wait_for_is_told_by_the_jobs_actor(local: Choreography, tmp_path: Path) -> None:
    """One body runs, others wait for the window or a later stage; without a cluster the store tells less."""
    log, gate = tmp_path / "marks", tmp_path / "gate"
    pieces = [Piece(log=str(log), key=f"{s}-{n}", stage=s, gate=str(gate)) for s in (0, 1) for n in range(4)]
    job = local.start(OnePiece, Batch(kind="SharedPiece", pieces=pieces))
    await_true(lambda: marks(log, "begin"), 60, "a body begins")
    found = job.explain()
    assert found.is_from_actor
    assert found.running == 1
    waits = {wait.reason: (wait.steps, wait.examples) for wait in found.waiting}
    assert waits == {WaitReason.WINDOW: (3, ("0-1", "0-2", "0-3")), WaitReason.STAGE: (4, ("1-0", "1-1", "1-2"))}
    verified = job.verify()
    assert verified.findings == ()
    gate.touch()
    job.wait(timeout=60, progress=False)
    assert job.explain().waiting == ()
    assert job.verify().unchecked == ()
    assert job.verify().recount.succeeded == 8
    assert "warm actors" in job.output("0-0").told


def test_what_a_step_printed_and_logged_is_found_while_and_after_it_ran(local: Choreography, tmp_path: Path) -> None:
    """By its own actor's name; the store has no copy of it. What it logged names job, step and attempt."""
    log, gate = tmp_path / "marks", tmp_path / "gate"
    job = local.start(
        Pieces, Batch(kind="OwnPiece", pieces=[Piece(log=str(log), key="a", gate=str(gate), says="hello")])
    )
    await_true(lambda: "hello" in job.output("a").out, 60, "the body's words are in the file")
    host = job.output("a").host
    gate.touch()
    job.wait(timeout=60, progress=False)
    after = job.output("a")
    assert "hello" in after.out
    assert after.host == host
    assert after.pid
    (logged,) = (line for line in after.err.splitlines() if "to the log" in line)
    assert " level=INFO " in logged
    assert f" job={job.job_id} host=step0-" in logged
    assert logged.endswith(' step=a attempt=1 logger=step.OwnPiece message="hello to the log"')


def exported(namespace: str) -> dict[str, float]:
    """Our metrics of a namespace at the node's Prometheus endpoint, by name, and by status where they have one."""
    (node,) = ray.nodes()
    with urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics") as answer:
        text = answer.read().decode()
    found = {}
    for name, tags, value in re.findall(r"^ray_choreography_(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        told = dict(re.findall(r'(\w+)="([^"]*)"', tags))
        if told["namespace"] == namespace and "le" not in told:
            found[f"{name} {told.get('status', '')}".strip()] = float(value)
    return found


def test_what_happened_is_at_the_prometheus_endpoint_of_the_node(local: Choreography, tmp_path: Path) -> None:
    """Also what a job's actor counted just before it ended."""
    pieces = [Piece(log=str(tmp_path / "marks"), key=str(n), fails=n < 2) for n in range(6)]
    with Choreography.connect(namespace="numbers") as client:
        client.start(Pieces, Batch(kind="SharedPiece", pieces=pieces)).wait(timeout=120, progress=False)
        await_true(lambda: exported("numbers").get("jobs_total COMPLETED_WITH_FAILURES") == 1, 60, "Ray exports it")
        found = exported("numbers")
    assert found["steps_total COMPLETED_SUCCESSFULLY"] == 4
    assert found["steps_total COMPLETED_WITH_FAILURE"] == 2
    assert found["deliveries_total"] == found["step_seconds_count"] == found["recording_seconds_count"] >= 1
    assert found["slots_maximum"] == ray.cluster_resources()["CPU"]
