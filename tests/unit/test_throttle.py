"""Does each rule of the throttle's protocol hold, and does it prevent what it is there to prevent? [S5.7]"""

from __future__ import annotations

import pickle
from math import inf

import pytest

from choreography_ray.core.slot_messages import Exchange, ExchangeKey, FencedReply, Granted, Held, Restate
from choreography_ray.core.slots import IncarnationDoubted, JobSlots, SlotsGranted
from choreography_ray.core.throttle import Replies, SlotTable
from choreography_ray.model import HostId, JobId
from choreography_ray.records import Run

LEASE, MARGIN = 30.0, 3.0
A, B, C = JobId("a"), JobId("b"), JobId("c")
HOST, RUN = HostId("host"), Run(1, 1)
ALL = {job: f"actor-{job}" for job in (A, B, C)}


def fresh(maximum: int, boot: int = 1, is_first: bool = True) -> SlotTable:
    """A throttle at time 0 that sees three job actors."""
    table = SlotTable(boot, maximum, LEASE, MARGIN, 0.0, is_first=is_first)
    assert table.observe(ALL, 0.0) == []
    return table


def watch(table: SlotTable, listed: dict[JobId, str], begin: float, end: float) -> Replies:
    """The same list every second, from `begin` to `end`."""
    replies: Replies = []
    for second in range(int(end - begin)):
        replies += table.observe(listed, begin + second)
    return replies + table.observe(listed, end)


def says(
    job: JobId, n: int, *, holds: int = 0, wants: int = 0, fence: int = 1, boot: int = 1, actor: str = ""
) -> Exchange:
    held = (Held(HOST, RUN, holds),) if holds else ()
    return Exchange(job, actor or ALL[job], fence, boot, n, held, 0, wants)


def side(boot: int = 1) -> JobSlots:
    """A job's side that has restored nothing and knows the throttle; its first exchange is answered."""
    slots = JobSlots(A, "actor-a", 1, LEASE)
    slots.restore([])
    slots.receive(Restate(boot), 0.0)
    slots.exchange_due(0.0)
    slots.receive(Granted(boot, slots.n, 0), 0.0)
    return slots


def due(slots: JobSlots, now: float) -> Exchange:
    exchange = slots.exchange_due(now)
    assert exchange is not None
    return exchange


# The throttle


def test_the_first_user_of_a_fresh_cluster_is_served_at_once() -> None:
    """No throttle was there before, so nobody can hold a slot: nobody waits for a lease."""
    table = fresh(4)
    ask = says(A, 1, wants=3)
    assert table.receive(ask, True, 0.0) == [(ask.key, Granted(1, 1, 3))]
    assert table.held == 3


def test_thirty_two_first_users_share_what_there_is() -> None:
    """Each gets one slot while there are as many; the bound holds."""
    jobs = {JobId(str(number)): f"actor-{number}" for number in range(32)}
    table = SlotTable(1, 0, LEASE, MARGIN, 0.0, is_first=True)
    table.observe(jobs, 0.0)
    for job, actor in jobs.items():
        table.receive(says(job, 1, wants=8, actor=actor), True, 1.0)
    replies = table.set_maximum(32, 2.0)
    assert sorted(key.job for key, _ in replies) == sorted(jobs)
    assert {reply for _, reply in replies} == {Granted(1, 1, 1)}


def test_who_holds_fewest_is_served_first_then_who_waits_longest() -> None:
    """A holds two; C asked before B: a slot goes to C, the next to B, and only then one to A."""
    table = fresh(0)
    for ask in (says(A, 1, holds=2, wants=1), says(C, 1, wants=2), says(B, 1, wants=2)):
        table.receive(ask, True, 0.0)
    assert [key.job for key, _ in table.set_maximum(3, 1.0)] == [C]
    table.receive(says(C, 2, holds=1, wants=1), True, 1.0)
    assert [key.job for key, _ in table.set_maximum(4, 2.0)] == [B]
    table.receive(says(B, 2, holds=1, wants=1), True, 2.0)
    assert {key.job: reply for key, reply in table.set_maximum(7, 3.0)} == {
        C: Granted(1, 2, 1),
        B: Granted(1, 2, 1),
        A: Granted(1, 1, 1),
    }


