"""What the present is: the only time that the core knows is told to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Instant:
    """The present: seconds of a monotonic clock for every wait, and aware UTC for what is stored."""

    now: float
    at: datetime
