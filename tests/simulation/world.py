"""A cluster in one process: jobs, hosts, throttle and store over the real core and engine, in virtual time.

Everything that happens between two of them goes through `hop`, which takes time and may lose a message. Bodies leave
marks here, outside the framework, and the marks are the witness.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from choreography_ray.codec import encode
from choreography_ray.core import events as e
from choreography_ray.core.instant import Instant
from choreography_ray.core.slot_messages import Exchange, ExchangeKey
from choreography_ray.core.throttle import SlotTable
from choreography_ray.engine.host_engine import HostEngine
from choreography_ray.engine.incarnation import Incarnation
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.ports import Lease, StepWork, Whereabouts, Work
from choreography_ray.job import Job, effective_options
from choreography_ray.model import HostId, JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, Failure, Group, JobDocument, OutcomeDocument, Run, StepKind
from choreography_ray.storage.memory import MemoryStorage
from tests.simulation.faults import Fault, StoreClient

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


class InlineUser:
    """User code runs where it is called."""

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        async with asyncio.timeout(timeout):
            value = function(*args)
            return await value if inspect.isawaitable(value) else value

    async def pull(self, iterator: Any, most: int) -> list[Any]:
        taken: list[Any] = []
        if hasattr(iterator, "__anext__"):
            while len(taken) < most:
                try:
                    taken.append(await anext(iterator))
                except StopAsyncIteration:
                    break
            return taken
        for item in iterator:
            taken.append(item)
            if len(taken) == most:
                break
        return taken


class InlineRunner:
    """Bodies run on the virtual loop, `width` at a time."""

    async def run_blocking(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], None]) -> None:
        for step in steps:
            await asyncio.sleep(0.001)
            perform(step)

    async def run_async(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], Any]) -> None:
        left = iter(steps)

        async def lane() -> None:
            for step in left:
                await perform(step)

        await asyncio.gather(*(lane() for _ in range(width)))


@dataclass
class _Code:
    job_class: type[Job[Any, Any]]
    types: dict[str, type]

    def resolve(self, name: str) -> type:
        return self.types[name]


@dataclass
class _SimHost:
    engine: HostEngine
    task: asyncio.Task[None]
    killer: asyncio.TimerHandle | None = None


@dataclass
class World:
    """One namespace. Give it faults and a seed; it plays the same story each time."""

    slots: int = 4
    seed: int = 0
    loss: float = 0.0
    job_faults: list[Fault] = field(default_factory=list)
    host_faults: list[Fault] = field(default_factory=list)
    job_restart: float = 2.0
    marks: list[tuple[float, str, Any]] = field(default_factory=list)
    failing_hosts: Callable[[StepKind], bool] = lambda kind: False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.store = MemoryStorage()
        self.clock = VirtualClock()
        self.table: SlotTable | None = None
        self.parked: dict[ExchangeKey, asyncio.Future[Any]] = {}
        self.jobs: dict[JobId, _SimJob] = {}
        self.hosts: dict[tuple[JobId, HostId], _SimHost] = {}
        self.job_writes, self.host_writes = [0], [0]
        self.job_kills = self.host_kills = 0
        self.running = 0
        self.peak = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    # What happens between processes.

    async def hop(self) -> None:
        """A message on its way."""
        await asyncio.sleep(0.0005 + self.random.random() * 0.002)
        if self.loss and self.random.random() < self.loss:
            raise ConnectionError("lost")

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def mark(self, what: str, about: Any = None) -> None:
        """What a body leaves as its witness."""
        self.marks.append((asyncio.get_running_loop().time(), what, about))

    def begin(self, key: Any) -> None:
        """A body begins."""
        self.mark("begin", key)
        self.running += 1
        self.peak = max(self.peak, self.running)

    def end(self, key: Any) -> None:
        """A body ends, for whatever reason."""
        self.mark("end", key)
        self.running -= 1

    # Starting and waiting.

    async def start(
        self, job_class: type[Job[Any, Any]], request: Any, *, options: JobsOptions | None = None, job_id: str = "job"
    ) -> _SimJob:
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
        job = _SimJob(self, document.job_id, job_class)
        self.jobs[document.job_id] = job
        job.live()
        return job

    async def document(self, job_id: str = "job") -> JobDocument:
        document = await self.store.read_job(JobId(job_id))
        assert document is not None
        return document

    def end_host(self, key: tuple[JobId, HostId]) -> bool:
        """End a host's process, with everything that runs in it. False: there is none."""
        host = self.hosts.pop(key, None)
        if host is None:
            return False
        if host.killer is not None:
            host.killer.cancel()
        loop = asyncio.get_running_loop()
        for task in (host.task, *host.engine.tasks):
            loop.call_soon(task.cancel)
        return True

    # The throttle.

    def throttle(self) -> SlotTable:
        now = self.clock.instant().now
        if self.table is None:
            self.table = SlotTable(1, self.slots, LEASE, MARGIN, now, is_first=True)
            self.spawn(self._observe())
        return self.table

    async def _observe(self) -> None:
        while any(not job.is_over for job in self.jobs.values()):
            self._listed()
            await asyncio.sleep(1.0)

    def _listed(self) -> None:
        assert self.table is not None
        listed = {job_id: job.actor for job_id, job in self.jobs.items() if not job.is_over}
        now = self.clock.instant().now
        self._resolve(self.table.observe(listed, now))
        self._resolve(self.table.tick(now))

    def _resolve(self, replies: Any) -> None:
        for key, reply in replies:
            waiting = self.parked.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)

    async def exchange(self, message: Exchange) -> Any:
        table = self.throttle()
        if not table.is_listed(message.job, message.actor):
            self._listed()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.parked[message.key] = waiting
        self._resolve(table.receive(message, True, self.clock.instant().now))
        return await waiting