def test_a_job_that_restates_keeps_its_place_in_the_queue() -> None:
    """Superseding an exchange while it waits does not send a job to the end."""
    table = fresh(0)
    table.receive(says(A, 1, wants=1), True, 0.0)
    table.receive(says(B, 1, wants=1), True, 1.0)
    table.receive(says(A, 2, wants=1), True, 2.0)
    assert [key.job for key, _ in table.set_maximum(1, 3.0)] == [A]


def test_one_reply_grants_a_batch_shared_out_one_by_one() -> None:
    """Eight slots, two jobs that want many: four each, one reply each."""
    table = fresh(0)
    table.receive(says(A, 1, wants=50), True, 0.0)
    table.receive(says(B, 1, wants=50), True, 0.0)
    assert {reply for _, reply in table.set_maximum(8, 1.0)} == {Granted(1, 1, 4)}


def test_lowering_the_maximum_revokes_nothing_and_grants_nothing_until_fewer_are_held() -> None:
    """Four held, two allowed: a want waits until one is held."""
    table = fresh(4)
    table.receive(says(A, 1, wants=4), True, 0.0)
    assert table.set_maximum(2, 1.0) == []
    assert table.held == 4
    assert table.receive(says(B, 1, wants=1), True, 1.0) == []
    table.receive(says(A, 2, holds=2), True, 2.0)
    assert table.held == 2
    assert (says(B, 1).key, Granted(1, 1, 1)) in table.receive(says(A, 3, holds=1), True, 3.0)


def test_a_want_of_nothing_is_answered_at_once() -> None:
    """A heartbeat or a release never stays parked."""
    table = fresh(1)
    ask = says(A, 1, holds=1)
    assert table.receive(ask, True, 0.0) == [(ask.key, Granted(1, 1, 0))]


def test_a_parked_want_is_answered_with_nothing_after_a_third_of_a_lease() -> None:
    """So a call that waits does not look lost; the want is not forgotten as a place in the queue."""
    table = fresh(0)
    ask = says(A, 1, wants=1)
    assert table.receive(ask, True, 5.0) == []
    assert table.is_parked(ask.key)
    assert table.next_deadline() == 5.0 + LEASE / 3
    assert table.tick(5.0 + LEASE / 3 - 0.01) == []
    assert table.tick(5.0 + LEASE / 3) == [(ask.key, Granted(1, 1, 0))]
    assert table.next_deadline() is None


def test_two_jobs_that_hold_one_and_want_one_do_not_deadlock() -> None:
    """Both are parked when one lets go of its slot: the newer statement takes the place of the parked one."""
    table = fresh(2)
    for job in (A, B):
        table.receive(says(job, 1, holds=1), True, 0.0)
    for job in (A, B):
        assert table.receive(says(job, 2, holds=1, wants=1), True, 0.0) == []
    assert table.receive(says(A, 3, wants=1), True, 1.0) == [
        (says(A, 2).key, Granted(1, 2, 0)),
        (says(A, 3).key, Granted(1, 3, 1)),
    ]


def test_a_copy_grants_nothing_twice() -> None:
    """The same exchange again, and one that is older, are dropped without a reply."""
    table = fresh(4)
    table.receive(says(A, 2, wants=1), True, 0.0)
    assert table.receive(says(A, 2, wants=1), True, 0.0) == []
    assert table.receive(says(A, 1, wants=1), True, 0.0) == []
    assert table.held == 1


def test_a_lost_reply_leaks_no_slot() -> None:
    """What the job says that it holds replaces what was granted."""
    table = fresh(1)
    table.receive(says(A, 1, wants=1), True, 0.0)
    assert table.receive(says(A, 2, wants=1), True, 1.0) == [(says(A, 2).key, Granted(1, 2, 1))]
    assert table.held == 1


def test_a_statement_to_another_boot_changes_nothing() -> None:
    """A copy that reaches a rebuilt throttle must not count as a restatement."""
    table = fresh(4, boot=7, is_first=False)
    ask = says(A, 9, holds=1, boot=6)
    assert table.receive(ask, True, 0.0) == [(ask.key, Restate(7))]
    assert not table.snapshot(0.0).jobs[A].has_restated


