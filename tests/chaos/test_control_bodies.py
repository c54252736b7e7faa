"""Bodies that hold on to their process, and ends that come late: what is answered, what is left [S9.2, S7.4, P4]?"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ray
from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    CallbackReason,
    CallbackRejected,
    Choreography,
    Job,
    JobsOptions,
    JobState,
    JobStatus,
    JobStep,
    JobStepState,
    StepDetails,
    StepHosting,
)
from choreography_ray.actors.names import job_actor
from choreography_ray.actors.ray_api import find
from choreography_ray.model import JobId
from choreography_ray.records import Outcome, OutcomeDocument, OutcomeKey, OutcomeKind
from tests.chaos.deeds import Deeds, Inside, await_true, marks, order
from tests.chaos.faultpoints import append, lines
from tests.chaos.faulty import faulty_client
from tests.support import is_alive

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(600)]

STOP_SECONDS = 2.0
LEASE = 8.0


class Body(BaseModel):
    """What a body does for so long: SPIN in pure Python or SLEEP, while a thread of its reports checkpoints; or CALL
    one callback.
    """

    log: str
    what: str
    seconds: float


class BodyState(JobStepState):
    """What the body sees, and what its callbacks change."""

    body: Body | None = None
    position: int = 0


class Holding(JobStep[Body, str, BodyState]):
    """In a warm actor."""

    ray_options = {"num_cpus": 0}
    hosting = StepHosting.SHARED_ACTORS

    def initialize_state(self, request: Body) -> None:
        self.state.body = request

    def perform_step(self, state: BodyState, context: BlockingStepContext) -> str:
        body = state.body
        assert body is not None
        log = Path(body.log)
        append(log, what="begin", key=body.what)
        until = time.monotonic() + body.seconds
        if body.what == "CALL":
            context.invoke_on_actor(self._long_callback(body))
            try:
                context.invoke_on_actor(lambda: None)
            except CallbackRejected as rejected:
                append(log, what="rejected", key=str(rejected.reason))
                time.sleep(60)
        reporter = threading.Thread(target=self._report, args=(context, log, body.what), daemon=True)
        reporter.start()
        if body.what == "SLEEP":
            time.sleep(body.seconds)
        while time.monotonic() < until:
            pass
        append(log, what="end", key=body.what)
        return body.what

    def _report(self, context: BlockingStepContext, log: Path, what: str) -> None:
        with contextlib.suppress(CallbackRejected):
            while True:
                began = time.monotonic()
                context.invoke_on_actor(self._commit(context))
                append(log, what="reported", key=what, took=time.monotonic() - began)
                time.sleep(0.1)

    def _commit(self, context: BlockingStepContext) -> Callable[[], None]:
        def commit() -> None:
            self.state.position += 1
            context.write_checkpoint_debounced()

        return commit

    def _long_callback(self, body: Body) -> Callable[[], None]:
        def callback() -> None:
            append(Path(body.log), what="callback begins", key=body.what)
            time.sleep(body.seconds)
            append(Path(body.log), what="callback ends", key=body.what)

        return callback


class Bodies(BaseModel):
    """A job's request."""

    bodies: list[Body]


