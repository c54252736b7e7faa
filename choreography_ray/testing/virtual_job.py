"""One job of a virtual cluster: the calls of a `JobHandle`, each of which takes virtual time alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from choreography_ray.access.asker import Asker, Unanswered
from choreography_ray.access.job import JobAccess
from choreography_ray.access.reading import Reader
from choreography_ray.core.explaining import Explained
from choreography_ray.core.instant import seconds_of
from choreography_ray.engine.ports import Loaded
from choreography_ray.engine.rest import Request
from choreography_ray.engine.taking import delete_taken, take_by_force
from choreography_ray.errors import JobNotFound, JobRemoved, StartReport
from choreography_ray.model import (
    DrainResult,
    Explanation,
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    Progress,
    ResumeResult,
    StepId,
    StepRecord,
    Verification,
)
from choreography_ray.records import JobDocument
from choreography_ray.testing.asking import ask
from choreography_ray.testing.cluster import Cluster
from choreography_ray.testing.telling import story_of

if TYPE_CHECKING:
    from choreography_ray.testing.virtual import VirtualCluster

T = TypeVar("T")

WAIT = timedelta(days=30)
"""Virtual time after which a job that is waited for is taken for stuck."""
POLL_SECONDS = 0.05
MAX_POLL_SECONDS = 3600.0
"""Its actor says when it has ended; how often is looked whether somebody else has ended it."""


class _Asker(Asker):
    """As the client asks, over the cluster's messages."""

    def __init__(self, cluster: Cluster, job_id: JobId) -> None:
        self._cluster, self._job_id = cluster, job_id

    async def ask(self, what: Request, timeout: float) -> str | int:
        """See `access.asker.Asker`."""
        if await self._cluster.store.read_job(self._job_id) is None:
            raise JobNotFound(self._job_id)
        try:
            async with asyncio.timeout(timeout):
                return await ask(self._cluster.jobs[self._job_id], what)
        except TimeoutError as error:
            raise Unanswered from error

    async def trouble(self) -> str:
        """See `access.asker.Asker`."""
        current = self._cluster.jobs[self._job_id].current
        return "" if current is None else current.trouble

    async def remove_by_force(self) -> None:
        """See `access.asker.Asker`."""
        cluster = self._cluster
        taken = await take_by_force(cluster.store, self._job_id, lambda: cluster.clock.instant().at, 0.2)
        cluster.jobs[self._job_id].end_for_good()
        await delete_taken(cluster.store, taken)


class _Reader(Reader):
    """Finds classes in this process, also those that a test defines inside its own function."""

    def __init__(self, cluster: Cluster, job_id: JobId) -> None:
        super().__init__(cluster.store, job_id)
        self._cluster = cluster

    async def code(self, document: JobDocument) -> Loaded:
        """See `access.reading.Reader`."""
        return self._cluster.jobs[self.job_id].code


class VirtualJobAccess(JobAccess):
    """The asynchronous side of a `VirtualJob`."""

    def __init__(self, cluster: Cluster, job_id: JobId) -> None:
        super().__init__(cluster.store, _Reader(cluster, job_id), _Asker(cluster, job_id))
        self.cluster = cluster

    async def _explained(self) -> Explained | None:
        job = self.cluster.jobs.get(self.job_id)
        return None if job is None or job.current is None else job.current.explain()

    async def ended(self) -> JobRecord:
        """Until the job has ended, or is stopped and accounted. Raises `JobRemoved`."""
        pause = POLL_SECONDS
        while True:
            try:
                record = await self.record()
            except JobNotFound as error:
                raise JobRemoved(self.job_id) from error
            if record.status.is_final or (record.status is JobStatus.STOPPED and record.is_accounted):
                return record
            job = self.cluster.jobs[self.job_id]
            if job.ended.done() and job.ended.exception() is not None:
                job.ended.result()
            if job.ended.done():  # what it ended with is not stored yet, or it lives again
                await asyncio.sleep(POLL_SECONDS)
            else:
                await asyncio.wait({job.ended}, timeout=pause)
                pause = min(2 * pause, MAX_POLL_SECONDS)


