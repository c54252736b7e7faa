"""Do the two sides of the throttle keep their promises, whatever is lost, late, doubled, cut off, crashed or ended?

A `World` holds the truth: bodies with their leases, what Ray lists, each job's ledger and fence, and the wire. Each of
its moves does one thing that can happen. Random walks and Hypothesis choose moves; after each one the bodies that
really run are counted, and every walk ends with quiet, in which all slots must be there and be shared out fairly.
The last test plants faults in the code under test and demands that the same walks find every one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from choreography_ray.core.slot_messages import Exchange, FencedReply, Granted, Held, Reply, Restate
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
    born_at: float
    slots: JobSlots | None = None
    confirmed_until: float = inf
    runs: int = 0


@dataclass(eq=False)
class Job:
    """What lasts: the fence and the ledger at the store, the actor at Ray; and the processes that there are."""

    fence: int = 0
    ledger: dict[Run, Body] = field(default_factory=dict)
    actor: str | None = None
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
        self._new_throttle()

    # Truth and its invariant

    def incarnations(self) -> list[Incarnation]:
        """Every process that has read its ledger, the current ones and those cut off."""
        found: list[Incarnation] = []
        for job in self.jobs.values():
            found += [one for one in (job.process, *job.zombies) if one is not None and one.slots is not None]
        return found

    def check(self) -> None:
        """Never more bodies than the bound; a lowered maximum binds as soon as so few can be running at most."""
        running = sum(body.width for body in self.bodies if body.state == "running")
        assert running <= self.bound, f"{running} bodies run, {self.bound} may"
        possible = sum(body.width for body in self.bodies if body.state != "over")
        possible += sum(one.slots.unused for one in self.incarnations() if one.slots)
        possible += sum(it.reply.k for it in self.wire if isinstance(it, ToJob) and isinstance(it.reply, Granted))
        # A cut-off throttle that never heard of a lower maximum may be listened to until its successor grants.
        is_alone = self.old_table is None or (self.table is not None and self.table.is_granting)
        if is_alone:
            self.bound = max(self.maximum, min(self.bound, possible))

    # Moves of the jobs and their bodies

    def want(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            _slots(one).want(3 - pick(4))

    def send(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            self._send(one)

    def assign(self, pick: Pick) -> None:
        one = self._any([one for one in self.incarnations() if _slots(one).unused], pick)
        if one is not None:
            self._assign(one, 1 + pick(min(2, _slots(one).unused)))

    def begin(self, pick: Pick) -> None:
        """A host got its first lease, from the incarnation that made it, and its assignment."""
        waiting = [body for body in self.bodies if body.state == "assigned" and self._can_confirm(body.maker)]
        if body := self._any(waiting, pick):
            self._begin(body)

    def renew(self, pick: Pick) -> None:
        """A host asks whom it can reach; the reply is on its way."""
        if body := self._any([body for body in self.bodies if body.state == "running"], pick):
            job = self.jobs[body.job]
            answering = [one for one in (job.process, *job.zombies) if one is not None and self._can_confirm(one)]
            if one := self._any(answering, pick):
                self._renew(body, one)

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
        _slots(one).want(3 - pick(3))
        for _ in range(2):
            older = len(self.wire)
            self._send(one)
            while len(self.wire) > older:
                self._deliver(self.wire.pop(older))
        if one in self.incarnations() and _slots(one).unused:
            body = self._assign(one, _slots(one).unused)
            if self._can_confirm(one):
                self._begin(body)

    def give_back(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            _slots(one).give_back()

    # Moves of the wire

    def deliver(self, pick: Pick) -> None:
        """Any message, in any order, perhaps a copy of it while the message itself is still on its way."""
        if message := self._any(self.wire, pick):
            if pick(4):
                self.wire.remove(message)
            self._deliver(message)

    def misroute(self, pick: Pick) -> None:
        """A job's calls reach the throttle that was cut off, or no longer do."""
        self.misrouted ^= {list(self.jobs)[pick(len(self.jobs))]}

    def deliver_first(self, pick: Pick) -> None:
        if self.wire:
            self._deliver(self.wire.pop(0))

    def lose(self, pick: Pick) -> None:
        if message := self._any(self.wire, pick):
            self.wire.remove(message)

    def fail_call(self, pick: Pick) -> None:
        if one := self._any(self.incarnations(), pick):
            _slots(one).failed(_slots(one).n, self.now)

    # Moves of Ray and of time

    def start_job(self, pick: Pick) -> None:
        """A new actor for a job that has none, or the process of one that Ray restarts: it renews, and knows nothing."""
        waiting = [name for name, job in self.jobs.items() if job.process is None]
        if waiting:
            self._start(waiting[pick(len(waiting))])

    def restore_job(self, pick: Pick) -> None:
        """It raises its fence and reads its ledger."""
        booted = [job.process for job in self.jobs.values() if job.process is not None and job.process.slots is None]
        if one := self._any(booted, pick):
            self._restore(one)

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
        """The actor is ended for good after a lease of silence, fence first; its process may not know."""
        name = self._any(list(self.jobs), pick)
        job = self.jobs[name] if name else None
        if job is None or job.actor is None or (job.process and self.now < job.process.born_at + LEASE):
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
            self._new_throttle()

    def change_maximum(self, pick: Pick) -> None:
        self.maximum = 1 + pick(4)
        self.bound = max(self.bound, self.maximum)
        if self.table is not None:
            self._post(self.table.set_maximum(self.maximum, self.now))

    def pass_a_moment(self, pick: Pick) -> None:
        self._pass(0.1 + pick(10) / 5)

    def pass_a_while(self, pick: Pick) -> None:
        """Mostly the hosts that reach an incarnation are renewed meanwhile."""
        self._pass(5.0 + pick(12) * 3, is_renewed=bool(pick(4)))

    def stall_throttle(self, pick: Pick) -> None:
        """Time goes by, and the throttle sees nothing of it."""
        self._pass(1.0 + pick(12) * 4, is_polled=False, is_renewed=bool(pick(2)))

    # Quiet: the faults are over, what must then be true

    def settle(self) -> None:
        """After enough quiet no slot is missing; each job can have all of them, and those that want get their share."""
        self.old_table = None
        self.wire.clear()
        for name, job in self.jobs.items():
            job.zombies.clear()
            if job.process is None:
                self._start(name)
            if job.process is not None and job.process.slots is None:
                self._restore(job.process)
        if self.table is None:
            self._new_throttle()
        for one in self.incarnations():
            _slots(one).want(0)
        self._live(3 * (LEASE + MARGIN))
        self._check_nothing_lost()
        self._check_fairness()

    def _check_nothing_lost(self) -> None:
        assert self.table is not None
        assert self.table.is_granting, "the throttle never grants again"
        assert self.table.held == 0, f"{self.table.held} slots are lost: nobody holds any"
        for one in self.incarnations():
            slots = _slots(one)
            slots.want(self.maximum)
            self._talk(1.0)
            assert slots.unused == self.maximum, f"{slots.unused} of {self.maximum} slots can be had"
            slots.give_back()
            slots.want(0)
            self._talk(1.0)

    def _check_fairness(self) -> None:
        self.begun = dict.fromkeys(self.jobs, 0)
        self._live(40.0, want=self.maximum)
        least, most = min(self.begun.values()), max(self.begun.values())
        assert least > 0 and most <= 2 * least + self.maximum, f"unfair: {self.begun}"

    def _live(self, seconds: float, want: int = 0) -> None:
        """Every job works as it should: it begins what it may, its bodies end after a second, and it reports."""
        end = self.now + seconds
        while self.now < end:
            for one in self.incarnations():
                if want:
                    _slots(one).want(want)
                else:
                    _slots(one).give_back()
                while _slots(one).unused:
                    self._begin(self._assign(one, 1))
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
                self._send(one)
            for message in self.wire[:]:
                self.wire.remove(message)
                self._deliver(message)
            self._pass(0.1)
            self.check()

    # How it works

    def _any(self, things: list[Any], pick: Pick) -> Any:
        return things[pick(len(things))] if things else None

    def _any_process(self, pick: Pick) -> Incarnation | None:
        return self._any([job.process for job in self.jobs.values() if job.process is not None], pick)

    def _new_throttle(self) -> None:
        self.boots += 1
        self.table = self.table_type(self.boots, self.maximum, LEASE, MARGIN, self.now, is_first=self.boots == 1)
        self._poll()

    def _poll(self) -> None:
        if self.table is not None:
            listed = {name: job.actor for name, job in self.jobs.items() if job.actor is not None}
            self._post(self.table.observe(listed, self.now))

    def _pass(self, seconds: float, is_polled: bool = True, is_renewed: bool = False) -> None:
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

    def _can_confirm(self, one: Incarnation) -> bool:
        job = self.jobs[one.job]
        return one is job.process or (one in job.zombies and self.now < one.confirmed_until)

    def _raise_fence(self, job: Job) -> None:
        job.fence += 1
        for zombie in job.zombies:
            zombie.confirmed_until = min(zombie.confirmed_until, self.now + LEASE)

    def _start(self, name: JobId) -> None:
        job = self.jobs[name]
        if job.actor is None:
            self.actors += 1
            job.actor = f"actor-{self.actors}"
        job.worker += 1
        job.process = Incarnation(name, job.actor, job.worker, self.now)
        for body in job.ledger.values():
            if body.state == "running":
                self._renew(body, job.process)

    def _restore(self, one: Incarnation) -> None:
        job = self.jobs[one.job]
        self._raise_fence(job)
        one.slots = self.slots_type(one.job, one.actor, job.fence, LEASE)
        one.slots.restore([body.held for body in job.ledger.values()])

    def _renew(self, body: Body, one: Incarnation) -> None:
        self.wire.append(ToHost(body, self.now, min(LEASE, one.confirmed_until - self.now)))

    def _assign(self, one: Incarnation, width: int) -> Body:
        """Take the slots and write the ledger; one that is fenced learns it by that write, and is no more."""
        slots, job = _slots(one), self.jobs[one.job]
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

    def _begin(self, body: Body) -> None:
        body.state = "running"
        body.until = self.now + min(LEASE, body.maker.confirmed_until - self.now)

    def _is_or_gets_over(self, body: Body, one: Incarnation) -> bool:
        return body.state == "over" or (body.state == "assigned" and one is self.jobs[one.job].process)

    def _report(self, one: Incarnation, body: Body) -> None:
        slots, job = _slots(one), self.jobs[one.job]
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

    def _send(self, one: Incarnation) -> None:
        exchange = _slots(one).exchange_due(self.now)
        if exchange is not None:
            self.wire.append(ToThrottle(exchange, one.worker))

    def _deliver(self, message: ToThrottle | ToJob | ToHost) -> None:
        match message:
            case ToThrottle(exchange, worker):
                is_misrouted = self.old_table is not None and exchange.job in self.misrouted
                table = self.old_table if is_misrouted else self.table
                if table is not None:
                    self._hand_over(table, exchange, worker)
            case ToJob(to, reply):
                if to in self.incarnations():
                    event = _slots(to).receive(reply, self.now)
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
        if _slots(one).fence == job.fence and one is job.process:
            _slots(one).confirm()
        else:
            self._leave(one)

    def _post(self, replies: Replies) -> None:
        for key, reply in replies:
            for one in self.incarnations():
                if (one.job, one.actor, _slots(one).fence) == (key.job, key.actor, key.fence):
                    self.wire.append(ToJob(one, reply))


