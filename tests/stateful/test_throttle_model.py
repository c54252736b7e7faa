"""Do the two sides of the throttle keep their promises, whatever is lost, late, doubled, cut off, crashed or ended?

Random walks and Hypothesis choose moves of a `World`; after each one the bodies that really run are counted, and every
walk ends with quiet, in which all slots must be there and be shared out fairly. The last test plants faults in the code
under test and demands that the same searches find every one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from choreography_ray.core.slot_messages import Exchange, Granted, Reply, Restate
from choreography_ray.core.slots import JobSlots
from choreography_ray.core.throttle import Replies, SlotTable
from choreography_ray.model import HostId, JobId
from choreography_ray.records import Run
from tests.stateful.throttle_world import LEASE, MARGIN, POLL, Body, Incarnation, Violation, World

WORK: dict[str, int] = {
    "work": 16, "want": 6, "send": 10, "assign": 6, "begin": 10, "renew": 8, "end_body": 2, "report": 6,
    "deliver": 6, "deliver_first": 4, "start_job": 10, "restore_job": 4, "restart_throttle": 6, "pass_a_moment": 5,
}  # fmt: skip
FAULTY: dict[str, int] = {
    "give_back": 1, "lose": 1, "fail_call": 1, "crash_job": 1, "cut_off_job": 1, "end_job": 2, "crash_throttle": 1,
    "misroute": 1, "change_maximum": 1, "pass_a_while": 3, "stall_throttle": 1,
}  # fmt: skip
MOVES = WORK | FAULTY


def walk(seed: int, moves: int = 250, **parts: Any) -> World:
    """One random walk, checked after each move and settled at its end; the seed repeats it."""
    chance = random.Random(seed)
    world = World(**parts)
    # Each walk has a mood of its own: a fault that is rare in one is common in another.
    weights = [weight * chance.choice((0.2, 1.0, 1.0)) for weight in WORK.values()]
    weights += [weight * chance.choice((0.0, 1.0, 2.0, 8.0)) for weight in FAULTY.values()]
    for move in chance.choices(list(MOVES), weights, k=moves):
        getattr(world, move)(chance.randrange)
        world.check()
    world.settle()
    return world


def a_cut_off_incarnation_speaks_first(world: World) -> None:
    """It knows of one body; its successor has begun two more, and has not restated to the new throttle."""
    cut_off = _process(world, "a")
    _gain(world, cut_off, 1)
    world.jobs[JobId("a")].process = None
    world.jobs[JobId("a")].zombies.append(cut_off)
    world.start_process(JobId("a"))
    world.read_ledger(_process(world, "a"))
    _gain(world, _process(world, "a"), 2)
    world.table = None
    world.new_throttle()
    for one in (cut_off, _process(world, "b"), _process(world, "c")):
        _say(world, one, 0)
    world.let_pass(2 * (LEASE + MARGIN), is_renewed=True)


def an_older_throttle_answers(world: World) -> None:
    """All have restated to its successor, which grants; then one job's calls reach the old one again."""
    _replace_throttle(world)
    world.misrouted.add(JobId("a"))
    _say(world, _process(world, "a"), 3)


def a_new_incarnation_finds_the_old_throttle(world: World) -> None:
    """It knows no boot yet, and the old one, cut off for longer than a lease, is the first to tell it one."""
    _replace_throttle(world)
    world.jobs[JobId("a")].process = None
    world.misrouted.add(JobId("a"))
    world.start_process(JobId("a"))
    world.read_ledger(_process(world, "a"))
    _say(world, _process(world, "a"), 3)


def a_renewal_is_long_on_its_way(world: World) -> None:
    """The host asked just before its job actor was ended for good, and hears just before its lease lapses."""
    body = _gain(world, _process(world, "a"), 1)
    world.let_pass(2 * LEASE, is_renewed=True)
    world.ask_renewal(body, _process(world, "a"))
    world.end_job(lambda _: 0)
    world.let_pass(LEASE - 1)
    world.deliver_first(lambda _: 0)
    world.let_pass(MARGIN + 5)


SCENES = (
    a_cut_off_incarnation_speaks_first,
    an_older_throttle_answers,
    a_new_incarnation_finds_the_old_throttle,
    a_renewal_is_long_on_its_way,
)


def play(scene: Callable[[World], None], **parts: Any) -> None:
    """A scene that chance seldom finds, with three jobs up, checked at its end and settled."""
    world = World(**parts)
    for name in world.jobs:
        world.start_process(name)
        world.read_ledger(_process(world, name))
    scene(world)
    world.check()
    world.settle()


def _process(world: World, name: str) -> Incarnation:
    process = world.jobs[JobId(name)].process
    assert process is not None
    return process


def _is_granting(world: World) -> bool:
    return world.table is not None and world.table.is_granting


def _replace_throttle(world: World) -> None:
    """The throttle is cut off, all that live restate to a new one, and it grants."""
    for name in "abc":
        _say(world, _process(world, name), 0)
    world.old_table, world.table = world.table, None
    world.new_throttle()
    for name in "abc":
        _say(world, _process(world, name), 0)
    world.let_pass(LEASE + MARGIN + POLL)
    assert _is_granting(world)


def _say(world: World, one: Incarnation, want: int) -> None:
    """The next exchange and what follows from it, as replies come at once."""
    one.side.want(want)
    world.let_pass(max(0.0, one.side.next_due() - world.now), is_renewed=True)
    for _ in range(3):
        world.send_from(one)
        while world.wire:
            world.hand_on(world.wire.pop(0))


def _gain(world: World, one: Incarnation, width: int) -> Body:
    _say(world, one, width)
    body = world.assign_to(one, width)
    world.begin_body(body)
    return body


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scenes_that_chance_seldom_finds(scene: Callable[[World], None]) -> None:
    """Each breaks a throttle that lacks one rule; see the planted faults."""
    play(scene)


