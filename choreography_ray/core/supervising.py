"""Which jobs need somebody, in which order do they come back, and which are forgotten? [S10, S10.4, S9.8]

Pure: `now` is the caller's monotonic clock in seconds, `at` the moment in UTC that stored moments are compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf

from choreography_ray.core.ownership import Sign
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import ClusterOptions
from choreography_ray.records import JobBrief

FIRST_DELAY = 15.0
"""Seconds until a job that was brought back and is interrupted again is tried again; each further try doubles them."""
LONGEST_DELAY = 3600.0
"""The longest such delay: a job whose code cannot be loaded costs a process an hour."""
FIRST_WORD_SECONDS = 30.0
"""What a process has for its first word at least, however short leases are: it may begin on a busy machine."""
MAX_PATIENCE_DOUBLINGS = 4


class Duty(StrEnum):
    """What an unfinished job without an actor needs."""

    REVIVE = "REVIVE"
    """An actor, which goes on with it, or finishes its stop, its removal or its clearing."""
    DELETE = "DELETE"
    """To be deleted without any hook."""


def duty_of(job: JobBrief, at: datetime, options: ClusterOptions) -> Duty | None:
    """What an unfinished job needs of which no actor is listed; None: nothing, or nothing yet."""
    if job.status is JobStatus.REMOVING:
        return Duty.DELETE if job.is_forced else Duty.REVIVE
    if job.status is JobStatus.PREPARING_JOB and not (job.has_plan or job.is_background):
        # Whoever started it waits for a plan that nobody may make again [S4].
        return Duty.DELETE if at - job.updated_at >= options.dead_job_threshold else None
    if job.status is JobStatus.STOPPED and job.is_stop_finalized:
        return None
    if job.status.is_final:
        # Whoever ended it lets go when all is cleared that is not kept: here something came between [S9.8].
        return Duty.REVIVE if job.cluster else None
    return Duty.REVIVE


def is_expired(job: JobBrief, at: datetime, options: ClusterOptions) -> bool:
    """Whether retention is over for a job that has ended [S9.8]."""
    kept = options.terminal_job_retention
    return kept is not None and job.status.is_final and at - job.updated_at > kept


class Revivals:
    """Which interrupted job is brought back next: the oldest, so many at a time, and each again only after a while.

    One that does not come up waits longer each time, and holds a place only while it is tried.
    """

    def __init__(self) -> None:
        self._queue: list[JobId] = []
        self._places: set[JobId] = set()
        self._tries: Counter[JobId] = Counter()
        self._not_before: dict[JobId, float] = {}

    def look(self, needy: Sequence[JobId], now: float) -> None:
        """Take all jobs that need an actor now, oldest first. What is known of others is forgotten in time."""
        self._queue = [job for job in needy if job not in self._places]
        needed = set(needy) | self._places
        for job in [job for job, due in self._not_before.items() if job not in needed and now >= due]:
            del self._not_before[job], self._tries[job]

    def forgive(self, now: float) -> None:
        """Somebody asks for all jobs: what failed before may be mended, so only the first delay counts."""
        for job, due in self._not_before.items():
            if self._tries[job] > 1:
                self._tries[job] = 1
                self._not_before[job] = min(due, now + FIRST_DELAY)

    def postpone(self, job: JobId, until: float) -> None:
        """Do not bring this one back before then."""
        self._not_before[job] = max(until, self._not_before.get(job, -inf))

    def next(self, bound: int, now: float) -> list[JobId]:
        """Those to be brought back now, while fewer than `bound` are; each holds a place until `done`."""
        begun: list[JobId] = []
        # What was tried before goes after what was not, or two bad jobs would take turns at the only place.
        for job in sorted(self._queue, key=self._tries.__getitem__):
            if len(self._places) >= bound:
                break
            if now >= self._not_before.get(job, -inf):
                begun.append(job)
                self._places.add(job)
                self._tries[job] += 1
                delay = min(FIRST_DELAY * 2.0 ** (self._tries[job] - 1), LONGEST_DELAY)
                self._not_before[job] = now + delay
        self._queue = [job for job in self._queue if job not in self._places]
        return begun

    def done(self, job: JobId) -> None:
        """It has come up, failed, or takes too long: its place is free."""
        self._places.discard(job)


class ElsewhereWatch:
    """Which owners in other clusters give no sign any more, on the observer's own clock [S10.3].

    Good enough to leave those alone that live; whoever takes such a job over makes sure by itself.
    """

    def __init__(self) -> None:
        self._seen: dict[JobId, tuple[Sign, float]] = {}

    def blink(self) -> None:
        """The store did not answer: what was silent until now proves nothing."""
        self._seen.clear()

    def silent(self, jobs: Mapping[JobId, Sign], lease: float, now: float) -> set[JobId]:
        """Take the latest sign of each job that has an owner elsewhere; those that gave none for a lease."""
        seen = self._seen
        self._seen = {
            job: seen[job] if job in seen and seen[job][0] == sign else (sign, now) for job, sign in jobs.items()
        }
        return {job for job, (_, since) in self._seen.items() if now - since > lease}


@dataclass(frozen=True, slots=True)
class ListedActor:
    """A job's actor as the GCS lists it: alive, restarting or still to come. `worker_id` is empty without a process."""

    actor_id: str
    worker_id: str = ""


class SilenceWatch:
    """Which job actors say nothing to the throttle although they have a process [S10.4].

    A healthy one speaks every third of a lease. Silence counts only while it was seen: one process of the actor,
    alive all the time, and store, GCS and throttle answering. An actor that was replaced for its silence and has not
    spoken since gets twice the time, so that a cluster that is only slow is not made slower.
    """

    def __init__(self) -> None:
        self._seeing_since: float | None = None
        self._seen: dict[JobId, tuple[ListedActor, float]] = {}
        self._replaced: Counter[JobId] = Counter()

    def blink(self) -> None:
        """Store, GCS or throttle did not answer: nothing was seen, and what was silent may have had to be."""
        self._seeing_since = None

    def observe(
        self, jobs: Mapping[JobId, ListedActor | None], silences: Mapping[JobId, float], lease: float, now: float
    ) -> list[JobId]:
        """The jobs whose actor has been silent too long. `silences`: seconds since the throttle has heard of each."""
        if self._seeing_since is None:
            self._seeing_since = now
        self._seen = {
            job: self._seen[job] if job in self._seen and self._seen[job][0] == actor else (actor, now)
            for job, actor in jobs.items()
            if actor is not None and actor.worker_id
        }
        for job in self._replaced.keys() - jobs.keys():
            del self._replaced[job]
        return [job for job in self._seen if self._is_overdue(job, silences, lease, now)]

    def _is_overdue(self, job: JobId, silences: Mapping[JobId, float], lease: float, now: float) -> bool:
        silence = silences.get(job)
        if silence is None or self._seeing_since is None:
            return False
        seen_for = now - self._seen[job][1]
        if silence < seen_for:
            del self._replaced[job]  # this very process has spoken
        else:
            lease = max(lease, FIRST_WORD_SECONDS)
        patience = lease * 2.0 ** min(self._replaced[job], MAX_PATIENCE_DOUBLINGS)
        return min(silence, seen_for, now - self._seeing_since) >= patience

    def replaced(self, job: JobId) -> None:
        """Its actor was ended for its silence."""
        self._replaced[job] += 1
        self._seen.pop(job, None)
