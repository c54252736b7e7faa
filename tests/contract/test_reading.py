"""What readers ask of a store beside single records, and a verification of a whole job, on every store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from choreography_ray.access.reading import Reader
from choreography_ray.client.timeline import MAX_FAILED_STEPS, timeline_of
from choreography_ray.core.explaining import Explained, Waits
from choreography_ray.engine.verification import verify_job
from choreography_ray.errors import StepNotFound, StorageUnavailable
from choreography_ray.model import FindingKind, HostId, JobId, JobStatus, JobStepStatus, SpanKind, StepId, WaitReason
from choreography_ray.options import JobsOptions
from choreography_ray.records import (
    Beside,
    FailedStep,
    Failure,
    KeptResult,
    LedgerSegment,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    PlannedStep,
    PlanSegment,
    Run,
    StepDocument,
)
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.storage.protocol import JobStorage
from choreography_ray.testing import loop
from tests.simulation.jobs import KeptPieces, Piece, Work, batch
from tests.simulation.world import World

JOB = JobId("a/job")
RUN = Run(2, 1)
LARGE = "x" * 100_000
NOW = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)


def a_failure() -> Failure:
    return Failure("ValueError", "no", traceback=LARGE)


async def test_results_are_asked_for_by_stage(storage: JobStorage) -> None:
    """Of one stage, or of all before one; pages hold only what was asked for."""
    kept = [KeptResult(n, StepId(f"s{n}"), n, stage=(n % 3) * 10 - 10) for n in range(30)]
    await storage.save_results(JOB, kept)
    assert await storage.read_results(JOB, stage=0) == kept[1::3]
    assert await storage.read_results(JOB, before_stage=10) == [r for r in kept if r.stage < 10]
    assert await storage.read_results(JOB, 3, 2, stage=-10) == [kept[6], kept[9]]
    assert await storage.read_results(JOB, stage=7) == []


async def test_a_page_of_large_results_ends_early(storage: JobStorage) -> None:
    """At least one, and never much more than fits: whoever streams them needs no room for a page of the largest."""
    large = b"x" * (3 * 1024 * 1024)
    await storage.save_results(JOB, [KeptResult(n, StepId(f"s{n}"), large) for n in range(7)])
    pages: list[list[int]] = []
    after = -1
    while page := await storage.read_results(JOB, after, 1_000):
        pages.append([kept.ordinal for kept in page])
        after = page[-1].ordinal
    assert pages == [[0, 1, 2], [3, 4, 5], [6]]


async def test_segments_of_the_ledger_are_asked_for_by_index(storage: JobStorage) -> None:
    segments = [LedgerSegment(n, 2, 0, b"\0", b"\0\0", plan=2) for n in range(6)]
    await storage.insert_ledger(JOB, [*segments, LedgerSegment(2, 1, 0, b"\1", b"\0\0", plan=1)])
    assert await storage.read_ledger(JOB, 2, 2, 4) == segments[2:4]
    assert await storage.read_ledger(JOB, 2, 4) == segments[4:]
    assert await storage.read_ledger(JOB, 2, 0, 1) == segments[:1]


async def test_what_steps_have_beside_the_ledger_comes_without_what_is_large(storage: JobStorage) -> None:
    documents = [
        StepDocument(n, RUN, is_closed=True, attempt=2, state=LARGE, attempts=(a_failure(),)) for n in (1, 3, 9)
    ]
    failures = [FailedStep(n, StepId(f"s{n}"), 1, RUN, (a_failure(),), LARGE, LARGE) for n in (2, 5)]
    results = [KeptResult(n, StepId(f"s{n}"), LARGE, stage=4) for n in (0, 4, 7)]
    await storage.save_step_documents(JOB, documents)
    await storage.save_failures(JOB, failures)
    await storage.save_results(JOB, results)
    assert await storage.read_beside(JOB, 1, 7) == Beside(
        tuple(StepDocument(n, RUN, is_closed=True, attempt=2) for n in (1, 3)),
        tuple(FailedStep(n, StepId(f"s{n}"), 1, RUN, ()) for n in (2, 5)),
        (KeptResult(4, StepId("s4"), None, stage=4),),
    )
    assert await storage.read_beside(JOB, 10, 20) == Beside()


async def test_records_of_a_job_are_counted_by_kind_and_nothing_is_left_after_clearing(storage: JobStorage) -> None:
    keys = [OutcomeKey(HostId("h"), RUN, n) for n in (2, 0, 1)]
    for key in keys:
        await storage.insert_outcome(OutcomeDocument(JOB, key, (Outcome(0, 1, OutcomeKind.SUCCEEDED),)))
    await storage.save_results(JOB, [KeptResult(0, StepId("a"), 1), KeptResult(1, StepId("b"), 1)])
    await storage.save_results(JobId("a"), [KeptResult(0, StepId("a"), 1)])
    assert await storage.count_records(JOB) == {"outcomes": 3, "results": 2}
    assert await storage.read_outcome_keys(JOB) == sorted(keys)
    await storage.clear_job(JOB, 2, keep_results=False)
    assert await storage.count_records(JOB) == {}


async def test_a_plan_is_asked_which_segment_names_a_step(storage: JobStorage) -> None:
    """None is left out; what another plan of the job names may be among them."""
    for index in range(3):
        steps = tuple(PlannedStep(StepId(f"{index}/$.{n}"), "", 0, LARGE) for n in range(4))
        await storage.save_plan_segments(JOB, 2, [PlanSegment(index, steps)])
    assert await storage.find_planned(JOB, 2, StepId("1/$.3")) == [1]
    assert await storage.find_planned(JOB, 2, StepId("1/$.4")) == []
    assert await storage.find_planned(JobId("a"), 2, StepId("1/$.3")) == []


async def test_the_first_due_retry_of_a_job_is_known(storage: JobStorage) -> None:
    """Of those that wait: one that was assigned since has an open run."""
    assert await storage.first_due(JOB) is None
    due = [NOW + timedelta(seconds=seconds) for seconds in (9, 3, 5)]
    waiting = [StepDocument(n, RUN, is_closed=True, due=at, state=LARGE) for n, at in enumerate(due)]
    await storage.save_step_documents(JOB, waiting)
    assert await storage.first_due(JOB) == due[1]
    await storage.save_step_documents(JOB, [StepDocument(1, Run(2, 2))])
    assert await storage.first_due(JOB) == due[2]
    assert await storage.first_due(JobId("a")) is None


async def copy(source: MemoryStorage, job_id: JobId, target: JobStorage) -> None:
    """Everything that is stored of a job, through the contract."""
    document = await source.read_job(job_id)
    assert document is not None
    assert document.plan is not None
    assert await target.insert_job(document)
    fence = document.plan.fence
    await target.save_plan(job_id, fence, await source.read_plan(job_id, fence))
    for index in range(document.plan.segments):
        planned, prepared = (
            await source.read_plan_segment(job_id, fence, index),
            await source.read_prepared(job_id, fence, index),
        )
        assert planned is not None
        assert prepared is not None
        await target.save_plan_segments(job_id, fence, [planned])
        await target.save_prepared(job_id, [prepared])
    await target.insert_ledger(job_id, await source.read_ledger(job_id, fence))
    await target.save_failures(job_id, await source.read_failures(job_id, take=10_000))
    await target.save_results(job_id, await source.read_results(job_id, take=10_000))


def a_finished_job() -> MemoryStorage:
    """1,200 steps over three stages, a third of them failed, results kept."""
    world = World()
    Work.world = world
    pieces = [Piece(key=f"p{i}", stage=i // 400, shared=1, fail_first=i % 3 == 0) for i in range(1_200)]

    async def story() -> None:
        job = await world.start(KeptPieces, batch(pieces, [0, 1, 2]), options=JobsOptions())
        await job.ended

    loop.run(story())
    return world.store


async def test_a_job_is_verified_alike_on_every_store(storage: JobStorage) -> None:
    """Right as it was; then a failed-step record is lost, a result is, and debris is left: each is named."""
    job_id = JobId("job")
    store = await asyncio.to_thread(a_finished_job)
    await copy(store, job_id, storage)
    verified = await verify_job(storage, job_id)
    assert verified.findings == ()
    assert (verified.is_ok, verified.unchecked) == (True, ())
    assert (verified.recount.succeeded, verified.recount.failed) == (800, 400)
    assert {stage: counts.total for stage, counts in verified.recount.stages.items()} == {0: 400, 1: 400, 2: 400}

    (lost,) = await storage.read_failures(job_id, [999])
    await storage.delete_failures(job_id, [(999, lost.run)])
    await storage.save_step_documents(job_id, [StepDocument(5, RUN, state=LARGE)])
    await storage.insert_outcome(OutcomeDocument(job_id, OutcomeKey(HostId("h"), RUN, 0), ()))
    verified = await verify_job(storage, job_id)
    found: list[Any] = [(f.kind, f.ordinal, f.step_id, f.is_debris) for f in verified.findings]
    assert found == [
        (FindingKind.STEP_DOCUMENT, 5, "p5", True),
        (FindingKind.FAILED_STEP, 999, "p999", False),
        (FindingKind.OUTCOME, None, None, True),
    ]
    assert (verified.errors, verified.debris, verified.is_ok) == (1, 2, False)


async def test_steps_are_read_by_status_with_what_is_known_of_their_failures(storage: JobStorage) -> None:
    """All of them, those of some statuses, so many of those, or one by its id; segments without any are not read."""
    job_id = JobId("job")
    await copy(await asyncio.to_thread(a_finished_job), job_id, storage)
    reader = Reader(storage, job_id)
    every = [step async for step in reader.steps()]
    assert [step.ordinal for step in every] == list(range(1_200))
    failed = (JobStepStatus.COMPLETED_WITH_FAILURE, JobStepStatus.FAILED)
    some = [step async for step in reader.steps(failed, take=3)]
    assert [(step.step_id, step.status) for step in some] == [(f"p{n}", failed[0]) for n in (0, 3, 6)]
    assert [step async for step in reader.steps(JobStepStatus.COMPLETED_SUCCESSFULLY, take=1)] == [every[1]]
    assert [step async for step in reader.steps(JobStepStatus.STOPPED)] == []
    assert [step async for step in reader.steps(take=0)] == []
    one = await reader.step(StepId("p999"))
    assert one == every[999]
    assert one.stage == 2
    (attempt,) = one.attempts
    assert one.failure == attempt
    assert (attempt.attempt, attempt.error_type, attempt.message) == (1, "ValueError", "p999 fails on attempt 1")
    assert "perform_step" in attempt.traceback
    assert attempt.began_at is not None
    assert attempt.ended_at is not None
    assert attempt.ended_at >= attempt.began_at
    with pytest.raises(StepNotFound):
        await reader.step(StepId("p1200"))
    counted = [step_id async for step_id in reader.counted_steps()]
    assert counted == [step.step_id for step in every]


async def test_a_timeline_without_a_cluster_tells_failed_attempts_and_what_is_not_known(storage: JobStorage) -> None:
    """Of more failed steps than are read it says so; each span has its step's stage."""
    job_id = JobId("job")
    await copy(await asyncio.to_thread(a_finished_job), job_id, storage)
    timeline = await timeline_of(Reader(storage, job_id), "")
    assert timeline.history[-1].status is timeline.status
    assert {(span.kind, span.stage) for span in timeline.spans} == {(SpanKind.FAILED_ATTEMPT, n) for n in (0, 1)}
    assert len({span.what for span in timeline.spans}) == MAX_FAILED_STEPS
    assert len(timeline.unknown) == 3


