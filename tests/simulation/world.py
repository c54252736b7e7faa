"""A cluster in one process: jobs, hosts, throttle and store over the real core and engine, in virtual time.

Everything that happens between two processes takes time and may be lost, repeated or late, as the `Wire` says. Bodies
leave marks here, outside the framework, and the marks are the witness: what must never be is noted in `violations` at
the moment when it is.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from choreography_ray.codec import encode
from choreography_ray.core.instant import Instant
from choreography_ray.core.slot_messages import Exchange, ExchangeKey
from choreography_ray.core.throttle import SlotTable
from choreography_ray.job import Job, effective_options
from choreography_ray.model import HostId, JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument, StepCode, StepKind
from choreography_ray.storage.memory import MemoryStorage
from tests.simulation.actors import SimHost, SimJob
from tests.simulation.faults import Fault
from tests.simulation.process import Process

LEASE = 30.0
MARGIN = 3.0
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class VirtualClock:
    """The loop's virtual time."""

    def instant(self) -> Instant:
        now = asyncio.get_running_loop().time()
        return Instant(now, EPOCH + timedelta(seconds=now))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Wire:
    """What may happen to a message, each as a probability."""

    loss: float = 0.0
    """It never arrives, or its reply does not."""
    copies: float = 0.0
    """It arrives a second time, up to 40 seconds later."""
    late: float = 0.0
    """It takes up to 5 seconds; a store's answer too."""
    stale: float = 0.0
    """A host's call reaches a job actor that was replaced, if one still runs."""


class Body(NamedTuple):
    """Who performs: what a body tells of itself."""

    job: JobId
    key: str
    ordinal: int
    stage: int
    attempt: int


