"""The job that the proofs of control and healing run: its bodies and hooks leave marks outside the framework."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Choreography,
    Job,
    JobHandle,
    JobsOptions,
    JobState,
    JobStep,
    JobStepResult,
    JobStepState,
    StepDetails,
    StepHosting,
)
from choreography_ray.actors.names import job_actor
from choreography_ray.core.ledger import recount, total
from choreography_ray.model import JobId
from choreography_ray.records import JobDocument, LedgerSegment, PlanRef, StepCode
from choreography_ray.storage.protocol import JobStorage
from tests.chaos.faultpoints import append, lines, plant


class Deed(BaseModel):
    """What one step does: take `seconds`, fail so many attempts, else give its key.

    A `deaf` body goes on when it is told to stop. `gate`: it ends no sooner than this file is there.
    """

    folder: str
    key: str
    seconds: float = 0.0
    fail_first: int = 0
    deaf: bool = False
    gate: str = ""


class DeedState(JobStepState):
    """The request, which the body does not see otherwise."""

    deed: Deed | None = None


class OwnDeed(JobStep[Deed, str, DeedState]):
    """In an actor of its own."""

    ray_options = {"num_cpus": 0}

    def __init__(self) -> None:
        super().__init__()
        plant()

    def initialize_state(self, request: Deed) -> None:
        self.state.deed = request

    def perform_step(self, state: DeedState, context: BlockingStepContext) -> str:
        deed = state.deed
        assert deed is not None
        log = Path(deed.folder, "marks")
        append(log, what="begin", key=deed.key, attempt=context.attempt)
        until = time.monotonic() + deed.seconds
        while time.monotonic() < until or (deed.gate and not Path(deed.gate).exists()):
            pause = min(0.05, max(0.0, until - time.monotonic())) or 0.02
            if deed.deaf:
                time.sleep(pause)
            elif context.cancelled.wait(pause):
                append(log, what="quit", key=deed.key, attempt=context.attempt)
                context.cancelled.raise_if_set()
        if context.attempt <= deed.fail_first:
            append(log, what="fail", key=deed.key, attempt=context.attempt)
            raise ValueError(f"{deed.key} fails on attempt {context.attempt}")
        append(log, what="end", key=deed.key, attempt=context.attempt)
        return deed.key


class SharedDeed(OwnDeed):
    """On warm actors."""

    hosting = StepHosting.SHARED_ACTORS


class TenfoldDeed(OwnDeed):
    """On warm actors that perform ten at a time."""

    hosting = StepHosting.SHARED_ACTORS
    steps_per_actor = 10


KINDS = {"own": OwnDeed, "shared": SharedDeed, "tenfold": TenfoldDeed}


class Order(BaseModel):
    """A job's request. Planning waits for the file `gate`, if it has a name."""

    folder: str
    deeds: list[Deed]
    hosting: str = "shared"
    gate: str = ""


class OrderState(JobState):
    """What the outcome hook saw; saved with each outcome, once."""

    done: list[str] = []
    failed: list[str] = []
    stopped: list[str] = []


class Deeds(Job[Order, OrderState]):
    """Performs deeds, and tells the witness what its hooks are told."""

    keep_after_completed = True
    keep_results = True
    options = JobsOptions(step_stop_timeout=timedelta(seconds=2), max_job_crashes=100)

    def __init__(self) -> None:
        super().__init__()
        plant()

    def _mark(self, **fields: Any) -> None:
        append(Path(self.request.folder, "marks"), **fields)

    def prepare_steps(self, request: Order) -> Iterator[StepDetails]:
        self._mark(what="preparing")
        while request.gate and not Path(request.gate).exists():
            time.sleep(0.02)
        for deed in request.deeds:
            yield self.create_step(KINDS[request.hosting], deed, step_id=deed.key)

    def on_before_resuming_job_steps(self) -> None:
        self._mark(what="resuming")

    def on_step_completed_or_stopped(self, step_id: str, result: JobStepResult[Any]) -> None:
        kind = "done" if result.is_success else "stopped" if result.is_cancelled else "failed"
        self._mark(what="told", key=step_id, kind=kind)
        getattr(self.state, kind).append(step_id)

    def on_stopped(self) -> None:
        self._mark(what="stopped")

    def can_retry_failed_steps(self) -> bool:
        return True


class NarrowDeeds(Deeds):
    """One at a time."""

    max_active_steps = 1


class BriskDeeds(Deeds):
    """Everything that heals does so soon."""

    options = JobsOptions(
        step_delivery_retry_delay=timedelta(seconds=0.2),
        step_retry_backoff=timedelta(seconds=0.2),
        max_step_attempts=2,
        job_watchdog_interval=timedelta(seconds=2),
        max_job_crashes=100,
    )


class FewBriskDeeds(BriskDeeds):
    """Eight at a time: groups of outcomes are small, however fast the machine is, and so there are many."""

    max_active_steps = 8


class DueDeeds(Deeds):
    """One at a time; a failed attempt is followed by another after five seconds."""

    max_active_steps = 1
    options = JobsOptions(step_retry_backoff=timedelta(seconds=5), max_step_attempts=2, max_job_crashes=100)


