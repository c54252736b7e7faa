"""One suite for every store: each promise of `JobStorage`, in the words of its docstrings."""

from __future__ import annotations

import asyncio
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from choreography_ray.codec import decode, encode
from choreography_ray.errors import TooLarge
from choreography_ray.model import HistoryEntry, HostId, JobId, JobStatus, StepHosting, StepId
from choreography_ray.options import ClusterOptions, JobsOptions
from choreography_ray.records import (
    CodeRef,
    Counts,
    Decision,
    FailedStep,
    Failure,
    Group,
    JobBrief,
    JobDocument,
    JournalEntry,
    KeptResult,
    LedgerSegment,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    Owner,
    PlannedStep,
    PlanRef,
    PlanSegment,
    PreparedSegment,
    RemovedJob,
    Run,
    StageCounts,
    StepCode,
    StepDocument,
    StepKind,
)
from choreography_ray.storage import mongo
from choreography_ray.storage.protocol import JobFilter, JobStorage

NOW = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)
JOB = JobId("job")
MIB = 1024 * 1024
FIRST = Run(5, 1)
ODD_IDS = [
    JobId(text)
    for text in ("a", "a/", "a/0", "a%2F", "$set", "a.b", "ключ", "a\0b", " ", "%", "~", "x" * 1024, "字" * 341)
]


def job(job_id: str = JOB, **changes: Any) -> JobDocument:
    """A small job."""
    made = JobDocument(
        job_id=JobId(job_id),
        type_name="Index",
        code=CodeRef("app", "Index"),
        request={"a": 1},
        state={"done": []},
        options=JobsOptions(),
        created_at=NOW,
        updated_at=NOW,
        fence=5,
    )
    return replace(made, **changes)


def failure(message: str = "broken") -> Failure:
    return Failure("app.Error", message, 2, "Traceback ...", NOW, NOW + timedelta(seconds=1.5), "node", 42)


def full_job() -> JobDocument:
    """A job with every field set to something."""
    key = OutcomeKey(HostId("host/1"), Run(2**62, 7), 3)
    due = NOW + timedelta(microseconds=1)
    return job(
        "full",
        code=CodeRef("app", "Index", "digest", "3.11", "signature"),
        request=encode({"keys": {"a.b": 1, "$set": (2,)}, "nan": float("inf"), "big": 2**63, "long": 2**62}),
        state=encode({"at": NOW, "raw": b"\0\xff"}),
        options=JobsOptions(
            max_step_attempts=3, job_watchdog_interval=None, step_retry_backoff=timedelta(microseconds=1)
        ),
        status=JobStatus.RUNNING,
        fence=2**62,
        save=0,
        labels={"a.b": "x", "$where": "", "": "empty", "ü": "y"},
        details="details",
        history=(HistoryEntry(at=NOW, status=JobStatus.RUNNING, why="because"),),
        plan=PlanRef(fence=2**62, segments=3, total=600, segment_steps=250),
        stage=-3,
        counts=Counts(1, 2, 3, 4),
        stage_counts=(StageCounts(stage=-3, total=600, succeeded=1), StageCounts(stage=0, total=2)),
        journal=(
            JournalEntry(Decision.RETRY, key, (1, 2), (2, 3), (due, due)),
            JournalEntry(Decision.STOPPED, ordinals=(7,), attempts=(1,), left=StepCode.AWAITING_RETRY),
            JournalEntry(Decision.UNREACHABLE, after_stage=10),
        ),
        mark="resume",
        retry_call="a call",
        retried_steps=3,
        has_started_hook=True,
        is_background=True,
        is_stop_finalized=True,
        is_draining=True,
        is_cleared=True,
        is_forced=True,
        error="error",
        start_error="FAILED_STARTING_SOME_JOB_STEPS",
        start_details=("one", "two"),
        crashes=2,
        owner=Owner("cluster", "actor", "worker", "node", 7, 5),
        beats=3,
        actor_name="actor",
        runtime_env={"pip": ["x"]},
        keep_results=True,
    )


# ---------------------------------------------------------------- jobs


async def test_a_job_comes_back_as_it_was_saved(storage: JobStorage) -> None:
    """Every field, with microseconds, numbers of 64 bits and payloads that decode to what was encoded."""
    for document in (job(), full_job()):
        assert await storage.insert_job(document)
        read = await storage.read_job(document.job_id)
        assert read == document
        assert read is not None
        assert read.options.model_fields_set == document.options.model_fields_set
        assert decode(read.request) == decode(document.request)
        assert decode(read.state) == decode(document.state)


def unset(record: Any, *, but: tuple[str, ...] = ()) -> list[str]:
    """Fields that have their default."""
    found = getattr(record, "_field_defaults", None) or {f.name: f.default for f in fields(record)}
    defaults = {name: value for name, value in found.items() if value is not MISSING and name not in but}
    return [name for name, default in defaults.items() if getattr(record, name) == default]


def test_the_full_records_of_these_tests_set_every_field() -> None:
    """A field that is added to a record must be added here, and so be kept by every store."""
    retry, stopped, unreachable = full_job().journal
    assert unset(full_job(), but=("save",)) == []
    assert unset(failure()) == []
    assert set(unset(retry)) & set(unset(stopped)) & set(unset(unreachable)) == set()
    assert set.intersection(*(set(unset(outcome)) for outcome in outcomes().outcomes)) == set()
    assert unset(full_step()) == []
    assert unset(failed(0)) == []
    assert unset(StepKind(0, "app:Step", StepHosting.SHARED_ACTORS, 8, {})) == []
    assert unset(outcomes()) == unset(segment(groups=GROUPS, plan=5)) == []


async def test_a_time_in_another_zone_is_the_same_moment(storage: JobStorage) -> None:
    """Loaded times are aware."""
    created = NOW.astimezone(timezone(timedelta(hours=9)))
    await storage.insert_job(job(created_at=created))
    read = await storage.read_job(JOB)
    assert read is not None
    assert read.created_at == NOW
    assert read.created_at.utcoffset() is not None


async def test_a_used_id_is_taken_whoever_took_it(storage: JobStorage) -> None:
    """A repeated insert of one's own finds itself; another's does not."""
    assert await storage.insert_job(job())
    assert await storage.insert_job(job())
    assert not await storage.insert_job(job(created_at=NOW + timedelta(microseconds=1)))
    assert await storage.save_job(job(save=1), ())
    assert not await storage.insert_job(job())


