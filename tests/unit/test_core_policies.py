"""Numbers in, delays and sizes out."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreography_ray.core.policies import MAX_GROUP, GroupSizer, backoff, delivery_delay, retry_delay, ticks_to_skip
from choreography_ray.options import JobsOptions


def test_retries_double_up_to_the_longest_delay() -> None:
    options = JobsOptions()
    assert [retry_delay(options, n) for n in (1, 2, 3, 7, 8, 5_000)] == [5, 10, 20, 300, 300, 300]


def test_jitter_adds_its_share_at_most() -> None:
    options = JobsOptions(step_retry_jitter=0.5)
    assert retry_delay(options, 1, draw=0.0) == 5
    assert retry_delay(options, 1, draw=0.5) == 6.25


def test_deliveries_begin_at_a_second_and_end_at_thirty() -> None:
    assert [delivery_delay(JobsOptions(), n) for n in (1, 2, 6, 10)] == [1, 2, 30, 30]


def test_a_first_delay_above_the_longest_is_kept() -> None:
    assert backoff(timedelta(seconds=10), timedelta(seconds=1), 3) == 10


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10**9))
def test_no_backoff_shrinks_or_overflows(first: float, longest: float, failed: int) -> None:
    delays = [backoff(timedelta(seconds=first), timedelta(seconds=longest), n) for n in (failed, failed + 1)]
    assert 0 <= delays[0] <= delays[1] <= max(first, longest) + 1e-6


@pytest.mark.parametrize(("failures", "skipped"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 7), (5, 15), (6, 15), (900, 15)])
def test_a_resume_hook_that_fails_is_asked_less_and_less_often(failures: int, skipped: int) -> None:
    assert ticks_to_skip(failures) == skipped


def test_long_steps_are_never_grouped() -> None:
    sizer = GroupSizer()
    for _ in range(5):
        sizer.learn(1, 2.0)
    assert sizer.size == 1


def test_short_steps_are_grouped_fourfold_each_time_up_to_the_limit() -> None:
    sizer = GroupSizer()
    sizes = []
    for _ in range(6):
        sizer.learn(sizer.size, 0.0)
        sizes.append(sizer.size)
    assert sizes == [4, 16, 64, 256, MAX_GROUP, MAX_GROUP]


def test_groups_shrink_at_once_when_steps_turn_out_long() -> None:
    sizer = GroupSizer()
    for _ in range(4):
        sizer.learn(sizer.size, sizer.size * 0.001)
    grown = sizer.size
    sizer.learn(1, 60.0)
    assert grown > 50
    assert sizer.size == 1


def test_the_last_steps_are_shared_out() -> None:
    sizer = GroupSizer()
    for _ in range(6):
        sizer.learn(sizer.size, 0.0)
    assert sizer.share(4 * MAX_GROUP, 4) == MAX_GROUP
    assert sizer.share(10, 4) == 3
    assert sizer.share(0, 0) == 1
