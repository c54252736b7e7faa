"""What is there, and what can happen, when jobs share slots? The truth that the throttle is tested against.

A `World` holds bodies with their leases, what Ray lists, each job's ledger and fence, and the wire. Each of its moves
does one thing that can happen; `check` counts what really runs, `settle` demands what must be true when all is quiet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from choreography_ray.core.slot_messages import Exchange, Granted, Held, Reply
from choreography_ray.core.slots import IncarnationDoubted, JobSlots
from choreography_ray.core.throttle import Replies, SlotTable
from choreography_ray.model import HostId, JobId
from choreography_ray.records import Run

LEASE, MARGIN = 30.0, 3.0
POLL = 1.0
Pick = Callable[[int], int]
"""Chooses a number below the one given."""


@dataclass(eq=False)
class Body:
    """The steps of one run on one host: assigned, then running while its lease lasts, then over."""

    job: JobId
    host: HostId
    run: Run
    width: int
    maker: Incarnation
    state: str = "assigned"
    until: float = inf

    @property
    def held(self) -> Held:
        return Held(self.host, self.run, self.width)


@dataclass(eq=False)
class Incarnation:
    """One process of a job actor. `confirmed_until` is when its last confirmation ends, once it is cut off."""

    job: JobId
    actor: str
    worker: int
    slots: JobSlots | None = None
    confirmed_until: float = inf
    runs: int = 0

    @property
    def side(self) -> JobSlots:
        """Its side of the protocol, once it has read its ledger."""
        assert self.slots is not None
        return self.slots


@dataclass(eq=False)
class Job:
    """What lasts: the fence and the ledger at the store, the actor at Ray; and the processes that there are."""

    fence: int = 0
    ledger: dict[Run, Body] = field(default_factory=dict)
    actor: str | None = None
    made_at: float = -inf
    worker: int = 0
    process: Incarnation | None = None
    zombies: list[Incarnation] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ToThrottle:
    exchange: Exchange
    worker: int


@dataclass(frozen=True, eq=False)
class ToJob:
    to: Incarnation
    reply: Reply


@dataclass(frozen=True, eq=False)
class ToHost:
    """A renewal: the host's timer is to run for `length` from when it asked."""

    body: Body
    asked: float
    length: float


class Violation(Exception):
    """A promise was broken: what planted faults must lead to, and no mistake of the test can be taken for."""


def demand(is_kept: bool, story: str) -> None:
    if not is_kept:
        raise Violation(story)