def test_a_lower_fence_and_an_unlisted_actor_are_fenced() -> None:
    """Neither changes what is counted."""
    table = fresh(4)
    table.receive(says(A, 1, holds=2, fence=5), True, 0.0)
    for ask in (says(A, 9, fence=4), says(A, 9, fence=6, actor="another"), says(JobId("unknown"), 1, actor="x")):
        assert table.receive(ask, True, 0.0) == [(ask.key, FencedReply(ask.n))]
    assert table.held == 2


def test_a_higher_fence_begins_with_n_anew_and_answers_the_parked_call_of_the_old_one() -> None:
    """The successor's first exchange is not taken for an old one."""
    table = fresh(0)
    old, new = says(A, 9, wants=1, fence=1), says(A, 1, wants=1, fence=2)
    table.receive(old, True, 0.0)
    assert table.receive(new, True, 1.0) == [(old.key, Granted(1, 9, 0))]
    assert table.is_parked(new.key)


def test_while_rebuilding_only_the_current_incarnation_may_speak() -> None:
    """A new table has seen no fence that would tell it that the sender is an old one."""
    table = fresh(4, is_first=False)
    ask = says(A, 1, holds=1)
    assert table.receive(ask, False, 0.0) == [(ask.key, FencedReply(1))]
    assert table.receive(ask, True, 0.0) == [(ask.key, Granted(1, 1, 0))]


def test_a_rebuilt_throttle_grants_when_all_that_are_listed_have_restated() -> None:
    """And not before lease and margin, since hosts of jobs that are gone may still run."""
    table = fresh(4, is_first=False)
    ask = says(A, 1, wants=2)
    table.receive(ask, True, 0.0)
    table.receive(says(B, 1, holds=1), True, 0.0)
    assert watch(table, ALL, 0.0, LEASE + MARGIN) == []
    assert table.receive(says(C, 1, holds=2), True, LEASE + MARGIN) == [
        (ask.key, Granted(1, 1, 1)),
        (says(C, 1).key, Granted(1, 1, 0)),
    ]


def test_a_rebuilt_throttle_waits_for_hosts_of_jobs_it_never_saw() -> None:
    """Time alone does not do: the list itself must be younger than lease and margin."""
    table = SlotTable(2, 4, LEASE, MARGIN, 0.0)
    table.observe({A: ALL[A]}, 0.0)
    ask = says(A, 1, wants=2, boot=2)
    table.receive(ask, True, 30.0)
    assert watch(table, {A: ALL[A]}, 0.0, 32.0) == []
    assert table.observe({A: ALL[A]}, 33.5, asked=32.5) == []
    assert table.observe({A: ALL[A]}, 34.0, asked=33.0) == [(ask.key, Granted(2, 1, 2))]


def test_a_job_that_comes_back_during_the_rebuild_must_restate() -> None:
    """It may have renewed its hosts, and counts as soon as it is listed."""
    table = SlotTable(2, 4, LEASE, MARGIN, 0.0)
    table.observe({A: ALL[A]}, 0.0)
    table.receive(says(A, 1, boot=2), True, 1.0)
    table.observe({A: ALL[A], B: ALL[B]}, 20.0)
    table.observe({A: ALL[A], B: ALL[B]}, 40.0)
    assert not table.snapshot(40.0).is_granting
    table.receive(says(B, 1, holds=3, boot=2), True, 41.0)
    assert table.is_granting
    assert table.held == 3


def test_a_job_that_leaves_during_the_rebuild_is_waited_for() -> None:
    """What it holds is not known until no host of it can live."""
    table = SlotTable(2, 4, LEASE, MARGIN, 0.0)
    table.observe({A: ALL[A], B: ALL[B]}, 0.0)
    table.receive(says(A, 1, boot=2), True, 1.0)
    watch(table, {A: ALL[A]}, 20.0, 52.9)
    assert not table.snapshot(52.9).is_granting
    table.observe({A: ALL[A]}, 53.0)
    assert table.is_granting


