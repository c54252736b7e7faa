"""What is kept of a step's failed attempts? The first and the latest, and of their texts so much [S7.1].

A step document is written again with each failure, and a failed-step record is read whole: both stay small however
often a step fails and whatever its tracebacks hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from choreography_ray.model import MAX_MESSAGE, MAX_TRACEBACK
from choreography_ray.records import Failure

MAX_ATTEMPTS = 10
"""Attempts that are kept: the first, and the latest."""
MAX_TYPE = 256
_CUT = "[...]\n"
MAX_TRACEBACKS = 3 * (MAX_TRACEBACK + len(_CUT))
"""Characters of the tracebacks of all attempts of a step. The latest has its own first, then the first."""


def bounded_failure(failure: Failure) -> Failure:
    """A failure whose texts are no longer than what is kept of them, whoever made them."""
    traceback = failure.traceback
    if len(traceback) > MAX_TRACEBACK + len(_CUT):
        traceback = _CUT + traceback[-MAX_TRACEBACK:]
    message, error_type = failure.message[:MAX_MESSAGE], failure.error_type[:MAX_TYPE]
    return replace(failure, error_type=error_type, message=message, traceback=traceback)


def kept_attempts(before: Sequence[Failure], failure: Failure | None) -> tuple[Failure, ...]:
    """Earlier attempts and this one, each once: repeated writes add nothing."""
    if failure is None:
        return tuple(before)
    every = (*(f for f in before if f.attempt != failure.attempt), bounded_failure(failure))
    if len(every) > MAX_ATTEMPTS:
        every = (every[0], *every[-(MAX_ATTEMPTS - 1) :])
    return _within(every)


def _within(attempts: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """The attempts without the tracebacks for which there is no room."""
    left, kept = MAX_TRACEBACKS, set[int]()
    last = len(attempts) - 1
    for place in dict.fromkeys((last, 0, *range(last - 1, 0, -1))):
        size = len(attempts[place].traceback)
        if size <= left:
            left -= size
            kept.add(place)
    return tuple(one if i in kept else replace(one, traceback="") for i, one in enumerate(attempts))
