"""Which hosts a job has, and which of them could take a group now [S14.2].

One mechanism for both hostings: an own actor is a host of one step that bears the run's name and ends with it; a
shared one stays warm for the next group of steps that want the same kind of actor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from choreography_ray.model import HostId, StepHosting
from choreography_ray.records import Group, Run, StepKind

MAX_IDLE_SECONDS = 2.0
"""How long a warm host may wait for its next group. While it waits it reserves what others may need to be placed."""


class HostPhase(Enum):
    """Where a host stands, as far as the job knows."""

    FOUND = auto()
    """The ledger names it; nothing has been heard of it yet by this incarnation."""
    STARTING = auto()
    LIVE = auto()


@dataclass(frozen=True, slots=True)
class HostView:
    """What the job knows of a host; `group` is what it works on."""

    host: HostId
    kind: int
    phase: HostPhase
    group: Group | None = None
    is_single: bool = False
    """It was given a step alone: a death is charged to that step [S10]."""
    is_waiting: bool = False
    """It is being created, and no node has free what it asks for."""

    @property
    def is_shared(self) -> bool:
        """It may take another group; an own actor's name begins otherwise."""
        return self.host.startswith("shared-")


def host_id(hosting: StepHosting, run: Run, ordinal: int) -> HostId:
    """The name of a host within its job: unique for ever, as it bears the run that it is created for [S10.1].

    An own actor is named after its step, by the step's ordinal [S14.2].
    """
    number = f"{run.fence}.{run.counter}"
    return HostId(f"shared-{number}" if hosting is StepHosting.SHARED_ACTORS else f"step{ordinal}-{number}")


class HostTable:
    """The hosts of one job."""

    def __init__(self, kinds: tuple[StepKind, ...]) -> None:
        self._hosts: dict[HostId, HostView] = {}
        first: dict[tuple[object, ...], int] = {}
        self._class_of = [first.setdefault(_actor(kind), index) for index, kind in enumerate(kinds)]
        self._alike: Counter[int] = Counter()
        self._idle: dict[int, list[HostId]] = {}
        self._idle_since: dict[HostId, float] = {}
        self.starting = 0
        self.busy = 0
        """Hosts that have a group."""

    def __contains__(self, host: HostId) -> bool:
        return host in self._hosts

    def get(self, host: HostId) -> HostView | None:
        """What is known of a host."""
        return self._hosts.get(host)

    def width(self, host: HostId) -> int:
        """How many bodies of its group a host performs at a time; 1 where that is not known."""
        view = self._hosts.get(host)
        return 1 if view is None or view.group is None else view.group.width

    def all(self) -> list[HostView]:
        """Every host that is not known to be gone."""
        return list(self._hosts.values())

    def _put(self, view: HostView) -> None:
        before = self._hosts.get(view.host)
        self.busy += (view.group is not None) - (before is not None and before.group is not None)
        self._hosts[view.host] = view

    def add(self, view: HostView) -> None:
        """A host that is being created, or was found."""
        self._alike[self._class_of[view.kind]] += view.host not in self._hosts
        self._put(view)
        self.starting += view.phase is HostPhase.STARTING

    def came_up(self, host: HostId, now: float) -> None:
        """The host answered: it may be given groups from now on."""
        view = self._hosts[host]
        self.starting -= view.phase is HostPhase.STARTING
        self._hosts[host] = replace(view, phase=HostPhase.LIVE, is_waiting=False)
        if view.group is None and view.phase is not HostPhase.LIVE:
            self.rest(host, now)

    def waited(self, host: HostId) -> None:
        """The host waits for its resources."""
        view = self._hosts.get(host)
        if view is not None:
            self._hosts[host] = replace(view, is_waiting=True)

    def give(self, host: HostId, group: Group, *, is_single: bool) -> None:
        """Note that a host has been given a group."""
        self._put(replace(self._hosts[host], group=group, is_single=is_single))

    def rest(self, host: HostId, now: float) -> None:
        """The host's group is over: a live shared host may take the next."""
        view = replace(self._hosts[host], group=None)
        self._put(view)
        if view.is_shared and view.phase is HostPhase.LIVE:
            self._idle.setdefault(self._class_of[view.kind], []).append(host)
            self._idle_since[host] = now

    def drop(self, host: HostId) -> HostView | None:
        """Forget a host that is gone."""
        view = self._hosts.pop(host, None)
        if view is not None:
            self.starting -= view.phase is HostPhase.STARTING
            self.busy -= view.group is not None
            self._alike[self._class_of[view.kind]] -= 1
            idle = self._idle.get(self._class_of[view.kind], [])
            if host in idle:
                idle.remove(host)
            self._idle_since.pop(host, None)
        return view

    def take_idle(self, kind: int) -> HostId | None:
        """A warm host for steps of this kind, taken out of the idle ones."""
        idle = self._idle.get(self._class_of[kind])
        if not idle:
            return None
        host = idle.pop()
        del self._idle_since[host]
        return host

    def alike(self, kind: int) -> int:
        """How many hosts there are that steps of this kind could work on."""
        return self._alike[self._class_of[kind]]

    def has_idle(self, kind: int) -> bool:
        """Whether a warm host waits for steps of this kind."""
        return bool(self._idle.get(self._class_of[kind]))

    @property
    def idle_count(self) -> int:
        """Warm hosts without a group."""
        return len(self._idle_since)

    def idle_until(self, now: float) -> list[HostId]:
        """Warm hosts that have been without a group for `MAX_IDLE_SECONDS`: what they reserve may serve others."""
        return [host for host, since in self._idle_since.items() if since + MAX_IDLE_SECONDS <= now]

    @property
    def next_idle_end(self) -> float | None:
        """When the next warm host will have been idle for too long."""
        return min(self._idle_since.values()) + MAX_IDLE_SECONDS if self._idle_since else None

    def useless(self, kinds: Iterable[int]) -> list[HostId]:
        """Warm hosts without a group that steps of these kinds have no use for."""
        useful = {self._class_of[kind] for kind in kinds}
        return [host for alike, hosts in self._idle.items() if alike not in useful for host in hosts]


def _actor(kind: StepKind) -> tuple[object, ...]:
    """What an actor must be to perform steps of this kind."""
    return kind.hosting, kind.steps_per_actor, _frozen(kind.ray_options)


def _frozen(payload: Any) -> object:
    """What is equal for equal payloads, and hashable."""
    if payload.__class__ is dict:
        return frozenset((name, _frozen(value)) for name, value in payload.items())
    return tuple(map(_frozen, payload)) if payload.__class__ is list else payload
