"""Where is the first wall of a very large cluster? `python -m harness.scale` drives the core of very many jobs at once.

The job machines and the slot table are those of production. Around them stands the least that answers: hosts that take
as long as their bodies, a store and messages that take a fixed time and never fail, and a clock that jumps from one
event to the next. So what is measured, CPU and memory of the core, is real, and everything between processes is
counted: writes by kind, exchanges, calls. docs/scale.md multiplies the counts by what each costs.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.instant import Instant
from choreography_ray.core.job_machine import JobMachine
from choreography_ray.core.ledger import Ledger, split
from choreography_ray.core.situation import JobRules
from choreography_ray.core.slot_messages import Exchange
from choreography_ray.core.slots import JobSlots
from choreography_ray.core.throttle import Replies, SlotTable
from choreography_ray.model import HostId, JobId, JobStatus, StepHosting
from choreography_ray.options import JobsOptions
from choreography_ray.records import (
    SEGMENT_STEPS,
    CodeRef,
    Group,
    JobDocument,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    PlanRef,
    StepKind,
)

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
LEASE, MARGIN = 30.0, 3.0
MESSAGE_SECONDS, WRITE_SECONDS, HOOK_SECONDS, ACTOR_SECONDS = 0.001, 0.003, 0.001, 0.5
"""How long things take between processes, in simulated time."""
WRITES = (c.SaveJob, c.SaveLedger, c.ClearJob)


class Cluster:
    """A clock, a throttle, and jobs on it."""

    def __init__(self, slots: int, body_seconds: float) -> None:
        self.now = 1_000.0
        self.random = random.Random(1)
        self.body_seconds = body_seconds
        self.table = SlotTable(1, slots, LEASE, MARGIN, self.now, is_first=True)
        self.jobs: dict[JobId, Job] = {}
        self.counts: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do this so much later."""
        heapq.heappush(self._later, (self.now + seconds, next(self._numbers), do))

    def timed(self, what: str, do: Callable[[], Any]) -> Any:
        """Its value; the CPU that it took is added up."""
        began = time.thread_time_ns()
        value = do()
        self.cpu[what] += time.thread_time_ns() - began
        self.counts[what] += 1
        return value

    def run(self, until: float = float("inf")) -> None:
        """Until nothing is left to do, or the clock says so."""
        self.observe()
        while self._later and self._later[0][0] <= until and self.jobs:
            self.now, _, do = heapq.heappop(self._later)
            do()

    def observe(self) -> None:
        """The throttle looks at Ray's list of actors, as it does each second."""
        listed = dict.fromkeys(self.jobs, "actor")
        self.reply(self.timed("lists seen by the throttle", lambda: self.table.observe(listed, self.now)))
        self.reply(self.timed("ticks of the throttle", lambda: self.table.tick(self.now)))
        self.after(1.0, self.observe)

    def exchange(self, message: Exchange) -> None:
        """A job's statement arrives."""
        self.reply(self.timed("exchanges", lambda: self.table.receive(message, True, self.now)))

    def reply(self, replies: Replies) -> None:
        """Answers go out."""
        for key, reply in replies:
            if (job := self.jobs.get(key.job)) is not None:
                self.after(MESSAGE_SECONDS, lambda job=job, reply=reply: job.post(e.ThrottleReplied(reply)))  # type: ignore[misc]


