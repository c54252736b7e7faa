"""The hosts of a simulated job: what its actor knows of them, what they know of it, and their processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from choreography_ray.core import events as e
from choreography_ray.engine import ports
from choreography_ray.engine.host_engine import HostEngine
from choreography_ray.engine.incarnation import Incarnation
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.ports import Lease, Whereabouts, Work
from choreography_ray.errors import Fenced
from choreography_ray.model import HostId, JobId
from choreography_ray.records import Failure, Group, OutcomeDocument, Run, StepKind
from choreography_ray.testing.faults import ISOLATED_SECONDS, StoreClient
from choreography_ray.testing.process import Process
from choreography_ray.testing.user_code import SimBodyRunner, SimUserCode, caller_in

if TYPE_CHECKING:
    from choreography_ray.testing.job_actor import SimJob

T = TypeVar("T")


class SimHosts(ports.HostsPort):
    """The hosts of one incarnation's job, as its adapter would drive Ray."""

    def __init__(self, job: SimJob, process: Process, engine: JobEngine) -> None:
        self.job, self.cluster, self.process, self.engine = job, job.cluster, process, engine
        self.since = self.cluster.now

    def create(self, host: HostId, kind: StepKind) -> None:
        """See `engine.ports.HostsPort`."""
        self.process.spawn(self._create(host, kind))

    async def _create(self, host: HostId, kind: StepKind) -> None:
        """Ray goes on creating an actor when whoever asked for it is gone."""
        await self.process.gate()
        job, cluster = self.job, self.cluster
        job.booting.add(host)
        waits = cluster.placement(kind)
        booted = cluster.spawn(self._boot(host, kind, waits))
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
        cluster, job = self.cluster, self.job
        await asyncio.sleep(waits + 0.3 + cluster.random.random() * 0.2)
        if host not in job.booting:
            return True
        job.booting.discard(host)
        if cluster.failing_hosts(kind):
            return False
        SimHost(job, host)
        return True

    def tell(self, work: Work) -> None:
        """See `engine.ports.HostsPort`."""
        self.process.spawn(self._tell(work))

    async def _tell(self, work: Work) -> None:
        cluster = self.cluster
        what = f"steps {', '.join(step.step_id for step in work.steps)} for host {work.host}"
        while (host := cluster.hosts.get((self.job.job_id, work.host))) is not None:
            try:
                await self.process.gate()
                if await cluster.hop(what):
                    cluster.spawn(self._copy(host, work))
                await host.process.gate_or_death()
                host.process.enter(host.engine.accept, work)
                await cluster.hop()
            except ConnectionError:
                await asyncio.sleep(0.5)
                continue
            return

    async def _copy(self, host: SimHost, work: Work) -> None:
        await self.cluster.later()
        if host.process.is_reachable:
            host.process.enter(host.engine.accept, work)

    def end(self, host: HostId) -> None:
        """See `engine.ports.HostsPort`."""
        self.process.spawn(self._end(host))

    async def _end(self, host: HostId) -> None:
        await self.process.gate()
        await asyncio.sleep(self.cluster.latency(0.001))
        self.job.booting.discard(host)
        there = self.cluster.hosts.get((self.job.job_id, host))
        if there is not None:
            self.cluster.spawn(kill_when_reached(there))

    async def _until_gone(self, host: HostId) -> None:
        """Until its death is confirmed: seen, or lease and margin have passed since the last that gave it a lease."""
        key = (self.job.job_id, host)
        while (there := self.cluster.hosts.get(key)) is not None and not self._is_silenced(there):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.7)
        await self.process.gate()

    def _is_silenced(self, host: SimHost) -> bool:
        return self.cluster.now >= max(self.since, host.answered_at) + self.cluster.lease + self.cluster.margin

    def stop(self, host: HostId, run: Run, ordinals: tuple[int, ...] = ()) -> None:
        """See `engine.ports.HostsPort`."""
        self.process.spawn(self._stop(host, run, ordinals))

    async def _stop(self, host: HostId, run: Run, ordinals: tuple[int, ...]) -> None:
        while (there := self.cluster.hosts.get((self.job.job_id, host))) is not None:
            try:
                await self.process.gate()
                await self.cluster.hop(f"host {host} is told to stop")
                await there.process.gate_or_death()
                there.process.enter(there.engine.stop, run, self.engine.machine.document.fence, ordinals)
                await self.cluster.hop()
            except ConnectionError:
                await asyncio.sleep(0.5)
                continue
            return

    def kill(self, host: HostId, grace: float) -> None:
        """See `engine.ports.HostsPort`."""
        self.process.spawn(self._kill(host, grace))

    async def _kill(self, host: HostId, grace: float) -> None:
        until = self.cluster.now + grace
        while (there := self.cluster.hosts.get((self.job.job_id, host))) is not None and self.cluster.now < until:
            if not there.process.is_reachable or not there.engine.is_in_callback:
                break
            await asyncio.sleep(0.1)
        await self.process.gate()
        await self._end(host)
        await self._until_gone(host)
        self.engine.post(e.HostDied(host, is_charged=False, failure=Failure("HostEnded", "ended from outside")))

    def inspect(self, groups: Sequence[Group]) -> None:
        """See `engine.ports.HostsPort`."""
        for group in groups:
            self.process.spawn(self._inspect(group))

    async def _inspect(self, group: Group) -> None:
        host = group.host
        key = (self.job.job_id, host)
        was_there = host in self.job.booting or key in self.cluster.hosts
        if await self._has_begun(key, group):
            self.engine.post(e.HostCameUp(host))
            return
        await self._end(host)
        if not was_there:
            # Nobody knows it: one that is cut off may still be about to create it.
            await asyncio.sleep(max(0.0, self.since + self.cluster.lease + self.cluster.margin - self.cluster.now))
            await self._end(host)
        await self._until_gone(host)
        self.engine.post(e.HostDied(host, is_charged=False, failure=Failure("HostGone", "it was gone")))

    async def _has_begun(self, key: tuple[JobId, HostId], group: Group) -> bool:
        while (host := self.cluster.hosts.get(key)) is not None:
            if not host.process.is_reachable:
                if self._is_silenced(host):
                    return False  # its node is gone: it may wake up, but not with a lease
                await asyncio.sleep(0.5)
                continue
            try:
                await self.process.gate()
                await self.cluster.hop("has the host begun?")
                begun = host.engine.has_begun(group.run, self.engine.machine.document.fence)
                await self.cluster.hop()
            except ConnectionError:
                await asyncio.sleep(0.5)
                continue
            return begun
        return False


