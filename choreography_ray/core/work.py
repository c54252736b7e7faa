"""Which step starts next: the queue of a stage [S5.6].

In this order: steps whose host died, each alone, so that a guilty one is found [S10]; retries that are due; steps
that had a place before the job was stopped; steps never started, in the order of the plan. A step waits here or is
assigned in the ledger, never both.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from choreography_ray.core.ledger import Ledger
from choreography_ray.core.policies import GroupSizer
from choreography_ray.model import StepHosting
from choreography_ray.records import StepCode


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps of one kind to be told to a host together."""

    kind: int
    ordinals: tuple[int, ...]
    attempts: tuple[int, ...]
    is_single: bool = False


class WorkQueue:
    """The steps of the running stage that wait for a place. `attempts` tells those that are not at their first."""

    def __init__(self, ledger: Ledger, attempts: Mapping[int, int]) -> None:
        self._ledger = ledger
        self._attempts = attempts
        self._sizers = [GroupSizer() for _ in ledger.kinds]
        self._fresh: dict[int, _Fresh] = {}
        """By kind, of the running stage; a kind whose steps were all taken is not there."""
        self._heads: list[tuple[tuple[bool, int], int]] = []
        """A heap: each kind with the head that it had, which moves on and never back."""
        self._stage: int | None = None
        self._singles: deque[tuple[int, int]] = deque()
        self._due: dict[int, deque[tuple[int, int]]] = {}
        self._later: list[tuple[float, int, int]] = []
        self._fresh_left = 0
        self._withdrawn: set[int] = set()

    def enter_stage(self, stage: int, first: Collection[int] = ()) -> None:
        """Take up the steps of a stage that the ledger shows as prepared; those in `first` had a place before."""
        self._stage = stage
        by_kind = self._ledger.ordinals_by_kind(stage)
        preferred: dict[int, list[int]] = {kind: [] for kind in by_kind}
        for ordinal in sorted(first):
            preferred.get(self._ledger.kind(ordinal), []).append(ordinal)
        self._fresh, self._heads = {}, []
        for kind, ordinals in by_kind.items():
            fresh = _Fresh(ordinals, preferred[kind], self._withdrawn)
            head = fresh.head(self._ledger)
            if head is not None:
                self._fresh[kind] = fresh
                self._heads.append((head, kind))
        heapq.heapify(self._heads)
        here = sum(self._ledger.stage(o) == stage for o in self._withdrawn)
        self._fresh_left = self._ledger.count(stage, StepCode.PREPARED) - here

    def put_single(self, ordinal: int, attempt: int) -> None:
        """A step whose run was given up goes first, alone."""
        self._singles.append((ordinal, attempt))

    def put_retry(self, ordinal: int, attempt: int, due: float) -> None:
        """A step that runs again at `due`, on the caller's monotonic clock."""
        heapq.heappush(self._later, (due, ordinal, attempt))

    def ripen(self, now: float) -> None:
        """Move the retries that are due in front of the fresh steps."""
        while self._later and self._later[0][0] <= now:
            _, ordinal, attempt = heapq.heappop(self._later)
            self._due.setdefault(self._ledger.kind(ordinal), deque()).append((ordinal, attempt))

    def withdraw(self, ordinal: int) -> int | None:
        """Give this step to nobody any more; the attempt that it waited for. None: it does not wait here."""
        code = self._ledger.code(ordinal)
        if code == StepCode.PREPARED:
            self._withdrawn.add(ordinal)
            self._fresh_left -= self._ledger.stage(ordinal) == self._stage
            return self._attempts.get(ordinal, 1)
        kind = self._ledger.kind(ordinal)
        waiting = self._singles if code == StepCode.SCHEDULED else self._due.get(kind, deque())
        for step in waiting:
            if step[0] == ordinal:
                waiting.remove(step)
                if waiting is not self._singles and not waiting:
                    del self._due[kind]
                return step[1]
        for later in self._later:
            if later[1] == ordinal:
                self._later.remove(later)
                heapq.heapify(self._later)
                return later[2]
        return None

    def readmit(self, ordinal: int) -> None:
        """A step that was withdrawn is accounted: when it is prepared again it may start."""
        self._withdrawn.discard(ordinal)

    def take_singles(self) -> list[tuple[int, int]]:
        """Every step whose run was given up, with its attempt: none of them waits here any more."""
        taken, self._singles = list(self._singles), deque()
        return taken

    def take_retries(self) -> list[tuple[int, int]]:
        """Every step that waits for its next attempt, with that attempt: none of them waits here any more."""
        taken = [(ordinal, attempt) for _, ordinal, attempt in self._later]
        taken += [step for due in self._due.values() for step in due]
        self._later, self._due = [], {}
        return taken

    def take_fresh(self, most: int) -> Batch | None:
        """The next steps that were never started, at most `most`."""
        return self._take_fresh(most, 1, 0, most)

    @property
    def next_due(self) -> float | None:
        """When the next retry is due."""
        return self._later[0][0] if self._later else None

    @property
    def waiting(self) -> int:
        """Steps that could start now."""
        return len(self._singles) + sum(map(len, self._due.values())) + self._fresh_left

    @property
    def retries(self) -> int:
        """Steps that wait for their next attempt, due or not."""
        return len(self._later) + sum(map(len, self._due.values()))

    @property
    def singles(self) -> tuple[int, ...]:
        """Steps whose run was given up and that wait for a new one."""
        return tuple(ordinal for ordinal, _ in self._singles)

    def next_ordinals(self) -> Iterator[int]:
        """The steps that could start now, first those that go first."""
        yield from self.singles
        for due in self._due.values():
            yield from (ordinal for ordinal, _ in due)
        for fresh in self._fresh.values():
            yield from fresh.rest(self._ledger)

    def later(self) -> list[tuple[float, int]]:
        """When the retries that are not due yet will be, on the caller's clock, and of which steps, the first first."""
        return sorted((due, ordinal) for due, ordinal, _ in self._later)

    def learn(self, kind: int, steps: int, seconds: float, width: int = 1) -> None:
        """Take note of how long bodies of a kind took in all, of which a host performed `width` at a time."""
        self._sizers[kind].learn(steps, seconds, width)

    def slots_wanted(self, room: int) -> int:
        """How many slots the waiting steps could use at once, within `room` steps in all."""
        left = min(self.waiting, room)
        if left <= 0:
            return 0
        slots = min(len(self._singles), left)
        left -= slots
        for kind in chain(self._due, (kind for kind in self._fresh if kind not in self._due)):
            if left <= 0:
                break
            steps = min(left, self._pending(kind))
            slots += -(-steps // self._size(kind))
            left -= steps
        return slots

    def _pending(self, kind: int) -> int:
        """Steps of a kind that could start now; an upper bound."""
        fresh = self._fresh.get(kind)
        return len(self._due.get(kind, ())) + (0 if fresh is None else fresh.left(self._ledger))

    def next_kind(self) -> int | None:
        """The kind of the steps that `take` would give."""
        if self._singles:
            return self._ledger.kind(self._singles[0][0])
        for kind, due in self._due.items():
            if due:
                return kind
        head = self._head()
        return None if head is None else head[1]

    def _head(self) -> tuple[tuple[bool, int], int] | None:
        while self._heads:
            known, kind = self._heads[0]
            head = self._fresh[kind].head(self._ledger)
            if head == known:
                return known, kind
            if head is None:
                heapq.heappop(self._heads)
                del self._fresh[kind]
            else:
                heapq.heapreplace(self._heads, (head, kind))
        return None

    def _is_own(self, kind: int) -> bool:
        return self._ledger.kinds[kind].hosting is StepHosting.OWN_ACTOR

    def _size(self, kind: int) -> int:
        return 1 if self._is_own(kind) else self._sizers[kind].size

    def take(self, room: int, slots: int, busy: int = 0) -> Batch | None:
        """The next steps to assign, at most `room`, shared fairly over the `busy` hosts and those that could work with
        the `slots` that are unused; None when nothing waits.
        """
        if room <= 0:
            return None
        if self._singles:
            ordinal, attempt = self._singles.popleft()
            return Batch(self._ledger.kind(ordinal), (ordinal,), (attempt,), is_single=True)
        for kind, due in self._due.items():
            if due:
                steps = [due.popleft() for _ in range(min(room, self._share(kind, slots, busy), len(due)))]
                if not due:
                    del self._due[kind]
                return Batch(kind, tuple(o for o, _ in steps), tuple(a for _, a in steps))
        return self._take_fresh(room, slots, busy)

    def _take_fresh(self, room: int, slots: int, busy: int, share: int | None = None) -> Batch | None:
        head = self._head()
        if head is None:
            self._fresh_left = 0
            return None
        (_, first), kind = head
        most = self._whole_segments(first, min(room, share or self._share(kind, slots, busy)))
        ordinals = self._fresh[kind].take(self._ledger, most)
        self._fresh_left -= len(ordinals)
        return Batch(kind, ordinals, tuple(self._attempts.get(o, 1) for o in ordinals))

    def _whole_segments(self, first: int, most: int) -> int:
        """A large group ends where a segment of the ledger does: each segment that it touches is one more write."""
        size = self._ledger.segment_steps
        return most if most < size else most - (first + most) % size

    def width(self, kind: int) -> int:
        """How many bodies of a kind a host performs at a time, if it gets the slots."""
        return 1 if self._is_own(kind) else self._ledger.kinds[kind].steps_per_actor

    def _share(self, kind: int, slots: int, busy: int) -> int:
        if self._is_own(kind):
            return 1
        width = max(1, min(self.width(kind), slots))
        free = -(-slots // width)
        pending = self._pending(kind)
        # What begins at once waits behind nothing, and need not be left for the hosts that are busy.
        at_once = min(width, -(-pending // max(1, free)))
        return max(at_once, self._sizers[kind].share(pending, busy + free, width))


class _Fresh:
    """The steps of one kind that are prepared, in order: those that had a place before, then the others."""

    __slots__ = ("_at", "_first", "_ordinals", "_withdrawn")

    def __init__(self, ordinals: Sequence[int], first: Sequence[int], withdrawn: Collection[int]) -> None:
        self._ordinals = ordinals
        self._first = deque(first)
        self._withdrawn = withdrawn
        self._at = 0

    def _waits(self, ledger: Ledger, ordinal: int) -> bool:
        return ledger.code(ordinal) == StepCode.PREPARED and ordinal not in self._withdrawn

    def head(self, ledger: Ledger) -> tuple[bool, int] | None:
        """The next one; ordered, so that the least of several kinds goes first."""
        while self._first:
            if self._waits(ledger, self._first[0]):
                return False, self._first[0]
            self._first.popleft()
        while self._at < len(self._ordinals):
            ordinal = self._ordinals[self._at]
            if self._waits(ledger, ordinal):
                return True, ordinal
            self._at += 1
        return None

    def rest(self, ledger: Ledger) -> Iterator[int]:
        """All that wait, in their order; none of them is taken."""
        first = dict.fromkeys(self._first)
        yield from (ordinal for ordinal in first if self._waits(ledger, ordinal))
        others = (self._ordinals[at] for at in range(self._at, len(self._ordinals)))
        yield from (ordinal for ordinal in others if ordinal not in first and self._waits(ledger, ordinal))

    def left(self, ledger: Ledger) -> int:
        """An upper bound: steps settled out of turn are not looked for."""
        return 0 if self.head(ledger) is None else max(len(self._ordinals) - self._at, len(self._first))

    def take(self, ledger: Ledger, most: int) -> tuple[int, ...]:
        taken: dict[int, None] = {}
        while self._first and len(taken) < most:
            ordinal = self._first.popleft()
            if self._waits(ledger, ordinal):
                taken[ordinal] = None
        while self._at < len(self._ordinals) and len(taken) < most:
            next_ones = self._ordinals[self._at : self._at + most - len(taken)]
            self._at += len(next_ones)
            taken.update((ordinal, None) for ordinal in next_ones if self._waits(ledger, ordinal))
        return tuple(taken)