class World:
    """Everything that there is, and everything that can happen to it."""

    def __init__(self, table: type[SlotTable] = SlotTable, slots: type[JobSlots] = JobSlots, host_fault: bool = False):
        self.table_type, self.slots_type, self.host_fault = table, slots, host_fault
        self.now = 1000.0
        self.maximum = self.bound = 3
        self.boots = 0
        self.actors = 0
        self.table: SlotTable | None = None
        self.old_table: SlotTable | None = None
        self.misrouted: set[JobId] = set()
        self.jobs = {JobId(name): Job() for name in "abc"}
        self.bodies: list[Body] = []
        self.wire: list[ToThrottle | ToJob | ToHost] = []
        self.begun: dict[JobId, int] = dict.fromkeys(self.jobs, 0)
        self.new_throttle()

    # Truth and its invariant

    def incarnations(self) -> list[Incarnation]:
        """Every process that has read its ledger, the current ones and those cut off."""
        found: list[Incarnation] = []
        for job in self.jobs.values():
            found += [one for one in (job.process, *job.zombies) if one is not None and one.slots is not None]
        return found

    def check(self) -> None:
        """Never more bodies than the bound; a lowered maximum binds as soon as so few can be running at most.

        And the reason for it: a throttle that grants counts for each job at least what the job can make run.
        """
        running = sum(body.width for body in self.bodies if body.state == "running")
        demand(running <= self.bound, f"{running} bodies run, {self.bound} may")
        possible = sum(body.width for body in self.bodies if body.state != "over")
        possible += sum(one.slots.unused for one in self.incarnations() if one.slots)
        possible += sum(it.reply.k for it in self.wire if isinstance(it, ToJob) and isinstance(it.reply, Granted))
        # A cut-off throttle that never heard of a lower maximum may be listened to until its successor grants.
        is_alone = self.old_table is None or (self.table is not None and self.table.is_granting)
        if is_alone:
            self.bound = max(self.maximum, min(self.bound, possible))
        if self.table is not None and self.table.is_granting:
            known = self.table.snapshot(self.now).jobs
            for name, job in self.jobs.items():
                counted = known[name].held if name in known else 0
                usable = self._usable(name, job)
                demand(usable <= counted, f"job {name} can use {usable} slots, {counted} are counted")

    def _usable(self, name: JobId, job: Job) -> int:
        usable = 0 if job.process is None or job.process.slots is None else job.process.slots.unused
        for body in self.bodies:
            if body.job == name and (body.state == "running" or self._can_begin(body)):
                usable += body.width
        return usable

    # Moves of the jobs and their bodies

    def want(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            one.side.want(3 - pick(4))

    def send(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            self.send_from(one)

    def assign(self, pick: Pick) -> None:
        one = self._any([one for one in self.incarnations() if one.side.unused], pick)
        if one is not None:
            self.assign_to(one, 1 + pick(min(2, one.side.unused)))

    def begin(self, pick: Pick) -> None:
        """A host got its first lease, from the incarnation that made it, and its assignment."""
        waiting = [body for body in self.bodies if self._can_begin(body)]
        if body := self._any(waiting, pick):
            self.begin_body(body)

    def renew(self, pick: Pick) -> None:
        """A host asks whom it can reach; the reply is on its way."""
        if body := self._any([body for body in self.bodies if body.state == "running"], pick):
            job = self.jobs[body.job]
            answering = [one for one in (job.process, *job.zombies) if one is not None and self._can_confirm(one)]
            if one := self._any(answering, pick):
                self.ask_renewal(body, one)

    def end_body(self, pick: Pick) -> None:
        if body := self._any([body for body in self.bodies if body.state == "running"], pick):
            body.state = "over"

    def report(self, pick: Pick) -> None:
        """A job learns that a run is over; one that has not begun it ends for certain."""
        if one := self._any(self.incarnations(), pick):
            job = self.jobs[one.job]
            ended = [body for body in job.ledger.values() if self._is_or_gets_over(body, one)]
            if body := self._any(ended, pick):
                self._report(one, body)

    def work(self, pick: Pick) -> None:
        """What mostly happens: a job asks, the wire delivers, and the job's bodies begin."""
        self.restore_job(pick)
        ready = [job.process for job in self.jobs.values() if job.process is not None and job.process.slots is not None]
        one: Incarnation | None = self._any(ready, pick)
        if one is None:
            return
        one.side.want(3 - pick(3))
        for _ in range(2):
            older = len(self.wire)
            self.send_from(one)
            while len(self.wire) > older:
                self.hand_on(self.wire.pop(older))
        if one in self.incarnations() and one.side.unused:
            body = self.assign_to(one, one.side.unused)
            if self._can_confirm(one):
                self.begin_body(body)

    def give_back(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            one.side.give_back()

    # Moves of the wire

    def deliver(self, pick: Pick) -> None:
        """Any message, in any order, perhaps a copy of it while the message itself is still on its way."""
        if message := self._any(self.wire, pick):
            if pick(4):
                self.wire.remove(message)
            self.hand_on(message)

    def misroute(self, pick: Pick) -> None:
        """A job's calls reach the throttle that was cut off, or no longer do."""
        self.misrouted ^= {list(self.jobs)[pick(len(self.jobs))]}

    def deliver_first(self, pick: Pick) -> None:
        if self.wire:
            self.hand_on(self.wire.pop(0))

    def lose(self, pick: Pick) -> None:
        if message := self._any(self.wire, pick):
            self.wire.remove(message)

    def fail_call(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            one.side.failed(one.side.n, self.now)

    # Moves of Ray and of time

    def start_job(self, pick: Pick) -> None:
        """A new actor for a job that has none, or the process of one that Ray restarts: it only renews."""
        waiting = [name for name, job in self.jobs.items() if job.process is None]
        if waiting:
            self.start_process(waiting[pick(len(waiting))])

    def restore_job(self, pick: Pick) -> None:
        """It raises its fence and reads its ledger."""
        booted = [job.process for job in self.jobs.values() if job.process is not None and job.process.slots is None]
        if one := self._any(booted, pick):
            self.read_ledger(one)

    def crash_job(self, pick: Pick) -> None:
        if process := self._any_process(pick):
            self.jobs[process.job].process = None

    def cut_off_job(self, pick: Pick) -> None:
        """Ray takes a process for dead that is not."""
        if process := self._any_process(pick):
            job = self.jobs[process.job]
            job.process = None
            job.zombies.append(process)

    def end_job(self, pick: Pick) -> None:
        """The actor is ended for good after a lease of silence, fence first; its process may not know.

        Of one that was made and ended with its hosts alive between two lists, the throttle would know nothing.
        """
        name = self._any(list(self.jobs), pick)
        job = self.jobs[name] if name else None
        if job is None or job.actor is None or self.now < job.made_at + LEASE:
            return
        self._raise_fence(job)
        if job.process is not None and pick(2):
            job.zombies.append(job.process)
            job.process.confirmed_until = self.now + LEASE
        job.process = job.actor = None

    def crash_throttle(self, pick: Pick) -> None:
        """It dies, or is cut off and goes on beside its successor, without a view of Ray's list."""
        if self.table is not None:
            self.old_table = self.table if pick(2) else None
            self.table = None

    def restart_throttle(self, pick: Pick) -> None:
        if self.table is None:
            self.new_throttle()

    def change_maximum(self, pick: Pick) -> None:
        self.maximum = 1 + pick(4)
        self.bound = max(self.bound, self.maximum)
        if self.table is not None:
            self._post(self.table.set_maximum(self.maximum, self.now))

    def pass_a_moment(self, pick: Pick) -> None:
        self.let_pass(0.1 + pick(10) / 5)

    def pass_a_while(self, pick: Pick) -> None:
        """Mostly the hosts that reach an incarnation are renewed meanwhile."""
        self.let_pass(5.0 + pick(12) * 3, is_renewed=bool(pick(4)))

    def stall_throttle(self, pick: Pick) -> None:
        """Time goes by, and the throttle sees nothing of it."""
        self.let_pass(1.0 + pick(12) * 4, is_polled=False, is_renewed=bool(pick(2)))

    # Quiet: the faults are over, what must then be true

    def settle(self) -> None:
        """After enough quiet no slot is missing; each job can have all of them, and those that want get their share."""
        self.old_table = None
        self.wire.clear()
        for name, job in self.jobs.items():
            job.zombies.clear()
            if job.process is None:
                self.start_process(name)
            if job.process is not None and job.process.slots is None:
                self.read_ledger(job.process)
        if self.table is None:
            self.new_throttle()
        for one in self.incarnations():
            one.side.want(0)
        self._live(3 * (LEASE + MARGIN))
        self._check_nothing_lost()
        self._check_fairness()

    def _check_nothing_lost(self) -> None:
        assert self.table is not None
        demand(self.table.is_granting, "the throttle never grants again")
        demand(self.table.held == 0, f"{self.table.held} slots are lost: nobody holds any")
        for one in self.incarnations():
            slots = one.side
            slots.want(self.maximum)
            self._talk(1.0)
            demand(slots.unused == self.maximum, f"{slots.unused} of {self.maximum} slots can be had")
            slots.give_back()
            slots.want(0)
            self._talk(1.0)

    def _check_fairness(self) -> None:
        self.begun = dict.fromkeys(self.jobs, 0)
        self._live(40.0, want=self.maximum)
        least, most = min(self.begun.values()), max(self.begun.values())
        demand(least > 0 and most <= 2 * least + self.maximum, f"unfair: {self.begun}")

    def _live(self, seconds: float, want: int = 0) -> None:
        """Every job works as it should: it begins what it may, its bodies end after a second, and it reports."""
        end = self.now + seconds
        while self.now < end:
            for one in self.incarnations():
                if want:
                    one.side.want(want)
                else:
                    one.side.give_back()
                while one.side.unused:
                    self.begin_body(self.assign_to(one, 1))
                    self.begun[one.job] += 1
            self._talk(1.0)
            for one in self.incarnations():
                for body in list(self.jobs[one.job].ledger.values()):
                    body.state = "over"
                    self._report(one, body)

    def _talk(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for one in self.incarnations():
                self.send_from(one)
            for message in self.wire[:]:
                self.wire.remove(message)
                self.hand_on(message)
            self.let_pass(0.1)
            self.check()

    # How it works

    def _any(self, things: list[Any], pick: Pick) -> Any:
        return things[pick(len(things))] if things else None

    def _any_process(self, pick: Pick) -> Incarnation | None:
        process: Incarnation | None = self._any([job.process for job in self.jobs.values() if job.process], pick)
        return process

    def new_throttle(self) -> None:
        self.boots += 1
        self.table = self.table_type(self.boots, self.maximum, LEASE, MARGIN, self.now, is_first=self.boots == 1)
        self._poll()

    def _poll(self) -> None:
        if self.table is not None:
            listed = {name: job.actor for name, job in self.jobs.items() if job.actor is not None}
            self._post(self.table.observe(listed, self.now))

    def let_pass(self, seconds: float, is_polled: bool = True, is_renewed: bool = False) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + POLL)
            if is_renewed:
                self._renew_all()
            for body in self.bodies:
                if body.state == "running" and body.until <= self.now:
                    body.state = "over"
            if is_polled:
                self._poll()
                if self.table is not None:
                    self._post(self.table.tick(self.now))
        if self.old_table is not None:
            self._post(self.old_table.tick(self.now))
        self.bodies = [body for body in self.bodies if body.state != "over"]

    def _renew_all(self) -> None:
        for body in self.bodies:
            process = self.jobs[body.job].process
            if body.state == "running" and process is not None:
                body.until = max(body.until, self.now + LEASE) if body.until > self.now else body.until

    def _can_begin(self, body: Body) -> bool:
        return body.state == "assigned" and self._can_confirm(body.maker)

    def _can_confirm(self, one: Incarnation) -> bool:
        job = self.jobs[one.job]
        return one is job.process or (one in job.zombies and self.now < one.confirmed_until)

    def _raise_fence(self, job: Job) -> None:
        job.fence += 1
        for zombie in job.zombies:
            zombie.confirmed_until = min(zombie.confirmed_until, self.now + LEASE)

    def start_process(self, name: JobId) -> None:
        job = self.jobs[name]
        if job.actor is None:
            self.actors += 1
            job.actor, job.made_at = f"actor-{self.actors}", self.now
        job.worker += 1
        job.process = Incarnation(name, job.actor, job.worker)
        for body in job.ledger.values():
            if body.state == "running":
                self.ask_renewal(body, job.process)

    def read_ledger(self, one: Incarnation) -> None:
        job = self.jobs[one.job]
        self._raise_fence(job)
        one.slots = self.slots_type(one.job, one.actor, job.fence, LEASE)
        one.slots.restore([body.held for body in job.ledger.values()])

    def ask_renewal(self, body: Body, one: Incarnation) -> None:
        self.wire.append(ToHost(body, self.now, min(LEASE, one.confirmed_until - self.now)))

    def assign_to(self, one: Incarnation, width: int) -> Body:
        """Take the slots and write the ledger; one that is fenced learns it by that write, and is no more."""
        slots, job = one.side, self.jobs[one.job]
        one.runs += 1
        run = Run(slots.fence, one.runs)
        body = Body(one.job, HostId(f"{one.job}-{run}"), run, width, one)
        slots.take(body.host, run, width)
        if slots.fence != job.fence:
            self._leave(one)
        else:
            job.ledger[run] = body
            self.bodies.append(body)
        return body

    def begin_body(self, body: Body) -> None:
        body.state = "running"
        body.until = self.now + min(LEASE, body.maker.confirmed_until - self.now)

    def _is_or_gets_over(self, body: Body, one: Incarnation) -> bool:
        return body.state == "over" or (body.state == "assigned" and one is self.jobs[one.job].process)

    def _report(self, one: Incarnation, body: Body) -> None:
        slots, job = one.side, self.jobs[one.job]
        body.state = "over"
        slots.release(body.host, body.run)
        if slots.fence != job.fence:
            self._leave(one)
        else:
            del job.ledger[body.run]

    def _leave(self, one: Incarnation) -> None:
        """A process that found itself fenced exits; if Ray still has the actor, it restarts it."""
        job = self.jobs[one.job]
        if one in job.zombies:
            job.zombies.remove(one)
        elif one is job.process:
            job.process = None

    def send_from(self, one: Incarnation) -> None:
        exchange = one.side.exchange_due(self.now)
        if exchange is not None:
            self.wire.append(ToThrottle(exchange, one.worker))

    def hand_on(self, message: ToThrottle | ToJob | ToHost) -> None:
        match message:
            case ToThrottle(exchange, worker):
                is_misrouted = self.old_table is not None and exchange.job in self.misrouted
                table = self.old_table if is_misrouted else self.table
                if table is not None:
                    self._hand_over(table, exchange, worker)
            case ToJob(to, reply):
                if to in self.incarnations():
                    event = to.side.receive(reply, self.now)
                    if isinstance(event, IncarnationDoubted):
                        self._check_itself(to)
            case ToHost(body, asked, length):
                if body.state == "running":
                    body.until = max(body.until, (self.now if self.host_fault else asked) + length)

    def _hand_over(self, table: SlotTable, exchange: Exchange, worker: int) -> None:
        job = self.jobs[exchange.job]
        if table is self.table and not table.is_listed(exchange.job, exchange.actor):
            self._poll()
        is_current = exchange.actor == job.actor and worker == job.worker
        self._post(table.receive(exchange, is_current, self.now))

    def _check_itself(self, one: Incarnation) -> None:
        job = self.jobs[one.job]
        if one.side.fence == job.fence and one is job.process:
            one.side.confirm()
        else:
            self._leave(one)

    def _post(self, replies: Replies) -> None:
        for key, reply in replies:
            for one in self.incarnations():
                if (one.job, one.actor, one.side.fence) == (key.job, key.actor, key.fence):
                    self.wire.append(ToJob(one, reply))