async def test_of_32_concurrent_inserts_of_an_id_one_wins(storage: JobStorage) -> None:
    """However many callers race [S4.7]."""
    racing = [job(created_at=NOW + timedelta(microseconds=n), fence=n + 1) for n in range(32)]
    won = await asyncio.gather(*map(storage.insert_job, racing))
    assert won.count(True) == 1
    read = await storage.read_job(JOB)
    assert read is not None
    assert read.created_at == racing[won.index(True)].created_at


async def test_a_job_that_is_not_there_is_none(storage: JobStorage) -> None:
    """And nothing that guards on it succeeds."""
    assert await storage.read_job(JOB) is None
    assert not await storage.raise_fence(JOB, 5, 6)
    assert not await storage.save_job(job(save=1), {"state"})
    await storage.delete_job(job())


async def test_a_deleted_job_leaves_its_id_free(storage: JobStorage) -> None:
    """Also for a job that differs."""
    await storage.insert_job(job())
    await storage.delete_job(job())
    assert await storage.read_job(JOB) is None
    assert await storage.insert_job(job(created_at=NOW + timedelta(days=1), fence=9))


async def test_only_the_very_job_that_was_read_is_deleted(storage: JobStorage) -> None:
    """Not one that was taken over meanwhile, and not another of the same id."""
    await storage.insert_job(job())
    for other in (job(fence=4), job(created_at=NOW + timedelta(microseconds=1))):
        await storage.delete_job(other)
        assert await storage.read_job(JOB) == job()


async def test_a_deleted_job_is_remembered_until_it_is_forgotten(storage: JobStorage) -> None:
    """Each life of an id by itself; only those last saved before the moment, and so many."""
    later = job(created_at=NOW + timedelta(days=1), updated_at=NOW + timedelta(days=1), fence=9)
    for one in (job(), later):
        await storage.insert_job(one)
        await storage.delete_job(one)
    first, second = RemovedJob(JOB, 5), RemovedJob(JOB, 9)
    assert await storage.removed_jobs(NOW) == []
    assert await storage.removed_jobs(NOW + timedelta(hours=1)) == [first]
    assert set(await storage.removed_jobs(NOW + timedelta(days=2))) == {first, second}
    assert len(await storage.removed_jobs(NOW + timedelta(days=2), take=1)) == 1
    for _ in range(2):
        await storage.forget_removed([first])
        assert await storage.removed_jobs(NOW + timedelta(days=2)) == [second]


def brief(document: JobDocument) -> JobBrief:
    return JobBrief(
        document.job_id,
        document.status,
        document.created_at,
        document.updated_at,
        document.fence,
        document.plan is not None,
        document.is_background,
        document.is_stop_finalized,
        document.is_forced,
        document.save,
        document.beats,
        "" if document.owner is None else document.owner.cluster,
    )


async def test_unfinished_jobs_come_oldest_first_in_pages(storage: JobStorage) -> None:
    """Whoever is at work or being removed, a stopped one that is not accounted, an ended one whose owner holds on."""
    jobs: list[JobDocument] = []
    for n, status in enumerate(JobStatus):
        for is_finalized in (False, True):
            made = job(
                f"{n}{is_finalized}",
                created_at=NOW - timedelta(microseconds=n),
                status=status,
                is_stop_finalized=is_finalized,
                plan=PlanRef(5, 1, 1) if is_finalized else None,
                is_background=n % 2 == 0,
                is_forced=n % 3 == 0,
                beats=n,
                owner=(None, Owner("here"), Owner())[(n + is_finalized) % 3],
            )
            jobs.append(made)
            await storage.insert_job(made)
    wanted = [
        brief(one)
        for one in jobs
        if one.status.is_interruptible
        or one.status is JobStatus.REMOVING
        or (one.status is JobStatus.STOPPED and not one.is_stop_finalized)
        or (one.status.is_final and one.owner == Owner("here"))
    ]
    assert 0 < sum(one.status.is_final for one in wanted) < sum(one.status.is_final for one in jobs)
    wanted.sort(key=lambda one: (one.created_at, one.job_id))
    assert await storage.unfinished_jobs() == wanted
    paged: list[JobBrief] = []
    while page := await storage.unfinished_jobs(paged[-1] if paged else None, take=3):
        assert len(page) <= 3
        paged += page
    assert paged == wanted


async def test_ended_jobs_come_oldest_first_if_nobody_saved_them_since(storage: JobStorage) -> None:
    moment = NOW + timedelta(hours=1)
    for n, status in enumerate(JobStatus):
        for when in (NOW, moment - timedelta(microseconds=1), moment):
            made = job(f"{n}{when}", created_at=NOW - timedelta(seconds=n), updated_at=when, status=status)
            await storage.insert_job(made)
    found = await storage.ended_jobs(moment)
    assert {one.status for one in found} == {status for status in JobStatus if status.is_final}
    assert len(found) == 6
    assert found == sorted(found, key=lambda one: (one.created_at, one.job_id))
    assert all(one.updated_at < moment for one in found)
    assert await storage.ended_jobs(moment, found[1], take=2) == found[2:4]
    assert await storage.ended_jobs(NOW) == []


async def test_a_fence_is_raised_by_compare_and_set(storage: JobStorage) -> None:
    """False when it is neither the expected nor already mine; a repetition is true again."""
    await storage.insert_job(job())
    assert not await storage.raise_fence(JOB, 4, 6)
    assert await storage.raise_fence(JOB, 5, 6)
    assert await storage.raise_fence(JOB, 5, 6)
    assert not await storage.raise_fence(JOB, 5, 7)
    read = await storage.read_job(JOB)
    assert read is not None
    assert (read.fence, read.save) == (6, 0)


async def test_an_owner_is_written_with_its_fence(storage: JobStorage) -> None:
    """And the count of crashes; both stay as they are where nobody names them, or the fence is not raised."""
    await storage.insert_job(job())
    owner = Owner("cluster", "actor", "worker", "node", 7, 6)
    assert not await storage.raise_fence(JOB, 4, 6, owner, 3)
    read = await storage.read_job(JOB)
    assert read is not None
    assert (read.owner, read.crashes) == (None, 0)
    assert await storage.raise_fence(JOB, 5, 6, owner, 3)
    assert await storage.raise_fence(JOB, 6, 7)
    read = await storage.read_job(JOB)
    assert read is not None
    assert (read.fence, read.owner, read.crashes, read.save) == (7, owner, 3, 0)
    assert await storage.raise_fence(JOB, 7, 7, Owner())
    read = await storage.read_job(JOB)
    assert read is not None
    assert (read.owner, read.crashes) == (Owner(), 3)