class _SimJob:
    """The detached actor of a job: restarts after a crash, as Ray would do it."""

    def __init__(self, world: World, job_id: JobId, job_class: type[Job[Any, Any]]) -> None:
        self.world = world
        self.job_id = job_id
        self.code = _Code(job_class, _types(job_class))
        self.actor = f"actor-{job_id}"
        self.current: Incarnation | None = None
        self.task: asyncio.Task[Any] | None = None
        self.is_over = False
        self.ended: asyncio.Future[JobStatus] = asyncio.get_running_loop().create_future()
        self.started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.incarnations = 0

    async def load(self, ref: CodeRef) -> _Code:
        return self.code

    def live(self) -> None:
        """Begin an incarnation."""
        world = self.world
        self.incarnations += 1
        client: Any = StoreClient(world.store, self.die, world.job_faults, world.job_writes)
        incarnation = Incarnation(
            self.job_id, self.actor, client, self.load, InlineUser(), world.clock, self._ports, LEASE
        )
        self.current = incarnation
        self.task = world.spawn(self._run(incarnation))

    async def _run(self, incarnation: Incarnation) -> None:
        def answer(done: asyncio.Future[Any]) -> None:
            if incarnation is self.current and not self.started.done() and not done.cancelled():
                self.started.set_result(done.result())

        incarnation.started.add_done_callback(answer)
        try:
            status = await incarnation.run()
        except Exception as error:
            self.is_over = True
            if not self.ended.done():
                self.ended.set_exception(error)
            raise
        self.is_over = True
        if not self.ended.done():
            self.ended.set_result(status)

    def die(self) -> None:
        """kill -9; Ray brings it back a little later."""
        world = self.world
        if self.task is None or self.is_over:
            return
        world.job_kills += 1
        task, self.task = self.task, None
        self.current = None
        asyncio.get_running_loop().call_soon(task.cancel)
        asyncio.get_running_loop().call_later(world.job_restart, self.live)

    def _ports(self, engine: JobEngine) -> tuple[Any, Any]:
        return _SimHosts(self, engine), _SimThrottle(self, engine)


class _SimThrottle:
    def __init__(self, job: _SimJob, engine: JobEngine) -> None:
        self.job, self.engine = job, engine

    def send(self, message: Exchange) -> None:
        self.job.world.spawn(self._exchange(message))

    async def _exchange(self, message: Exchange) -> None:
        world = self.job.world
        try:
            await world.hop()
            reply = await world.exchange(message)
            await world.hop()
        except ConnectionError:
            self.engine.post(e.ExchangeFailed(message.n))
        else:
            self.engine.post(e.ThrottleReplied(reply))


