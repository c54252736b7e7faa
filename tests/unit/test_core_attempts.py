"""What is kept of failed attempts stays small, and tells the first and the latest whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from choreography_ray.core.attempts import MAX_ATTEMPTS, MAX_TRACEBACKS, bounded_failure, kept_attempts
from choreography_ray.model import MAX_MESSAGE, MAX_TRACEBACK
from choreography_ray.records import Failure


def a_failure(attempt: int, size: int = 200_000) -> Failure:
    return Failure("E" * size, "m" * size, attempt, f"begin{'t' * size}end", node="n", pid=attempt)


def test_of_long_texts_a_messages_beginning_and_a_tracebacks_end_are_kept() -> None:
    kept = bounded_failure(a_failure(1))
    assert len(kept.error_type) == 256
    assert len(kept.message) == MAX_MESSAGE
    assert kept.traceback.endswith("end")
    assert len(kept.traceback) == MAX_TRACEBACK + len("[...]\n")
    assert bounded_failure(kept) == kept


def test_the_first_and_the_latest_of_a_hundred_attempts_are_kept() -> None:
    kept: tuple[Failure, ...] = ()
    for attempt in range(1, 101):
        kept = kept_attempts(kept, a_failure(attempt))
        assert kept_attempts(kept, a_failure(attempt)) == kept, "a repeated write changes something"
    assert [failure.attempt for failure in kept] == [1, *range(92, 101)]
    assert [failure.attempt for failure in kept if failure.traceback] == [1, 99, 100]
    assert all(failure.message and failure.pid == failure.attempt for failure in kept)
    assert sum(len(f.traceback) + len(f.message) + len(f.error_type) for f in kept) < 100_000


@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=25))
def test_whatever_the_sizes_tracebacks_are_bounded_and_the_latest_has_its_own(sizes: list[int]) -> None:
    kept: tuple[Failure, ...] = ()
    for attempt, size in enumerate(sizes, 1):
        kept = kept_attempts(kept, Failure("E", "m", attempt, "t" * size))
    assert len(kept) == min(len(sizes), MAX_ATTEMPTS)
    assert sum(len(failure.traceback) for failure in kept) <= MAX_TRACEBACKS
    assert bool(kept[-1].traceback) == bool(sizes[-1])
    assert bool(kept[0].traceback) == bool(sizes[0])
