"""Which job gets the next slot, and when is a slot free again? The throttle's side of protocol part 2 [S5.7]."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf

from choreography_ray.core.slot_messages import Exchange, ExchangeKey, FencedReply, Granted, Reply, Restate
from choreography_ray.model import JobId

Replies = list[tuple[ExchangeKey, Reply]]

_UNSTATED = -1


@dataclass(frozen=True, slots=True)
class JobSlotsView:
    """What the throttle knows of one job. `waiting` is in seconds, since its want began or was last served."""

    held: int
    wanted: int
    waiting: float
    has_restated: bool
    is_listed: bool


@dataclass(frozen=True, slots=True)
class ThrottleView:
    """The throttle at one moment, for people [S14.4]. `held` may exceed a `maximum` that was lowered."""

    boot: int
    maximum: int
    held: int
    is_granting: bool
    jobs: dict[JobId, JobSlotsView]


@dataclass(slots=True)
class _Account:
    """One job: what its highest fence last said, and the exchange that still waits for slots."""

    actor: str
    fence: int = _UNSTATED
    n: int = 0
    count: int = 0
    wanted: int = 0
    turn: int = 0
    wants_since: float | None = None
    parked: Exchange | None = None
    parked_at: float = -inf
    left_at: float | None = None
    has_restated: bool = False
    heard_at: float = -inf
    """When the actor's present process last spoke, or the actor was first listed."""


