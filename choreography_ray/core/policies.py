"""How long to wait and how much to take: numbers in, numbers out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from choreography_ray.options import JobsOptions

MAX_GROUP = 1_000
"""Steps told to a host at once, at most."""
LOOK_AGAIN_SECONDS = 0.25
"""How soon a job looks again at what was due and could not be done yet."""
COUNTS_SECONDS = 1.0
"""How far the counts of the job document may be behind the ledger, where nothing else has the document written."""
HOST_START_SECONDS = 1.0
"""About what a new host takes to be up."""
MAX_DECIDED = 1_000
"""Outcomes that the hooks get at once, at most: what is decided with one write of the job document."""
TARGET_GROUP_SECONDS = 0.5
"""How long a group should keep a host busy: long enough to pay for its writes, short enough to share fairly."""


def backoff(first: timedelta, longest: timedelta, failed: int) -> float:
    """Seconds before the next try after `failed` failures (from 1): doubling from `first`, at most `longest`."""
    seconds = max(0.0, first.total_seconds())
    # 2**1023 is the largest power a float holds; no backoff needs more than 64 doublings.
    return min(seconds * 2.0 ** min(failed - 1, 64), max(seconds, longest.total_seconds()))


def retry_delay(options: JobsOptions, failed_attempt: int, draw: float = 0.0) -> float:
    """Seconds until the attempt after `failed_attempt` [S7.2]; `draw` in [0, 1) places the jitter."""
    delay = backoff(options.step_retry_backoff, options.max_step_retry_backoff, failed_attempt)
    return delay * (1.0 + options.step_retry_jitter * draw)


def due_after(at: datetime, seconds: float) -> datetime:
    """The moment after a delay [S7.2]; the last there is when no calendar goes that far."""
    last = datetime.max.replace(tzinfo=UTC)
    return at + timedelta(seconds=seconds) if seconds < (last - at).total_seconds() else last


def delivery_delay(options: JobsOptions, failed: int) -> float:
    """Seconds until an outcome is delivered again after `failed` deliveries [S6.4]."""
    return backoff(options.step_delivery_retry_delay, options.max_step_delivery_retry_delay, failed)


class GroupSizer:
    """How many steps of one kind to tell a host at once, learnt from how long their bodies took [S14.2].

    `size` is for each body that the host performs at a time. It begins with a single step, so that long steps never
    queue behind one another; each report lets groups grow fourfold towards `TARGET_GROUP_SECONDS` of work, and shrink
    at once.
    """

    __slots__ = ("_cap", "_seconds", "size")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._cap = 1
        self.size = 1

    def learn(self, steps: int, seconds: float, width: int = 1) -> None:
        """Take note that `steps` bodies, `width` at a time, took `seconds` in all."""
        if steps <= 0:
            return
        each = max(seconds, 0.0) / steps
        self._seconds = each if self._cap == 1 else 0.7 * self._seconds + 0.3 * each
        self._cap = min(MAX_GROUP, max(self._cap, -(-steps // width) * 4))
        fitting = MAX_GROUP if self._seconds <= 0 else int(TARGET_GROUP_SECONDS / self._seconds)
        self.size = max(1, min(self._cap, fitting))

    def share(self, pending: int, hosts: int, width: int = 1) -> int:
        """Steps for a host that performs `width` at a time. The last of those `pending` are shared out over `hosts`."""
        return max(1, min(MAX_GROUP, self.size * width, -(-pending // max(1, hosts))))


def ticks_to_skip(failures: int) -> int:
    """Watchdog ticks to let pass before a resume hook that failed so many times runs again: 0, 1, 3, 7, 15 ... [S8]."""
    return 0 if failures <= 0 else min(2 ** min(failures - 1, 4) - 1, 15)


LEASE_SECONDS = 30.0
"""How long a process that has just begun may live before it has a lease; then the lease's own length counts [S10.2]."""
