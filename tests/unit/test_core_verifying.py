"""What is told of a job from its records alone: can its counts and stages be right, and for what do its steps wait?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from choreography_ray.core.explaining import explain_stored
from choreography_ray.core.ledger import split
from choreography_ray.core.verifying import Block, Recount, check_beside, check_counts, check_stages
from choreography_ray.model import FindingKind, HistoryEntry, JobId, JobStatus, StepId, WaitReason
from choreography_ray.options import JobsOptions
from choreography_ray.records import (
    Beside,
    CodeRef,
    Counts,
    Decision,
    JobDocument,
    JournalEntry,
    LedgerSegment,
    PlanRef,
    Run,
    StepCode,
    StepDocument,
    StepKind,
)

AT = datetime(2030, 1, 1, tzinfo=UTC)
KINDS = (StepKind(0, "app:Step"), StepKind(10, "app:Step"))
PREPARED, SCHEDULED, DONE = StepCode.PREPARED, StepCode.SCHEDULED, StepCode.COMPLETED_SUCCESSFULLY
FAILED, AWAITING = StepCode.COMPLETED_WITH_FAILURE, StepCode.AWAITING_RETRY


def a_job(**fields: Any) -> JobDocument:
    """At work, in the first of two stages of two steps."""
    document = JobDocument(
        JobId("job"), "Job", CodeRef("app", "Job"), None, None, JobsOptions(), AT, AT,
        status=JobStatus.RUNNING, fence=1, plan=PlanRef(1, 1, 4), stage=0,
        history=(HistoryEntry(at=AT, status=JobStatus.RUNNING),),
    )  # fmt: skip
    return replace(document, **fields)


def a_document(**fields: Any) -> StepDocument:
    return StepDocument(0, Run(1, 1), **fields)


def a_ledger(*codes: StepCode) -> LedgerSegment:
    (segment,) = split([0, 0, 1, 1], 1, 250)
    return replace(segment, codes=bytes(codes))


def recounted(*codes: StepCode) -> Recount:
    made = Recount(KINDS)
    made.add(a_ledger(*codes), 0)
    return made


@pytest.mark.parametrize(
    ("before", "after", "is_right"),
    [
        (Counts(succeeded=1), Counts(succeeded=2), True),
        (Counts(), Counts(succeeded=1), True),  # what no hook is told of is counted a little later
        (Counts(succeeded=2), Counts(succeeded=2), False),
        (Counts(failed=1), Counts(failed=1), False),
    ],
)
def test_counts_of_a_job_at_work_lie_around_the_ledgers(before: Counts, after: Counts, is_right: bool) -> None:
    found = check_counts(
        a_job(counts=before), recounted(DONE, PREPARED, PREPARED, PREPARED), a_job(counts=after, save=1)
    )
    assert found is not None
    assert [one.kind for one in found] == ([] if is_right else [FindingKind.COUNTS])


def test_more_failures_in_the_ledger_than_were_ever_counted_are_found() -> None:
    found = check_counts(a_job(), recounted(FAILED, PREPARED, PREPARED, PREPARED), a_job(save=1))
    assert found is not None
    assert [one.kind for one in found] == [FindingKind.COUNTS]


def test_nothing_can_be_told_of_counts_while_the_status_changes() -> None:
    """Between the looks the job was resumed, or its failed steps run again: then counts fall."""
    resumed = HistoryEntry(at=AT + timedelta(seconds=1), status=JobStatus.RUNNING, why="resumed")
    wrong = recounted(FAILED, PREPARED, PREPARED, PREPARED)
    before = a_job()
    assert check_counts(before, wrong, a_job(save=1, history=(*before.history, resumed))) is None
    twice = a_job(save=1, history=(*before.history, *before.history))
    assert check_counts(before, wrong, twice) is None
    assert check_counts(before, wrong, a_job(save=1, mark="resume")) is None


@pytest.mark.parametrize(
    ("codes", "reached", "told"),
    [
        ((DONE, SCHEDULED, PREPARED, PREPARED), 0, None),
        ((DONE, DONE, SCHEDULED, PREPARED), 10, None),
        ((DONE, SCHEDULED, SCHEDULED, PREPARED), 0, "1 steps of stage 10 are SCHEDULED"),
        ((DONE, SCHEDULED, PREPARED, PREPARED), 10, "1 steps of stage 0 are SCHEDULED"),
    ],
)
def test_stages_that_have_begun_too_early_or_were_left_too_early_are_found(
    codes: tuple[StepCode, ...], reached: int, told: str | None
) -> None:
    job = a_job(stage=reached)
    found = list(check_stages(job, recounted(*codes), job))
    assert [one.kind for one in found] == ([] if told is None else [FindingKind.STAGE])
    assert told is None or told in found[0].stored


@pytest.mark.parametrize(
    ("code", "document", "after", "told"),
    [
        (DONE, a_document(), a_job(), ("COMPLETED_SUCCESSFULLY", True)),
        (DONE, a_document(), a_job(mark="retry"), None),
        (DONE, a_document(), a_job(journal=(JournalEntry(Decision.SUCCEEDED, ordinals=(0,)),)), None),
        (SCHEDULED, a_document(), a_job(), None),
        (AWAITING, a_document(is_closed=True, due=AT), a_job(), None),
        (AWAITING, a_document(is_closed=True), a_job(), ("without a due time", False)),
        (AWAITING, None, a_job(), ("without a document", False)),
    ],
)
def test_the_document_of_a_step_fits_its_status(
    code: StepCode, document: StepDocument | None, after: JobDocument, told: tuple[str, bool] | None
) -> None:
    """A final step needs none: what is left of it is debris. One that waits for a retry says until when."""
    beside = Beside(documents=() if document is None else (document,))
    found = list(check_beside(Block(0, (StepId("a"),), (0,), bytes([code]), beside, after)))
    assert [(one.kind, one.is_debris) for one in found] == (
        [] if told is None else [(FindingKind.STEP_DOCUMENT, told[1])]
    )
    assert told is None or told[0] in found[0].stored


def test_steps_of_later_stages_are_recounted_as_what_the_journal_makes_of_them() -> None:
    made = Recount(KINDS, (JournalEntry(Decision.UNREACHABLE, after_stage=0),))
    made.add(a_ledger(FAILED, PREPARED, PREPARED, SCHEDULED), 0)
    assert dict(made.tally) == {
        (0, FAILED): 1,
        (0, PREPARED): 1,
        (10, StepCode.UNREACHABLE): 1,
        (10, SCHEDULED): 1,
    }


def test_nothing_is_said_of_stages_before_the_first_is_reached() -> None:
    early = recounted(SCHEDULED, SCHEDULED, SCHEDULED, SCHEDULED)
    for before, after in ((None, 0), (0, None)):
        assert list(check_stages(a_job(stage=before), early, a_job(stage=after))) == []


@pytest.mark.parametrize(
    ("status", "reason"), [(JobStatus.STOPPED, WaitReason.STOPPED), (JobStatus.RUNNING, WaitReason.NOBODY)]
)
def test_what_steps_that_never_started_wait_for_where_no_actor_answers(status: JobStatus, reason: WaitReason) -> None:
    explained = explain_stored(a_job(status=status), KINDS, [a_ledger(DONE, PREPARED, PREPARED, PREPARED)], None)
    assert [(wait.reason, wait.steps, wait.ordinals) for wait in explained.waits] == [
        (reason, 1, (1,)),
        (WaitReason.STAGE, 2, (2, 3)),
    ]