def test_slots_of_a_job_that_left_are_free_after_lease_and_margin() -> None:
    """Not by silence: only when Ray lists its actor no more; and at once when it held none."""
    table = fresh(2)
    table.receive(says(A, 1, wants=2), True, 0.0)
    table.receive(says(C, 1), True, 0.0)
    ask = says(B, 1, wants=1)
    table.receive(ask, True, 0.0)
    table.observe({B: ALL[B]}, 10.0)
    assert set(table.snapshot(10.0).jobs) == {A, B}
    assert watch(table, {B: ALL[B]}, 10.0, 42.9) == []
    assert table.observe({B: ALL[B]}, 43.0) == [(ask.key, Granted(1, 1, 1))]


def test_slots_of_a_silent_job_stay_counted() -> None:
    """An hour without a word: its actor is listed, so its hosts may run."""
    table = fresh(2)
    table.receive(says(A, 1, wants=2), True, 0.0)
    watch(table, ALL, 0.0, 3600.0)
    table.tick(3600.0)
    assert table.held == 2


def test_a_job_that_came_back_in_time_keeps_its_slots_counted() -> None:
    """A new actor of the same job: the old statement counts until the new actor makes one."""
    table = fresh(2)
    table.receive(says(A, 1, wants=2), True, 0.0)
    table.observe({B: ALL[B]}, 1.0)
    watch(table, {A: "second", B: ALL[B]}, 20.0, 100.0)
    assert table.held == 2
    table.receive(says(A, 1, holds=1, fence=2, actor="second"), True, 101.0)
    assert table.held == 1


def test_a_throttle_that_did_not_look_for_long_frees_nothing_at_once() -> None:
    """Between two lists more than a lease apart a job actor may have come, renewed its hosts and gone."""
    table = fresh(2)
    table.receive(says(A, 1, wants=2), True, 0.0)
    table.observe({B: ALL[B]}, 1.0)
    watch(table, {B: ALL[B]}, 60.0, 92.9)
    assert table.held == 2
    table.observe({B: ALL[B]}, 93.0)
    assert table.held == 0


def test_a_throttle_that_lost_sight_of_ray_grants_nothing() -> None:
    """It may have been replaced; its successor rebuilds for longer than it goes on."""
    table = fresh(2)
    first, second = says(A, 1, wants=1), says(B, 1, wants=1)
    assert table.receive(first, True, LEASE) == [(first.key, Granted(1, 1, 1))]
    assert table.receive(second, True, LEASE + 0.1) == []
    assert table.observe(ALL, LEASE + 0.2) == [(second.key, Granted(1, 1, 1))]


def test_a_list_that_was_asked_for_earlier_is_ignored() -> None:
    """Lists that overtake each other must not make an actor leave that has just come."""
    table = fresh(2)
    table.observe({}, 5.0, asked=-1.0)
    assert table.is_listed(A, ALL[A])


def test_silence_counts_from_the_last_word_of_the_present_process() -> None:
    """Whatever it said, also to another boot; not what an old process says, and anew for an actor that came back."""
    table = fresh(4)
    assert table.silences(10.0) == dict.fromkeys(ALL, 10.0)
    table.receive(says(A, 1, boot=7), True, 12.0)
    table.receive(says(B, 1), False, 13.0)
    assert (table.silences(20.0)[A], table.silences(20.0)[B]) == (8.0, 20.0)
    table.observe({A: ALL[A]}, 21.0)
    assert table.silences(22.0) == {A: 10.0}
    table.observe({A: "another", B: ALL[B]}, 25.0)
    assert table.silences(26.0) == {A: 1.0, B: 1.0}


def test_the_parked_call_of_an_actor_that_left_is_answered() -> None:
    """No call of somebody who is gone stays open."""
    table = fresh(0)
    ask = says(A, 1, wants=1)
    table.receive(ask, True, 0.0)
    assert table.observe({B: ALL[B]}, 1.0) == [(ask.key, FencedReply(1))]


def test_a_negative_maximum_is_refused() -> None:
    """Zero is not: a cluster may have no CPUs for a while."""
    with pytest.raises(ValueError, match="negative"):
        fresh(0).set_maximum(-1, 0.0)