def _slots(one: Incarnation) -> JobSlots:
    assert one.slots is not None
    return one.slots


WORK: dict[str, int] = {
    "work": 16, "want": 6, "send": 10, "assign": 6, "begin": 10, "renew": 8, "end_body": 2, "report": 6,
    "deliver": 6, "deliver_first": 4, "start_job": 10, "restore_job": 4, "restart_throttle": 6, "pass_a_moment": 5,
}  # fmt: skip
FAULTY: dict[str, int] = {
    "give_back": 1, "lose": 1, "fail_call": 1, "crash_job": 1, "cut_off_job": 1, "end_job": 2, "crash_throttle": 1,
    "misroute": 1, "change_maximum": 1, "pass_a_while": 3, "stall_throttle": 1,
}  # fmt: skip
MOVES = WORK | FAULTY


def walk(seed: int, moves: int = 250, **parts: Any) -> World:
    """One random walk, checked after each move and settled at its end; the seed repeats it."""
    chance = random.Random(seed)
    world = World(**parts)
    # Each walk has a mood of its own: a fault that is rare in one is common in another.
    weights = [weight * chance.choice((0.2, 1.0, 1.0)) for weight in WORK.values()]
    weights += [weight * chance.choice((0.0, 1.0, 2.0, 8.0)) for weight in FAULTY.values()]
    for move in chance.choices(list(MOVES), weights, k=moves):
        getattr(world, move)(chance.randrange)
        world.check()
    world.settle()
    return world


