"""What happened in an incarnation of a job, in numbers? Kept in memory by groups, taken every few seconds [S16]."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from choreography_ray.model import HistoryEntry, JobStepStatus
from choreography_ray.records import JobDocument

MAX_MEASURED = 1_000
"""Measurements of a kind that are kept until they are taken: the latest."""


class Counted(StrEnum):
    """What is counted."""

    STEPS = "steps"
    JOBS = "jobs"
    RETRIES = "retries"
    DELIVERIES = "deliveries"
    WATCHDOG_FINDINGS = "watchdog_findings"
    LOST_HOSTS = "lost_hosts"
    STORE_ERRORS = "store_errors"


class Measured(StrEnum):
    """What is measured, in seconds."""

    STEP = "step_seconds"
    RECORDING = "recording_seconds"


@dataclass(frozen=True, slots=True)
class Numbers:
    """What happened since numbers were taken last. The second key of a count says of which status, or of what cause."""

    job_type: str
    counts: Mapping[tuple[Counted, str], int]
    seconds: Mapping[Measured, tuple[float, ...]]

    def __bool__(self) -> bool:
        return bool(self.counts or self.seconds)


class Tally:
    """Counts what it is told, and what a job's document shows when it is looked at. No call of it is made per step."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Counted, str]] = Counter()
        self._seconds: dict[Measured, deque[float]] = {}
        self._seen: Counter[tuple[Counted, str]] = Counter()
        self._last: HistoryEntry | None = None

    def count(self, what: Counted, amount: int = 1, kind: str = "") -> None:
        """So many more of it."""
        if amount:
            self._counts[what, kind] += amount

    def measure(self, what: Measured, seconds: float) -> None:
        """It took so long."""
        self._seconds.setdefault(what, deque(maxlen=MAX_MEASURED)).append(seconds)

    def begin(self, document: JobDocument) -> None:
        """What the document shows now was counted by earlier incarnations."""
        self._look(document)
        self._counts.clear()

    def take(self, document: JobDocument, store_errors: int) -> Numbers:
        """What is new. `store_errors`: how many there were in all."""
        self._look(document)
        self._reached(Counted.STORE_ERRORS, "", store_errors)
        seconds = {what: tuple(values) for what, values in self._seconds.items()}
        numbers = Numbers(document.type_name, dict(self._counts), seconds)
        self._counts.clear()
        self._seconds.clear()
        return numbers

    def _look(self, document: JobDocument) -> None:
        counts = document.counts
        for status, number in (
            (JobStepStatus.COMPLETED_SUCCESSFULLY, counts.succeeded),
            (JobStepStatus.COMPLETED_WITH_FAILURE, counts.failed),
            (JobStepStatus.STOPPED, counts.stopped),
            (JobStepStatus.UNREACHABLE, counts.unreachable),
        ):
            self._reached(Counted.STEPS, status, number)
        for entry in reversed(document.history):
            if entry == self._last:
                break
            self.count(Counted.JOBS, 1, entry.status)
        self._last = document.history[-1] if document.history else None

    def _reached(self, what: Counted, kind: str, number: int) -> None:
        """A number that may also sink, as when failed steps run again: what it grows by is counted."""
        self.count(what, max(0, number - self._seen[what, kind]), kind)
        self._seen[what, kind] = number