def test_the_table_can_be_looked_at() -> None:
    """Held, wanted and waiting per job, for people."""
    table = fresh(1)
    table.receive(says(A, 1, wants=1), True, 0.0)
    table.receive(says(B, 1, wants=2), True, 4.0)
    view = table.snapshot(10.0)
    assert (view.boot, view.maximum, view.held, view.is_granting) == (1, 1, 1, True)
    assert (view.jobs[B].held, view.jobs[B].wanted, view.jobs[B].waiting) == (0, 2, 6.0)


def test_messages_survive_the_way_between_actors() -> None:
    """All of them pickle, and are equal afterwards."""
    for message in (says(A, 1, holds=2), Granted(1, 2, 3), Restate(4), FencedReply(5), ExchangeKey(A, "x", 1, 2)):
        assert pickle.loads(pickle.dumps(message)) == message


# The job's side


def test_nothing_is_said_before_the_ledger_was_read() -> None:
    """A statement made earlier would be false, and the throttle would believe it."""
    slots = JobSlots(A, "actor-a", 3, LEASE)
    slots.want(5)
    assert slots.exchange_due(100.0) is None
    assert slots.next_due() == inf
    slots.restore([Held(HOST, RUN, 2)])
    exchange = due(slots, 100.0)
    assert (exchange.held, exchange.unused, exchange.wanted, exchange.size) == ((Held(HOST, RUN, 2),), 0, 5, 2)


def test_a_slot_goes_from_a_reply_to_a_run_and_is_told_of_when_it_falls_free() -> None:
    """It never goes back into `unused`: with reuse another job would starve."""
    slots = side()
    slots.want(2)
    due(slots, 1.0)
    assert slots.receive(Granted(1, slots.n, 2), 1.0) == SlotsGranted(2)
    assert slots.exchange_due(1.1) is None
    slots.take(HOST, RUN, 2)
    assert (slots.unused, slots.wanted, slots.size) == (0, 0, 2)
    assert slots.release(HOST, RUN)
    assert (slots.unused, slots.size) == (0, 0)
    assert due(slots, 2.0).size == 0
    assert not slots.release(HOST, RUN)


def test_only_the_newest_exchange_can_grant_and_only_once() -> None:
    """A copy of a grant, one for an earlier exchange and one of another boot give nothing."""
    slots = side()
    slots.want(1)
    old = due(slots, 1.0)
    slots.want(2)
    new = due(slots, 2.0)
    assert slots.receive(Granted(1, old.n, 1), 2.1) is None
    assert slots.receive(Granted(2, new.n, 1), 2.1) is None
    assert slots.receive(Granted(1, new.n, 1), 2.1) == SlotsGranted(1)
    assert slots.receive(Granted(1, new.n, 1), 2.2) is None
    assert slots.unused == 1


def test_a_used_reply_asks_again_at_once_while_more_is_wanted() -> None:
    """Two of five came: the rest stays parked at the throttle, not at the job."""
    slots = side()
    slots.want(5)
    due(slots, 1.0)
    slots.receive(Granted(1, slots.n, 2), 1.0)
    exchange = due(slots, 1.0)
    assert (exchange.unused, exchange.wanted) == (2, 3)


def test_a_job_speaks_every_third_of_a_lease_and_not_more_often_without_news() -> None:
    """With nothing to say, a reply of no slots does not lead to the next exchange."""
    slots = side()
    assert slots.next_due() == LEASE / 3
    assert slots.exchange_due(LEASE / 3 - 0.01) is None
    slots.receive(Granted(1, due(slots, LEASE / 3).n, 0), LEASE / 3)
    assert slots.next_due() == 2 * LEASE / 3


def test_a_rebuilt_throttle_is_told_at_once_and_an_older_one_never_again() -> None:
    """Going back would let two throttles grant to the same job."""
    slots = side(boot=4)
    slots.receive(Restate(5), 1.0)
    assert due(slots, 1.0).boot == 5
    slots.receive(Restate(4), 2.0)
    assert slots.exchange_due(2.0) is None
    assert slots.boot == 5


