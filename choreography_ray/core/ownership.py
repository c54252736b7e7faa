"""Whose job is it, did its last process die by its own fault, and is an owner in another cluster still alive? [S10]"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from choreography_ray.records import JobBrief, JobDocument, Owner

CRASHED = "JOB_CRASHED"
"""Why a job is `FAILED` whose process died again and again."""


SILENCED = "it said nothing for a lease, and was ended"
"""What is known of a process that the supervisor ended for its silence."""


@dataclass(frozen=True, slots=True)
class Death:
    """What is known of how a process ended. `is_blameless`: its node was lost or drained, or somebody ended it."""

    is_blameless: bool = False
    cause: str = ""


def is_elsewhere(document: JobDocument, cluster: str) -> bool:
    """Whether the job's owner belongs to another cluster: it may be alive, although nothing here knows of it."""
    owner = document.owner
    return owner is not None and owner.cluster not in ("", cluster)


def may_be_crash(before: JobDocument, me: Owner) -> bool:
    """Whether I come after a process of the same actor that died with the job in its hands.

    It did not if somebody has raised the fence since: then it was fenced, and ended because of that.
    """
    owner = before.owner
    if owner is None or owner.fence != before.fence:
        return False
    return (owner.cluster, owner.actor) == (me.cluster, me.actor) and owner.worker != me.worker


def was_ended_for_silence(before: JobDocument) -> bool:
    """Whether the job is broken by a death that was counted when its process was fenced, as only silence is [S10.4]."""
    owner = before.owner
    return before.is_broken and owner is not None and owner.fence != before.fence


def describe_crashes(document: JobDocument, cause: str) -> str:
    """Why the job does not go on, for people."""
    times = document.crashes
    told = f": {cause}" if cause else ""
    return (
        f"the job's process died {times} {'time' if times == 1 else 'times'} without an outcome recorded in between "
        f"(max_job_crashes is {document.options.max_job_crashes}); the last time{told or ', nothing is known of why'}"
    )


Sign = tuple[int, int, int]
"""What changes while an owner lives: fence, save and beats."""


def sign_of(job: JobDocument | JobBrief) -> Sign:
    """The owner's latest sign of life."""
    return job.fence, job.save, job.beats


class Verdict(Enum):
    """What an observer knows of an owner."""

    UNKNOWN = auto()
    ALIVE = auto()
    SILENT = auto()
    """A whole lease has passed without a sign while the store answered."""


class OwnerWatch:
    """Observes an owner through the store, on the observer's own clock [S10.3].

    Silence counts only between answers that follow each other closely: while the store is away, or the observer was
    itself stopped, an owner may have had no way to be heard.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._sign: Sign | None = None
        self._since = 0.0
        self._answered = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two looks; owners give a sign every third of a lease."""
        return self._lease / 6

    def missed(self) -> None:
        """The store did not answer: what was silence until now proves nothing."""
        self._sign = None

    def saw(self, sign: Sign, asked: float, answered: float) -> Verdict:
        """The store answered, between these two moments, that this is the owner's latest sign."""
        if self._sign is None or answered - self._answered > self._lease / 3:
            self._sign, self._since, self._answered = sign, answered, answered
            return Verdict.UNKNOWN
        self._answered = answered
        if sign != self._sign:
            return Verdict.ALIVE
        return Verdict.SILENT if asked - self._since >= self._lease else Verdict.UNKNOWN
