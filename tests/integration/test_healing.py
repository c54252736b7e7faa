"""What stops, kills and losses leave behind on real Ray: each step counted once, nothing lost, nothing left [S6, S9].

The full numbers are in tests/chaos; here is a share of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from choreography_ray import (
    Choreography,
    JobHandle,
    JobStatus,
    RetryFailedStepsError,
    RetryFailedStepsReason,
)
from choreography_ray.records import StepCode
from tests.chaos.deeds import Deeds, DueDeeds, Inside, NarrowDeeds, await_true, marks, order
from tests.chaos.faultpoints import Kill, Point, When
from tests.chaos.faulty import faulty_client
from tests.chaos.losses import kill_job_actor, lose_and_kill, lose_every_report
from tests.chaos.removals import SITUATIONS, remove_in
from tests.chaos.stops import stop_many_times

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where jobs have their plans of faults, and their witness."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def client(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster with three slots, whose processes look for faults."""
    with faulty_client(root, tmp_path_factory.mktemp("store"), slots=3) as connected:
        yield connected


def test_a_job_is_stopped_at_any_moment_of_a_steps_life(client: Choreography, root: Path) -> None:
    """Before, during and within milliseconds of a step's end: each counts once, as what was persisted first says."""
    with ThreadPoolExecutor() as pool:
        shared = pool.submit(stop_many_times, client, root, "stops-shared", "shared", 10, seed=1)
        own = pool.submit(stop_many_times, client, root, "stops-own", "own", 4, seed=2)
    assert (shared.result()["stops"], own.result()["stops"]) == (10, 4)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_removed_job_leaves_nothing(client: Choreography, root: Path, situation: str) -> None:
    """No record, no actor, no process and no slot, wherever it was [S9.6]."""
    remove_in(client, root, situation, f"removed-while-{situation}")


def test_an_outcome_is_counted_once_whatever_is_lost_or_killed(client: Choreography, root: Path) -> None:
    """Each acknowledgement is lost three times; the job actor dies between hook and decision, documents and
    ledger, ledger and acknowledgement: the hook may run again, and its effect on the state is there once [P13].
    """
    kills = [  # in an order in which each is met, however few groups there are: what one interrupts is done again
        Kill(point=Point.DECISION, when=When.BEFORE),
        Kill(point=Point.LEDGER, when=When.BEFORE),
        Kill(point=Point.FAILURES, when=When.AFTER),
        Kill(point=Point.ACKNOWLEDGEMENT, when=When.BEFORE),
    ]
    healed = lose_and_kill(client, root, "lost-and-killed", 60, kills, lost=3)
    assert healed.lost >= 3
    assert healed.told_again > 0  # so that there was something to see


def test_outcomes_whose_reports_are_lost_for_good_are_settled(client: Choreography, root: Path) -> None:
    """By the watchdog, from what was persisted; nothing is performed again [S8]."""
    lose_every_report(client, root, "unreported", 100)


def failing(job: JobHandle) -> tuple[int, int]:
    """Wait for the job's end; how many steps succeeded and failed."""
    progress = job.wait(timeout=60, progress=False).progress
    return progress.succeeded, progress.failed


def test_failed_steps_run_again_until_none_is_left(client: Choreography, root: Path) -> None:
    """Three of ten fail, then two, then, after the job actor was killed, one: only failed steps run, their attempts
    rise, the counts are right, and of two calls at the same time one is refused [S7.3].
    """
    folder = root / "retried"
    job = client.start(NarrowDeeds, order(folder, [{"fail_first": max(0, n - 6)} for n in range(10)]), job_id="retried")
    assert failing(job) == (7, 3)
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(job.retry_failed_steps) for _ in range(2)]
    errors = [call.exception() for call in calls]
    assert sorted(call.result() for call, error in zip(calls, errors, strict=True) if error is None) == [3]
    (refused,) = [error for error in errors if error is not None]
    assert isinstance(refused, RetryFailedStepsError)
    assert refused.reason is RetryFailedStepsReason.JOB_IS_NOT_COMPLETED_WITH_FAILURES
    assert failing(job) == (8, 2)
    kill_job_actor(job)
    assert job.retry_failed_steps() == 2
    assert failing(job) == (9, 1)
    assert job.retry_failed_steps() == 1
    assert failing(job) == (10, 0)
    assert job.status() is JobStatus.COMPLETED_SUCCESSFULLY
    Inside(client).check_counts("retried")
    begun = [(mark["key"], mark["attempt"]) for mark in marks(folder, "begin")]
    expected = [(f"s{n}", attempt) for n in range(10) for attempt in range(1, max(0, n - 6) + 2)]
    assert sorted(begun) == sorted(expected)


def test_a_due_retry_keeps_its_time_when_the_job_actor_is_killed(client: Choreography, root: Path) -> None:
    """Due in five seconds means five seconds; its due time is stored [S7.2]."""
    folder = root / "due"
    job = client.start(DueDeeds, order(folder, [{"fail_first": 1}]), job_id="due")
    inside = Inside(client)
    await_true(lambda: inside.codes("due")["s0"] == StepCode.AWAITING_RETRY, 30, "the first attempt has failed")
    due = inside.due("due", 0)
    kill_job_actor(job)
    assert inside.due("due", 0) == due
    await_true(lambda: inside.codes("due")["s0"] != StepCode.AWAITING_RETRY, 30, "the next attempt is assigned")
    assert timedelta(0) <= datetime.now(UTC) - due <= timedelta(seconds=3)
    assert failing(job) == (1, 0)
    (failed,), (_, second) = marks(folder, "fail"), marks(folder, "begin")
    assert second["at"] - failed["at"] >= 5.0


def test_bodies_at_work_are_adopted_when_the_job_actor_is_killed(client: Choreography, root: Path) -> None:
    """They go on, each is counted once and none has failed [P2]."""
    folder = root / "adopted"
    job = client.start(Deeds, order(folder, [{"gate": str(folder / "go")}] * 3), job_id="adopted")
    await_true(lambda: len(marks(folder, "begin")) == 3, 60, "all are at work")
    kill_job_actor(job)
    (folder / "go").touch()
    assert failing(job) == (3, 0)
    Inside(client).check_ended(job)
    assert Counter(mark["key"] for mark in marks(folder, "begin")) == Counter(["s0", "s1", "s2"])