def test_a_doubted_incarnation_is_silent_until_it_has_checked_itself() -> None:
    """Then it restates; the doubt about an earlier exchange means nothing."""
    slots = side()
    slots.want(1)
    exchange = due(slots, 1.0)
    assert slots.receive(FencedReply(exchange.n - 1), 1.0) is None
    assert slots.receive(FencedReply(exchange.n), 1.0) == IncarnationDoubted()
    assert slots.exchange_due(60.0) is None
    slots.confirm()
    assert due(slots, 60.0).n == exchange.n + 1


def test_after_an_error_everything_is_said_again_with_growing_delays() -> None:
    """0.1 s, then twice as long each time, at most a second; a success begins anew."""
    slots = side()
    slots.want(1)
    now, delays = 1.0, []
    for _ in range(6):
        slots.failed(due(slots, now).n, now)
        delays.append(round(slots.next_due() - now, 3))
        now = slots.next_due()
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    slots.receive(Granted(1, due(slots, now).n, 0), now)
    slots.failed(due(slots, now).n, now)
    assert slots.next_due() == pytest.approx(now + 0.1)


def test_unused_slots_are_given_back_by_not_being_stated() -> None:
    """There is nothing left to start with them."""
    slots = side()
    slots.want(3)
    due(slots, 1.0)
    slots.receive(Granted(1, slots.n, 3), 1.0)
    assert slots.give_back() == 3
    assert due(slots, 2.0).size == 0


def test_more_than_there_is_cannot_be_taken() -> None:
    """Nor can a run take twice."""
    slots = side()
    slots.want(2)
    due(slots, 1.0)
    slots.receive(Granted(1, slots.n, 2), 1.0)
    with pytest.raises(ValueError, match="unused"):
        slots.take(HOST, RUN, 3)
    slots.take(HOST, RUN, 1)
    with pytest.raises(ValueError, match="already"):
        slots.take(HOST, RUN, 1)


def test_a_job_with_many_releases_still_gets_its_grants() -> None:
    """A release every millisecond, and replies that take ten: each exchange makes the one before void, so a job that
    spoke at each release would never be granted anything. It slows down until its grants come through."""
    table = fresh(50)
    slots = side()
    table.receive(says(A, slots.n), True, 0.0)
    way_out: list[tuple[float, Exchange]] = []
    way_back: list[tuple[float, Granted]] = []
    granted = 0
    for milli in range(1, 2000):
        now = milli / 1000
        slots.want(10 + milli % 2)
        if (exchange := slots.exchange_due(now)) is not None:
            way_out.append((now + 0.005, exchange))
        while way_out and way_out[0][0] <= now:
            for _, reply in table.receive(way_out.pop(0)[1], True, now):
                assert isinstance(reply, Granted)
                way_back.append((now + 0.005, reply))
        while way_back and way_back[0][0] <= now:
            event = slots.receive(way_back.pop(0)[1], now)
            granted += event.count if isinstance(event, SlotsGranted) else 0
        slots.give_back()
    assert granted > 200


def test_what_a_job_holds_in_all_follows_each_run() -> None:
    slots = JobSlots(JobId("j"), "actor", 1, 30.0)
    slots.restore([Held(HOST, RUN, 3)])
    assert slots.size == 3
    slots.narrow(HOST, RUN, 5)
    assert slots.size == 3
    slots.narrow(HOST, RUN, 2)
    assert slots.size == 2
    assert slots.release(HOST, RUN)
    assert not slots.release(HOST, RUN)
    assert slots.size == 0
    slots.unused = 4
    slots.take(HOST, RUN, 3)
    assert (slots.unused, slots.size) == (1, 4)


def test_whoever_wants_nothing_for_a_while_waits_anew_from_when_it_wants_again() -> None:
    table = fresh(1)
    table.receive(says(A, 1, wants=1), True, 0.0)
    for n, wants, now in ((1, 1, 1.0), (2, 0, 2.0), (3, 1, 7.0)):
        table.receive(says(B, n, wants=wants), True, now)
    assert table.snapshot(9.0).jobs[B].waiting == 2.0
