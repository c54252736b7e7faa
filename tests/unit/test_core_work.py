"""The queue of a stage: who starts next, and how many slots that needs."""

from __future__ import annotations

from choreography_ray.core.ledger import Ledger, split
from choreography_ray.core.policies import MAX_GROUP
from choreography_ray.core.work import WorkQueue
from choreography_ray.model import HostId, StepHosting
from choreography_ray.records import Group, Run, StepCode, StepKind

OWN = StepKind(0, "m:Own")
SHARED = StepKind(0, "m:Shared", StepHosting.SHARED_ACTORS)
PAIRS = StepKind(0, "m:Pairs", StepHosting.SHARED_ACTORS, steps_per_actor=2)
WIDE = StepKind(0, "m:Wide", StepHosting.SHARED_ACTORS, steps_per_actor=100)
LATER = StepKind(10, "m:Own")


def queue(kinds: tuple[StepKind, ...], indexes: list[int], attempts: dict[int, int] | None = None) -> WorkQueue:
    ledger = Ledger(kinds, list(split(indexes, 1, 100)), 100)
    made = WorkQueue(ledger, attempts or {})
    made.enter_stage(0)
    return made


def test_before_a_stage_begins_nothing_waits() -> None:
    waiting = WorkQueue(Ledger((OWN,), list(split([0, 0], 1, 100)), 100), {})
    assert (waiting.waiting, waiting.slots_wanted(10), waiting.take(10, 1)) == (0, 0, None)


def test_own_actors_get_one_step_each_in_the_order_of_the_plan() -> None:
    waiting = queue((OWN,), [0, 0, 0])
    assert [waiting.take(10, 1).ordinals for _ in range(3)] == [(0,), (1,), (2,)]  # type: ignore[union-attr]
    assert waiting.take(10, 1) is None


def test_a_step_whose_host_died_goes_first_and_alone() -> None:
    waiting = queue((SHARED,), [0] * 20)
    waiting.learn(0, 1, 0.0001)
    waiting.put_retry(5, 2, due=1.0)
    waiting.ripen(2.0)
    waiting.put_single(9, 1)
    first, second = waiting.take(10, 1), waiting.take(10, 1)
    assert first is not None
    assert first.ordinals == (9,)
    assert first.is_single
    assert second is not None
    assert (second.ordinals, second.attempts) == ((5,), (2,))


def test_a_retry_is_not_due_before_its_time_and_then_goes_before_fresh_steps() -> None:
    waiting = queue((OWN,), [0] * 8)
    waiting.put_retry(7, 3, due=100.0)
    waiting.ripen(99.9)
    assert waiting.next_due == 100.0
    assert waiting.take(1, 1).ordinals == (0,)
    waiting.ripen(100.0)
    assert waiting.next_due is None
    assert waiting.retries == 1
    batch = waiting.take(1, 1)
    assert batch is not None
    assert (batch.ordinals, batch.attempts) == ((7,), (3,))


def test_retries_are_due_in_the_order_of_their_times() -> None:
    waiting = queue((OWN,), [0] * 3)
    for ordinal, due in ((0, 30.0), (1, 10.0), (2, 20.0)):
        waiting.put_retry(ordinal, 2, due)
    waiting.ripen(25.0)
    taken = [waiting.take(1, 1) for _ in range(2)]
    assert [batch.ordinals for batch in taken if batch] == [(1,), (2,)]
    assert waiting.next_due == 30.0


def test_groups_grow_with_what_is_learnt_and_are_shared_out_at_the_end() -> None:
    waiting = queue((SHARED,), [0] * 100)
    assert waiting.take(100, 1).ordinals == (0,)  # type: ignore[union-attr]
    waiting.learn(0, 1, 0.001)
    assert waiting.take(100, 1).ordinals == (1, 2, 3, 4)  # type: ignore[union-attr]
    waiting.learn(0, 4, 0.004)
    assert len(waiting.take(100, 40).ordinals) == 3, "95 steps over 40 hosts"  # type: ignore[union-attr]


