"""What Ray would run: the actors of jobs and hosts, and what one knows of the other, over the real engines."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from choreography_ray.core import events as e
from choreography_ray.core.ownership import Death
from choreography_ray.core.slot_messages import Exchange
from choreography_ray.engine.host_engine import HostEngine
from choreography_ray.engine.incarnation import Incarnation
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.ports import Lease, StepWork, Whereabouts, Work
from choreography_ray.errors import Fenced, OwnedElsewhere
from choreography_ray.job import Job
from choreography_ray.model import HostId, JobId, JobStatus, StepId
from choreography_ray.records import CodeRef, Failure, Group, OutcomeDocument, Owner, Run, StepKind
from tests.simulation.faults import ISOLATED_SECONDS, StoreClient
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE = 30.0
MARGIN = 3.0


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
    """Bodies run on the virtual loop, `width` at a time, as long as their process lives."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def run_blocking(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], None]) -> None:
        for step in steps:
            await asyncio.sleep(0.001)
            if self._process.is_alive:
                perform(step)

    async def run_async(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], Any]) -> None:
        left = iter(steps)

        async def lane() -> None:
            for step in left:
                if self._process.is_alive:
                    await perform(step)

        await asyncio.gather(*(lane() for _ in range(width)))


@dataclass
class Code:
    """A job's code, loaded."""

    job_class: type[Job[Any, Any]]
    types: dict[str, type]

    def resolve(self, name: str) -> type:
        return self.types[name]


def types_of(job_class: type[Job[Any, Any]]) -> dict[str, type]:
    """Every class of the modules of the job and its bases, by the name that payloads use."""
    found: dict[str, type] = {}
    for module in {base.__module__ for base in job_class.__mro__}:
        for value in vars(sys.modules[module]).values():
            if isinstance(value, type):
                found[f"{value.__module__}:{value.__qualname__}"] = value
    return found