@dataclass
class World:
    """One namespace. Give it faults and a seed; it plays the same story each time."""

    slots: int = 4
    seed: int = 0
    cluster: str = "cluster"
    wire: Wire = Wire()
    job_faults: list[Fault] = field(default_factory=list)
    host_faults: list[Fault] = field(default_factory=list)
    job_restart: float = 2.0
    failing_hosts: Callable[[StepKind], bool] = lambda kind: False
    landing: float = 0.3
    """Share of the writes that are applied while the store does not answer."""
    placement: Callable[[StepKind], float] = lambda kind: 0.0
    """Seconds that a new host of this kind waits for its resources."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.store = MemoryStorage()
        self.clock = VirtualClock()
        self.table: SlotTable | None = None
        self.boots = 0
        self.throttle_away_until = 0.0
        self.store_away_until = 0.0
        self.without_store: dict[Process, float] = {}
        self.parked: dict[ExchangeKey, asyncio.Future[Any]] = {}
        self.jobs: dict[JobId, SimJob] = {}
        self.hosts: dict[tuple[JobId, HostId], SimHost] = {}
        self.job_writes, self.host_writes = [0], [0]
        self.job_kills = self.host_kills = 0
        self.marks: list[tuple[float, str, Body]] = []
        self.violations: list[str] = []
        self.running: Counter[tuple[JobId, int]] = Counter()
        self.peak = 0
        self.neighbours: list[World] = []
        """Other clusters on this one's store, of which `Work.world` knows: their bodies leave their marks there."""
        self.checkpoints: dict[tuple[JobId, int], int] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.open_step_stops = 0
        """Who stops a step and has no answer yet."""
        self.stopped_steps: dict[tuple[JobId, int], datetime] = {}
        """Steps of which somebody was told that they are stopped, and when that was asked for."""
        self.requests = 0
        """How often somebody stopped, drained or resumed a job."""
        self.held_soon = 0
        """Slots that the throttle counts a second after the last job has ended."""

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    # What happens between processes.

    def latency(self, usual: float) -> float:
        """Seconds that something takes on its way."""
        if self.wire.late and self.random.random() < self.wire.late:
            return self.random.random() * 5.0
        return usual * (0.5 + self.random.random())

    async def hop(self) -> None:
        """A message on its way."""
        await asyncio.sleep(self.latency(0.0015))
        if self.wire.loss and self.random.random() < self.wire.loss:
            raise ConnectionError("lost")

    def is_copied(self) -> bool:
        """Whether this message will arrive again."""
        return bool(self.wire.copies) and self.random.random() < self.wire.copies

    async def later(self) -> None:
        """Until a copy arrives."""
        await asyncio.sleep(self.random.random() ** 2 * 40.0)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Something that belongs to no process: a message on its way, the GCS."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def is_store_away(self, process: Process) -> bool:
        """Whether the store does not answer this process now."""
        return self.now < max(self.store_away_until, self.without_store.get(process, 0.0))

    # The witness.

    def begin(self, body: Body) -> None:
        """A body begins."""
        self.marks.append((self.now, "begin", body))
        step = (body.job, body.ordinal)
        self.running[step] += 1
        running = self.running.total()
        self.peak = max(self.peak, running)
        slots = sum(world.slots for world in (self, *self.neighbours))
        self._demand(running <= slots, f"{running} bodies at once")
        self._demand(self.running[step] <= 1, f"two bodies of {body} at once")
        window = self.jobs[body.job].window
        of_job = sum(n for (job, _), n in self.running.items() if job == body.job)
        self._demand(window is None or of_job <= max(1, window), f"{of_job} bodies of {body.job} in its window")
        self._demand(not self._is_stopped(step), f"{body} begins although somebody was told that it is stopped")
        codes = self.codes(body.job)
        self._demand(codes[body.ordinal] == StepCode.SCHEDULED, f"{body} began without its durable SCHEDULED")
        stages = self.jobs[body.job].stages
        early = [o for o, s in enumerate(stages) if s < body.stage and not StepCode(codes[o]).status.is_final]
        self._demand(not early, f"{body} began before {early} of earlier stages had ended")

    def _is_stopped(self, step: tuple[JobId, int]) -> bool:
        """Whether somebody was told that the step is stopped, and the job has not been resumed since that was asked."""
        asked = self.stopped_steps.get(step)
        history = self.store._documents[step[0]].history
        return asked is not None and not any(entry.why == "resumed" and entry.at >= asked for entry in history)

    def end(self, body: Body) -> None:
        """A body ends, for whatever reason."""
        self.marks.append((self.now, "end", body))
        self.running[body.job, body.ordinal] -= 1

    def resumed(self, body: Body, position: int) -> None:
        """A body says where it begins: never before what it was told to be durable."""
        durable = self.checkpoints.get((body.job, body.ordinal), 0)
        self._demand(position >= durable, f"{body} begins at {position}, {durable} was durable")

    def reached(self, body: Body, position: int) -> None:
        """A body was told that its checkpoint is durable."""
        step = (body.job, body.ordinal)
        self.checkpoints[step] = max(position, self.checkpoints.get(step, 0))

    def _demand(self, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(f"{self.now:.3f}: {what}")

    def codes(self, job_id: JobId) -> bytes:
        """The ledger as stored."""
        document = self.store._documents.get(job_id)
        if document is None or document.plan is None:
            return b""
        segments = sorted(self.store._job(job_id).ledger.items())
        return b"".join(segment.codes for (plan, _), segment in segments if plan == document.plan.fence)

    # Starting and waiting.

    async def start(
        self, job_class: type[Job[Any, Any]], request: Any, *, options: JobsOptions | None = None, job_id: str = "job"
    ) -> SimJob:
        """Save the record as the client does, and let the job's actor live."""
        chosen = effective_options(job_class, options or JobsOptions())
        at = self.clock.instant().at
        document = JobDocument(
            JobId(job_id),
            job_class.__qualname__,
            CodeRef(job_class.__module__, job_class.__qualname__),
            encode(request),
            encode(job_class.state_type()),
            chosen,
            at,
            at,
            keep_results=job_class.keep_results,
            is_background=job_class.start_steps_in_background,
        )
        assert await self.store.insert_job(document)
        stages = [piece.stage for piece in request.pieces]
        job = SimJob(self, document.job_id, job_class, stages, chosen.max_active_steps_per_job)
        job.step_ids = tuple(StepId(piece.key) for piece in request.pieces)
        self.jobs[document.job_id] = job
        job.live()
        return job

    async def document(self, job_id: str = "job") -> JobDocument:
        """The job as stored."""
        document = await self.store.read_job(JobId(job_id))
        assert document is not None
        return document

    def is_woken(self, job_id: str) -> bool:
        """Whether a process of the job's actor may wake up, or woke, beside another."""
        jobs = [world.jobs.get(JobId(job_id)) for world in (self, *self.neighbours)]
        return any(job is not None and job.zombies for job in jobs)

    async def settle(self) -> None:
        """All jobs have ended: until nothing that was on its way can matter any more."""
        for job in self.jobs.values():
            for process in job.zombies:
                process.heal()
        await self._observe_for(1)
        self.held_soon = 0 if self.table is None else self.table.held
        await self._observe_for(40)
        for job in self.jobs.values():
            for process in job.zombies:
                process.kill()
        await self._observe_for(40)

    async def _observe_for(self, seconds: int) -> None:
        for _ in range(seconds):
            if self.table is not None:
                self._listed()
            await asyncio.sleep(1.0)

    # The throttle.

    def throttle(self) -> SlotTable:
        """The throttle, made by whoever needs it first. Raises `ConnectionError` while it is away."""
        now = self.now
        if now < self.throttle_away_until:
            raise ConnectionError("the throttle is away")
        if self.table is None:
            self.boots += 1
            self.table = SlotTable(self.boots, self.slots, LEASE, MARGIN, now, is_first=self.boots == 1)
            self.spawn(self._observe(self.table))
        return self.table

    def black_out(self) -> None:
        """Head and nodes are gone, and a new cluster knows of no actor; what is stored is all there is."""
        for job in self.jobs.values():
            if not job.is_over:
                job.end_for_good()
        for host in list(self.hosts.values()):
            host.die(is_charged=False)
        self.kill_throttle(0.0)

    def kill_throttle(self, seconds: float) -> None:
        """It comes back after some seconds, and remembers nothing."""
        self.table = None
        self.throttle_away_until = self.now + seconds
        parked, self.parked = self.parked, {}
        for waiting in parked.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the throttle died"))

    async def _observe(self, table: SlotTable) -> None:
        while self.table is table:
            self._listed()
            await asyncio.sleep(1.0)

    def _listed(self) -> None:
        assert self.table is not None
        listed = {job_id: job.actor for job_id, job in self.jobs.items() if not job.is_over}
        self._resolve(self.table.observe(listed, self.now))
        self._resolve(self.table.tick(self.now))

    def _resolve(self, replies: Any) -> None:
        for key, reply in replies:
            waiting = self.parked.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)

    async def exchange(self, message: Exchange, sender: Process) -> Any:
        """One exchange as the throttle's actor takes it. None: dropped as a copy or as out of date."""
        table = self.throttle()
        job = self.jobs[message.job]
        if message.key in self.parked:
            return None
        if not table.is_listed(message.job, message.actor):
            self._listed()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.parked[message.key] = waiting
        self._resolve(table.receive(message, job.process is sender, self.now))
        if not waiting.done() and not table.is_parked(message.key):
            self.parked.pop(message.key, None)
            return None
        return await waiting
