"""What the present is: the only time that the core knows is told to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Instant:
    """The present: seconds of a monotonic clock for every wait, and aware UTC for what is stored."""

    now: float
    at: datetime


def seconds_of(duration: float | timedelta) -> float:
    """A duration, however it is given, in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