async def kill_when_reached(host: SimHost) -> None:
    """A kill that reaches the process, now or when it wakes up."""
    try:
        await host.process.gate_or_death()
    except ConnectionError:
        return
    host.die(is_charged=False, is_kill=False)


class SimHost:
    """A host's process. The kernel ends it when its lease does; Ray sees that within a second."""

    def __init__(self, job: SimJob, host: HostId) -> None:
        self.job, self.cluster, self.host = job, job.cluster, host
        self.process = Process()
        self.whereabouts = Whereabouts("node", 1)
        self.answered_at = 0.0
        """When the job's current process last gave it a lease."""
        self._timer: asyncio.TimerHandle | None = None
        cluster = self.cluster
        client: Any = StoreClient(
            cluster,
            self.process,
            self.die,
            lambda: self.cut(ISOLATED_SECONDS),
            cluster.host_faults,
            cluster.host_writes,
        )
        call = caller_in(self.process, has_threads=cluster.has_threads)
        self.engine = HostEngine(
            job.job_id, host, client, job.load, SimJobPort(job, self.process), SimBodyRunner(self.process, call),
            SimUserCode(call), cluster.clock, self,
        )  # fmt: skip
        cluster.hosts[job.job_id, host] = self
        self.live_until(cluster.lease)
        self.process.enter(self.engine.spawn, self.engine.run())

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
        self.cluster.host_kills += is_kill
        self.cluster.note(f"host {self.host} of {self.job.job_id} ends")
        del self.cluster.hosts[self.job.job_id, self.host]
        if self._timer is not None:
            self._timer.cancel()
        self.process.kill()
        asyncio.get_running_loop().call_later(0.7, self._tell, is_charged)

    def _tell(self, is_charged: bool) -> None:
        # A watcher of the job's current process; one that is not there yet will look for its hosts by itself.
        self.job.post(e.HostDied(self.host, is_charged, Failure("HostDied", "killed")))


class SimJobPort(ports.JobPort):
    """The job actor as a host reaches it: the current process, or one that was replaced and does not know."""

    def __init__(self, job: SimJob, process: Process) -> None:
        self.job, self.cluster, self.process = job, job.cluster, process

    def _neighbour(self) -> Process | None:
        island = self.process.island
        known = [*self.job.zombies, self.job.process]
        return next((p for p in known if island is not None and p is not None and p.island is island), None)

    async def _reach(self, what: str) -> tuple[Process, bool]:
        """The process that the call reaches, and whether it will do so again."""
        await self.process.gate()
        is_copied = await self.cluster.hop(what)
        awake = [zombie for zombie in self.job.zombies if zombie.is_reachable]
        if awake and self.cluster.random.random() < self.cluster.wire.stale:
            return self.cluster.random.choice(awake), is_copied
        if self.job.process is None:
            raise ConnectionError("the job actor is away")
        await self.job.process.gate_or_death()
        return self.job.process, is_copied

    async def _ask(self, what: str, call: Callable[[Incarnation], Coroutine[Any, Any, T]]) -> T:
        neighbour = self._neighbour()
        if neighbour is not None:
            await asyncio.sleep(0.001)
            return await neighbour.call(call(self.job.incarnation_of[neighbour]), is_near=True)
        job, is_copied = await self._reach(what)
        incarnation = self.job.incarnation_of[job]
        if is_copied:
            self.cluster.spawn(self._copy(call(incarnation)))
        answer = await job.call(call(incarnation))
        await self.cluster.hop()
        await self.process.gate()
        return answer

    async def ask(self, host: HostId, is_first: bool) -> Lease:
        """See `engine.ports.JobPort`."""
        if self.job.is_over:
            await self.process.gate()
            return Lease(None)

        async def answer(incarnation: Incarnation) -> Lease:
            lease = await incarnation.ask(host, is_first)
            there = self.cluster.hosts.get((self.job.job_id, host))
            if there is not None and lease.seconds is not None and incarnation is self.job.current:
                there.answered_at = self.cluster.now
            return lease

        return await self._ask(f"host {host} asks for {'its first' if is_first else 'a'} lease", answer)

    async def deliver(self, document: OutcomeDocument) -> None:
        """See `engine.ports.JobPort`."""
        what = f"host {document.key.host} tells of {len(document.outcomes)} outcomes"
        await self._ask(what, lambda incarnation: incarnation.deliver(document))

    async def _copy(self, call: Any) -> None:
        await self.cluster.later()
        if self.job.process is None or not self.job.process.is_reachable:
            call.close()
            return
        try:
            await self.job.process.call(call)
        except (ConnectionError, Fenced):
            pass