class SimJob:
    """The detached actor of a job: restarts after a crash, as Ray would do it."""

    def __init__(
        self, world: World, job_id: JobId, job_class: type[Job[Any, Any]], stages: list[int], window: int | None
    ) -> None:
        self.world = world
        self.job_id = job_id
        self.code = Code(job_class, types_of(job_class))
        self.stages = stages
        self.step_ids: tuple[StepId, ...] = ()
        self.window = window
        self.actor = f"actor-{job_id}"
        self.current: Incarnation | None = None
        self.process: Process | None = None
        self.zombies: list[Process] = []
        self.incarnation_of: dict[Process, Incarnation] = {}
        self.booting: set[HostId] = set()
        self.is_over = False
        self.ended: asyncio.Future[JobStatus] = asyncio.get_running_loop().create_future()
        self.started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.incarnations = 0
        self.blameless: set[str] = set()
        """Processes of which Ray tells that their end was not their own doing."""

    async def load(self, ref: CodeRef) -> Code:
        return self.code

    def live(self) -> None:
        """Begin an incarnation."""
        world = self.world
        if self.is_over:
            return
        self.incarnations += 1
        process = Process()
        client: Any = StoreClient(
            world,
            process,
            lambda: self.die(process),
            lambda: self.cut(process, ISOLATED_SECONDS, noticed_after=3.0),
            world.job_faults,
            world.job_writes,
        )

        async def is_current() -> bool:
            await process.gate()
            await asyncio.sleep(world.latency(0.001))
            answer = self.process is process
            await process.gate()
            return answer

        async def speak(message: Exchange) -> Any:
            await process.gate()
            await world.hop()
            reply = await world.exchange(message, process)
            await world.hop()
            await process.gate()
            return reply

        throttles: list[SimThrottle] = []

        def ports(engine: JobEngine) -> tuple[Any, Any]:
            throttles.append(SimThrottle(self, process, engine))
            return SimHosts(self, process, engine), throttles[-1]

        me = Owner(world.cluster, self.actor, f"worker-{self.incarnations}")

        async def obituary(owner: Owner) -> Death:
            await process.gate()
            await asyncio.sleep(world.latency(0.001))
            return Death(owner.worker in self.blameless, "killed")

        incarnation = Incarnation(
            self.job_id, me, client, self.load, InlineUser(), world.clock, ports, LEASE, is_current, speak, obituary
        )
        self.current, self.process = incarnation, process
        self.incarnation_of[process] = incarnation
        process.spawn(self._run(incarnation, process, throttles))

    async def _run(self, incarnation: Incarnation, process: Process, throttles: list[SimThrottle]) -> None:
        def answer(done: asyncio.Future[Any]) -> None:
            if (
                incarnation is self.current
                and not self.started.done()
                and not done.cancelled()
                and done.exception() is None
            ):
                self.started.set_result(done.result())

        incarnation.started.add_done_callback(answer)
        try:
            status = await incarnation.run()
        except Fenced:
            # Ray restarts it if it was the current one: somebody who is not any more has raised the fence.
            self._replace(process)
        except OwnedElsewhere as error:
            self._leave_to_others(process, error)
        except Exception as error:
            if process is not self.process:
                return
            self.is_over = True
            if not self.ended.done():
                self.ended.set_exception(error)
        else:
            for throttle in throttles:
                await throttle.close()
            if process is self.process:
                await process.gate()
                self.is_over = True
                self.ended.set_result(status)

    def _leave_to_others(self, process: Process, error: OwnedElsewhere) -> None:
        """Another cluster has the job: the actor ends for good, and every host of the job in this one."""
        for host in [host for (job_id, _), host in self.world.hosts.items() if job_id == self.job_id]:
            self.world.spawn(_kill(host))
        if process is self.process:
            self.is_over = True
            if not self.ended.done():
                self.ended.set_exception(error)
                self.ended.exception()

    def _replace(self, process: Process) -> None:
        if process is self.process and not self.is_over:
            self.current = self.process = None
            asyncio.get_running_loop().call_later(self.world.job_restart, self.live)

    def die(self, process: Process | None = None) -> None:
        """kill -9; Ray brings it back a little later."""
        victim = process or self.process
        if victim is None or self.is_over or not victim.is_alive:
            return
        self.world.job_kills += 1
        victim.kill()
        self._replace(victim)

    def end_for_good(self) -> None:
        """Somebody has Ray end it, without a restart. A process that is cut off does not hear of it until it wakes."""
        process, self.current, self.process = self.process, None, None
        self.is_over = True
        if process is not None and process.is_reachable:
            process.kill()
        elif process is not None:
            process.forsake()
            self.zombies.append(process)
        self.world.spawn(self._tell_end())

    async def _tell_end(self) -> None:
        """Nobody makes an actor for a job that had come to rest; what its last one had written has landed by now."""
        await asyncio.sleep(6.0)
        document = await self.world.store.read_job(self.job_id)
        if document is not None and self.is_over and not self.ended.done():
            is_stopped = document.status is JobStatus.STOPPED and document.is_stop_finalized
            if document.status.is_final or is_stopped:
                self.ended.set_result(document.status)

    def cut(self, process: Process, seconds: float, noticed_after: float, *, with_hosts: bool = False) -> None:
        """It is cut off; if that lasts until it is noticed, Ray makes a successor, and the old one wakes beside it."""
        if process is not self.process or self.is_over:
            return
        loop = asyncio.get_running_loop()
        island = object() if with_hosts else None
        process.cut(island)
        for (job_id, _), host in self.world.hosts.items():
            if with_hosts and job_id == self.job_id:
                host.cut(seconds, island)
        loop.call_later(seconds, process.heal)
        if noticed_after < seconds:
            self.zombies.append(process)
            loop.call_later(noticed_after, self._replace, process)