async def test_a_beat_is_counted_under_its_fence_only(storage: JobStorage) -> None:
    """And is in no save's way."""
    await storage.insert_job(job())
    assert not await storage.beat(JOB, 4)
    assert await storage.beat(JOB, 5)
    assert await storage.save_job(job(save=1, details="saved"), {"details"})
    assert await storage.beat(JOB, 5)
    read = await storage.read_job(JOB)
    assert read is not None
    assert (read.beats, read.details, read.save) == (2, "saved", 1)
    assert not await storage.beat(JobId("nobody"), 0)


async def test_of_many_that_raise_a_fence_from_one_value_one_wins(storage: JobStorage) -> None:
    """Each draws a fence of its own."""
    await storage.insert_job(job())
    won = await asyncio.gather(*(storage.raise_fence(JOB, 5, 6 + n) for n in range(16)))
    assert won.count(True) == 1


async def test_a_save_writes_the_changed_fields_only(storage: JobStorage) -> None:
    """And the save id and time of the change."""
    await storage.insert_job(job())
    later = NOW + timedelta(seconds=1)
    change = job(save=1, state={"done": [1]}, details="not named", updated_at=later, status=JobStatus.RUNNING)
    assert await storage.save_job(change, {"state", "status"})
    assert await storage.read_job(JOB) == replace(change, details="")


async def test_a_save_under_a_wrong_fence_or_save_changes_nothing(storage: JobStorage) -> None:
    """Fenced: the writer stops."""
    await storage.insert_job(job())
    assert await storage.save_job(job(save=1, details="first"), {"details"})
    there = await storage.read_job(JOB)
    for wrong in (
        job(save=2, fence=4),
        job(save=2, fence=6),
        job(save=3),
        job(save=0),
    ):
        assert not await storage.save_job(replace(wrong, details="wrong"), {"details"})
    assert await storage.read_job(JOB) == there
    assert await storage.raise_fence(JOB, 5, 6)
    assert not await storage.save_job(job(save=2, details="stale"), {"details"})
    assert not await storage.save_job(job(save=1, details="first"), {"details"})


async def test_a_save_repeated_unchanged_is_true_again(storage: JobStorage) -> None:
    """Its reply was lost: it finds its own save id and is applied once."""
    await storage.insert_job(job())
    change = job(save=1, details="first")
    assert await storage.save_job(change, {"details"})
    assert await storage.save_job(change, {"details"})
    assert await storage.save_job(job(save=2, details="second"), {"details"})
    assert not await storage.save_job(change, {"details"})
    read = await storage.read_job(JOB)
    assert read is not None
    assert (read.save, read.details) == (2, "second")


async def test_of_many_saves_from_one_save_id_one_is_applied(storage: JobStorage) -> None:
    """Two with the same new save id are the same writer by contract, so the racers are told apart by fences."""
    await storage.insert_job(job())
    saves = [storage.save_job(job(save=1, fence=fence), ()) for fence in (3, 4, 5, 6)]
    assert await asyncio.gather(*saves) == [False, False, True, False]