class VirtualJob:
    """One job, by its id. What reads the store takes no time; what asks the job takes as long as its answer.

    Errors are those of `JobHandle`. Made by `VirtualCluster.start` and `VirtualCluster.job`.
    """

    def __init__(self, cluster: VirtualCluster, access: VirtualJobAccess) -> None:
        self.job_id = access.job_id
        self.start_error: StartReport | None = access.start_error
        """What a start that started the job still has to say [S4.1, S4.4]."""
        self._cluster = cluster
        self._access = access

    def __repr__(self) -> str:
        return f"<VirtualJob {self.job_id}>"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._cluster.run(work)

    def _list(self, items: AsyncIterator[T]) -> list[T]:
        async def collect() -> list[T]:
            return [item async for item in items]

        return self._run(collect())

    # What is stored of it.

    def status(self) -> JobStatus:
        """Where the job stands."""
        return self._run(self._access.status())

    def progress(self) -> Progress:
        """Its counts [S3.1]."""
        return self._run(self._access.progress())

    def record(self) -> JobRecord:
        """All that is told of it."""
        return self._run(self._access.record())

    def state(self) -> Any:
        """Its own state, as last saved; None once a finished job was cleared [S9.8]."""
        return self._run(self._access.state())

    def steps(self, status: JobStepStatus | Collection[JobStepStatus] | None = None) -> list[StepRecord]:
        """Every step of its plan, in order, or those of one status or of several."""
        return self._list(self._access.steps(status))

    def step(self, step_id: str) -> StepRecord:
        """One step. Raises `StepNotFound`."""
        return self._run(self._access.step(step_id).record())

    def results(self) -> list[tuple[StepId, Any]]:
        """(step id, value) of successes in plan order; needs `keep_results`."""
        return self._list(self._access.results())

    def failures(self) -> list[StepRecord]:
        """The steps that failed, with their attempts."""
        return self._run(self._access.failures())

    def verify(self) -> Verification:
        """A recount, and whatever is missing, contradicts itself or is left over [S3.2]."""
        return self._run(self._access.verify())

    def explain(self) -> Explanation:
        """For what each of its steps waits [S14.4]."""
        return self._run(self._access.explain())

    def story(self) -> str:
        """What a failed assertion prints: the job's history, its steps and attempts, and what happened last."""
        return self._run(story_of(self._access.cluster, self._access))

    # What is asked of it.

    def wait(self, timeout: float | timedelta = WAIT) -> JobRecord:
        """Until it has ended, or is stopped and accounted, in virtual time.

        Raises `TimeoutError` with the story so far, and `JobRemoved`.
        """
        seconds = seconds_of(timeout)

        async def wait() -> JobRecord | None:
            try:
                async with asyncio.timeout(seconds):
                    return await self._access.ended()
            except TimeoutError:
                return None

        record = self._run(wait())
        if record is None:
            told = f"job {self.job_id!r} has not ended after {timedelta(seconds=seconds)} of virtual time"
            raise TimeoutError(f"{told}\n{self.story()}")
        return record

    def stop(self) -> None:
        """See `JobHandle.stop`."""
        self._run(self._access.stop())

    def drain(self, timeout: float | timedelta = 60.0) -> DrainResult:
        """See `JobHandle.drain`."""
        return self._run(self._access.drain(timeout))

    def resume(self) -> ResumeResult:
        """See `JobHandle.resume`."""
        return self._run(self._access.resume())

    def retry_failed_steps(self) -> int:
        """See `JobHandle.retry_failed_steps`."""
        return self._run(self._access.retry_failed_steps())

    def remove(self, timeout: float | timedelta = 60.0, *, force: bool = False) -> None:
        """See `JobHandle.remove`."""
        self._run(self._access.remove(timeout, force=force))

    def stop_step(self, step_id: str) -> JobStepStatus:
        """See `StepHandle.stop`."""
        return self._run(self._access.step(step_id).stop())

    # What strikes it.

    def crash(self) -> None:
        """The process of the job's actor is killed now; it is back two seconds later. Its steps go on."""
        self._cluster.call(self._access.cluster.jobs[self.job_id].die)

    def crash_step(self, step_id: str) -> None:
        """The process that performs the step is killed now, with whatever else it performs.

        Raises `LookupError` when no process performs the step.
        """
        self._run(self._crash_step(step_id))

    async def _crash_step(self, step_id: str) -> None:
        record = await self._access.step(step_id).record()
        cluster = self._access.cluster
        document = await cluster.document(self.job_id)
        plan = document.plan
        segments = [] if plan is None else await cluster.store.read_ledger(self.job_id, plan.fence)
        groups = [group for segment in segments for group in segment.groups if record.ordinal in group.ordinals]
        hosts = [host for group in groups if (host := cluster.hosts.get((self.job_id, group.host))) is not None]
        if not hosts:
            raise LookupError(f"no process performs step {step_id!r}: it is {record.status}")
        hosts[0].die()

    # What must be.

    def assert_status(self, expected: JobStatus) -> None:
        """Fails with the job's story unless this is its status."""
        if (status := self.status()) is not expected:
            raise AssertionError(f"job {self.job_id!r} is {status}, not {expected}\n{self.story()}")

    def assert_succeeded(self) -> None:
        """Wait for its end; fails with the job's story unless every step succeeded."""
        self.wait()
        self.assert_status(JobStatus.COMPLETED_SUCCESSFULLY)

    def assert_step(self, step_id: str, expected: JobStepStatus, *, attempt: int | None = None) -> None:
        """Fails with the job's story unless the step has this status, and is at this attempt where one is given."""
        step = self.step(step_id)
        if step.status is not expected:
            raise AssertionError(f"step {step_id!r} is {step.status}, not {expected}\n{self.story()}")
        if attempt is not None and step.attempt != attempt:
            raise AssertionError(f"step {step_id!r} is at attempt {step.attempt}, not {attempt}\n{self.story()}")