class SimThrottle:
    """The throttle as one incarnation of a job sees it."""

    def __init__(self, job: SimJob, process: Process, engine: JobEngine) -> None:
        self.job, self.process, self.engine = job, process, engine
        self.said: set[asyncio.Task[None]] = set()

    def send(self, message: Exchange) -> None:
        task = self.process.spawn(self._exchange(message))
        self.said.add(task)
        task.add_done_callback(self.said.discard)

    async def close(self) -> None:
        """The last word gets a second to arrive."""
        if self.said:
            await asyncio.wait(self.said, timeout=1.0)

    async def _exchange(self, message: Exchange) -> None:
        world = self.job.world
        try:
            await self.process.gate()
            if world.is_copied():
                world.spawn(self._copy(message))
            await world.hop()
            reply = await world.exchange(message, self.process)
            await world.hop()
            await self.process.gate()
        except ConnectionError:
            self.engine.post(e.ExchangeFailed(message.n))
        else:
            if reply is not None:
                self.engine.post(e.ThrottleReplied(reply))

    async def _copy(self, message: Exchange) -> None:
        await self.job.world.later()
        try:
            await self.job.world.exchange(message, self.process)
        except ConnectionError:
            pass


class SimHosts:
    """The hosts of one incarnation's job, as its adapter would drive Ray."""

    def __init__(self, job: SimJob, process: Process, engine: JobEngine) -> None:
        self.job, self.world, self.process, self.engine = job, job.world, process, engine
        self.since = self.world.now

    def create(self, host: HostId, kind: StepKind) -> None:
        self.process.spawn(self._create(host, kind))

    async def _create(self, host: HostId, kind: StepKind) -> None:
        """Ray goes on creating an actor when whoever asked for it is gone."""
        await self.process.gate()
        job, world = self.job, self.world
        job.booting.add(host)
        waits = world.placement(kind)
        booted = world.spawn(self._boot(host, kind, waits))
        timeout = self.engine.machine.document.options.placement_timeout.total_seconds()
        if waits > 1.0:
            await asyncio.sleep(1.0)
            self.engine.post(e.HostWaited(host))
        if waits >= timeout:
            await asyncio.sleep(timeout - 1.0)
            if host in job.booting:
                job.booting.discard(host)
                self.engine.post(e.HostWithdrawn(host))
            return
        if await booted is False:
            await self.process.gate()
            self.engine.post(e.HostFailedToStart(host, Failure("RuntimeError", "the constructor failed")))

    async def _boot(self, host: HostId, kind: StepKind, waits: float) -> bool:
        world, job = self.world, self.job
        await asyncio.sleep(waits + 0.3 + world.random.random() * 0.2)
        if host not in job.booting:
            return True
        job.booting.discard(host)
        if world.failing_hosts(kind):
            return False
        SimHost(job, host)
        return True

    def tell(self, work: Work) -> None:
        self.process.spawn(self._tell(work))

    async def _tell(self, work: Work) -> None:
        world = self.world
        while (host := world.hosts.get((self.job.job_id, work.host))) is not None:
            try:
                await self.process.gate()
                if world.is_copied():
                    world.spawn(self._copy(host, work))
                await world.hop()
                await host.process.gate_or_death()
                host.engine.accept(work)
                await world.hop()
            except ConnectionError:
                await asyncio.sleep(0.5)
                continue
            return

    async def _copy(self, host: SimHost, work: Work) -> None:
        await self.world.later()
        if host.process.is_reachable:
            host.engine.accept(work)

    def end(self, host: HostId) -> None:
        self.process.spawn(self._end(host))

    async def _end(self, host: HostId) -> None:
        await self.process.gate()
        await asyncio.sleep(self.world.latency(0.001))
        self.job.booting.discard(host)
        there = self.world.hosts.get((self.job.job_id, host))
        if there is not None:
            self.world.spawn(_kill(there))

    async def _until_gone(self, host: HostId) -> None:
        """Until its death is confirmed: seen, or lease and margin have passed since the last that gave it a lease."""
        key = (self.job.job_id, host)
        while (there := self.world.hosts.get(key)) is not None and not self._is_silenced(there):
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.7)
        await self.process.gate()

    def _is_silenced(self, host: SimHost) -> bool:
        return self.world.now >= max(self.since, host.answered_at) + LEASE + MARGIN

    def stop(self, host: HostId, run: Run, ordinals: tuple[int, ...] = ()) -> None:
        self.process.spawn(self._stop(host, run, ordinals))

    async def _stop(self, host: HostId, run: Run, ordinals: tuple[int, ...]) -> None:
        while (there := self.world.hosts.get((self.job.job_id, host))) is not None:
            try:
                await self.process.gate()
                await self.world.hop()
                await there.process.gate_or_death()
                there.engine.stop(run, self.engine.machine.document.fence, ordinals)
                await self.world.hop()
            except ConnectionError:
                await asyncio.sleep(0.5)
                continue
            return

    def kill(self, host: HostId, grace: float) -> None:
        self.process.spawn(self._kill(host, grace))

    async def _kill(self, host: HostId, grace: float) -> None:
        until = self.world.now + grace
        while (there := self.world.hosts.get((self.job.job_id, host))) is not None and self.world.now < until:
            if not there.process.is_reachable or not there.engine.is_in_callback:
                break
            await asyncio.sleep(0.1)
        await self.process.gate()
        await self._end(host)
        await self._until_gone(host)
        self.engine.post(e.HostDied(host, is_charged=False, failure=Failure("HostEnded", "ended from outside")))

    def inspect(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self.process.spawn(self._inspect(group))

    async def _inspect(self, group: Group) -> None:
        host = group.host
        key = (self.job.job_id, host)
        was_there = host in self.job.booting or key in self.world.hosts
        if await self._has_begun(key, group):
            self.engine.post(e.HostCameUp(host))
            return
        await self._end(host)
        if not was_there:
            # Nobody knows it: one that is cut off may still be about to create it.
            await asyncio.sleep(max(0.0, self.since + LEASE + MARGIN - self.world.now))
            await self._end(host)
        await self._until_gone(host)
        self.engine.post(e.HostDied(host, is_charged=False, failure=Failure("HostGone", "it was gone")))

    async def _has_begun(self, key: tuple[JobId, HostId], group: Group) -> bool:
        while (host := self.world.hosts.get(key)) is not None:
            if not host.process.is_reachable:
                if self._is_silenced(host):
                    return False  # its node is gone: it may wake up, but not with a lease
                await asyncio.sleep(0.5)
                continue
            try:
                await self.process.gate()
                await self.world.hop()
                begun = host.engine.has_begun(group.run, self.engine.machine.document.fence)
                await self.world.hop()
            except ConnectionError:
                await asyncio.sleep(0.5)
                continue
            return begun
        return False


async def _kill(host: SimHost) -> None:
    """A kill that reaches the process, now or when it wakes up."""
    try:
        await host.process.gate_or_death()
    except ConnectionError:
        return
    host.die(is_charged=False, is_kill=False)


class SimHost:
    """A host's process. The kernel ends it when its lease does; Ray sees that within a second."""

    def __init__(self, job: SimJob, host: HostId) -> None:
        self.job, self.world, self.host = job, job.world, host
        self.process = Process()
        self.whereabouts = Whereabouts("node", 1)
        self.answered_at = 0.0
        """When the job's current process last gave it a lease."""
        self._timer: asyncio.TimerHandle | None = None
        world = self.world
        client: Any = StoreClient(
            world,
            self.process,
            self.die,
            lambda: self.cut(ISOLATED_SECONDS),
            world.host_faults,
            world.host_writes,
        )
        self.engine = HostEngine(
            job.job_id, host, client, job.load, SimJobPort(job, self.process), InlineRunner(self.process),
            InlineUser(), world.clock, self,
        )  # fmt: skip
        world.hosts[job.job_id, host] = self
        self.live_until(LEASE)
        self.engine.spawn(self.engine.run())

    def live_until(self, seconds: float) -> None:
        """See `engine.ports.Process`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self.die)

    def end(self) -> None:
        """See `engine.ports.Process`."""
        self.die(is_kill=False)

    def cut(self, seconds: float, island: object | None = None) -> None:
        """It is cut off for a while; its lease goes on running out."""
        self.process.cut(island)
        asyncio.get_running_loop().call_later(seconds, self.process.heal)

    def die(self, *, is_charged: bool = True, is_kill: bool = True) -> None:
        """The process is gone, with everything that runs in it."""
        if not self.process.is_alive:
            return
        self.world.host_kills += is_kill
        del self.world.hosts[self.job.job_id, self.host]
        if self._timer is not None:
            self._timer.cancel()
        self.process.kill()
        loop = asyncio.get_running_loop()
        for task in self.engine.tasks:
            loop.call_soon(task.cancel)
        loop.call_later(0.7, self._tell, is_charged)

    def _tell(self, is_charged: bool) -> None:
        # A watcher of the job's current process; one that is not there yet will look for its hosts by itself.
        current = self.job.current
        engine = current._engine if current is not None else None
        if engine is not None:
            engine.post(e.HostDied(self.host, is_charged, Failure("HostDied", "killed")))


class SimJobPort:
    """The job actor as a host reaches it: the current process, or one that was replaced and does not know."""

    def __init__(self, job: SimJob, process: Process) -> None:
        self.job, self.world, self.process = job, job.world, process

    def _neighbour(self) -> Process | None:
        island = self.process.island
        known = [*self.job.zombies, self.job.process]
        return next((p for p in known if island is not None and p is not None and p.island is island), None)

    async def _reach(self) -> Process:
        await self.process.gate()
        await self.world.hop()
        awake = [zombie for zombie in self.job.zombies if zombie.is_reachable]
        if awake and self.world.random.random() < self.world.wire.stale:
            return self.world.random.choice(awake)
        if self.job.process is None:
            raise ConnectionError("the job actor is away")
        await self.job.process.gate_or_death()
        return self.job.process

    async def _call(self, call: Callable[[Incarnation], Any], *, is_near: bool, job: Process) -> Any:
        incarnation = self.job.incarnation_of[job]
        if self.world.is_copied():
            self.world.spawn(self._copy(call(incarnation)))
        return await job.call(call(incarnation), is_near=is_near)

    async def _ask(self, call: Callable[[Incarnation], Any]) -> Any:
        neighbour = self._neighbour()
        if neighbour is not None:
            await asyncio.sleep(0.001)
            return await self._call(call, is_near=True, job=neighbour)
        answer = await self._call(call, is_near=False, job=await self._reach())
        await self.world.hop()
        await self.process.gate()
        return answer

    async def ask(self, host: HostId, is_first: bool) -> Lease:
        if self.job.is_over:
            await self.process.gate()
            return Lease(None)

        async def answer(incarnation: Incarnation) -> Lease:
            lease = await incarnation.ask(host, is_first)
            there = self.world.hosts.get((self.job.job_id, host))
            if there is not None and lease.seconds is not None and incarnation is self.job.current:
                there.answered_at = self.world.now
            return lease

        lease: Lease = await self._ask(answer)
        return lease

    async def deliver(self, document: OutcomeDocument) -> None:
        await self._ask(lambda incarnation: incarnation.deliver(document))

    async def _copy(self, call: Any) -> None:
        await self.world.later()
        if self.job.process is None or not self.job.process.is_reachable:
            call.close()
            return
        try:
            await self.job.process.call(call)
        except (ConnectionError, Fenced):
            pass
