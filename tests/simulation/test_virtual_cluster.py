"""The harness as tests of users have it: a job, or one step, in virtual time, and what can go wrong does [S17]."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    DrainResult,
    Job,
    JobRemoved,
    JobsOptions,
    JobState,
    JobStatus,
    JobStep,
    JobStepResult,
    JobStepState,
    JobStepStatus,
    StartJobError,
    StartJobReason,
    StepContext,
    StepDetails,
    StepRefused,
    StopJobError,
)
from choreography_ray.testing import Cut, Fate, VirtualCluster, crash_at_every_write, run_step

ROOT = Path(__file__).parents[2]
DAY = timedelta(days=1)


class Order(BaseModel):
    """What to fetch."""

    names: list[str]
    fails: int = 0
    seconds: float = 1.0


class FetchState(JobStepState):
    """What a fetch knows."""

    name: str = ""
    fails: int = 0
    seconds: float = 1.0
    pages: int = 0


class Fetch(JobStep[Order, str, FetchState]):
    """Fails some times; writes three checkpoints."""

    checkpoint_after_every_batch = True

    def prepare_step(self, request: Order) -> None:
        if request.names == ["refused"]:
            raise StepRefused("not this one")

    def initialize_state(self, request: Order) -> None:
        self.state.name, self.state.fails, self.state.seconds = request.names[0], request.fails, request.seconds

    async def perform_step(self, state: FetchState, context: StepContext) -> str:
        for page in range(state.pages + 1, 4):
            await asyncio.sleep(state.seconds / 3)
            await context.invoke_on_actor(lambda page=page: setattr(self.state, "pages", page))  # type: ignore[misc]
            await context.write_checkpoint_debounced()
        if context.attempt <= state.fails:
            raise ConnectionError(f"attempt {context.attempt} of {state.name}")
        return state.name.upper()

    def create_cancelled_result(self, state: FetchState) -> str:
        return f"{state.pages} pages"


class SlowlyFetch(Fetch):
    """The same in a thread, which sleeps."""

    def perform_step(self, state: FetchState, context: BlockingStepContext) -> str:  # type: ignore[override]
        time.sleep(3600.0)
        return state.name.upper()


class ImportState(JobState):
    """What was told."""

    done: list[str] = []


class Import(Job[Order, ImportState]):
    """A step per name, with a week of patience."""

    options = JobsOptions(
        max_step_attempts=5, step_retry_backoff=timedelta(hours=12), max_step_retry_backoff=timedelta(days=4)
    )
    keep_after_completed = True
    keep_results = True

    def prepare_steps(self, request: Order) -> Any:
        for name in request.names:
            wanted = request.model_copy(update={"names": [name], "fails": request.fails if name == "bad" else 0})
            yield self.create_step(Fetch, wanted, step_id=name)

    def on_step_completed_or_stopped(self, step_id: str, result: Any) -> None:
        self.state.done.append(step_id)

    def can_retry_failed_steps(self) -> bool:
        return True


@pytest.fixture
def cluster() -> Any:
    with VirtualCluster() as cluster:
        yield cluster


def test_a_week_of_backoff_takes_milliseconds(cluster: VirtualCluster) -> None:
    began, cpu = cluster.now, time.process_time()
    job = cluster.start(Import, Order(names=["good", "bad"], fails=4))
    cluster.advance(6 * DAY)
    job.assert_status(JobStatus.RUNNING)
    job.assert_step("good", JobStepStatus.COMPLETED_SUCCESSFULLY)
    job.assert_step("bad", JobStepStatus.AWAITING_RETRY, attempt=5)
    job.assert_succeeded()
    assert timedelta(days=7.5) < cluster.now - began < timedelta(days=7.6)
    assert job.results() == [("good", "GOOD"), ("bad", "BAD")]
    assert job.state().done == ["good", "bad"]
    assert job.progress().succeeded == 2
    assert job.verify().is_ok
    assert time.process_time() - cpu < 2.0  # on any machine; it takes a tenth of that


def test_a_failed_assertion_tells_the_story(cluster: VirtualCluster) -> None:
    job = cluster.start(Import, Order(names=["bad"], fails=9), job_id="nightly")
    cluster.advance(DAY)
    with pytest.raises(AssertionError) as caught:
        job.assert_status(JobStatus.COMPLETED_SUCCESSFULLY)
    told = str(caught.value)
    assert "job 'nightly' is RUNNING, not COMPLETED_SUCCESSFULLY" in told
    assert "step 'bad', stage 0: AWAITING_RETRY, attempt 3" in told
    assert "ConnectionError: attempt 2 of bad" in told
    assert "RUNNING" in told
    with pytest.raises(AssertionError, match="step 'bad' is at attempt 3, not 7"):
        job.assert_step("bad", JobStepStatus.AWAITING_RETRY, attempt=7)
    with pytest.raises(TimeoutError, match="has not ended after 0:00:01 of virtual time"):
        job.wait(1)


def test_a_job_is_stopped_resumed_retried_and_removed(cluster: VirtualCluster) -> None:
    job = cluster.start(Import, Order(names=["a", "b"], seconds=100.0))
    cluster.advance(10)
    assert job.drain() is DrainResult.DRAINED
    assert {step.status for step in job.steps()} == {JobStepStatus.STOPPED}
    job.resume()
    job.assert_succeeded()
    with pytest.raises(StopJobError, match="JOB_IS_COMPLETED"):
        job.stop()
    failing = cluster.start(Import, Order(names=["bad"], fails=5))
    assert failing.wait().status is JobStatus.COMPLETED_WITH_FAILURES
    assert len(failing.failures()[0].attempts) == 5
    assert failing.retry_failed_steps() == 1
    failing.assert_succeeded()
    failing.remove()
    with pytest.raises(JobRemoved):
        failing.wait()
    assert [record.job_id for record in cluster.jobs()] == [job.job_id]


def test_one_step_of_a_job_is_stopped(cluster: VirtualCluster) -> None:
    job = cluster.start(Import, Order(names=["a", "b"], seconds=100.0))
    cluster.advance(10)
    assert job.stop_step("a") is JobStepStatus.STOPPED
    assert job.wait().status is JobStatus.STOPPED
    job.assert_step("b", JobStepStatus.COMPLETED_SUCCESSFULLY)


def test_an_id_is_taken_and_what_cannot_start_raises(cluster: VirtualCluster) -> None:
    job = cluster.start(Import, Order(names=["a"]), job_id="one")
    with pytest.raises(StartJobError) as caught:
        cluster.start(Import, Order(names=["a"]), job_id="one")
    assert caught.value.reason is StartJobReason.ALREADY_STARTED
    assert caught.value.job.status() is job.status()
    with pytest.raises(StartJobError) as caught:
        cluster.start(Import, Order(names=["refused"]))
    assert caught.value.reason is StartJobReason.COULD_NOT_PREPARE_JOB_STEPS


def _answering(answer: int) -> type[JobStep[Order, int, JobStepState]]:
    class Answer(JobStep[Order, int, JobStepState]):
        def initialize_state(self, request: Order) -> None:
            """It needs nothing."""

        async def perform_step(self, state: JobStepState, context: StepContext) -> int:
            return answer

    return Answer


def test_step_classes_of_one_name_are_refused_as_hosts_would_perform_one_for_the_other(cluster: VirtualCluster) -> None:
    one, two = _answering(1), _answering(2)

    class Answers(Job[Order, JobState]):
        keep_results = True

        def prepare_steps(self, request: Order) -> Iterator[StepDetails]:
            for name, cls in (("two", two), ("one", one))[: len(request.names)]:
                yield self.create_step(cls, request, step_id=name)

    job = cluster.start(Answers, Order(names=["two"]))
    job.assert_succeeded()
    assert list(job.results()) == [("two", 2)]
    with pytest.raises(StartJobError, match=r"step 'one': step_class: another class has its name, .*Answer") as caught:
        cluster.start(Answers, Order(names=["two", "one"]))
    assert caught.value.reason is StartJobReason.INVALID_STEP_PLAN


def test_processes_die_messages_are_lost_and_the_store_is_away(cluster: VirtualCluster) -> None:
    cluster.disturb_message(3, Fate.LOST)
    cluster.disturb_message(5, Fate.REPEATED)
    cluster.disturb_message(6, Fate.OVERTAKEN)
    cluster.disturb_message(8, Fate.LATE)
    job = cluster.start(Import, Order(names=["a", "b", "c"], seconds=60.0))
    cluster.advance_until(lambda: job.step("a").status is JobStepStatus.SCHEDULED)
    cluster.advance(10)
    job.crash_step("a")
    job.crash()
    cluster.crash_throttle()
    cluster.crash_job_at_write(3)
    cluster.crash_host_at_write(2, Cut.BEFORE)
    cluster.lose_answer_of_job_write(5)
    cluster.store_unavailable(timedelta(minutes=2))
    job.assert_succeeded()
    assert sorted(job.state().done) == ["a", "b", "c"]
    with pytest.raises(LookupError, match="no process performs step 'a'"):
        job.crash_step("a")


def test_jobs_go_on_in_a_new_cluster() -> None:
    with VirtualCluster(lease=30) as cluster:
        job = cluster.start(Import, Order(names=["a", "b"], seconds=60.0))
        cluster.advance(30)
        cluster.restart()
        job.assert_succeeded()
        assert cluster.now.year == 2030


def test_a_story_comes_to_its_end_wherever_a_process_dies() -> None:
    def story(cluster: VirtualCluster) -> None:
        job = cluster.start(Import, Order(names=["a", "bad"], fails=1))
        job.assert_succeeded()
        assert sorted(job.state().done) == ["a", "bad"]

    assert crash_at_every_write(story) > 30


def test_a_story_that_does_not_bear_a_crash_says_where() -> None:
    """A side effect of a body that must happen once: here the second time is counted."""
    performed: list[str] = []

    class Charge(Fetch):
        async def perform_step(self, state: FetchState, context: StepContext) -> str:
            performed.append(state.name)
            return state.name

    class Shop(Import):
        def prepare_steps(self, request: Order) -> Any:
            return [self.create_step(Charge, request, step_id="charge")]

    def story(cluster: VirtualCluster) -> None:
        performed.clear()
        cluster.start(Shop, Order(names=["x"])).assert_succeeded()
        assert performed == ["x"]

    with pytest.raises(AssertionError) as caught:
        crash_at_every_write(story)
    assert re.fullmatch(r"the host died before its write \d+", caught.value.__notes__[-1])


def test_one_step_is_run_by_itself() -> None:
    trial = run_step(Fetch, Order(names=["a"], fails=2, seconds=30.0), options=JobsOptions(max_step_attempts=3))
    assert trial.value == "A"
    assert [state.pages for state in trial.checkpoints] == [1, 2, 3]
    assert trial.state.pages == 3
    assert [attempt.error_type for attempt in trial.attempts] == []
    assert timedelta(seconds=45) < trial.took < timedelta(seconds=50)


def test_one_step_that_fails_tells_its_attempts() -> None:
    trial = run_step(Fetch, Order(names=["a"], fails=9), options=JobsOptions(max_step_attempts=3))
    assert trial.result.is_failure
    assert trial.result.error is not None
    assert trial.result.error.message == "attempt 3 of a"
    assert [attempt.message for attempt in trial.attempts] == [f"attempt {n} of a" for n in (1, 2, 3)]
    assert trial.state.pages == 3
    with pytest.raises(AssertionError, match="attempt 3 of a"):
        _ = trial.value


def test_one_step_goes_on_from_its_last_checkpoint_when_its_process_dies() -> None:
    trial = run_step(Fetch, Order(names=["a"], seconds=30.0), crash_after_checkpoints=(1, 2))
    assert trial.value == "A"
    assert [state.pages for state in trial.checkpoints] == [1, 2, 3]
    assert timedelta(seconds=30) < trial.took < timedelta(seconds=40)


def test_one_step_is_stopped_on_the_way() -> None:
    trial = run_step(Fetch, Order(names=["a"], seconds=30.0), stop_after=25)
    assert trial.result.is_cancelled
    assert trial.result.value == "2 pages"
    assert trial.state.pages == 2


class TellsHowFar(Fetch):
    """Says itself what it has when it is stopped."""

    async def perform_step(self, state: FetchState, context: StepContext) -> JobStepResult[str]:  # type: ignore[override]
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            return JobStepResult.cancelled("half a page")
        return JobStepResult.succeeded("all")


def test_what_a_body_says_of_its_stop_goes_before_what_would_be_made_for_it() -> None:
    trial = run_step(TellsHowFar, Order(names=["a"]), stop_after=25)
    assert trial.result.is_cancelled
    assert trial.result.value == "half a page"


def test_a_step_that_is_refused_raises() -> None:
    with pytest.raises(StartJobError) as caught:
        run_step(Fetch, Order(names=["refused"]))
    assert caught.value.reason is StartJobReason.COULD_NOT_PREPARE_JOB_STEPS
    assert "not this one" in str(caught.value)


def test_a_blocking_body_sleeps_in_virtual_time() -> None:
    began = time.monotonic()
    trial = run_step(SlowlyFetch, Order(names=["a"]))
    assert trial.value == "A"
    assert trial.took > timedelta(hours=1)
    assert time.monotonic() - began < 30.0


async def _in_a_loop() -> JobStatus:
    with VirtualCluster() as cluster:
        status = cluster.start(Import, Order(names=["a"])).wait().status
    await asyncio.sleep(0)
    return status


def test_it_works_in_an_async_test_too() -> None:
    assert asyncio.run(_in_a_loop()) is JobStatus.COMPLETED_SUCCESSFULLY


TEST = """
import sys
from tests.simulation.test_virtual_cluster import Import, Order

def test_nothing_foreign_is_imported(virtual_cluster):
    virtual_cluster.start(Import, Order(names=["a"])).assert_succeeded()
    assert not {"ray", "pymongo"} & set(sys.modules)
"""


def test_pytest_finds_the_fixture_and_nothing_brings_ray_or_pymongo(tmp_path: Path) -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    (plugin,) = entries.values()
    assert entries == {plugin: plugin}  # under its own name, so that `-p` of it is the same plugin
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [str(tmp_path), "--rootdir", str(tmp_path)]
    ran = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