def test_random_walks_never_exceed_the_bound_nor_lose_a_slot() -> None:
    """Some hundred walks of 250 moves, each settled at its end."""
    begun = sum(sum(walk(seed).begun.values()) for seed in range(250))
    assert begun > 10_000, "the walks did next to nothing"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_more_random_walks() -> None:
    """The same for minutes, with longer walks."""
    for seed in range(1_000_000, 1_006_000):
        walk(seed, moves=400)


class ThrottleMachine(RuleBasedStateMachine):
    """Hypothesis chooses the moves, and makes what it finds small."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(move=st.sampled_from([name for name, weight in MOVES.items() for _ in range(weight)]), data=st.data())
    def move(self, move: str, data: st.DataObject) -> None:
        getattr(self.world, move)(lambda bound: data.draw(st.integers(0, bound - 1)))

    @invariant()
    def never_more_bodies_than_the_bound(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.settle()


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_hypothesis_finds_no_counterexample() -> None:
    """A bounded search; the long one below goes on from there."""
    run_state_machine_as_test(
        ThrottleMachine,
        settings=settings(max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=CHECKS),
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_hypothesis_finds_no_counterexample_in_a_long_search() -> None:
    """The same search with more and longer examples."""
    run_state_machine_as_test(
        ThrottleMachine,
        settings=settings(max_examples=1500, stateful_step_count=150, deadline=None, suppress_health_check=CHECKS),
    )


class NoOrderTable(SlotTable):
    """Takes every exchange for a new one, however old."""

    def _is_out_of_date(self, account: Any, exchange: Exchange) -> bool:
        return False


class NoOrderSlots(JobSlots):
    """Counts a grant whenever a copy of it comes in."""

    def _is_answer(self, reply: Granted) -> bool:
        return reply.boot == self.boot


class ReusingSlots(JobSlots):
    """Keeps a slot that falls free for its own next step."""

    def release(self, host: HostId, run: Run) -> bool:
        self.unused += self._held.get((host, run), 0) if self.wanted else 0
        return super().release(host, run)


class LeakyTable(SlotTable):
    """Believes its own grants more than what the job says that it holds."""

    def _note(self, account: Any, exchange: Exchange, now: float) -> None:
        granted = account.count
        super()._note(account, exchange, now)
        account.count = max(granted, account.count) if exchange.wanted else account.count


class HastyTable(SlotTable):
    """Grants again after a rebuild before everybody has restated."""

    def _is_rebuilt(self) -> bool:
        return True


class ImpatientTable(SlotTable):
    """Waits for those that are listed, but not for hosts of jobs that are gone."""

    def _is_rebuilt(self) -> bool:
        return all(account.has_restated for account in self._accounts.values())


class ForgetfulTable(SlotTable):
    """Frees the slots of a job when it leaves the list, not when its hosts can no longer live."""

    def _is_silenced_since(self, left_at: float) -> bool:
        return True


class BootlessTable(SlotTable):
    """Takes a statement that was made to its predecessor."""

    def receive(self, exchange: Exchange, is_current: bool, now: float) -> Replies:
        addressed = {name: getattr(exchange, name) for name in Exchange.__dataclass_fields__} | {"boot": self.boot}
        return super().receive(Exchange(**addressed), is_current, now)


class CredulousTable(SlotTable):
    """Lets an old incarnation be the first to speak for its job after a rebuild."""

    def _may_speak(self, account: Any, exchange: Exchange, is_current: bool) -> bool:
        return super()._may_speak(account, exchange, True)


class TurncoatSlots(JobSlots):
    """Follows a Restate of whichever throttle spoke last, also of an older one."""

    def receive(self, reply: Reply, now: float) -> Any:
        if isinstance(reply, Restate):
            self.boot = 0
        return super().receive(reply, now)


FAULTS: dict[str, dict[str, Any]] = {
    "the throttle does not look at n": {"table": NoOrderTable},
    "the job does not look at n": {"slots": NoOrderSlots},
    "the job reuses a slot": {"slots": ReusingSlots},
    "what the job holds does not replace what was granted": {"table": LeakyTable},
    "granting before all have restated": {"table": HastyTable},
    "granting before hosts of lost jobs are over": {"table": ImpatientTable},
    "freeing slots as soon as a job has left": {"table": ForgetfulTable},
    "a host counts its lease from the reply": {"host_fault": True},
    "a statement to the predecessor counts": {"table": BootlessTable},
    "an old incarnation restates": {"table": CredulousTable},
    "the job goes back to an older boot": {"slots": TurncoatSlots},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """The walks are worth something only if they fail when a rule is left out."""
    for seed in range(2000):
        try:
            walk(seed, **FAULTS[fault])
        except AssertionError:
            return
    pytest.fail(f"no walk noticed: {fault}")