def test_random_walks_never_exceed_the_bound_nor_lose_a_slot() -> None:
    """Walks of 250 moves, each settled at its end."""
    begun = sum(sum(walk(seed).begun.values()) for seed in range(150))
    assert begun > 6_000, "the walks did next to nothing"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_more_random_walks() -> None:
    """The same for minutes, with longer walks."""
    for seed in range(1_000_000, 1_006_000):
        walk(seed, moves=400)


class ThrottleMachine(RuleBasedStateMachine):
    """Hypothesis chooses the moves, and makes what it finds small."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(move=st.sampled_from([name for name, weight in MOVES.items() for _ in range(weight)]), data=st.data())
    def move(self, move: str, data: st.DataObject) -> None:
        getattr(self.world, move)(lambda bound: data.draw(st.integers(0, bound - 1)))

    @invariant()
    def never_more_bodies_than_the_bound(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.settle()


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_hypothesis_finds_no_counterexample() -> None:
    """A bounded search; the long one below goes on from there."""
    run_state_machine_as_test(
        ThrottleMachine,
        settings=settings(max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=CHECKS),
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_hypothesis_finds_no_counterexample_in_a_long_search() -> None:
    """The same search with more and longer examples."""
    run_state_machine_as_test(
        ThrottleMachine,
        settings=settings(max_examples=1500, stateful_step_count=150, deadline=None, suppress_health_check=CHECKS),
    )


class NoOrderTable(SlotTable):
    """Takes every exchange for a new one, however old."""

    def _is_out_of_date(self, account: Any, exchange: Exchange) -> bool:
        return False


class NoOrderSlots(JobSlots):
    """Counts a grant whenever a copy of it comes in."""

    def _is_answer(self, reply: Granted) -> bool:
        return reply.boot == self.boot


class ReusingSlots(JobSlots):
    """Keeps a slot that falls free for its own next step."""

    def release(self, host: HostId, run: Run) -> bool:
        held = self._held.get((host, run))
        self.unused += held.width if held is not None and self.wanted else 0
        return super().release(host, run)


class LeakyTable(SlotTable):
    """Believes its own grants more than what the job says that it holds."""

    def _note(self, account: Any, exchange: Exchange, now: float) -> None:
        granted = account.count
        super()._note(account, exchange, now)
        account.count = max(granted, account.count) if exchange.wanted else account.count


class HastyTable(SlotTable):
    """Grants again after a rebuild before everybody has restated."""

    def _is_rebuilt(self) -> bool:
        return True


class ImpatientTable(SlotTable):
    """Waits for those that are listed, but not for hosts of jobs that are gone."""

    def _is_rebuilt(self) -> bool:
        return all(account.has_restated for account in self._accounts.values())


class ForgetfulTable(SlotTable):
    """Frees the slots of a job when it leaves the list, not when its hosts can no longer live."""

    def _is_silenced_since(self, left_at: float) -> bool:
        return True


class BootlessTable(SlotTable):
    """Takes a statement that was made to its predecessor."""

    def receive(self, exchange: Exchange, is_current: bool, now: float) -> Replies:
        addressed = {name: getattr(exchange, name) for name in Exchange.__dataclass_fields__} | {"boot": self.boot}
        return super().receive(Exchange(**addressed), is_current, now)


class CredulousTable(SlotTable):
    """Lets an old incarnation be the first to speak for its job after a rebuild."""

    def _may_speak(self, account: Any, exchange: Exchange, is_current: bool) -> bool:
        return super()._may_speak(account, exchange, True)


class BlindTable(SlotTable):
    """Grants although it has not seen Ray's list for more than a lease."""

    def _can_see(self, now: float) -> bool:
        return True


class TurncoatSlots(JobSlots):
    """Follows a Restate of whichever throttle spoke last, also of an older one."""

    def receive(self, reply: Reply, now: float) -> Any:
        if isinstance(reply, Restate):
            self.boot = 0
        return super().receive(reply, now)


WALKS = tuple(partial(walk, seed) for seed in range(400))
FAULTS: dict[str, tuple[dict[str, Any], Sequence[Callable[..., object]]]] = {
    "the throttle does not look at n": ({"table": NoOrderTable}, WALKS),
    "the job does not look at n": ({"slots": NoOrderSlots}, WALKS),
    "the job reuses a slot": ({"slots": ReusingSlots}, WALKS),
    "what the job holds does not replace what was granted": ({"table": LeakyTable}, WALKS),
    "granting before all have restated": ({"table": HastyTable}, WALKS),
    "granting before hosts of lost jobs are over": ({"table": ImpatientTable}, WALKS),
    "freeing slots as soon as a job has left": ({"table": ForgetfulTable}, WALKS),
    "a statement to the predecessor counts": ({"table": BootlessTable}, WALKS),
    "a host counts its lease from the reply": ({"host_fault": True}, [partial(play, a_renewal_is_long_on_its_way)]),
    "an old incarnation restates": ({"table": CredulousTable}, [partial(play, a_cut_off_incarnation_speaks_first)]),
    "a throttle that sees nothing grants": (
        {"table": BlindTable},
        [partial(play, a_new_incarnation_finds_the_old_throttle)],
    ),
    # Either rule alone covers for the other in this scene: both are left out.
    "the job goes back to an older boot, and that grants": (
        {"table": BlindTable, "slots": TurncoatSlots},
        [partial(play, an_older_throttle_answers)],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """Walks and scenes are worth something only if they fail when a rule is left out."""
    parts, searches = FAULTS[fault]
    for search in searches:
        try:
            search(**parts)
        except Violation:
            return
    pytest.fail(f"nothing noticed: {fault}")