class _SimHosts:
    """The hosts of one incarnation's job, as its adapter would drive Ray."""

    def __init__(self, job: _SimJob, engine: JobEngine) -> None:
        self.job, self.world, self.engine = job, job.world, engine

    def _key(self, host: HostId) -> tuple[JobId, HostId]:
        return self.job.job_id, host

    def create(self, host: HostId, kind: StepKind) -> None:
        self.world.spawn(self._create(host, kind))

    async def _create(self, host: HostId, kind: StepKind) -> None:
        world = self.world
        await asyncio.sleep(0.3 + world.random.random() * 0.2)
        if world.failing_hosts(kind):
            self.engine.post(e.HostFailedToStart(host, Failure("RuntimeError", "the constructor failed")))
            return
        process = _SimProcess(self.job, host)
        client: Any = StoreClient(world.store, process.die, world.host_faults, world.host_writes)
        engine = HostEngine(
            self.job.job_id, host, client, self.job.load, _SimJobPort(self.job), InlineRunner(), InlineUser(),
            world.clock, process,
        )  # fmt: skip
        world.hosts[self._key(host)] = _SimHost(engine, world.spawn(engine.run()))

    def tell(self, work: Work) -> None:
        self.world.spawn(self._tell(work))

    async def _tell(self, work: Work) -> None:
        while (host := self.world.hosts.get(self._key(work.host))) is not None:
            try:
                await self.world.hop()
                host.engine.accept(work)
                await self.world.hop()
            except ConnectionError:
                continue
            return

    def end(self, host: HostId) -> None:
        self.world.end_host(self._key(host))

    def inspect(self, groups: Sequence[Group]) -> None:
        self.world.spawn(self._inspect(groups))

    async def _inspect(self, groups: Sequence[Group]) -> None:
        for group in groups:
            host = self.world.hosts.get(self._key(group.host))
            if host is not None and host.engine.has_begun(group.run, self.engine.machine.document.fence):
                self.engine.post(e.HostCameUp(group.host))
                continue
            self.world.end_host(self._key(group.host))
            await asyncio.sleep(1.0)
            # It may have been on its way into life when it was ended.
            self.world.end_host(self._key(group.host))
            self.engine.post(e.HostDied(group.host, is_charged=False, failure=Failure("HostGone", "it was gone")))


class _SimJobPort:
    def __init__(self, job: _SimJob) -> None:
        self.job = job

    async def _incarnation(self) -> Incarnation:
        await self.job.world.hop()
        if self.job.current is None:
            raise ConnectionError("the job actor is away")
        return self.job.current

    async def ask(self, host: HostId, is_first: bool) -> Lease:
        if self.job.is_over:
            return Lease(None)
        lease = await (await self._incarnation()).ask(host, is_first)
        await self.job.world.hop()
        return lease

    async def deliver(self, document: OutcomeDocument) -> None:
        await (await self._incarnation()).deliver(document)
        await self.job.world.hop()


class _SimProcess:
    def __init__(self, job: _SimJob, host: HostId) -> None:
        self.job, self.host = job, host
        self.whereabouts = Whereabouts("node", 1)

    def live_until(self, seconds: float) -> None:
        host = self.job.world.hosts.get((self.job.job_id, self.host))
        if host is None:
            return
        if host.killer is not None:
            host.killer.cancel()
        host.killer = asyncio.get_running_loop().call_later(seconds, self.die)

    def end(self) -> None:
        self.job.world.end_host((self.job.job_id, self.host))

    def die(self) -> None:
        """kill -9, seen by Ray within a second."""
        world = self.job.world
        if world.end_host((self.job.job_id, self.host)):
            world.host_kills += 1

            def tell() -> None:
                current = self.job.current
                engine = current._engine if current is not None else None  # noqa: SLF001
                if engine is not None:
                    engine.post(e.HostDied(self.host, is_charged=True, failure=Failure("HostDied", "killed")))

            asyncio.get_running_loop().call_later(0.7, tell)


def _types(job_class: type[Job[Any, Any]]) -> dict[str, type]:
    found: dict[str, type] = {}
    module = sys.modules[job_class.__module__]
    for value in vars(module).values():
        if isinstance(value, type):
            found[f"{value.__module__}:{value.__qualname__}"] = value
    return found
