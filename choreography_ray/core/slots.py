"""Which slots does this job hold, and when does it speak with the throttle? The job's side of part 2 [S5.7]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import assert_never

from choreography_ray.core.slot_messages import Exchange, FencedReply, Granted, Held, Reply, Restate
from choreography_ray.model import HostId, JobId
from choreography_ray.records import Run

MIN_SPACING = 0.002
"""Seconds that an exchange gets for its reply before a newer one may make it void, while replies come in time."""
MAX_SPACING = 0.25
"""The same, when replies keep coming too late."""
FIRST_ERROR_DELAY = 0.1
"""Seconds until the next exchange after one that failed; each further failure doubles it."""
MAX_ERROR_DELAY = 1.0
"""The longest delay after a failure: a throttle that came back hears of everybody soon."""


@dataclass(frozen=True, slots=True)
class SlotsGranted:
    """The throttle gave `count` (1 or more) further slots, now in `unused`."""

    count: int


@dataclass(frozen=True, slots=True)
class IncarnationDoubted:
    """The throttle takes this actor for an old one: check it at store and GCS, then exit, or call `confirm`."""


SlotsEvent = SlotsGranted | IncarnationDoubted


@dataclass(slots=True)
class JobSlots:
    """What one incarnation of a job actor holds. Pure: `now` is the caller's monotonic clock, in seconds.

    A slot comes only out of a reply, is `unused` until `take` binds it to a run, and leaves by `release` or
    `give_back`: never back into `unused`, or another job would starve. What is held is told whole with each exchange.

    Nothing is said before `restore`: until the ledger is read under the own fence, a statement would be false.
    Whenever something was changed, call `exchange_due` and send what it returns; `next_due` says when to ask again.
    Changes made at the same moment go out as one exchange.
    """

    job: JobId
    actor: str
    fence: int
    lease: float
    boot: int = field(init=False, default=0)
    n: int = field(init=False, default=0)
    unused: int = field(init=False, default=0)
    wanted: int = field(init=False, default=0)
    _held: dict[tuple[HostId, Run], Held] = field(init=False, default_factory=dict[tuple[HostId, Run], Held])
    _used: int = field(init=False, default=0)
    _is_speaking: bool = field(init=False, default=False)
    _has_news: bool = field(init=False, default=False)
    _is_waiting: bool = field(init=False, default=False)
    _sent_at: float = field(init=False, default=-inf)
    _not_before: float = field(init=False, default=-inf)
    _failures: int = field(init=False, default=0)
    _spacing: float = field(init=False, default=MIN_SPACING)

    @property
    def held(self) -> tuple[Held, ...]:
        """The runs that are not known to be over."""
        return tuple(self._held.values())

    @property
    def size(self) -> int:
        """Slots held in all, used and unused."""
        return self.unused + self._used

    @property
    def is_unanswered(self) -> bool:
        """The last exchange raised: the throttle is away, or cannot be reached."""
        return self._failures > 0

    def restore(self, held: Iterable[Held]) -> None:
        """Begin from every run that the ledger, read under this fence, shows as assigned; nothing is unused then."""
        self._held = {(one.host, one.run): one for one in held}
        self._used = sum(one.width for one in self._held.values())
        self.unused = 0
        self._is_speaking = self._has_news = True

    def want(self, count: int) -> None:
        """Ask for `count` slots beyond those held and unused. A grant lowers the want by what it gave."""
        if count < 0:
            raise ValueError(f"a job cannot want {count} slots")
        self._has_news = self._has_news or count != self.wanted
        self.wanted = count

    def take(self, host: HostId, run: Run, width: int) -> None:
        """Bind `width` unused slots to a run, before the ledger write that names it.

        Where fewer are unused than a host could use, start it narrower or give them back: jobs that keep some while
        they wait for more would wait for each other. Raises `ValueError` when too few are unused or the run has some.
        """
        if not 1 <= width <= self.unused:
            raise ValueError(f"{width} slots for {host} {run}: {self.unused} are unused")
        if (host, run) in self._held:
            raise ValueError(f"{host} {run} holds slots already")
        self.unused -= width
        self._used += width
        self._held[host, run] = Held(host, run, width)

    def release(self, host: HostId, run: Run) -> bool:
        """Let go of a run's slots: its outcome has arrived, its host's death is confirmed, or it was withdrawn [S14.4].

        False when it held none (any more): a repetition changes nothing.
        """
        held = self._held.pop((host, run), None)
        if held is None:
            return False
        self._used -= held.width
        self._has_news = True
        return True

    def narrow(self, host: HostId, run: Run, width: int) -> None:
        """Let go of what a run holds beyond `width`, 1 or more: so many of its steps have no outcome yet."""
        held = self._held.get((host, run))
        if held is not None and 1 <= width < held.width:
            self._used -= held.width - width
            self._held[host, run] = Held(host, run, width)
            self._has_news = True

    def give_back(self) -> int:
        """Let go of every unused slot, as there is nothing to start with them; returns how many. The want stays."""
        count, self.unused = self.unused, 0
        self._has_news = self._has_news or count > 0
        return count

    def receive(self, reply: Reply, now: float) -> SlotsEvent | None:
        """Take a reply; None when there is nothing to act upon but what `exchange_due` says."""
        match reply:
            case Granted():
                return self._receive_grant(reply)
            case Restate(boot):
                if boot > self.boot:
                    self.boot = boot
                    self._answered()
                    self._has_news = True
                return None
            case FencedReply(n):
                if n != self.n or not self._is_waiting:
                    return None
                self.failed(n, now)
                self._is_speaking = False
                return IncarnationDoubted()
            case _:
                assert_never(reply)

    def confirm(self) -> None:
        """This actor is the job's, by store and GCS, in spite of the doubt: state again what it holds."""
        self._is_speaking = self._has_news = True

    def failed(self, n: int, now: float) -> None:
        """The call with exchange `n` raised: whether it arrived is not known, so the next one says everything again."""
        if n != self.n or not self._is_waiting:
            return
        self._is_waiting = False
        self._has_news = True
        self._not_before = now + min(FIRST_ERROR_DELAY * 2.0**self._failures, MAX_ERROR_DELAY)
        self._failures = min(self._failures + 1, 16)

    def next_due(self) -> float:
        """When `exchange_due` will have one, as things stand; infinite while this incarnation must not speak."""
        if not self._is_speaking:
            return inf
        due = self._sent_at + self.lease / 3
        if self._has_news:
            due = self._sent_at + self._spacing if self._is_waiting else -inf
        return max(due, self._not_before)

    def exchange_due(self, now: float, *, is_last: bool = False) -> Exchange | None:
        """The exchange to send now, or None; it makes every earlier one void. The last one need not wait its turn.

        Due after a release, a changed want, a used reply while more is wanted, a failure, and every third of a lease.
        """
        if now < self.next_due() and not (is_last and self._is_speaking and self._has_news):
            return None
        self.n += 1
        self._sent_at = now
        self._is_waiting, self._has_news = True, False
        return Exchange(self.job, self.actor, self.fence, self.boot, self.n, self.held, self.unused, self.wanted)

    def _is_answer(self, reply: Granted) -> bool:
        return self._is_waiting and reply.n == self.n and reply.boot == self.boot

    def _receive_grant(self, reply: Granted) -> SlotsGranted | None:
        if not self._is_answer(reply):
            # A job that speaks faster than it is answered would make all of its grants void.
            if reply.k and reply.boot == self.boot:
                self._spacing = min(2 * self._spacing, MAX_SPACING)
            return None
        self._answered()
        self.unused += reply.k
        self.wanted = max(0, self.wanted - reply.k)
        self._has_news = self._has_news or self.wanted > 0
        if not reply.k:
            return None
        self._spacing = max(self._spacing / 2, MIN_SPACING)
        return SlotsGranted(reply.k)

    def _answered(self) -> None:
        self._is_waiting = False
        self._failures = 0