def test_no_more_than_the_window_leaves_room_for() -> None:
    waiting = queue((SHARED,), [0] * 10)
    waiting.learn(0, 4, 0.0001)
    assert waiting.take(3, 1).ordinals == (0, 1, 2)  # type: ignore[union-attr]
    assert waiting.take(0, 1) is None
    assert waiting.slots_wanted(0) == 0


def test_short_steps_want_no_more_slots_than_keep_them_busy() -> None:
    waiting = queue((PAIRS,), [0] * 16)
    assert waiting.slots_wanted(100) == 16, "single steps, until it is known how long they take"
    waiting.learn(0, 2, 0.0001, width=2)
    assert waiting.slots_wanted(100) == 4, "four steps each"


def test_a_wide_host_gets_as_many_steps_as_it_performs_at_a_time_however_long_they_are() -> None:
    waiting = queue((WIDE,), [0] * 1_000)
    assert waiting.slots_wanted(1_000) == 1_000
    assert len(waiting.take(1_000, 200).ordinals) == 100, "two hosts have work"  # type: ignore[union-attr]
    waiting.learn(0, 100, 100 * 3_600.0, width=100)
    assert len(waiting.take(1_000, 100, busy=1).ordinals) == 100, "none waits behind another"  # type: ignore[union-attr]
    assert len(waiting.take(1_000, 7, busy=2).ordinals) == 7, "nor for a slot"  # type: ignore[union-attr]


def test_a_wide_host_is_kept_busy_with_short_steps() -> None:
    waiting = queue((WIDE,), [0] * 10_000)
    waiting.learn(0, 100, 100 * 0.05, width=100)
    assert len(waiting.take(10_000, 200).ordinals) == 400, "four for each at a time"  # type: ignore[union-attr]
    waiting.learn(0, 400, 400 * 0.05, width=100)
    assert len(waiting.take(10_000, 200).ordinals) == MAX_GROUP  # type: ignore[union-attr]


def test_few_steps_are_shared_out_over_wide_hosts() -> None:
    waiting = queue((WIDE,), [0] * 150)
    assert len(waiting.take(150, 200).ordinals) == 75  # type: ignore[union-attr]


def test_steps_of_later_stages_do_not_wait_yet() -> None:
    waiting = queue((OWN, LATER), [0, 1, 0, 1])
    taken = [waiting.take(10, 1), waiting.take(10, 1), waiting.take(10, 1)]
    assert [batch.ordinals for batch in taken if batch] == [(0,), (2,)]


def test_steps_that_were_settled_out_of_turn_are_passed_over() -> None:
    ledger = Ledger((OWN,), list(split([0, 0, 0], 1, 100)), 100)
    waiting = WorkQueue(ledger, {})
    waiting.enter_stage(0)
    ledger.settle(0, StepCode.STOPPED)
    ledger.assign(Group(HostId("o1.1"), Run(1, 1), 1, (1,), (1,)))
    batch = waiting.take(10, 1)
    assert batch is not None
    assert batch.ordinals == (2,)


def test_a_step_that_runs_again_bears_its_attempt() -> None:
    """After a retry of failed steps the ledger shows them as prepared; their next attempt is known."""
    batch = queue((OWN,), [0], attempts={0: 4}).take(1, 1)
    assert batch is not None
    assert batch.attempts == (4,)


def test_a_large_group_ends_where_a_segment_of_the_ledger_does() -> None:
    waiting = queue((SHARED,), [0] * 600)
    for _ in range(5):
        waiting.learn(0, 256, 0.0)
    first = waiting.take(30, 1)
    assert first is not None
    assert first.ordinals == tuple(range(30))
    taken = [batch.ordinals for batch in iter(lambda: waiting.take(250, 1), None)]
    assert taken == [tuple(range(30, 200)), tuple(range(200, 400)), tuple(range(400, 600))]