@dataclass(slots=True)
class SlotTable:
    """The slots of one cluster, bound by `maximum` over all jobs. Pure: `now` is the caller's monotonic clock, seconds.

    Guarantees: the bodies that run never outnumber `maximum`, except that lowering it revokes nothing; no slot is lost
    for ever, whatever happens to a message; a job that wants slots is served before any that holds more.

    Every method that takes `now` returns the replies that have become due, each with the key of its exchange. An
    exchange without a reply is either parked (`is_parked`), and answered within a third of a lease, or it was dropped
    as a copy or as out of date: whoever waits for it gets nothing, and no job reads anything into that.

    `boot` is higher than that of every earlier throttle of the cluster. `is_first` says for certain that there was
    none, so that nobody can hold a slot and the first user need not wait; otherwise the table is rebuilding first.
    `maximum` may be zero while a cluster has no CPUs. `lease` and `margin` are in seconds [S10.2].
    """

    boot: int
    maximum: int
    lease: float
    margin: float
    now: float
    is_first: bool = False
    is_granting: bool = field(init=False)
    _accounts: dict[JobId, _Account] = field(init=False, default_factory=dict[JobId, _Account])
    _parked: dict[JobId, _Account] = field(init=False, default_factory=dict[JobId, _Account])
    """Those with an exchange that waits, the longest first."""
    _queue: list[tuple[int, int, JobId]] = field(init=False, default_factory=list[tuple[int, int, JobId]])
    """A heap of who is parked and wants slots, by what it holds and its turn; entries that are not so any more count
    for nothing. So an exchange costs the same however many jobs there are.
    """
    _held: int = field(init=False, default=0)
    _asked: float = field(init=False)
    _watched_since: float = field(init=False)
    _turns: Iterator[int] = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        self.is_granting = self.is_first
        self._asked = self._watched_since = self.now
        _check_maximum(self.maximum)

    @property
    def held(self) -> int:
        """Slots that all jobs hold, as far as they have said or were granted."""
        return self._held

    def is_listed(self, job: JobId, actor: str) -> bool:
        """Whether Ray listed this actor as the job's when last observed.

        Before an exchange of an unlisted actor is handed to `receive`, observe anew: it may be younger than the list.
        """
        account = self._accounts.get(job)
        return account is not None and account.left_at is None and account.actor == actor

    def is_parked(self, key: ExchangeKey) -> bool:
        """Whether this exchange still waits for its reply."""
        account = self._accounts.get(key.job)
        return account is not None and account.parked is not None and account.parked.key == key

    def receive(self, exchange: Exchange, is_current: bool, now: float) -> Replies:
        """Take a job's statement. `is_current`: the sender is the actor's present worker in Ray's worker table."""
        account = self._accounts.get(exchange.job)
        if account is not None and is_current and account.actor == exchange.actor:
            account.heard_at = now
        if exchange.boot != self.boot:
            return [(exchange.key, Restate(self.boot))]
        if account is None or not self._may_speak(account, exchange, is_current):
            return [(exchange.key, FencedReply(exchange.n))]
        if self._is_out_of_date(account, exchange):
            return []
        replies = self._unpark(account)
        self._note(account, exchange, now)
        replies += self._proceed(now)
        return replies if account.wanted else replies + self._unpark(account)

    def observe(self, listed: Mapping[JobId, str], now: float, asked: float | None = None) -> Replies:
        """Take Ray's list of job actors, alive or restarting: job to actor id; not those that never had a process.

        `asked` is when the list was asked for, if getting it took time; one asked for before the last list, or before
        the table was made, is ignored. Who is missing counts as having left by `now`, and as still missing at `asked`:
        so a job actor that comes back while the list is on its way is never overlooked. Call it every second, or every
        third of a lease if that is less: without a list for a lease nothing is granted.
        """
        asked = now if asked is None else asked
        if asked < self._asked:
            return []
        # Between lists so far apart a job actor may have come, renewed its hosts, been silent for a lease and been
        # ended for it [S10.4]: all that is not listed counts as having left just now.
        if now - self._asked > self.lease:
            self._watched_since = now
        self._asked = asked
        replies: Replies = []
        for job, actor in listed.items():
            replies += self._keep_listed(job, actor, now)
        for job in self._accounts.keys() - listed.keys():
            replies += self._keep_unlisted(job, now)
        return replies + self._proceed(now)

    def set_maximum(self, maximum: int, now: float) -> Replies:
        """Change the bound. Lowering it revokes nothing: nobody is granted anything until fewer are held."""
        _check_maximum(maximum)
        self.maximum = maximum
        return self._proceed(now)

    def tick(self, now: float) -> Replies:
        """Answer with no slots whoever has been parked for a third of a lease, so that no call looks lost."""
        replies: Replies = []
        while self._parked and now >= (first := next(iter(self._parked.values()))).parked_at + self.lease / 3:
            replies += self._unpark(first)
        return replies

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, on the clock of `now`; None while nobody is parked."""
        first = next(iter(self._parked.values()), None)
        return None if first is None else first.parked_at + self.lease / 3

    def silences(self, now: float) -> dict[JobId, float]:
        """Seconds since each listed job's actor has spoken, or was first listed: a healthy one speaks every third of
        a lease, whatever it does [S10.4].
        """
        return {job: now - account.heard_at for job, account in self._accounts.items() if account.left_at is None}

    def snapshot(self, now: float) -> ThrottleView:
        """What people want to see of the table."""
        jobs = {
            job: JobSlotsView(
                held=account.count,
                wanted=account.wanted,
                waiting=0.0 if account.wants_since is None else max(0.0, now - account.wants_since),
                has_restated=account.has_restated,
                is_listed=account.left_at is None,
            )
            for job, account in self._accounts.items()
        }
        return ThrottleView(self.boot, self.maximum, self.held, self.is_granting, jobs)

    def _may_speak(self, account: _Account, exchange: Exchange, is_current: bool) -> bool:
        if account.left_at is not None or account.actor != exchange.actor or exchange.fence < account.fence:
            return False
        # A new table has seen no fences: an older incarnation must not be the first that it hears of a job.
        return is_current or self.is_granting

    def _is_out_of_date(self, account: _Account, exchange: Exchange) -> bool:
        return exchange.fence == account.fence and exchange.n <= account.n

    def _note(self, account: _Account, exchange: Exchange, now: float) -> None:
        self._held += exchange.size - account.count
        account.fence, account.n = exchange.fence, exchange.n
        account.count, account.wanted = exchange.size, exchange.wanted
        account.has_restated = True
        account.parked, account.parked_at = exchange, now
        self._parked[exchange.job] = account
        if not account.wanted:
            account.wants_since = None
            return
        if account.wants_since is None:
            self._begin_turn(account, now)
        if len(self._queue) > 2 * len(self._accounts):
            self._queue = [(it.count, it.turn, job) for job, it in self._parked.items() if it.wanted]
            heapq.heapify(self._queue)
        else:
            heapq.heappush(self._queue, (account.count, account.turn, exchange.job))

    def _begin_turn(self, account: _Account, now: float) -> None:
        account.turn, account.wants_since = next(self._turns), now

    def _keep_listed(self, job: JobId, actor: str, now: float) -> Replies:
        account = self._accounts.get(job)
        if account is None:
            self._accounts[job] = _Account(actor, heard_at=now)
            return []
        if account.left_at is not None or account.actor != actor:
            account.heard_at = now
        account.left_at = None
        if account.actor == actor:
            return []
        # Another actor of the same job: what the last one said counts until this one has said what it holds.
        account.actor, account.has_restated = actor, False
        return self._turn_away(account)

    def _keep_unlisted(self, job: JobId, now: float) -> Replies:
        account = self._accounts[job]
        replies = self._turn_away(account)
        account.wanted, account.wants_since = 0, None
        if account.left_at is None:
            account.left_at = now
        holds_nothing = account.count == 0 and (account.has_restated or self.is_granting)
        if holds_nothing or self._is_silenced_since(account.left_at):
            del self._accounts[job]
            self._held -= account.count
        return replies

    def _is_silenced_since(self, left_at: float) -> bool:
        """Whether no host can live whose job actor was not listed from `left_at` until the last list was asked for.

        Not until `now`: an actor that came back before the time was up has renewed its hosts, and stands in the list.
        """
        return self._asked >= max(left_at, self._watched_since) + self.lease + self.margin

    def _turn_away(self, account: _Account) -> Replies:
        parked = self._take_parked(account)
        return [] if parked is None else [(parked.key, FencedReply(parked.n))]

    def _unpark(self, account: _Account, k: int = 0) -> Replies:
        parked = self._take_parked(account)
        return [] if parked is None else [(parked.key, Granted(self.boot, parked.n, k))]

    def _take_parked(self, account: _Account) -> Exchange | None:
        parked, account.parked = account.parked, None
        if parked is not None:
            del self._parked[parked.job]
        return parked

    def _proceed(self, now: float) -> Replies:
        """Begin to grant once nobody can hold a slot unknown to the table, and hand out what is free."""
        self.is_granting = self.is_granting or self._is_rebuilt()
        return self._grant(now) if self.is_granting and self._can_see(now) else []

    def _can_see(self, now: float) -> bool:
        """Whether the last list is younger than a lease: a throttle that was cut off may have a successor.

        The successor rebuilds for longer than that, so two never grant at once, whoever finds its way to the old one.
        """
        return now - self._asked <= self.lease

    def _is_rebuilt(self) -> bool:
        # Jobs that left the list before this table was made may have hosts too.
        return self._is_silenced_since(self.now) and all(
            it.has_restated and it.left_at is None for it in self._accounts.values()
        )

    def _grant(self, now: float) -> Replies:
        grants: dict[JobId, int] = {}
        while self._queue and self.held < self.maximum:
            count, turn, job = heapq.heappop(self._queue)
            account = self._parked.get(job)
            if account is None or not account.wanted or (account.count, account.turn) != (count, turn):
                continue
            account.count += 1
            account.wanted -= 1
            self._held += 1
            grants[job] = grants.get(job, 0) + 1
            self._begin_turn(account, now)
            if account.wanted:
                heapq.heappush(self._queue, (account.count, account.turn, job))
        replies: Replies = []
        for job, k in grants.items():
            account = self._accounts[job]
            replies += self._unpark(account, k)
            if not account.wanted:
                account.wants_since = None
        return replies


def _check_maximum(maximum: int) -> None:
    if maximum < 0:
        raise ValueError(f"the maximum of parallel steps is {maximum}; it cannot be negative")
