"""The ledger: one status per step, counted as it changes, handed out as guarded segments."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreography_ray.core.ledger import Ledger, recount, split, total
from choreography_ray.core.transitions import STEP_TRANSITIONS
from choreography_ray.errors import InvalidTransition
from choreography_ray.model import HostId
from choreography_ray.records import Counts, Group, LedgerSegment, Run, StepCode, StepKind

KINDS = (StepKind(10, "m:A"), StepKind(-3, "m:B"), StepKind(10, "m:C"))
HOST = HostId("shared-1.1")


def make(kind_indexes: list[int], segment_steps: int = 4) -> Ledger:
    return Ledger(KINDS, list(split(kind_indexes, 1, segment_steps)), segment_steps)


def group(counter: int, ordinals: tuple[int, ...], attempt: int = 1) -> Group:
    return Group(HOST, Run(1, counter), 1, ordinals, (attempt,) * len(ordinals))


def test_stages_come_in_the_order_of_their_value() -> None:
    assert make([0, 1, 2]).stages == (-3, 10)


def test_a_settled_step_is_counted_in_its_stage_and_in_all() -> None:
    ledger = make([0, 1, 2])
    ledger.assign(group(1, (0, 1)))
    ledger.settle(0, StepCode.COMPLETED_SUCCESSFULLY)
    ledger.settle(1, StepCode.FAILED)
    assert ledger.counts() == Counts(succeeded=1, failed=1)
    assert [(s.stage, s.total, s.succeeded, s.failed) for s in ledger.stage_counts()] == [(-3, 1, 0, 1), (10, 2, 1, 0)]
    assert ledger.open_steps() == 1
    assert ledger.open_steps(-3) == 0


def test_a_final_step_is_not_settled_again() -> None:
    ledger = make([0])
    ledger.assign(group(1, (0,)))
    ledger.settle(0, StepCode.COMPLETED_SUCCESSFULLY)
    with pytest.raises(InvalidTransition):
        ledger.settle(0, StepCode.COMPLETED_WITH_FAILURE)


def test_only_segments_that_changed_are_saved_each_under_its_next_number() -> None:
    ledger = make([0] * 10)
    ledger.assign(group(1, (3, 4)))
    first = ledger.take_changes(fence=7)
    assert [(s.index, s.fence, s.save) for s in first] == [(0, 7, 1), (1, 7, 1)]
    assert not ledger.is_dirty
    assert ledger.take_changes(7) == ()
    ledger.settle(4, StepCode.COMPLETED_SUCCESSFULLY)
    assert [(s.index, s.save) for s in ledger.take_changes(7)] == [(1, 2)]


def test_a_group_over_two_segments_comes_back_whole() -> None:
    ledger = make([0] * 8)
    ledger.assign(group(1, (3, 4)))
    again = stored(ledger, 8, 4)
    assert list(again.groups()) == [group(1, (3, 4))]


def test_a_group_of_which_only_one_segment_was_written_has_only_those_steps() -> None:
    """A crash inside the bulk write: the host was never told, and the rest is still prepared."""
    ledger = make([0] * 8)
    before = list(split([0] * 8, 1, 4))
    ledger.assign(group(1, (3, 4)))
    half = ledger.take_changes(1)[0]
    again = Ledger(KINDS, [half, before[1]], 4)
    assert list(again.groups()) == [group(1, (3,))]
    assert again.code(4) == StepCode.PREPARED


def test_a_moved_step_belongs_to_its_new_run_only() -> None:
    ledger = make([0, 0])
    ledger.assign(group(1, (0, 1)))
    ledger.assign(group(2, (0,)))
    assert [(g.run, g.ordinals) for g in ledger.groups()] == [(Run(1, 1), (1,)), (Run(1, 2), (0,))]
    ledger.settle(1, StepCode.COMPLETED_SUCCESSFULLY)
    assert ledger.is_run_over(Run(1, 1))
    assert not ledger.is_run_over(Run(1, 2))


def _by_run(one: Group) -> Run:
    return one.run


def stored(ledger: Ledger, steps: int, segment_steps: int) -> Ledger:
    """The ledger as another incarnation reads it."""
    segments = {s.index: s for s in split([ledger.kind(o) for o in range(steps)], 1, segment_steps)}
    segments.update({s.index: s for s in ledger.take_changes(1)})
    return Ledger(KINDS, [segments[i] for i in sorted(segments)], segment_steps)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 7))
def test_any_walk_leaves_counts_that_equal_a_recount(seed: int, steps: int, segment_steps: int) -> None:
    """Whatever the table allows happens at random; then the stored segments alone give the same counts and groups."""
    chance = random.Random(seed)
    ledger = make([chance.randrange(3) for _ in range(steps)], segment_steps)
    for counter in range(1, 60):
        ordinal = chance.randrange(steps)
        allowed = sorted(STEP_TRANSITIONS[StepCode(ledger.code(ordinal))])
        if not allowed:
            continue
        code = chance.choice(allowed)
        if code is StepCode.SCHEDULED:
            ledger.assign(group(counter, (ordinal,)))
        else:
            ledger.settle(ordinal, code)
    stages, groups = ledger.stage_counts(), sorted(ledger.groups(), key=_by_run)
    again = stored(ledger, steps, segment_steps)
    assert again.stage_counts() == stages
    assert sorted(again.groups(), key=_by_run) == groups
    assert again.counts() == total(stages)


def test_recount_needs_the_segments_alone() -> None:
    segment = LedgerSegment(0, 1, 5, bytes([3, 4, 7]), bytes(6))
    (stage,) = recount(KINDS[:1], [segment], 4)
    assert (stage.total, stage.succeeded, stage.failed, stage.unreachable) == (3, 1, 1, 1)