async def test_a_waiting_retry_tells_its_due_time_and_last_failure_and_is_explained(storage: JobStorage) -> None:
    """Also without the job's actor: what the store tells alone."""
    job_id = JobId("job")

    def a_job_that_waits() -> MemoryStorage:
        world = World()
        Work.world = world
        pieces = [Piece(key=f"p{i}", fail_first=9 if i < 2 else 0, stage=i // 4) for i in range(8)]

        async def story() -> None:
            options = JobsOptions(max_step_attempts=5, step_retry_backoff=timedelta(hours=1))
            await world.start(KeptPieces, batch(pieces), options=options)
            await asyncio.sleep(10.0)

        loop.run(story())
        return world.store

    store = await asyncio.to_thread(a_job_that_waits)
    await copy(store, job_id, storage)
    await storage.save_step_documents(job_id, await store.read_step_documents(job_id))
    reader = Reader(storage, job_id)
    waiting = [step async for step in reader.steps(JobStepStatus.AWAITING_RETRY)]
    assert [step.step_id for step in waiting] == ["p0", "p1"]
    for step in waiting:
        assert step.attempt == 2
        assert step.retry_due is not None
        assert step.failure is not None
        assert step.failure.ended_at is not None
        assert step.failure.message == f"{step.step_id} fails on attempt 1"
    explained = await reader.explain(None)
    assert not explained.is_from_actor
    found = {wait.reason: (wait.steps, wait.examples) for wait in explained.waiting}
    assert found == {WaitReason.RETRY: (2, ("p0", "p1")), WaitReason.STAGE: (4, ("p4", "p5", "p6"))}
    assert explained.waiting[0].due == min(step.retry_due for step in waiting if step.retry_due)


async def test_where_the_store_is_away_the_actor_speaks_alone() -> None:
    """Its word on what is waited for, with the store's error; without an actor the error is raised."""

    class Away(MemoryStorage):
        async def read_job(self, job_id: JobId) -> Any:
            raise StorageUnavailable("here", "refused")

    reader = Reader(Away(), JOB)
    with pytest.raises(StorageUnavailable):
        await reader.explain(None)
    said = Explained(1, (Waits(WaitReason.SLOT, 3, "why", (0, 1)),), status=JobStatus.RUNNING)
    explained = await reader.explain(said)
    assert (explained.status, explained.running, explained.waiting[0].steps) == (JobStatus.RUNNING, 1, 3)
    assert "refused" in explained.trouble
