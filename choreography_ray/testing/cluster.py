"""A cluster in one process: jobs, hosts, throttle and store over the real core and engine, in virtual time.

Everything that happens between two processes takes time and may be lost, repeated or late, as the `Wire` says or as it
was asked for. Give it a seed, and it plays the same story each time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from choreography_ray.core.instant import Instant
from choreography_ray.core.slot_messages import Exchange, ExchangeKey
from choreography_ray.core.throttle import SlotTable
from choreography_ray.model import HostId, JobId
from choreography_ray.records import JobDocument, StepKind
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.faults import CALM, Fate, Fault, Wire
from choreography_ray.testing.hosts import SimHost
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.process import Process, context_in

LEASE = 30.0
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
LATE_SECONDS = 5.0
MAX_COPY_SECONDS = 40.0
NOTES = 10_000
"""How much of what happened is remembered."""


class VirtualClock:
    """The loop's virtual time, told on any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def instant(self) -> Instant:
        """See `engine.ports.Clock`."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        return Instant(now, EPOCH + timedelta(seconds=now))

    async def sleep(self, seconds: float) -> None:
        """See `engine.ports.Clock`."""
        await asyncio.sleep(seconds)


@dataclass
class Cluster:
    """One namespace."""

    slots: int = 4
    seed: int = 0
    name: str = "cluster"
    wire: Wire = CALM
    job_faults: list[Fault] = field(default_factory=list[Fault])
    """At writes of all job actors, counted together."""
    host_faults: list[Fault] = field(default_factory=list[Fault])
    message_faults: dict[int, Fate] = field(default_factory=dict[int, Fate])
    """By the number of the message, counted from 0."""
    job_restart: float = 2.0
    failing_hosts: Callable[[StepKind], bool] = lambda _: False
    landing: float = 0.3
    """Share of the writes that are applied while the store does not answer."""
    placement: Callable[[StepKind], float] = lambda _: 0.0
    """Seconds that a new host of this kind waits for its resources."""
    lease: float = LEASE
    has_threads: bool = False
    """User code that is no coroutine runs on threads that take turns with the loop."""

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
        self.messages = 0
        """How many were sent."""
        self.notes: deque[tuple[float, str]] = deque(maxlen=NOTES)
        """What happened, and when."""
        self._overtaken: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    @property
    def margin(self) -> float:
        """What an observer adds to a lease [S10.2]."""
        return self.lease / 10

    def note(self, what: str) -> None:
        """Remember that this happened."""
        self.notes.append((self.now, what))

    def called(self, name: str) -> None:
        """A call has reached the store: for those who look on."""

    # What happens between processes.

    def latency(self, usual: float) -> float:
        """Seconds that something takes on its way."""
        if self.wire.late and self.random.random() < self.wire.late:
            return self.random.random() * LATE_SECONDS
        return usual * (0.5 + self.random.random())

    async def hop(self, what: str = "an answer") -> bool:
        """A message on its way. True: it will arrive again. Raises `ConnectionError` when it is lost."""
        number, self.messages = self.messages, self.messages + 1
        fate = self.message_faults.get(number)
        self.note(f"message {number}: {what}" + (f", {fate}" if fate else ""))
        if fate is Fate.OVERTAKEN:
            await self._let_overtake(number)
        await asyncio.sleep(LATE_SECONDS if fate is Fate.LATE else self.latency(0.0015))
        if number - 1 in self._overtaken:
            self._overtaken.pop(number - 1).set()
        if fate is Fate.LOST or (self.wire.loss and self.random.random() < self.wire.loss):
            raise ConnectionError("lost")
        return fate is Fate.REPEATED or (bool(self.wire.copies) and self.random.random() < self.wire.copies)

    async def _let_overtake(self, number: int) -> None:
        next_one = self._overtaken[number] = asyncio.Event()
        try:
            async with asyncio.timeout(LATE_SECONDS):
                await next_one.wait()
        except TimeoutError:
            self._overtaken.pop(number, None)

    async def later(self) -> None:
        """Until a copy arrives."""
        await asyncio.sleep(self.random.random() ** 2 * MAX_COPY_SECONDS)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Something that belongs to no process: a message on its way, the GCS."""
        task = asyncio.get_running_loop().create_task(work, context=context_in(None))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def is_store_away(self, process: Process) -> bool:
        """Whether the store does not answer this process now."""
        return self.now < max(self.store_away_until, self.without_store.get(process, 0.0))

    # Jobs.

    async def live(self, document: JobDocument, code: LivingCode) -> SimJob | None:
        """Save a record as the client does, and let the job's actor live. None: the id is taken."""
        if not await self.store.insert_job(document):
            return None
        job = self.jobs[document.job_id] = SimJob(self, document.job_id, code)
        job.live()
        return job

    async def document(self, job_id: str = "job") -> JobDocument:
        """The job as stored."""
        document = await self.store.read_job(JobId(job_id))
        assert document is not None
        return document

    def black_out(self) -> None:
        """Head and nodes are gone, and a new cluster knows of no actor; what is stored is all there is."""
        self.note("head and nodes are gone")
        for job in self.jobs.values():
            if not job.is_over:
                job.end_for_good()
        for host in list(self.hosts.values()):
            host.die(is_charged=False)
        self.kill_throttle(0.0)

    # The throttle.

    def throttle(self) -> SlotTable:
        """The throttle, made by whoever needs it first. Raises `ConnectionError` while it is away."""
        now = self.now
        if now < self.throttle_away_until:
            raise ConnectionError("the throttle is away")
        if self.table is None:
            self.boots += 1
            self.table = SlotTable(self.boots, self.slots, self.lease, self.margin, now, is_first=self.boots == 1)
            self.spawn(self._observe(self.table))
        return self.table

    def kill_throttle(self, seconds: float) -> None:
        """It comes back after some seconds, and remembers nothing."""
        self.note("the throttle dies")
        self.table = None
        self.throttle_away_until = self.now + seconds
        parked, self.parked = self.parked, {}
        for waiting in parked.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the throttle died"))

    async def _observe(self, table: SlotTable) -> None:
        while self.table is table:
            self.observe()
            await asyncio.sleep(self.lease / 30)

    def observe(self) -> None:
        """The throttle looks which actors Ray lists."""
        if self.table is not None:
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
            self.observe()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.parked[message.key] = waiting
        self._resolve(table.receive(message, job.process is sender, self.now))
        if not waiting.done() and not table.is_parked(message.key):
            self.parked.pop(message.key, None)
            return None
        return await waiting