class BodyJob(Job[Bodies, JobState]):
    """Performs them, all at once."""

    keep_after_completed = True
    options = JobsOptions(step_stop_timeout=timedelta(seconds=STOP_SECONDS), step_checkpoint_batch_interval=1)

    def prepare_steps(self, request: Bodies) -> Iterator[StepDetails]:
        for n, body in enumerate(request.bodies):
            yield self.create_step(Holding, body, step_id=f"{body.what}-{n}")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster whose leases are short: what is not renewed while a body holds the GIL would lapse."""
    folder = tmp_path_factory.mktemp("store")
    with faulty_client(folder, folder, slots=6, lease=LEASE) as connected:
        yield connected


def test_a_body_that_spins_or_sleeps_holds_up_nobody(client: Choreography, tmp_path: Path) -> None:
    """For two leases: status and checkpoints are answered in under a second, leases are kept, the throttle goes on
    granting, and another job runs to its end; then a stop is answered as quickly [P4].
    """
    log = tmp_path / "marks"
    kinds = ("SPIN", "SLEEP")
    bodies = [Body(log=str(log), what=what, seconds=2.5 * LEASE) for what in kinds]
    job = client.start(BodyJob, Bodies(bodies=bodies))
    await_true(lambda: len(lines(log)) and len({m["key"] for m in lines(log)}) == 2, 60, "all are at work")
    slowest: dict[str, float] = {}

    def timed(what: str, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        value = call()
        slowest[what] = max(slowest.get(what, 0.0), time.monotonic() - began)
        return value

    until = time.monotonic() + 2 * LEASE
    other = client.start(Deeds, order(tmp_path / "other", [{}] * 10))
    assert other.wait(timeout=60, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
    while time.monotonic() < until:
        assert timed("status", job.status) is JobStatus.RUNNING
        assert timed("progress", job.progress).total == 2
        snapshot = timed("throttle", client.throttle)
        assert snapshot["is_granting"]
        assert snapshot["held"] == 2
        time.sleep(0.2)
    begins = [mark for mark in lines(log) if mark["what"] == "begin"]
    assert len(begins) == 2, "a lease was not kept"
    timed("stop", job.stop)
    slowest["checkpoint"] = max(mark["took"] for mark in lines(log) if mark["what"] == "reported")
    print({what: round(seconds, 3) for what, seconds in slowest.items()})
    assert all(seconds < 1.0 for seconds in slowest.values())
    job.remove(timeout=60)
    assert not any(is_alive(mark["pid"]) for mark in begins)


def stop_and_time(client: Choreography, log: Path, bodies: list[Body], begun: Callable[[], Any]) -> tuple[float, Any]:
    """Start, wait until `begun`, stop, and wait until every process of the bodies is gone: after how many seconds."""
    job = client.start(BodyJob, Bodies(bodies=bodies))
    await_true(begun, 60, "the bodies are where they should be")
    began = time.monotonic()
    job.stop()
    assert job.status() is JobStatus.STOPPED
    assert time.monotonic() - began < 1.0
    pids = {mark["pid"] for mark in lines(log)}
    await_true(lambda: not any(map(is_alive, pids)), 30, "the processes are gone")
    return time.monotonic() - began, job


def test_a_running_callback_is_cut_after_a_second_timeout(client: Choreography, tmp_path: Path) -> None:
    """One that takes a minute: its process is gone within two stop timeouts and two seconds [S18.12]."""
    log = tmp_path / "marks"
    body = Body(log=str(log), what="CALL", seconds=60)
    seconds, job = stop_and_time(
        client, log, [body], lambda: any(mark["what"] == "callback begins" for mark in lines(log))
    )
    print(f"gone after {seconds:.2f} s")
    assert seconds < 2 * STOP_SECONDS + 2
    job.remove()


def test_a_running_callback_may_finish_after_the_stop_timeout(client: Choreography, tmp_path: Path) -> None:
    """It takes longer than one timeout and less than two; the next callback is refused, and then the body is ended."""
    log = tmp_path / "marks"
    body = Body(log=str(log), what="CALL", seconds=1.5 * STOP_SECONDS)
    seconds, job = stop_and_time(
        client, log, [body], lambda: any(mark["what"] == "callback begins" for mark in lines(log))
    )
    print(f"gone after {seconds:.2f} s")
    assert seconds < 2 * STOP_SECONDS + 2
    assert any(mark["what"] == "callback ends" for mark in lines(log))
    assert [mark["key"] for mark in lines(log) if mark["what"] == "rejected"] == [CallbackReason.CLOSED]
    job.remove()


def test_an_outcome_of_an_earlier_run_is_refused_as_stale(client: Choreography, tmp_path: Path) -> None:
    """A body whose process was thought to be gone finishes after the resume: what it reports is acknowledged, changes
    nothing, and the step is performed once more [S7.4].
    """
    folder = tmp_path / "stale"
    job = client.start(Deeds, order(folder, [{"seconds": 60, "deaf": True}]), job_id="stale")
    await_true(lambda: marks(folder, "begin"), 60, "the body is at work")
    inside = Inside(client)
    (group,) = inside.ledger("stale")[0].groups
    job.drain()
    job.resume()
    await_true(lambda: len(marks(folder, "begin")) == 2, 60, "it is performed once more")
    late = Outcome(0, 1, OutcomeKind.SUCCEEDED, value="too late")
    document = OutcomeDocument(JobId("stale"), OutcomeKey(group.host, group.run, 7), (late,))
    actor = find(job_actor(JobId("stale")), inside.connection.ray_namespace)
    assert ray.get(actor.deliver.remote(document), timeout=10) is None
    assert job.status() is JobStatus.RUNNING
    assert job.progress().succeeded == 0
    assert job.state().done == []
    inside.check_counts("stale")
    assert len(marks(folder, "begin")) == 2
    job.remove()
