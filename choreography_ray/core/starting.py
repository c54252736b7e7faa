"""When has a job started, and what is there to say about it? The answer of `start` [S4.4].

A start is settled when each host of the first window has come up, failed, or waits for a slot or for resources.
"""

from __future__ import annotations

from choreography_ray.core.commands import ReportStart
from choreography_ray.errors import StartJobReason, StartReport
from choreography_ray.model import HostId, JobStatus
from choreography_ray.records import JobDocument

FIRST_WINDOW_SECONDS = 0.25
"""Hosts created this soon after the first one belong to the first window."""
SLOT_PATIENCE_SECONDS = 1.0
"""A job that was given no slot for so long waits for one."""
MAX_DETAILS = 20
REMOVED = "REMOVED"
"""What is reported of the start of a job that was removed meanwhile [S9.6]."""


class StartWatch:
    """Watches the first window of one incarnation and says once what `start` returns."""

    def __init__(self, document: JobDocument, now: float) -> None:
        self._begin = now
        self._is_start = document.status is JobStatus.STARTING_STEPS
        self._deadline = now + max(0.0, document.options.start_timeout.total_seconds())
        self._first_at: float | None = None
        self._pending: set[HostId] = set()
        self._ups = 0
        self._failed_steps = 0
        self._details: list[str] = []
        self._is_completed = False
        self._is_stopped = False
        self._is_removed = False
        self._is_reported = False

    def created(self, host: HostId, now: float) -> None:
        """A host was created."""
        if self._first_at is None:
            self._first_at = now
        if now - self._first_at <= FIRST_WINDOW_SECONDS:
            self._pending.add(host)

    def came_up(self, host: HostId) -> None:
        """A host asked for its lease."""
        self._ups += 1
        self._pending.discard(host)

    def waited(self, host: HostId) -> None:
        """A host waits for its resources: that counts as started."""
        self.came_up(host)

    def failed(self, host: HostId) -> None:
        """A host failed to start; its steps' outcomes follow."""
        self._pending.discard(host)

    def step_failed(self, label: str, message: str) -> None:
        """The failed start of a step was recorded."""
        self._failed_steps += 1
        if len(self._details) < MAX_DETAILS:
            self._details.append(f"step {label!r}: {message}")

    def stopped(self) -> None:
        """The job was stopped: a start that has brought nothing up is over."""
        self._is_stopped = True  # where an earlier incarnation saw the steps started, that says nothing of the start

    def removed(self) -> None:
        """The job is gone: whoever waits for its start is told so."""
        self._is_removed = self._is_completed = True

    def completed(self) -> None:
        """The job is over."""
        self._is_completed = True

    @property
    def wake_at(self) -> float | None:
        """When to look again."""
        if self._is_reported:
            return None
        return (
            self._deadline if self._first_at is not None else min(self._deadline, self._begin + SLOT_PATIENCE_SECONDS)
        )

    def report(self, now: float) -> ReportStart | None:
        """What to tell whoever waits for the start, once."""
        if self._is_reported or not (self._is_completed or self._is_stopped or self._is_settled(now)):
            return None
        self._is_reported = True
        if self._is_removed:
            return ReportStart(REMOVED, ())
        error = ""
        if self._is_stopped and self._is_start and not self._ups:
            error = StartJobReason.STOPPED
        elif self._failed_steps:
            is_none_up = self._is_completed and not self._ups
            error = (
                StartJobReason.ALL_JOB_STEPS_FAILED_STARTING
                if is_none_up
                else StartReport.FAILED_STARTING_SOME_JOB_STEPS
            )
        return ReportStart(error, tuple(self._details))

    def _is_settled(self, now: float) -> bool:
        if now >= self._deadline:
            return True
        if self._first_at is None:
            return now >= self._begin + SLOT_PATIENCE_SECONDS
        return bool(self._ups) and not self._pending
