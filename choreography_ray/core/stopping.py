"""How a job comes to rest: hosts are told, what will not stop is ended, and every step is accounted [S9.1, S9.2]."""

from __future__ import annotations

from choreography_ray.core import commands as c
from choreography_ray.core.hosts import HostPhase, HostView
from choreography_ray.core.instant import Instant
from choreography_ray.core.policies import MAX_GROUP
from choreography_ray.core.situation import Situation
from choreography_ray.model import HostId, JobStatus
from choreography_ray.records import Outcome, OutcomeKey, OutcomeKind, Run, StepCode


class Stopping:
    """Brings a job that is to rest to quiet: no body runs, and all that was decided is durable."""

    def __init__(self, job: Situation) -> None:
        self._job = job
        self._told: dict[Run, float] = {}
        self._ended: set[HostId] = set()
        self._moved: dict[int, OutcomeKey] = {}

    def note_moved(self, ordinal: int, key: OutcomeKey) -> None:
        """A step's run was given up: a stop answers this entry, not an outcome."""
        self._moved[ordinal] = key

    @property
    def is_pursued(self) -> bool:
        """The job is to come to rest, and has not."""
        job = self._job
        return job.is_resting and not job.document.is_stop_finalized and not job.document.mark and not job.is_finished

    def pursue(self, time: Instant) -> bool:
        """Do what can be done now. True when the job is at rest."""
        if not self.is_pursued:
            return False
        for view in self._job.hosts.all():
            self._stop(view, time)
        if not self._job.is_quiet or self._account() or self._job.inbox.active:
            return False
        return not any(view.group for view in self._job.hosts.all())

    def _stop(self, view: HostView, time: Instant) -> None:
        job, group = self._job, view.group
        if group is None:
            if view.phase is HostPhase.LIVE:
                job.end(view.host)
            return
        if view.phase is HostPhase.FOUND or view.host in self._ended or not job.inbox.is_expected(group.run):
            return
        if view.phase is HostPhase.STARTING:
            self.end(view.host)  # it has begun nothing, and never will
        elif group.run not in self._told:
            self._told[group.run] = time.now
            job.turn.say(c.StopGroup(view.host, group.run))
        elif time.now >= self._told[group.run] + self.patience:
            self.end(view.host)

    def end(self, host: HostId) -> None:
        """End a host's process from outside, once; what it owes is settled when its death is confirmed."""
        if host not in self._ended:
            self._ended.add(host)
            view = self._job.hosts.get(host)
            has_begun = view is not None and view.phase is HostPhase.LIVE
            self._job.turn.say(c.KillHost(host, self.patience if has_begun else 0.0))

    def is_ended(self, host: HostId) -> bool:
        """Whether the host's process is being ended."""
        return host in self._ended

    @property
    def patience(self) -> float:
        """Seconds that a body has to end by itself once it was told to."""
        return max(0.0, self._job.document.options.step_stop_timeout.total_seconds())

    @property
    def wake_at(self) -> float | None:
        """When the patience with a host ends."""
        if not self.is_pursued:
            return None
        waiting = [
            self._told[view.group.run] + self.patience
            for view in self._job.hosts.all()
            if view.group is not None and view.group.run in self._told and view.host not in self._ended
        ]
        return min(waiting, default=None)

    def _account(self) -> bool:
        """Hand steps that have no outcome to the hooks, a group at a time. False: there are none."""
        return self._account_moved() or self._account_retries() or self._account_fresh()

    def _account_moved(self) -> bool:
        moved = self._job.queue.take_singles()
        for ordinal, attempt in moved:
            self._job.inbox.put(self.given_up(ordinal, attempt))
        return bool(moved)

    def _account_retries(self) -> bool:
        retries = self._job.queue.take_retries()
        for ordinal, attempt in retries:
            self._job.inbox.put(waiting_for_retry(ordinal, attempt))
        return bool(retries)

    def _account_fresh(self) -> bool:
        if self._job.status is not JobStatus.STOPPED:
            return False  # they go with their job, or are never resumed
        batch = self._job.queue.take_fresh(MAX_GROUP)
        if batch is None:
            return False
        for ordinal, attempt in zip(batch.ordinals, batch.attempts, strict=True):
            self._job.inbox.put(never_started(ordinal, attempt))
        return True

    def given_up(self, ordinal: int, attempt: int) -> c.ReportedOutcome:
        """What a stop makes of a step whose run was given up, before it has another."""
        outcome = Outcome(ordinal, attempt, OutcomeKind.STOPPED, crash=self._job.crashes.get(ordinal, 0))
        return c.ReportedOutcome(self._moved[ordinal], outcome, may_retry=False, is_made_by_job=True)


def never_started(ordinal: int, attempt: int) -> c.ReportedOutcome:
    """What a stop makes of a step that is only prepared."""
    outcome = Outcome(ordinal, attempt, OutcomeKind.STOPPED)
    return c.ReportedOutcome(None, outcome, may_retry=False, left=StepCode.PREPARED, is_made_by_job=True)


def waiting_for_retry(ordinal: int, attempt: int) -> c.ReportedOutcome:
    """What a stop makes of a step that waits for `attempt`: failed, at once, as that will not be made [S7.2]."""
    outcome = Outcome(ordinal, attempt - 1, OutcomeKind.FAILED)
    return c.ReportedOutcome(None, outcome, may_retry=False, left=StepCode.AWAITING_RETRY, is_made_by_job=True)
