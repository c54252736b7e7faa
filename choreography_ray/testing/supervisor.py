"""The supervisor of the simulated cluster: its process, and what it sees of the actors of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from choreography_ray.core.supervising import ListedActor
from choreography_ray.engine.ports import JobActors
from choreography_ray.engine.supervisor import Supervisor
from choreography_ray.model import JobId
from choreography_ray.testing.asking import revive
from choreography_ray.testing.cluster import Cluster
from choreography_ray.testing.faults import ISOLATED_SECONDS, Fault, StoreClient
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.process import Process


class SimSupervisor:
    """The detached actor: Ray brings it back after a crash. Faults count its own writes, over all of its processes."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault] = (), restart: float = 2.0) -> None:
        self.cluster = cluster
        self.restart = restart
        self.faults = list(faults)
        self.writes = [0]
        self.revived: list[JobId] = []
        self.coming: set[JobId] = set()
        """Those that are being brought back now."""
        self.peak = 0
        self.ended: list[JobId] = []
        self.lives: list[Supervisor] = []
        self.live()

    def live(self) -> None:
        """Begin a process."""
        process = self.process = Process()
        client: Any = StoreClient(
            self.cluster,
            process,
            lambda: self.die(process),
            lambda: self.cut(process),
            self.faults,
            self.writes,
        )
        self.supervisor = Supervisor(client, SimJobActors(self, process), self.cluster.clock)
        self.lives.append(self.supervisor)
        process.spawn(self.supervisor.run())

    def look(self) -> None:
        """Somebody connects."""
        self.process.enter(self.supervisor.look)

    def die(self, process: Process | None = None) -> None:
        """kill -9; Ray brings it back a little later."""
        victim = process or self.process
        victim.kill()
        if victim is self.process:
            asyncio.get_running_loop().call_later(self.restart, self.live)

    def cut(self, process: Process, seconds: float = ISOLATED_SECONDS) -> None:
        """It is cut off and replaced; later it wakes up beside its successor, and goes on with what it was doing."""
        process.cut()
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, process.heal)
        loop.call_later(self.restart, self.live)


class SimJobActors(JobActors):
    """See `engine.ports.JobActors`."""

    def __init__(self, supervisor: SimSupervisor, process: Process) -> None:
        self.supervisor, self._cluster, self.process = supervisor, supervisor.cluster, process

    @property
    def cluster(self) -> str:
        """See `engine.ports.JobActors`."""
        return self._cluster.name

    def name(self, job_id: JobId) -> str:
        """See `engine.ports.JobActors`."""
        return f"job/{job_id}"

    async def _hop(self) -> None:
        await self.process.gate()
        await asyncio.sleep(self._cluster.latency(0.001))

    def job_id(self, name: str) -> JobId | None:
        """See `engine.ports.JobActors`."""
        return JobId(name.removeprefix("job/"))

    async def listed(self) -> dict[str, ListedActor]:
        """See `engine.ports.JobActors`."""
        await self._hop()
        found = {
            self.name(job.job_id): ListedActor(job.actor, "" if job.process is None else f"worker-{job.incarnations}")
            for job in self._cluster.jobs.values()
            if not job.is_over
        }
        await self._hop()
        return found

    async def revive(self, job_id: JobId) -> None:
        """See `engine.ports.JobActors`."""
        seen = self.supervisor
        seen.revived.append(job_id)
        seen.coming.add(job_id)
        seen.peak = max(seen.peak, len(seen.coming))
        try:
            await self._hop()
            job = self._cluster.jobs[job_id]
            if job.is_over:
                revive(job)
            await self._taken_over(job)
        finally:
            seen.coming.discard(job_id)
        await self._hop()

    async def _taken_over(self, job: SimJob) -> None:
        process, current = job.process, job.current
        assert process is not None
        assert current is not None

        async def wait() -> None:
            await asyncio.shield(current.taken_over)

        await process.call(wait())

    async def end(self, job_id: JobId, actor_id: str) -> None:
        """See `engine.ports.JobActors`."""
        await self._hop()
        job = self._cluster.jobs[job_id]
        if job.actor == actor_id and not job.is_over:
            self.supervisor.ended.append(job_id)
            job.end_for_good()

    async def silences(self) -> dict[str, float]:
        """See `engine.ports.JobActors`."""
        await self._hop()
        silences = self._cluster.throttle().silences(self._cluster.now)
        await self._hop()
        return {self.name(job_id): seconds for job_id, seconds in silences.items()}