class Job:
    """One job: its machine, and what answers it."""

    def __init__(self, cluster: Cluster, job_id: JobId, steps: int, hosting: StepHosting, is_told: bool) -> None:
        self._cluster, self._job_id = cluster, job_id
        kinds = (StepKind(0, "app:Step", hosting),)
        segments = tuple(split([0] * steps, 1, SEGMENT_STEPS, 1))
        options = JobsOptions(max_concurrent_step_starts=1_000)
        document = JobDocument(
            job_id, "Job", CodeRef("app", "Job"), None, None, options, EPOCH, EPOCH,
            status=JobStatus.STARTING_STEPS, fence=1, plan=PlanRef(1, len(segments), steps),
        )  # fmt: skip
        rules = JobRules(is_told_of_successes=is_told)
        slots = JobSlots(job_id, "actor", 1, LEASE)
        self._machine = JobMachine(document, Ledger(kinds, segments, SEGMENT_STEPS), slots, rules, self._instant())
        self._events: list[e.Event] = []
        self._is_busy = False
        self._wake = 0
        self._n: Counter[Any] = Counter()
        cluster.jobs[job_id] = self
        self._carry_out(cluster.timed("turns", lambda: self._machine.begin(self._instant())))

    def _instant(self) -> Instant:
        return Instant(self._cluster.now, EPOCH + timedelta(seconds=self._cluster.now))

    def post(self, *events: e.Event) -> None:
        """For the next turn, which begins at once unless one is being carried out."""
        self._events += events
        if not self._is_busy and not self._machine.is_finished:
            self._turn()

    def _turn(self) -> None:
        events, self._events = self._events, []
        self._cluster.counts["events"] += len(events)
        self._carry_out(self._cluster.timed("turns", lambda: self._machine.handle(events, self._instant())))

    def _carry_out(self, commands: list[c.Command]) -> None:
        """Writes one after the other, then what is told and asked."""
        counts, writes = self._cluster.counts, 0
        for command in commands:
            if isinstance(command, WRITES):
                writes += 1
                counts[f"writes: {type(command).__name__}"] += 1
                if isinstance(command, c.SaveLedger):
                    counts["documents: ledger segments"] += len(command.segments)
        self._is_busy = True
        self._cluster.after(WRITE_SECONDS * writes, lambda: self._tell(commands))

    def _tell(self, commands: list[c.Command]) -> None:
        self._is_busy = False
        for command in commands:
            if not isinstance(command, WRITES):
                self._do(command)
        if self._machine.is_finished:
            self._cluster.jobs.pop(self._job_id, None)
            self._cluster.counts["jobs that ended"] += 1
        elif self._events or self._machine.wants_turn:
            self._turn()

    def _do(self, command: c.Command) -> None:
        cluster = self._cluster
        match command:
            case c.SendExchange(message):
                cluster.after(MESSAGE_SECONDS, lambda: cluster.exchange(message))
            case c.TellGroup(group, is_new_host):
                begins = ACTOR_SECONDS if is_new_host else MESSAGE_SECONDS
                if is_new_host:
                    cluster.counts["actors created"] += 1
                    cluster.after(begins, lambda: self.post(e.HostCameUp(group.host)))
                seconds = cluster.body_seconds * len(group.ordinals) * cluster.random.uniform(0.5, 1.5)
                cluster.counts["steps performed"] += len(group.ordinals)
                cluster.counts["groups"] += 1
                cluster.after(begins + seconds / group.width + WRITE_SECONDS, lambda: self._deliver(group, seconds))
            case c.DeleteOutcomes(keys):
                cluster.counts["writes: delete outcomes"] += 1
                cluster.counts["documents: outcomes deleted"] += len(keys)
            case c.RunHooks(ticket, items):
                verdicts = tuple(e.Verdict() for _ in items)
                cluster.after(HOOK_SECONDS, lambda: self.post(e.HooksRan(ticket, verdicts)))
            case c.RunCompletionHook():
                cluster.after(HOOK_SECONDS, lambda: self.post(e.CompletionHookRan()))
            case c.SetTimer(at):
                self._wake += 1
                mine = self._wake
                cluster.after(max(0.0, at - cluster.now), lambda: self._wake == mine and self.post())
            case c.SettleRun(host, run):
                cluster.counts["looks of the watchdog"] += 1
                cluster.after(MESSAGE_SECONDS, lambda: self.post(e.RunSettled(host, run, ())))
            case c.Acknowledge() | c.CreateHost() | c.EndHost() | c.ReportStart():
                pass
            case _:
                raise AssertionError(command)

    def _deliver(self, group: Group, seconds: float) -> None:
        """The host has saved its outcomes, and tells them."""
        self._cluster.counts["writes: insert outcomes"] += 1
        self._cluster.counts["deliveries"] += 1
        pairs = zip(group.ordinals, group.attempts, strict=True)
        outcomes = tuple(Outcome(ordinal, attempt, OutcomeKind.SUCCEEDED) for ordinal, attempt in pairs)
        document = OutcomeDocument(self._job_id, OutcomeKey(HostId(group.host), group.run, 0), outcomes, seconds)
        self.post(e.OutcomesReported(document, next(self._receipts)))

    _receipts = itertools.count()


def memory() -> float:
    """MB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000, help="of each job")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--body", type=float, default=0.001, help="seconds that one takes, give or take half")
    parser.add_argument("--own", action="store_true", help="an actor for each step")
    parser.add_argument("--told", action="store_true", help="the job's code hears of each success")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of simulated time, at most")
    given = parser.parse_args()
    hosting = StepHosting.OWN_ACTOR if given.own else StepHosting.SHARED_ACTORS
    before = memory()
    cluster = Cluster(given.slots, given.body)
    gc.disable()  # of what Python itself does now and then nothing is charged to whoever was at work
    for number in range(given.jobs):
        Job(cluster, JobId(f"job-{number:05}"), given.steps, hosting, given.told)
    made, began, started = memory(), cluster.now, time.thread_time()
    cluster.run(began + given.seconds)
    simulated, cpu = cluster.now - began, time.thread_time() - started
    done = cluster.counts["steps performed"]
    print(f"{given.jobs:,} jobs of {given.steps:,} steps, {given.slots:,} slots, bodies of {given.body:g} s")
    print(f"  {simulated:,.1f} s simulated, {done / simulated:,.0f} steps/s; {cpu:.1f} s of CPU in all")
    print(
        f"  memory: {1024 * (made - before) / given.jobs:,.1f} kB a job when it is made; {memory():,.0f} MB in the end"
    )
    for what, nanoseconds in cluster.cpu.most_common():
        count = cluster.counts[what]
        told = f"{nanoseconds / 1e3 / count:,.1f} µs each, {nanoseconds / 1e3 / done:.2f} µs a step"
        print(f"  {what}: {count:,}; {told}, {100 * nanoseconds / 1e9 / simulated:.1f} % of a core")
    for what, count in sorted(cluster.counts.items()):
        if what not in cluster.cpu:
            print(f"  {what}: {count:,}, {count / simulated:,.1f} a second, {count / done:.4f} a step")


if __name__ == "__main__":
    main()