async def test_jobs_are_listed_newest_first(storage: JobStorage) -> None:
    """Then by id; filters hold together; pages do not overlap."""
    for n in range(6):
        await storage.insert_job(
            job(
                f"j{n}",
                created_at=NOW + timedelta(microseconds=n // 2),
                type_name="Even" if n % 2 == 0 else "Odd",
                status=JobStatus.RUNNING if n < 3 else JobStatus.STOPPED,
                labels={"n": str(n % 2), "a.b": "$x"},
            )
        )

    async def ids(wanted: JobFilter, skip: int = 0, take: int = 100) -> str:
        return " ".join(found.job_id for found in await storage.list_jobs(wanted, skip, take))

    assert await ids(JobFilter()) == "j4 j5 j2 j3 j0 j1"
    assert await ids(JobFilter(), 1, 2) == "j5 j2"
    assert await ids(JobFilter(), 5, 10) == "j1"
    assert await ids(JobFilter(), 0, 0) == ""
    assert await ids(JobFilter(type_name="Odd")) == "j5 j3 j1"
    assert await ids(JobFilter(statuses=[JobStatus.STOPPED, JobStatus.FAILED])) == "j4 j5 j3"
    assert await ids(JobFilter(labels={"a.b": "$x", "n": "1"})) == "j5 j3 j1"
    assert await ids(JobFilter(labels={"a.b": "x"})) == ""
    assert await ids(JobFilter(created_before=NOW + timedelta(microseconds=2))) == "j2 j3 j0 j1"
    assert await ids(JobFilter("Odd", [JobStatus.RUNNING], {"n": "1"}, NOW + timedelta(days=1))) == "j1"


async def test_any_id_is_a_place_of_its_own(storage: JobStorage) -> None:
    """Slashes, dots, dollars, NUL, other alphabets, a kibibyte: no job sees or touches what belongs to another."""
    for n, job_id in enumerate(ODD_IDS):
        assert await storage.insert_job(job(job_id, fence=n))
        await storage.insert_ledger(job_id, [LedgerSegment(0, n, 0, b"\0", b"\0\0")])
        await storage.save_results(job_id, [KeptResult(n, StepId(f"$.{job_id}"), job_id)])
        await storage.insert_outcome(OutcomeDocument(job_id, OutcomeKey(HostId(job_id), Run(n, 1), 0), ()))
    for n, job_id in enumerate(ODD_IDS):
        read = await storage.read_job(job_id)
        assert read is not None
        assert (read.job_id, read.fence) == (job_id, n)
        assert [segment.fence for segment in await storage.read_ledger(job_id, 0)] == [n]
        assert await storage.read_results(job_id) == [KeptResult(n, StepId(f"$.{job_id}"), job_id)]
        assert [found.key.host for found in await storage.read_outcomes(job_id)] == [job_id]
    await storage.clear_job(ODD_IDS[0], 0, keep_results=False)
    await storage.delete_job(job(ODD_IDS[0], fence=0))
    assert await storage.read_ledger(ODD_IDS[0], 0) == []
    for job_id in ODD_IDS[1:]:
        assert await storage.read_job(job_id) is not None
        assert await storage.read_ledger(job_id, 0) != []


async def _fill(storage: JobStorage, job_id: JobId) -> None:
    await storage.insert_job(job(job_id))
    await storage.save_plan(job_id, 5, [StepKind(0, "app:Step")])
    await storage.save_plan_segments(job_id, 5, [PlanSegment(0, (PlannedStep(StepId("s"), "", 0, 1),))])
    await storage.save_prepared(job_id, [PreparedSegment(0, (StepId("s"),), (1,), 5)])
    await storage.insert_ledger(job_id, [LedgerSegment(0, 5, 0, b"\0", b"\0\0", plan=5)])
    await storage.insert_outcome(OutcomeDocument(job_id, OutcomeKey(HostId("h"), Run(5, 1), 0), ()))
    await storage.save_step_documents(job_id, [StepDocument(0, Run(5, 1))])
    await storage.save_failures(job_id, [FailedStep(0, StepId("s"), 1, Run(5, 1), ())])
    await storage.save_results(job_id, [KeptResult(0, StepId("s"), 1, 7, 5)])


async def _check_there(storage: JobStorage, job_id: JobId) -> None:
    assert await storage.read_plan(job_id, 5)
    assert await storage.read_plan_segment(job_id, 5, 0)
    assert await storage.read_prepared(job_id, 5, 0)
    assert await storage.read_ledger(job_id, 5)
    assert await storage.read_outcomes(job_id)
    assert await storage.read_step_documents(job_id)
    assert await storage.read_failures(job_id)
    assert await storage.read_results(job_id)


async def test_clearing_spares_a_later_job_of_the_same_id(storage: JobStorage) -> None:
    """Whoever was held up on the way to clear the first one hits nothing of the second: its fences are higher."""
    await _fill(storage, JOB)
    await storage.clear_job(JOB, 4, keep_results=False)
    await _check_there(storage, JOB)
    await storage.clear_job(JOB, 5, keep_results=False)
    assert await storage.read_results(JOB) == []


async def test_a_plan_has_segments_of_its_own(storage: JobStorage) -> None:
    """What somebody prepares late for an earlier plan is neither seen nor in the way."""
    old, new = (PreparedSegment(0, (StepId(text),), (text,), plan) for text, plan in (("old", 3), ("new", 5)))
    await storage.save_prepared(JOB, [old])
    await storage.insert_ledger(JOB, [LedgerSegment(1, 3, 0, b"\3", b"\0\0", plan=3)])
    assert await storage.prepared_segments(JOB, 5) == set()
    assert await storage.read_prepared(JOB, 5, 0) is None
    assert await storage.read_ledger(JOB, 5) == []
    mine = LedgerSegment(1, 5, 0, b"\0", b"\0\0", plan=5)
    await storage.save_prepared(JOB, [new])
    await storage.insert_ledger(JOB, [mine])
    assert await storage.read_prepared(JOB, 5, 0) == new
    assert await storage.read_ledger(JOB, 5) == [mine]
    assert await storage.save_ledger(JOB, [replace(mine, save=1, codes=b"\1")])
    assert [one.codes for one in await storage.read_ledger(JOB, 3)] == [b"\3"]


@pytest.mark.parametrize("keep_results", [True, False])
@pytest.mark.parametrize("keep_failures", [True, False])
async def test_clearing_deletes_all_but_the_document_and_what_is_kept(
    storage: JobStorage, keep_results: bool, keep_failures: bool
) -> None:
    """Of this job only; it can be repeated."""
    other = JobId("job2")
    await _fill(storage, JOB)
    await _fill(storage, other)
    for _ in range(2):
        await storage.clear_job(JOB, 5, keep_results=keep_results, keep_failures=keep_failures)
    assert await storage.read_job(JOB) == job()
    for job_id, is_there in ((JOB, False), (other, True)):
        assert bool(await storage.read_plan(job_id, 5)) == is_there
        assert bool(await storage.read_plan_segment(job_id, 5, 0)) == is_there
        assert bool(await storage.read_prepared(job_id, 5, 0)) == is_there
        assert bool(await storage.prepared_segments(job_id, 5)) == is_there
        assert bool(await storage.read_ledger(job_id, 5)) == is_there
        assert bool(await storage.read_outcomes(job_id)) == is_there
        assert bool(await storage.read_step_documents(job_id)) == is_there
        assert bool(await storage.read_failures(job_id)) == (is_there or keep_failures)
        assert bool(await storage.read_results(job_id)) == (is_there or keep_results)


# ---------------------------------------------------------------- plan


async def test_the_table_of_a_plan_comes_back(storage: JobStorage) -> None:
    """By fence; a later save under the same fence replaces it."""
    kinds = (
        StepKind(-10, "app:Warm"),
        StepKind(0, "app:Step", StepHosting.SHARED_ACTORS, 8, encode({"num_cpus": 0.5, "a.b": 1})),
    )
    await storage.save_plan(JOB, 5, kinds)
    await storage.save_plan(JOB, 6, kinds[:1])
    assert await storage.read_plan(JOB, 5) == kinds
    assert await storage.read_plan(JOB, 6) == kinds[:1]
    assert await storage.read_plan(JOB, 7) == ()
    await storage.save_plan(JOB, 5, kinds[1:])
    assert await storage.read_plan(JOB, 5) == kinds[1:]


def planned(index: int, count: int = 3, request: Any = None) -> PlanSegment:
    steps = (PlannedStep(StepId(f"$s/{index}.{n}"), f"näme {n}", n % 2, request or {"n": n}) for n in range(count))
    return PlanSegment(index, tuple(steps))


async def test_segments_of_a_plan_come_back_and_are_replaced(storage: JobStorage) -> None:
    """An earlier try under the same fence leaves nothing behind."""
    await storage.save_plan_segments(JOB, 5, [planned(0), planned(1, 1)])
    await storage.save_plan_segments(JOB, 5, [planned(0, 2), planned(2)])
    await storage.save_plan_segments(JOB, 6, [planned(0, 1)])
    assert await storage.read_plan_segment(JOB, 5, 0) == planned(0, 2)
    assert await storage.read_plan_segment(JOB, 5, 1) == planned(1, 1)
    assert await storage.read_plan_segment(JOB, 5, 2) == planned(2)
    assert await storage.read_plan_segment(JOB, 6, 0) == planned(0, 1)
    assert await storage.read_plan_segment(JOB, 5, 3) is None
    assert await storage.read_plan_segment(JOB, 7, 0) is None


async def test_segments_may_be_of_any_size(storage: JobStorage) -> None:
    """Over 16 MiB in one; a later try that is small, or large again, replaces all of it."""
    large = [planned(0, 5, "x" * (4 * MIB)), planned(1, 5, "y" * (4 * MIB))]
    await storage.save_plan_segments(JOB, 5, large)
    assert await storage.read_plan_segment(JOB, 5, 0) == large[0]
    assert await storage.read_plan_segment(JOB, 5, 1) == large[1]
    await storage.save_plan_segments(JOB, 5, [planned(0)])
    assert await storage.read_plan_segment(JOB, 5, 0) == planned(0)
    states = PreparedSegment(0, tuple(StepId(str(n)) for n in range(5)), ("z" * (4 * MIB),) * 5)
    await storage.save_prepared(JOB, [states])
    assert await storage.read_prepared(JOB, 0, 0) == states
    assert await storage.prepared_segments(JOB, 0) == {0}


async def test_prepared_segments_come_back_and_are_counted(storage: JobStorage) -> None:
    """Each save replaces an earlier one of the same index."""
    first = PreparedSegment(0, (StepId("a"), StepId("b")), ({"p": 1}, None))
    second = PreparedSegment(300, (StepId("c"),), (encode({1, 2}),))
    assert await storage.prepared_segments(JOB, 0) == set()
    await storage.save_prepared(JOB, [first, second])
    await storage.save_prepared(JOB, [replace(first, states=(2, 3))])
    assert await storage.read_prepared(JOB, 0, 0) == replace(first, states=(2, 3))
    assert await storage.read_prepared(JOB, 0, 300) == second
    assert await storage.read_prepared(JOB, 0, 1) is None
    assert await storage.prepared_segments(JOB, 0) == {0, 300}


# ---------------------------------------------------------------- ledger


def segment(index: int = 0, save: int = 0, fence: int = 5, **changes: Any) -> LedgerSegment:
    return replace(LedgerSegment(index, fence, save, b"\0\1\2", b"\0\0\1\0\0\1"), **changes)


GROUPS = (
    Group(HostId("h/1"), Run(2**62, 1), 4, (0, 2), (1, 1)),
    Group(HostId("h 2"), Run(5, 2), 1, (1, 100_000), (1, 7)),
    Group(HostId("h3"), Run(5, 3), 1, (), ()),
)


async def test_the_ledger_comes_back_by_index(storage: JobStorage) -> None:
    """Segments that exist are left as they are."""
    await storage.insert_ledger(JOB, [segment(2), segment(0), segment(11, groups=GROUPS)])
    await storage.insert_ledger(JOB, [segment(0, codes=b"\7\7\7"), segment(1)])
    expected = [segment(0), segment(1), segment(2), segment(11, groups=GROUPS)]
    assert await storage.read_ledger(JOB, 0) == expected
    assert await storage.read_ledger(JobId("none"), 0) == []


async def test_a_ledger_save_writes_codes_and_groups_where_fence_and_save_fit(storage: JobStorage) -> None:
    """`kinds` is written once; repeated unchanged it is true again."""
    await storage.insert_ledger(JOB, [segment(0), segment(1)])
    change = [segment(0, 1, codes=b"\3\3\3", groups=GROUPS, kinds=b""), segment(1, 1, codes=b"\4\4\4")]
    for _ in range(2):
        assert await storage.save_ledger(JOB, change)
    assert await storage.read_ledger(JOB, 0) == [replace(change[0], kinds=segment().kinds), change[1]]
    assert await storage.save_ledger(JOB, [segment(0, 2)])
    assert await storage.read_ledger(JOB, 0) == [segment(0, 2), change[1]]
    assert await storage.save_ledger(JOB, [])


@pytest.mark.parametrize("wrong", [segment(1, 2), segment(1, 3), segment(1, 1, 4), segment(1, 1, 6), segment(9, 1)])
async def test_a_ledger_save_with_one_segment_fenced_is_false(storage: JobStorage, wrong: LedgerSegment) -> None:
    """The others may be written: each segment is one atomic write. What is fenced is not."""
    await storage.insert_ledger(JOB, [segment(0), segment(1)])
    assert not await storage.save_ledger(JOB, [segment(0, 1, codes=b"\3\3\3"), replace(wrong, codes=b"\7\7\7")])
    read = await storage.read_ledger(JOB, 0)
    assert read[1:] == [segment(1)]
    assert read[0] in (segment(0), segment(0, 1, codes=b"\3\3\3"))


async def test_a_half_applied_ledger_save_is_finished_by_repeating_it(storage: JobStorage) -> None:
    """A crash left one segment written and the other not."""
    await storage.insert_ledger(JOB, [segment(0), segment(1)])
    change = [segment(0, 1, codes=b"\3\3\3"), segment(1, 1, codes=b"\4\4\4")]
    assert await storage.save_ledger(JOB, change[:1])
    assert await storage.save_ledger(JOB, change)
    assert await storage.read_ledger(JOB, 0) == change


async def test_a_raised_fence_keeps_older_writers_out_of_every_segment(storage: JobStorage) -> None:
    """It is raised only where it is lower, and can be repeated; save ids stay."""
    await storage.insert_ledger(JOB, [segment(0), segment(1, fence=9), segment(2, 4)])
    other = JobId("job2")
    await storage.insert_ledger(other, [segment(0)])
    for _ in range(2):
        await storage.fence_ledger(JOB, 7)
    assert [(one.fence, one.save) for one in await storage.read_ledger(JOB, 0)] == [(7, 0), (9, 0), (7, 4)]
    assert not await storage.save_ledger(JOB, [segment(0, 1)])
    assert await storage.save_ledger(JOB, [segment(0, 1, 7)])
    assert await storage.read_ledger(other, 0) == [segment(0)]


async def test_a_save_and_a_fence_that_race_leave_one_truth(storage: JobStorage) -> None:
    """Either the old writer was first in all that it wrote, or it is told that it is fenced."""
    segments = [segment(n) for n in range(20)]
    await storage.insert_ledger(JOB, segments)
    change = [segment(n, 1, codes=b"\3\3\3") for n in range(20)]
    saved, _ = await asyncio.gather(storage.save_ledger(JOB, change), storage.fence_ledger(JOB, 6))
    read = await storage.read_ledger(JOB, 0)
    assert {one.fence for one in read} == {6}
    if saved:
        assert {one.codes for one in read} == {b"\3\3\3"}
    for one in read:
        assert one.codes == (b"\3\3\3" if one.save else b"\0\1\2")


# ---------------------------------------------------------------- outcomes


def outcomes(host: str = "h", run: Run = FIRST, n: int = 0, seconds: float = 1.5) -> OutcomeDocument:
    told = (
        Outcome(0, 1, OutcomeKind.SUCCEEDED, value=encode({"a": (1,)})),
        Outcome(7, 2, OutcomeKind.FAILED, failure=failure(), state={"p": 1}),
        Outcome(8, 1, OutcomeKind.MOVED, crash=2, has_document=True),
        Outcome(9, 1, OutcomeKind.SUCCEEDED),
    )
    return OutcomeDocument(JOB, OutcomeKey(HostId(host), run, n), told, seconds)


async def test_an_outcome_goes_in_where_its_key_is_free(storage: JobStorage) -> None:
    """Else what is there comes back, whoever wrote it, and stays."""
    assert await storage.insert_outcome(outcomes()) is None
    assert await storage.insert_outcome(outcomes(seconds=9)) == outcomes()
    assert await storage.insert_outcome(outcomes(n=1)) is None
    assert await storage.insert_outcome(outcomes(run=Run(5, 2))) is None
    assert await storage.insert_outcome(outcomes("h/")) is None
    assert await storage.read_outcomes(JOB, HostId("h"), Run(5, 1)) == [outcomes(), outcomes(n=1)]
    plain = OutcomeDocument(JOB, OutcomeKey(HostId("p"), Run(1, 1), 0), (Outcome(3, 1, OutcomeKind.SUCCEEDED),) * 3)
    assert await storage.insert_outcome(plain) is None
    assert await storage.read_outcomes(JOB, HostId("p")) == [plain]


async def test_of_many_outcomes_under_one_key_the_first_decides(storage: JobStorage) -> None:
    """Host and settlement race: all but one see the winner's."""
    there = await asyncio.gather(*(storage.insert_outcome(outcomes(seconds=n)) for n in range(16)))
    assert there.count(None) == 1
    winner = outcomes(seconds=there.index(None))
    assert all(found in (None, winner) for found in there)
    assert await storage.read_outcomes(JOB) == [winner]


async def test_outcomes_are_read_by_host_run_and_n(storage: JobStorage) -> None:
    """Of the job, of a host or of one run; in that order."""
    keys = [("b", Run(5, 1), 0), ("a", Run(10, 1), 0), ("a", Run(5, 2), 10), ("a", Run(5, 2), 2), ("a", Run(5, 1), 0)]
    for host, run, n in keys:
        await storage.insert_outcome(outcomes(host, run, n))
    expected = sorted(keys)
    assert [tuple(found.key) for found in await storage.read_outcomes(JOB)] == expected
    assert [tuple(found.key) for found in await storage.read_outcomes(JOB, HostId("a"))] == expected[:-1]
    assert [found.key.n for found in await storage.read_outcomes(JOB, HostId("a"), Run(5, 2))] == [2, 10]
    assert await storage.read_outcomes(JOB, HostId("c")) == []


async def test_deleted_outcomes_are_gone_and_deleting_again_is_no_error(storage: JobStorage) -> None:
    """A freed key can be taken again: deleting all of a run together is the caller's rule."""
    for n in range(3):
        await storage.insert_outcome(outcomes(n=n))
    for _ in range(2):
        await storage.delete_outcomes(JOB, [outcomes(n=n).key for n in (0, 2, 5)])
    await storage.delete_outcomes(JOB, [])
    assert [found.key.n for found in await storage.read_outcomes(JOB)] == [1]


# ---------------------------------------------------------------- what single steps have of their own


def own(ordinal: int = 0, run: Run = FIRST, is_closed: bool = False, **changes: Any) -> StepDocument:
    return replace(StepDocument(ordinal, run, is_closed), **changes)


def full_step() -> StepDocument:
    return StepDocument(2, Run(2**62, 2**40), True, 3, NOW, 1, FIRST, 2, {"p": 1}, (failure(), failure("again")))


async def test_a_step_document_comes_back_whole(storage: JobStorage) -> None:
    """With attempts, times and state; by ordinal; all or some."""
    documents = [
        full_step(),
        own(0),
        own(10),
    ]
    assert await storage.save_step_documents(JOB, documents) == []
    expected = [documents[1], documents[0], documents[2]]
    assert await storage.read_step_documents(JOB) == expected
    assert await storage.read_step_documents(JOB, [10, 2, 5]) == expected[1:]
    assert await storage.read_step_documents(JOB, []) == []
    assert await storage.read_step_documents(JobId("none")) == []


async def test_a_step_document_is_written_only_where_the_stored_run_is_not_greater(storage: JobStorage) -> None:
    """Runs are ordered by fence, then counter; a closed run is greater than the open one; equal ones replace."""
    rising = [
        own(0, Run(5, 1)),
        own(0, Run(5, 1), attempt=2),
        own(0, Run(5, 1), True),
        own(0, Run(5, 1), True, attempt=3),
        own(0, Run(5, 10)),
        own(0, Run(16, 1)),
        own(0, Run(16, 1), True),
        own(0, Run(2**40, 1)),
    ]
    for document in rising:
        assert await storage.save_step_documents(JOB, [document]) == []
        assert await storage.read_step_documents(JOB) == [document]
    for document in (*rising[:-1], own(0, Run(2**40, 0), True)):
        assert await storage.save_step_documents(JOB, [document, own(1)]) == [0]
    assert await storage.read_step_documents(JOB) == [rising[-1], own(1)]


async def test_a_step_document_without_state_stop_or_attempts_leaves_those_that_are_stored(
    storage: JobStorage,
) -> None:
    """Closing a run keeps the checkpoint, a checkpoint keeps the stop; all other fields are replaced."""
    first = own(0, state={"p": 1}, stop=FIRST, attempts=(failure(),), due=NOW, crashes=2)
    await storage.save_step_documents(JOB, [first])
    await storage.save_step_documents(JOB, [own(0, is_closed=True)])
    kept = own(0, is_closed=True, state={"p": 1}, stop=FIRST, attempts=(failure(),))
    assert await storage.read_step_documents(JOB) == [kept]
    later = own(0, is_closed=True, state=0, stop=Run(6, 1), attempts=(failure("new"),))
    await storage.save_step_documents(JOB, [later])
    assert await storage.read_step_documents(JOB) == [later]
    assert await storage.save_step_documents(JOB, [own(0, state=1)]) == [0]


async def test_of_step_documents_that_race_the_greatest_stays(storage: JobStorage) -> None:
    """Also when none was there before: nobody is told an error, and the greatest is never refused."""
    racing = [own(0, Run(5, counter)) for counter in range(24)]
    refused = await asyncio.gather(*(storage.save_step_documents(JOB, [document]) for document in racing))
    assert await storage.read_step_documents(JOB) == [racing[-1]]
    assert refused[-1] == []
    assert all(told in ([], [0]) for told in refused)


async def test_kept_results_are_deleted_where_the_fence_is_the_one_that_was_read(storage: JobStorage) -> None:
    """Those that a later job of the same id kept meanwhile stay."""
    results = [KeptResult(n, StepId(f"s{n}"), n, fence=5 + n) for n in range(3)]
    await storage.save_results(JOB, results)
    for _ in range(2):
        await storage.delete_results(JOB, [(0, 5), (1, 5), (7, 5)])
    assert await storage.read_results(JOB) == results[1:]
    await storage.delete_results(JOB, [])


async def test_step_documents_are_deleted_up_to_a_closed_run(storage: JobStorage) -> None:
    """A stalled writer cannot delete a newer attempt's document."""
    await storage.save_step_documents(JOB, [own(0), own(1, is_closed=True), own(2, Run(5, 2)), own(3, Run(6, 0))])
    for _ in range(2):
        await storage.delete_step_documents(JOB, [(n, Run(5, 1)) for n in range(5)])
    assert [document.ordinal for document in await storage.read_step_documents(JOB)] == [2, 3]
    await storage.delete_step_documents(JOB, [])


def failed(ordinal: int, run: Run = FIRST, **changes: Any) -> FailedStep:
    return replace(FailedStep(ordinal, StepId(f"s{ordinal}"), 2, run, (failure(),), {"v": 1}, {"s": 2}), **changes)


async def test_failed_steps_come_back_by_ordinal(storage: JobStorage) -> None:
    """Pages of all, or those of given steps; a later record replaces the one of the same ordinal."""
    assert await storage.read_failures(JOB) == []
    await storage.save_failures(JOB, [failed(n) for n in (5, 1, 300)])
    await storage.save_failures(JOB, [failed(1, Run(6, 1), attempt=3), failed(2)])
    expected = [failed(1, Run(6, 1), attempt=3), failed(2), failed(5), failed(300)]
    assert await storage.read_failures(JOB) == expected
    assert await storage.read_failures(JOB, skip=1, take=2) == expected[1:3]
    assert await storage.read_failures(JOB, take=0) == []
    assert await storage.read_failures(JOB, [300, 2, 7]) == [failed(2), failed(300)]


async def test_failed_steps_are_deleted_where_the_run_is_the_one_that_was_read(storage: JobStorage) -> None:
    """A retry deletes the record that it read, never a newer one."""
    await storage.save_failures(JOB, [failed(0), failed(1, Run(6, 1))])
    for _ in range(2):
        await storage.delete_failures(JOB, [(0, Run(5, 1)), (1, Run(5, 1)), (2, Run(5, 1))])
    assert await storage.read_failures(JOB) == [failed(1, Run(6, 1))]


async def test_whoever_wakes_up_late_replaces_no_later_failure_or_result(storage: JobStorage) -> None:
    """An incarnation that was paused between the job's write and these, when its successor has gone further [S6.5]."""
    later = [KeptResult(n, StepId(f"s{n}"), "later", fence=6) for n in (0, 1)]
    for fence, value in ((6, "later"), (5, "late")):
        await storage.save_failures(JOB, [failed(n, Run(fence, 1), value=value) for n in (0, 1)])
        await storage.save_results(JOB, [replace(result, value=value, fence=fence) for result in later])
    assert await storage.read_failures(JOB) == [failed(n, Run(6, 1), value="later") for n in (0, 1)]
    assert await storage.read_results(JOB) == later


async def test_kept_results_are_paged_by_ordinal(storage: JobStorage) -> None:
    """Above the last one that was seen; gaps, wide ones too, are passed over."""
    ordinals = [0, 1, 2, 5, 9, 10, 11, 99, 100_000, 2_000_000]
    results = [KeptResult(n, StepId(f"s{n}"), encode((n, "$"))) for n in ordinals]
    await storage.save_results(JOB, results[::-1])
    await storage.save_results(JOB, results[:2])
    paged: list[KeptResult] = []
    while page := await storage.read_results(JOB, paged[-1].ordinal if paged else -1, 2):
        assert len(page) == 2
        paged += page
    assert paged == results
    assert await storage.read_results(JOB) == results
    await storage.save_results(JOB, [replace(results[0], value="new")])
    assert await storage.read_results(JOB, take=1) == [replace(results[0], value="new")]


# ---------------------------------------------------------------- the namespace


async def test_code_is_kept_under_its_digest(storage: JobStorage) -> None:
    """Also more of it than one document holds; one that is there already is the same."""
    captured = bytes(range(256)) * 70_000
    assert len(captured) > 16 * MIB
    assert await storage.read_code("d") is None
    for _ in range(2):
        await storage.save_code("d", captured, {"a.b": 1, "module": "app"}, NOW)
    await storage.save_code("e", b"", {}, NOW)
    assert await storage.read_code("d") == captured
    assert await storage.read_code("e") == b""


async def test_copies_of_one_code_are_never_mixed(storage: JobStorage) -> None:
    """Two captures of the same code differ in their bytes; the digest names one of them, whole [S13]."""
    copies = [bytes([i]) * (9 * MIB) for i in range(4)]
    await asyncio.gather(*(storage.save_code("d", captured, {}, NOW) for captured in copies))
    first = await storage.read_code("d")
    assert first in copies
    await storage.save_code("d", b"another", {}, NOW)
    assert await storage.read_code("d") == first


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of code lie in several documents."""
    monkeypatch.setattr(mongo, "PART_BYTES", 10)


@pytest.mark.usefixtures("_small_parts")
async def test_code_goes_when_no_job_points_at_it_and_it_was_not_saved_lately(storage: JobStorage) -> None:
    """That of a job stays as long as the job; that of a start whose record is not there yet, for a while."""
    long_ago, lately = NOW - timedelta(hours=3), NOW - timedelta(minutes=1)
    for digest in ("used", "idle", "again"):
        await storage.save_code(digest, digest.encode() * 5, {}, long_ago)
    await storage.save_code("fresh", b"fresh", {}, lately)
    await storage.save_code("again", b"another capture of it", {}, lately)
    await storage.insert_job(job(code=CodeRef("m", "q", "used")))
    await storage.delete_unused_code(NOW - timedelta(hours=1))
    assert await storage.read_code("idle") is None
    for digest in ("used", "again"):
        assert await storage.read_code(digest) == digest.encode() * 5
    assert await storage.read_code("fresh") == b"fresh"
    await storage.delete_job(job(code=CodeRef("m", "q", "used")))
    await storage.delete_unused_code(NOW)
    assert [await storage.read_code(digest) for digest in ("used", "again", "fresh")] == [None] * 3
    await storage.save_code("used", b"captured anew", {}, NOW)
    assert await storage.read_code("used") == b"captured anew"


@pytest.mark.usefixtures("_small_parts")
async def test_code_that_is_saved_while_unused_code_is_deleted_is_whole(storage: JobStorage) -> None:
    """However the two meet, what `save_code` has returned for is there."""
    copies = [capture * 30 for capture in (b"old", b"new", b"other")]
    for turn in range(30):
        digest = f"d{turn}"
        await storage.save_code(digest, copies[0], {}, NOW - timedelta(hours=2))
        await asyncio.gather(
            storage.save_code(digest, copies[1], {}, NOW),
            storage.delete_unused_code(NOW - timedelta(hours=1)),
            storage.save_code(digest, copies[2], {}, NOW),
        )
        assert await storage.read_code(digest) in copies


async def test_explicit_cluster_options_replace_and_others_stay(storage: JobStorage) -> None:
    """Defaults hold when none were saved."""
    assert await storage.read_cluster_options() == ClusterOptions()
    first = await storage.save_cluster_options(ClusterOptions(max_parallel_steps=3, terminal_job_retention=None))
    assert (first.max_parallel_steps, first.terminal_job_retention) == (3, None)
    await storage.save_cluster_options(ClusterOptions(step_lease_timeout=timedelta(milliseconds=1)))
    second = await storage.save_cluster_options(ClusterOptions())
    assert second == await storage.read_cluster_options()
    assert second == ClusterOptions(
        max_parallel_steps=3, terminal_job_retention=None, step_lease_timeout=timedelta(milliseconds=1)
    )
    back = await storage.save_cluster_options(ClusterOptions(max_parallel_steps=None))
    assert back.max_parallel_steps is None


async def test_numbers_are_drawn_once_each(storage: JobStorage) -> None:
    """By name, however many draw; each is above those that were drawn before. A store may leave gaps in a race."""
    assert [await storage.next_number("fence") for _ in range(3)] == [1, 2, 3]
    drawn = await asyncio.gather(*(storage.next_number("fence") for _ in range(24)))
    raced = await asyncio.gather(*(storage.next_number("raced/$.") for _ in range(24)))
    assert len(set(drawn)) == len(set(raced)) == 24
    assert min(drawn) > 3
    assert await storage.next_number("fence") > max(drawn)
    assert await storage.next_number("other") == 1


# ---------------------------------------------------------------- sizes and aliasing


async def test_what_no_document_can_hold_is_refused_with_its_size(storage: JobStorage) -> None:
    """Both stores alike, before the server is asked; the job can still be read, saved and removed [S12.4]."""
    huge = "x" * (16 * MIB)
    await storage.insert_job(job())
    refused = [
        storage.insert_job(job("large", request=huge)),
        storage.save_job(job(save=1, state={"a": huge}), {"state"}),
        storage.save_plan_segments(JOB, 5, [planned(0, 1, huge)]),
        storage.save_prepared(JOB, [PreparedSegment(0, (StepId("s"),), (huge,))]),
        storage.insert_outcome(replace(outcomes(), outcomes=(Outcome(0, 1, OutcomeKind.SUCCEEDED, huge),))),
        storage.save_step_documents(JOB, [own(0, state=huge)]),
        storage.save_failures(JOB, [failed(0, state=huge)]),
        storage.save_results(JOB, [KeptResult(0, StepId("s"), huge)]),
    ]
    with pytest.raises(TooLarge, match=r"job 'large': labels takes 65,539 bytes, the limit is 65,536"):
        await storage.insert_job(job("large", labels={"why": "x" * 65_536}))
    with pytest.raises(TooLarge, match=r"job 'large': runtime_env takes 262,\d+ bytes, the limit is 262,144"):
        await storage.insert_job(job("large", runtime_env={"env_vars": {"A": "x" * 262_144}}))
    for call in refused:
        with pytest.raises(TooLarge) as caught:
            await call
        assert caught.value.size > 16 * MIB
        assert "job" in caught.value.what
    assert await storage.read_job(JobId("large")) is None
    assert await storage.save_job(job(save=1, details="goes on"), {"details"})
    await storage.delete_job(job())


async def test_parts_that_fit_alone_but_not_together_are_refused(storage: JobStorage) -> None:
    """A job's request and state share a document, as do the outcomes of a group."""
    half = "x" * (9 * MIB)
    await storage.insert_job(job(request=half))
    with pytest.raises(TooLarge):
        await storage.save_job(job(request=half, save=1, state=half), {"state"})
    assert await storage.save_job(job(save=1, state=1), {"state"})
    two = (Outcome(0, 1, OutcomeKind.SUCCEEDED, half), Outcome(1, 1, OutcomeKind.SUCCEEDED, half))
    with pytest.raises(TooLarge):
        await storage.insert_outcome(replace(outcomes(), outcomes=two))
    with pytest.raises(TooLarge):
        await storage.save_failures(JOB, [failed(0, state=half, value=half)])


async def test_nothing_that_was_read_or_written_is_shared(storage: JobStorage) -> None:
    """Whoever changes a payload in memory has changed nothing that is stored."""
    written = job(state={"done": [1]}, labels={"a": "b"})
    await storage.insert_job(written)
    written.state["done"].append(2)
    written.labels["c"] = "d"
    first = await storage.read_job(JOB)
    assert first is not None
    first.state["done"].append(3)
    second = await storage.read_job(JOB)
    assert second is not None
    assert (second.state, second.labels) == ({"done": [1]}, {"a": "b"})
