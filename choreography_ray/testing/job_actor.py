"""The detached actor of a simulated job: it restarts after a crash, as Ray would do it, over the real engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from choreography_ray.core import events as e
from choreography_ray.core.ownership import Death
from choreography_ray.core.slot_messages import Exchange
from choreography_ray.engine.incarnation import Incarnation, Ports
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.ports import ThrottlePort
from choreography_ray.errors import Fenced, OwnedElsewhere
from choreography_ray.model import HostId, JobId, JobStatus
from choreography_ray.records import CodeRef, Owner
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.faults import ISOLATED_SECONDS, StoreClient
from choreography_ray.testing.hosts import SimHosts, kill_when_reached
from choreography_ray.testing.process import Process
from choreography_ray.testing.user_code import SimUserCode, caller_in

if TYPE_CHECKING:
    from choreography_ray.testing.cluster import Cluster


class SimJob:
    """The detached actor of a job: restarts after a crash, as Ray would do it."""

    def __init__(self, cluster: Cluster, job_id: JobId, code: LivingCode) -> None:
        self.cluster = cluster
        self.job_id = job_id
        self.code = code
        self.actor = f"actor-{job_id}"
        self.current: Incarnation | None = None
        self.process: Process | None = None
        self._engine: JobEngine | None = None
        self.zombies: list[Process] = []
        """Processes that were replaced, and may not know."""
        self.incarnation_of: dict[Process, Incarnation] = {}
        self.booting: set[HostId] = set()
        self.is_over = False
        self.ended: asyncio.Future[JobStatus] = asyncio.get_running_loop().create_future()
        self.started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.incarnations = 0
        self.blameless: set[str] = set()
        """Processes of which Ray tells that their end was not their own doing."""

    async def load(self, ref: CodeRef) -> LivingCode:
        """Its code, whatever the record says."""
        return self.code

    def post(self, event: e.Event) -> None:
        """Tell the current process, if its machine runs."""
        if self._engine is not None:
            self._engine.post(event)

    def live(self) -> None:
        """Begin an incarnation."""
        if self.is_over:
            return
        self.incarnations += 1
        process = Process()
        throttles: list[SimThrottle] = []

        def ports(engine: JobEngine) -> tuple[SimHosts, SimThrottle]:
            throttles.append(SimThrottle(self, process, engine))
            if process is self.process:
                self._engine = engine
            return SimHosts(self, process, engine), throttles[-1]

        incarnation = self._incarnation(process, ports)
        self.current, self.process, self._engine = incarnation, process, None
        self.incarnation_of[process] = incarnation
        process.spawn(self._run(incarnation, process, throttles))

    def _incarnation(self, process: Process, ports: Ports) -> Incarnation:
        cluster = self.cluster
        client: Any = StoreClient(
            cluster,
            process,
            lambda: self.die(process),
            lambda: self.cut(process, ISOLATED_SECONDS, noticed_after=3.0),
            cluster.job_faults,
            cluster.job_writes,
        )

        async def is_current() -> bool:
            await process.gate()
            await asyncio.sleep(cluster.latency(0.001))
            answer = self.process is process
            await process.gate()
            return answer

        async def speak(message: Exchange) -> Any:
            await process.gate()
            await cluster.hop(f"{self.job_id} restates its slots")
            reply = await cluster.exchange(message, process)
            await cluster.hop()
            await process.gate()
            return reply

        async def obituary(owner: Owner) -> Death:
            await process.gate()
            await asyncio.sleep(cluster.latency(0.001))
            return Death(owner.worker in self.blameless, "killed")

        me = Owner(cluster.name, self.actor, f"worker-{self.incarnations}")
        user = SimUserCode(caller_in(process, has_threads=cluster.has_threads))
        return Incarnation(
            self.job_id, me, client, self.load, user, cluster.clock, ports, cluster.lease, is_current, speak, obituary
        )

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
        except Exception as error:  # noqa: BLE001 - whoever waits for the job's end is told
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
        for host in [host for (job_id, _), host in self.cluster.hosts.items() if job_id == self.job_id]:
            self.cluster.spawn(kill_when_reached(host))
        if process is self.process:
            self.is_over = True
            if not self.ended.done():
                self.ended.set_exception(error)
                self.ended.exception()

    def _replace(self, process: Process) -> None:
        if process is self.process and not self.is_over:
            self.current = self.process = None
            asyncio.get_running_loop().call_later(self.cluster.job_restart, self.live)

    def die(self, process: Process | None = None) -> None:
        """kill -9; Ray brings it back a little later."""
        victim = process or self.process
        if victim is None or not victim.is_alive or (self.is_over and victim is self.process):
            return  # one that was replaced, and wakes when the job is over, dies all the same
        self.cluster.job_kills += 1
        self.cluster.note(f"the actor of {self.job_id} dies")
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
        self.cluster.spawn(self._tell_end())

    async def _tell_end(self) -> None:
        """Nobody makes an actor for a job that had come to rest; what its last one had written has landed by now."""
        await asyncio.sleep(6.0)
        document = await self.cluster.store.read_job(self.job_id)
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
        for (job_id, _), host in self.cluster.hosts.items():
            if with_hosts and job_id == self.job_id:
                host.cut(seconds, island)
        loop.call_later(seconds, process.heal)
        if noticed_after < seconds:
            self.zombies.append(process)
            loop.call_later(noticed_after, self._replace, process)


class SimThrottle(ThrottlePort):
    """The throttle as one incarnation of a job sees it."""

    def __init__(self, job: SimJob, process: Process, engine: JobEngine) -> None:
        self.job, self.process, self.engine = job, process, engine
        self.said: set[asyncio.Task[None]] = set()

    def send(self, message: Exchange) -> None:
        """See `engine.ports.ThrottlePort`."""
        task = self.process.spawn(self._exchange(message))
        self.said.add(task)
        task.add_done_callback(self.said.discard)

    async def close(self) -> None:
        """The last word gets a second to arrive."""
        if self.said:
            await asyncio.wait(self.said, timeout=1.0)

    async def _exchange(self, message: Exchange) -> None:
        cluster = self.job.cluster
        try:
            await self.process.gate()
            if await cluster.hop(f"{message.job} wants {message.wanted} slots"):
                cluster.spawn(self._copy(message))
            reply = await cluster.exchange(message, self.process)
            await cluster.hop()
            await self.process.gate()
        except ConnectionError:
            self.engine.post(e.ExchangeFailed(message.n))
        else:
            if reply is not None:
                self.engine.post(e.ThrottleReplied(reply))

    async def _copy(self, message: Exchange) -> None:
        await self.job.cluster.later()
        try:
            await self.job.cluster.exchange(message, self.process)
        except ConnectionError:
            pass