def test_what_was_taken_waits_no_more() -> None:
    waiting = queue((SHARED,), [0] * 30)
    waiting.learn(0, 1, 0.0001)
    assert waiting.waiting == 30
    batch = waiting.take(30, 2)
    assert batch is not None
    assert waiting.waiting == 30 - len(batch.ordinals) > 0


def test_nothing_waits_when_the_rest_was_settled_out_of_turn() -> None:
    ledger = Ledger((OWN,), list(split([0, 0], 1, 100)), 100)
    waiting = WorkQueue(ledger, {})
    waiting.enter_stage(0)
    for ordinal in (0, 1):
        ledger.settle(ordinal, StepCode.STOPPED)
    assert waiting.take(10, 1) is None
    assert waiting.waiting == 0
    assert waiting.slots_wanted(10) == 0


def test_steps_in_actors_of_their_own_want_a_slot_each() -> None:
    assert queue((OWN,), [0] * 7).slots_wanted(100) == 7


def test_steps_that_had_a_place_before_are_told_of_first() -> None:
    ledger = Ledger((OWN,), list(split([0] * 5, 1, 100)), 100)
    waiting = WorkQueue(ledger, {})
    waiting.enter_stage(0, first=(3, 1))
    assert list(waiting.next_ordinals()) == [1, 3, 0, 2, 4]


def test_a_step_that_somebody_stops_is_not_told_of_as_one_that_could_start() -> None:
    waiting = queue((OWN,), [0] * 3)
    assert waiting.withdraw(1) == 1
    assert list(waiting.next_ordinals()) == [0, 2]
    assert waiting.waiting == 2


def test_a_step_that_was_stopped_before_its_stage_began_does_not_count_as_waiting() -> None:
    ledger = Ledger((OWN, LATER), list(split([0, 1, 1], 1, 100)), 100)
    waiting = WorkQueue(ledger, {})
    waiting.enter_stage(0)
    assert waiting.withdraw(2) == 1
    waiting.enter_stage(10)
    assert (waiting.waiting, list(waiting.next_ordinals())) == (1, [1])


def test_a_retry_waits_once_it_is_due() -> None:
    waiting = queue((OWN,), [0])
    waiting.take(1, 1)
    waiting.put_retry(0, 2, due=10.0)
    assert waiting.waiting == 0
    waiting.ripen(10.0)
    assert (waiting.waiting, waiting.retries) == (1, 1)


def test_steps_of_several_kinds_go_in_the_order_of_the_plan() -> None:
    waiting = queue((OWN, SHARED, StepKind(0, "m:Other")), [2, 0, 1, 1, 0, 2])
    kinds: list[int | None] = []
    taken: list[int] = []
    while waiting.next_kind() is not None:
        kinds.append(waiting.next_kind())
        batch = waiting.take(1, 1)
        assert batch is not None
        taken += batch.ordinals
        assert waiting.slots_wanted(100) == 6 - len(taken)
    assert taken == [0, 1, 2, 3, 4, 5]
    assert kinds == [2, 0, 1, 1, 0, 2]


def test_a_due_retry_that_somebody_stops_waits_no_more() -> None:
    ledger = Ledger((OWN, SHARED), list(split([0, 1], 1, 100)), 100)
    waiting = WorkQueue(ledger, {})
    waiting.enter_stage(0)
    assert waiting.take(1, 1) is not None
    ledger.assign(Group(HostId("h"), Run(1, 1), 1, (0,), (1,)))
    ledger.settle(0, StepCode.AWAITING_RETRY)
    waiting.put_retry(0, 2, due=1.0)
    waiting.ripen(1.0)
    assert waiting.withdraw(0) == 2
    assert (waiting.next_kind(), waiting.slots_wanted(10), waiting.retries) == (1, 1, 0)