class WatchedDeeds(Deeds):
    """The watchdog looks every second."""

    options = JobsOptions(job_watchdog_interval=timedelta(seconds=1))


class LostDeeds(Deeds):
    """Each outcome is delivered once; the watchdog looks every two seconds."""

    options = JobsOptions(step_delivery_max_attempts=1, job_watchdog_interval=timedelta(seconds=2))


def order(folder: Path, deeds: list[dict[str, Any]], hosting: str = "shared", gate: str = "") -> Order:
    """A job's request; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [Deed(folder=str(folder), **{"key": f"s{n}", **deed}) for n, deed in enumerate(deeds)]
    return Order(folder=str(folder), deeds=made, hosting=hosting, gate=gate)


def marks(folder: Path, *what: str) -> list[dict[str, Any]]:
    """The witness's lines of these kinds, or of any."""
    return [line for line in lines(folder / "marks") if not what or line["what"] in what]


def await_true(holds: Callable[[], Any], seconds: float, what: str, pause: float = 0.02) -> None:
    """Ask again until it holds; what is awaited here has no event of its own."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause)


class Inside:
    """The store behind a client, for the eyes of a test."""

    def __init__(self, client: Choreography) -> None:
        self._loop = client._loop
        self._storage: JobStorage = client._client._storage
        self.connection = client._client._connection

    def document(self, job_id: str) -> JobDocument:
        """The stored job."""
        document = self._loop.run(self._storage.read_job(JobId(job_id)))
        assert document is not None
        return document

    def ledger(self, job_id: str) -> list[LedgerSegment]:
        """Its ledger."""
        return self._loop.run(self._storage.read_ledger(JobId(job_id), self._plan(job_id).fence))

    def _plan(self, job_id: str) -> PlanRef:
        plan = self.document(job_id).plan
        assert plan is not None
        return plan

    def codes(self, job_id: str) -> dict[str, StepCode]:
        """What the ledger says of each step."""
        plan = self._plan(job_id)
        found: dict[str, StepCode] = {}
        for segment in self.ledger(job_id):
            prepared = self._loop.run(self._storage.read_prepared(JobId(job_id), plan.fence, segment.index))
            assert prepared is not None
            found.update(zip(prepared.step_ids, map(StepCode, segment.codes), strict=True))
        assert len(found) == plan.total
        return found

    def due(self, job_id: str, ordinal: int) -> datetime:
        """When the step's next attempt is due, as stored."""
        (document,) = self._loop.run(self._storage.read_step_documents(JobId(job_id), [ordinal]))
        assert document.due is not None
        return document.due

    def check_counts(self, job_id: str) -> None:
        """The job document's counts equal a recount of the ledger."""
        document, plan = self.document(job_id), self._plan(job_id)
        kinds = self._loop.run(self._storage.read_plan(JobId(job_id), plan.fence))
        stages = recount(kinds, self.ledger(job_id), plan.segment_steps)
        assert document.stage_counts == stages
        assert document.counts == total(stages)

    def check_ended(self, job: JobHandle) -> None:
        """Nothing is open, counts are right, and state, results and failed-step records each name each step once."""
        job_id = JobId(str(job.job_id))
        self.check_counts(job_id)
        assert not self.document(job_id).journal
        assert not any(segment.groups for segment in self.ledger(job_id))
        codes = self.codes(job_id)
        succeeded = [key for key, code in codes.items() if code == StepCode.COMPLETED_SUCCESSFULLY]
        failed = [key for key, code in codes.items() if code == StepCode.COMPLETED_WITH_FAILURE]
        assert len(succeeded) + len(failed) == len(codes)
        state = job.state()
        assert Counter(state.done) == Counter(succeeded)
        assert Counter(state.failed) == Counter(failed)
        failures = self._loop.run(self._storage.read_failures(job_id, take=100_000))
        assert Counter(record.step_id for record in failures) == Counter(failed)
        assert [step_id for step_id, _ in job.results()] == succeeded


def held(client: Choreography, job: JobHandle) -> int:
    """Slots that the throttle counts as the job's."""
    snapshot = client.throttle()
    assert snapshot is not None
    view = snapshot["jobs"].get(job_actor(JobId(str(job.job_id))))
    return 0 if view is None else int(view["held"])


def live_actors(prefix: str) -> list[str]:
    """Names of the actors that Ray has not given up and whose name begins so."""
    import ray._private.state

    rows = ray._private.state.actors().values()
    return [row["Name"] for row in rows if row["Name"].startswith(prefix) and row["State"] != "DEAD"]


def overlaps(folder: Path) -> list[str]:
    """Keys of steps that had two bodies at one time: one began while another process had not ended."""
    open_bodies: dict[str, int] = {}
    found: list[str] = []
    for mark in marks(folder, "begin", "end", "fail", "quit"):
        if mark["what"] == "begin":
            if open_bodies.get(mark["key"]) is not None:
                found.append(mark["key"])
            open_bodies[mark["key"]] = mark["pid"]
        else:
            open_bodies.pop(mark["key"], None)
    return found
