"""The tables of which status may follow which."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from choreography_ray.core.transitions import (
    FINAL_CODES,
    JOB_TRANSITIONS,
    STEP_TRANSITIONS,
    bounded,
    check_job,
    check_step,
)
from choreography_ray.errors import InvalidTransition
from choreography_ray.model import HistoryEntry, JobStatus
from choreography_ray.records import StepCode


def test_the_tables_know_every_status() -> None:
    assert set(JOB_TRANSITIONS) == set(JobStatus)
    assert set(STEP_TRANSITIONS) == set(StepCode)


@pytest.mark.parametrize("before", list(JobStatus))
@pytest.mark.parametrize("after", list(JobStatus))
def test_an_absent_pair_of_a_job_is_an_error(before: JobStatus, after: JobStatus) -> None:
    if after in JOB_TRANSITIONS[before]:
        check_job(before, after)
    else:
        with pytest.raises(InvalidTransition):
            check_job(before, after)


def test_every_job_status_can_be_reached_and_left_for_removal() -> None:
    reached = {JobStatus.PREPARING_JOB}
    while more := {after for before in reached for after in JOB_TRANSITIONS[before]} - reached:
        reached |= more
    assert reached == set(JobStatus)
    assert all(JobStatus.REMOVING in after for before, after in JOB_TRANSITIONS.items() if before != JobStatus.REMOVING)


def test_what_is_final_counts_toward_completion_and_only_failures_are_run_again() -> None:
    assert {code for code in StepCode if code.status.is_final} == FINAL_CODES
    again = {code for code in FINAL_CODES if STEP_TRANSITIONS[code]}
    assert again == {StepCode.COMPLETED_WITH_FAILURE, StepCode.FAILED}


def test_an_outcome_is_counted_once() -> None:
    """From a final status no other final one can be reached without running again."""
    for code in FINAL_CODES:
        for after in FINAL_CODES:
            with pytest.raises(InvalidTransition):
                check_step(code, after)


def test_a_history_that_is_full_keeps_its_first_entry_and_the_latest() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    history = tuple(HistoryEntry(at=at, status=JobStatus.RUNNING, why=str(n)) for n in range(6))
    assert [entry.why for entry in bounded(history, 3)] == ["0", "4", "5"]
    assert bounded(history, 6) == history
