"""What `start` is told, and when [S4.4]."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from choreography_ray.core.starting import StartWatch
from choreography_ray.errors import StartJobReason, StartReport
from choreography_ray.model import HostId, JobId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument

AT = datetime(2030, 1, 1, tzinfo=UTC)
A, B, C = HostId("a"), HostId("b"), HostId("c")


@pytest.fixture
def watch() -> StartWatch:
    return StartWatch(JobDocument(JobId("j"), "J", CodeRef("m", "J"), None, None, JobsOptions(), AT, AT), 100.0)


def test_a_start_is_settled_when_each_host_of_the_first_window_is_up_or_waits(watch: StartWatch) -> None:
    watch.created(A, 100.0)
    watch.created(B, 100.1)
    watch.came_up(A)
    assert watch.report(101.0) is None
    watch.waited(B)
    report = watch.report(101.1)
    assert report is not None
    assert report.error == ""


def test_it_is_said_only_once(watch: StartWatch) -> None:
    watch.created(A, 100.0)
    watch.came_up(A)
    assert watch.report(101.0) is not None
    assert watch.report(102.0) is None
    assert watch.wake_at is None


def test_hosts_made_later_are_not_waited_for(watch: StartWatch) -> None:
    watch.created(A, 100.0)
    watch.created(B, 100.5)
    watch.came_up(A)
    assert watch.report(100.6) is not None


def test_a_job_without_a_slot_waits_for_one_and_has_started(watch: StartWatch) -> None:
    wake_at = watch.wake_at
    assert wake_at is not None
    assert watch.report(wake_at - 0.001) is None
    report = watch.report(wake_at)
    assert report is not None
    assert report.error == ""


@pytest.mark.parametrize("begin", [2.0190962279027, 1000.0180436456288, 1e6 + 0.1])
def test_when_it_wants_to_be_woken_it_has_something_to_say(begin: float) -> None:
    """Seen once: a rounded sum made the job ask for the same moment again and again, at full speed."""
    document = JobDocument(JobId("j"), "J", CodeRef("m", "J"), None, None, JobsOptions(), AT, AT)
    watch = StartWatch(document, begin)
    assert watch.wake_at is not None
    assert watch.report(watch.wake_at) is not None


def test_some_that_failed_are_told_while_the_job_runs(watch: StartWatch) -> None:
    watch.created(A, 100.0)
    watch.created(B, 100.0)
    watch.came_up(A)
    watch.failed(B)
    watch.step_failed("b", "no GPU")
    report = watch.report(101.0)
    assert report is not None
    assert (report.error, report.details) == (StartReport.FAILED_STARTING_SOME_JOB_STEPS, ("step 'b': no GPU",))


def test_none_that_came_up_is_an_error_once_the_job_is_over(watch: StartWatch) -> None:
    watch.created(A, 100.0)
    watch.failed(A)
    watch.step_failed("a", "no GPU")
    assert watch.report(101.0) is None
    watch.completed()
    report = watch.report(101.5)
    assert report is not None
    assert report.error == StartJobReason.ALL_JOB_STEPS_FAILED_STARTING


def test_the_answer_comes_at_the_deadline_whatever_is_still_pending(watch: StartWatch) -> None:
    watch.created(A, 100.0)
    assert watch.report(129.9) is None
    assert watch.report(130.0) is not None


def test_details_are_bounded(watch: StartWatch) -> None:
    for i in range(1_000):
        watch.step_failed(str(i), "no")
    watch.completed()
    report = watch.report(100.0)
    assert report is not None
    assert len(report.details) == 20


def test_whoever_waits_for_the_start_of_a_job_that_is_removed_is_told_at_once(watch: StartWatch) -> None:
    watch.created(A, 100.0)
    assert watch.report(100.1) is None
    watch.removed()
    report = watch.report(100.2)
    assert report is not None
    assert report.error == "REMOVED"
