"""Which job actors are taken for stuck, and which owners elsewhere for gone, on the clock of who observes [S10]?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from choreography_ray.core.supervising import (
    FIRST_DELAY,
    FIRST_WORD_SECONDS,
    LONGEST_DELAY,
    ElsewhereWatch,
    ListedActor,
    Revivals,
    SilenceWatch,
    is_expired,
)
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import ClusterOptions
from choreography_ray.records import JobBrief

AT = datetime(2030, 1, 1, tzinfo=UTC)

JOB = JobId("job")
ACTOR = ListedActor("actor", "worker")
LEASE = 6.0


def test_an_actor_that_has_spoken_is_overdue_after_a_lease_of_silence() -> None:
    watch = SilenceWatch()
    assert watch.observe({JOB: ACTOR}, {JOB: 0.0}, LEASE, 0.0) == []
    assert watch.observe({JOB: ACTOR}, {JOB: 1.0}, LEASE, 5.0) == []
    assert watch.observe({JOB: ACTOR}, {JOB: 5.9}, LEASE, 9.9) == []
    assert watch.observe({JOB: ACTOR}, {JOB: 6.0}, LEASE, 10.0) == [JOB]


def test_a_process_has_time_for_its_first_word_however_short_leases_are() -> None:
    """And one that was made for a stuck one has twice as much, until it has spoken."""
    watch = SilenceWatch()
    for tries in (1.0, 2.0, 4.0):
        actor = ListedActor("actor", f"worker-{tries}")
        until = FIRST_WORD_SECONDS * tries
        assert watch.observe({JOB: actor}, {JOB: 500.0}, LEASE, 0.0) == []
        assert watch.observe({JOB: actor}, {JOB: 500.0 + until - 0.1}, LEASE, until - 0.1) == []
        assert watch.observe({JOB: actor}, {JOB: 500.0 + until}, LEASE, until) == [JOB]
        watch.replaced(JOB)
        watch.blink()
    actor = ListedActor("actor", "worker-that-speaks")
    assert watch.observe({JOB: actor}, {JOB: 500.0}, LEASE, 0.0) == []
    assert watch.observe({JOB: actor}, {JOB: 1.0}, LEASE, 20.0) == []
    assert watch.observe({JOB: actor}, {JOB: LEASE}, LEASE, 25.0) == [JOB]


def test_what_nobody_saw_is_no_silence() -> None:
    """A blink, an actor without a process, a new process, one of which the throttle knows nothing."""
    watch = SilenceWatch()
    watch.observe({JOB: ACTOR}, {JOB: 900.0}, LEASE, 0.0)
    watch.blink()
    assert watch.observe({JOB: ACTOR}, {JOB: 990.0}, LEASE, 90.0) == []
    assert watch.observe({JOB: ListedActor("actor")}, {JOB: 999.0}, LEASE, 200.0) == []
    assert watch.observe({JOB: ListedActor("actor", "next")}, {JOB: 999.0}, LEASE, 300.0) == []
    assert watch.observe({JOB: ListedActor("actor", "next")}, {}, LEASE, 400.0) == []


def test_an_owner_elsewhere_is_silent_after_a_lease_without_a_new_sign() -> None:
    watch = ElsewhereWatch()
    assert watch.silent({JOB: (1, 1, 1)}, LEASE, 0.0) == set()
    assert watch.silent({JOB: (1, 1, 2)}, LEASE, 5.0) == set()
    assert watch.silent({JOB: (1, 1, 2)}, LEASE, 11.0) == set()
    assert watch.silent({JOB: (1, 1, 2)}, LEASE, 11.1) == {JOB}
    watch.blink()
    assert watch.silent({JOB: (1, 1, 2)}, LEASE, 20.0) == set()


@pytest.mark.parametrize(
    ("status", "age", "kept", "is_over"),
    [
        (JobStatus.FAILED, timedelta(days=8), timedelta(days=7), True),
        (JobStatus.FAILED, timedelta(days=7), timedelta(days=7), False),
        (JobStatus.STOPPED, timedelta(days=8), timedelta(days=7), False),
        (JobStatus.FAILED, timedelta(days=8), None, False),
    ],
)
def test_a_job_that_has_ended_is_kept_for_as_long_as_was_asked(
    status: JobStatus, age: timedelta, kept: timedelta | None, is_over: bool
) -> None:
    job = JobBrief(JOB, status, AT, AT)
    assert is_expired(job, AT + age, ClusterOptions(terminal_job_retention=kept)) is is_over


def test_a_job_that_does_not_come_up_is_tried_ever_less_often_until_somebody_connects() -> None:
    revivals, now = Revivals(), 1_000.0
    waits: list[float] = []
    for _ in range(10):
        revivals.look([JOB], now)
        assert revivals.next(1, now) == [JOB]
        revivals.done(JOB)
        (due,) = revivals._not_before.values()
        waits.append(due - now)
        revivals.look([JOB], due - 0.1)
        assert revivals.next(1, due - 0.1) == []
        now = due
    assert waits == [min(FIRST_DELAY * 2**tries, LONGEST_DELAY) for tries in range(10)]
    assert waits[-1] == LONGEST_DELAY
    revivals.look([JOB], now)
    revivals.next(1, now)
    revivals.done(JOB)
    revivals.forgive(now)
    revivals.look([JOB], now + FIRST_DELAY)
    assert revivals.next(1, now + FIRST_DELAY) == [JOB]


def test_each_job_that_is_tried_holds_a_place_and_a_new_one_goes_before_one_that_failed() -> None:
    revivals = Revivals()
    old, new = JobId("old"), JobId("new")
    revivals.look([old, JOB], 0.0)
    assert revivals.next(1, 0.0) == [old]
    assert revivals.next(1, 0.0) == [], "the only place is taken"
    revivals.done(old)
    revivals.look([old, JOB, new], FIRST_DELAY)
    assert revivals.next(2, FIRST_DELAY) == [JOB, new]
