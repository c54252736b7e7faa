"""Which status may follow which: the tables of jobs and steps [S3]; an absent pair is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from choreography_ray.errors import InvalidTransition
from choreography_ray.model import HistoryEntry
from choreography_ray.model import JobStatus as J
from choreography_ray.records import StepCode as S

JOB_TRANSITIONS: Final[Mapping[J, frozenset[J]]] = {
    J.PREPARING_JOB: frozenset({J.PREPARING_STEPS, J.COMPLETED_SUCCESSFULLY, J.STOPPED, J.FAILED, J.REMOVING}),
    J.PREPARING_STEPS: frozenset({J.STARTING_STEPS, J.STOPPED, J.FAILED, J.REMOVING}),
    J.STARTING_STEPS: frozenset({J.RUNNING, J.STOPPED, J.FAILED, J.REMOVING}),
    J.RUNNING: frozenset({J.COMPLETED_SUCCESSFULLY, J.COMPLETED_WITH_FAILURES, J.STOPPED, J.FAILED, J.REMOVING}),
    J.STOPPED: frozenset({J.RUNNING, J.COMPLETED_SUCCESSFULLY, J.COMPLETED_WITH_FAILURES, J.FAILED, J.REMOVING}),
    J.COMPLETED_SUCCESSFULLY: frozenset({J.FAILED, J.REMOVING}),
    J.COMPLETED_WITH_FAILURES: frozenset({J.RUNNING, J.FAILED, J.REMOVING}),
    J.FAILED: frozenset({J.REMOVING}),
    J.REMOVING: frozenset(),
}

STEP_TRANSITIONS: Final[Mapping[S, frozenset[S]]] = {
    S.PREPARED: frozenset({S.SCHEDULED, S.STOPPED, S.UNREACHABLE}),
    S.SCHEDULED: frozenset(
        {
            S.SCHEDULED,  # moved to another host under a new run
            S.AWAITING_RETRY,
            S.COMPLETED_SUCCESSFULLY,
            S.COMPLETED_WITH_FAILURE,
            S.FAILED,
            S.STOPPED,
        }
    ),
    S.AWAITING_RETRY: frozenset({S.SCHEDULED, S.COMPLETED_WITH_FAILURE}),
    S.STOPPED: frozenset({S.PREPARED, S.UNREACHABLE}),
    S.COMPLETED_SUCCESSFULLY: frozenset(),
    S.COMPLETED_WITH_FAILURE: frozenset({S.PREPARED}),
    S.FAILED: frozenset({S.PREPARED}),
    S.UNREACHABLE: frozenset(),
}

_STEP_PAIRS: Final = frozenset((before, after) for before, others in STEP_TRANSITIONS.items() for after in others)
FINAL_CODES: Final = frozenset({S.COMPLETED_SUCCESSFULLY, S.COMPLETED_WITH_FAILURE, S.FAILED, S.UNREACHABLE})


def check_job(before: J, after: J) -> None:
    """Raise `InvalidTransition` unless the table has the pair."""
    if after not in JOB_TRANSITIONS[before]:
        raise InvalidTransition("job", before, after)


def check_step(before: int, after: S) -> None:
    """Raise `InvalidTransition` unless the table has the pair."""
    if (before, after) not in _STEP_PAIRS:
        raise InvalidTransition("step", S(before).name, after.name)


def bounded(history: tuple[HistoryEntry, ...], most: int) -> tuple[HistoryEntry, ...]:
    """The first entry and the latest, `most` in all: what a job remembers of its changes [S3]."""
    return history if len(history) <= most else (history[0], *history[-(most - 1) :])
