"""The blocking face of the client: the same calls, for scripts and notebooks. No logic of its own [S2.3]."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import WeakSet

from pydantic import BaseModel

from choreography_ray.client.asynchronous import (
    DEFAULT_CLUSTER,
    DEFAULT_OPTIONS,
    AsyncChoreography,
    check_store,
    connect_settings,
)
from choreography_ray.client.cluster import RayCluster
from choreography_ray.client.handle import AsyncJobHandle
from choreography_ray.client.listing import JobList, StepList
from choreography_ray.client.mapping import pages_of
from choreography_ray.display import SHOWN_FAILURES, job_html, register_views, step_html, text_html
from choreography_ray.errors import ChoreographyError, StartJobError, StartReport
from choreography_ray.job import Job
from choreography_ray.model import (
    DrainResult,
    Explanation,
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    NodeRecord,
    Progress,
    ResumeResult,
    StepId,
    StepOutput,
    StepRecord,
    Timeline,
    Verification,
)
from choreography_ray.options import ClusterOptions, JobsOptions
from choreography_ray.plain import clean
from choreography_ray.settings import Settings

T = TypeVar("T")
TRequest = TypeVar("TRequest", bound=BaseModel)


class Loop:
    """A loop on a thread of its own, so that calls work inside a notebook's running loop too."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="choreography-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run and wait. Ctrl-C cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items, pulled one by one."""

        async def pull() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            found, item = self.run(pull())
            if not found:
                return
            yield item

    def stop(self) -> None:
        """End the thread, and what still waits on it."""
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_the_rest() -> None:
    """Cancel every other task of this loop and wait for it: one that is dropped makes asyncio complain."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


class Choreography:
    """A connection to one choreography namespace. Made by `connect`; a context manager."""

    def __init__(self, client: AsyncChoreography, loop: Loop, home: Home) -> None:
        self._client = client
        self._loop = loop
        self.home = home
        self._is_closed = False
        _open.add(self)
        register_views()

    @classmethod
    def connect(
        cls,
        ray_address: str | None = None,
        mongo_url: str | None = None,
        namespace: str | None = None,
        options: JobsOptions = DEFAULT_OPTIONS,
        cluster: ClusterOptions = DEFAULT_CLUSTER,
        *,
        use_ray: bool = True,
        resumes: bool = True,
    ) -> Self:
        """See `AsyncChoreography.connect`."""
        settings = connect_settings(mongo_url, namespace)
        return cls.connect_to(settings, ray_address, options, cluster, use_ray=use_ray, resumes=resumes)

    @classmethod
    def connect_to(
        cls,
        settings: Settings,
        ray_address: str | None = None,
        options: JobsOptions = DEFAULT_OPTIONS,
        cluster: ClusterOptions = DEFAULT_CLUSTER,
        *,
        use_ray: bool = True,
        resumes: bool = True,
    ) -> Self:
        """`connect` to what these settings name, whatever the environment says."""
        loop = Loop()
        try:
            loop.run(check_store(settings))
            # On the caller's thread: Ray wants to be initialized on the main one.
            ray_cluster = RayCluster(ray_address) if use_ray else None
            connecting = AsyncChoreography.on_cluster(settings, ray_cluster, options, cluster, resumes=resumes)
            client = loop.run(connecting)
            directory = str(Path(settings.data_directory).absolute())
            return cls(client, loop, Home(settings.namespace, settings.mongo_url, directory))
        except BaseException:
            loop.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> list[JobId]:
        """See `AsyncChoreography.close`. Again has no effect."""
        if self._is_closed:
            return []
        self._is_closed = True
        _open.discard(self)
        try:
            return self._loop.run(self._client.close())
        finally:
            self._loop.stop()

    def start(
        self,
        job_class: type[Job[TRequest, Any]],
        request: TRequest,
        *,
        job_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> JobHandle:
        """See `AsyncChoreography.start`."""
        return self._begun(self._client.start(job_class, request, job_id=job_id, labels=labels))

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any], name: str | None = None) -> JobHandle:
        """See `AsyncChoreography.map`. The items are taken on the caller's thread."""
        plan = self._loop.run(self._client.open_map(fn, name))
        try:
            for page in pages_of(items):
                self._loop.run(plan.add(page))
            return self._begun(self._client.start_map(plan))
        finally:
            self._loop.run(plan.give_up())

    def _begun(self, start: Coroutine[Any, Any, AsyncJobHandle]) -> JobHandle:
        try:
            handle = self._loop.run(start)
        except StartJobError as error:
            if error.job is not None:
                error.job = self.job(error.job_id)
            raise
        return JobHandle(handle.job_id, self.home, handle.start_error)

    def job(self, job_id: str) -> JobHandle:
        """See `AsyncChoreography.job`."""
        return JobHandle(self._client.job(job_id).job_id, self.home)

    def jobs(
        self,
        type: str | None = None,  # noqa: A002 - the word of the API [S2.3]
        statuses: Collection[JobStatus] = (),
        labels: Mapping[str, str] | None = None,
        created_before: datetime | None = None,
        skip: int = 0,
        take: int = 100,
    ) -> JobList:
        """See `AsyncChoreography.jobs`."""
        return JobList(self._loop.run(self._client.jobs(type, statuses, labels, created_before, skip, take)))

    def nodes(self) -> list[NodeRecord]:
        """See `AsyncChoreography.nodes`."""
        return self._loop.run(self._client.nodes())

    def throttle(self) -> dict[str, Any] | None:
        """See `AsyncChoreography.throttle`."""
        return self._loop.run(self._client.throttle())

    def attach(self, job_id: JobId) -> tuple[AsyncJobHandle, Loop]:
        """For handles: the job as this connection reaches it, and where its calls run."""
        return self._client.job(job_id), self._loop


_open: WeakSet[Choreography] = WeakSet()
"""The connections of this process that are open: a handle uses one of its own home."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a job lives, as far as a handle must know to find it again from anywhere. The URL is in no `repr`."""

    namespace: str
    mongo_url: str | None = field(repr=False)
    data_directory: str

    @contextmanager
    def attached(self, job_id: JobId, *, with_ray: bool) -> Generator[tuple[AsyncJobHandle, Loop]]:
        """The job over an open connection of this process, else over one made for this call [S2.3]."""
        for connection in tuple(_open):
            if connection.home == self:
                yield connection.attach(job_id)
                return
        given = {"namespace": self.namespace, "mongo_url": self.mongo_url, "data_directory": self.data_directory}
        with Choreography.connect_to(
            Settings().model_copy(update=given), use_ray=with_ray, resumes=False
        ) as connection:
            yield connection.attach(job_id)


class JobHandle:
    """One job, by id; see `AsyncJobHandle`. It pickles, outlives the connection that made it, and attaches anew."""

    def __init__(self, job_id: JobId, home: Home, start_error: StartReport | None = None) -> None:
        self.job_id = job_id
        self.start_error = start_error
        """What a start that started the job still has to say [S4.1, S4.4]."""
        self._home = home

    def __repr__(self) -> str:
        return f"<JobHandle {clean(self.job_id)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: where it stands now and what can be done, or why that cannot be read."""
        try:
            return self.read(_page)
        except ChoreographyError as error:
            return text_html(f"{self!r}: {error}\nThe ids of what is stored: choreography.jobs()")

    def read(self, work: Callable[[AsyncJobHandle], Coroutine[Any, Any, T]]) -> T:
        """Do something that needs the store alone, over whichever connection there is."""
        with self._home.attached(self.job_id, with_ray=False) as (handle, loop):
            return loop.run(work(handle))

    def control(self, work: Callable[[AsyncJobHandle], Coroutine[Any, Any, T]]) -> T:
        """Do something that needs the cluster too."""
        with self._home.attached(self.job_id, with_ray=True) as (handle, loop):
            return loop.run(work(handle))

    def _iterate(self, work: Callable[[AsyncJobHandle], AsyncIterator[T]]) -> Iterator[T]:
        with self._home.attached(self.job_id, with_ray=False) as (handle, loop):
            yield from loop.iterate(work(handle))

    def status(self) -> JobStatus:
        """Where the job stands."""
        return self.read(lambda job: job.status())

    def progress(self) -> Progress:
        """Its counts [S3.1]."""
        return self.read(lambda job: job.progress())

    def record(self) -> JobRecord:
        """All that is told of it."""
        return self.read(lambda job: job.record())

    def state(self) -> Any:
        """Its own state, as last saved."""
        return self.read(lambda job: job.state())

    def steps(
        self, status: JobStepStatus | Collection[JobStepStatus] | None = None, take: int | None = None
    ) -> StepList:
        """Every step of its plan, in order, or those of one status or of several; at most `take`."""
        return StepList(self._iterate(lambda job: job.steps(status, take)))

    def step(self, step_id: str) -> StepHandle:
        """One step by its id; whether there is one shows when it is read."""
        return StepHandle(self, StepId(step_id))

    def results(self) -> Iterator[tuple[StepId, Any]]:
        """(step id, value) of successes in plan order, streamed; needs `keep_results`."""
        return self._iterate(lambda job: job.results())

    def counted_steps(self) -> Iterator[StepId]:
        """The ids of steps that were counted [S3.2]."""
        return self._iterate(lambda job: job.counted_steps())

    def verify(self) -> Verification:
        """See `AsyncJobHandle.verify`."""
        return self.read(lambda job: job.verify())

    def explain(self) -> Explanation:
        """See `AsyncJobHandle.explain`."""
        return self.read(lambda job: job.explain())

    def timeline(self) -> Timeline:
        """See `AsyncJobHandle.timeline`."""
        return self.read(lambda job: job.timeline())

    def output(self, step_id: str, size: int = 65_536) -> StepOutput:
        """See `AsyncJobHandle.output`."""
        return self.read(lambda job: job.output(step_id, size))

    def wait(self, timeout: float | timedelta | None = None, progress: bool = True) -> JobRecord:
        """Wait until the job has ended, or is stopped and accounted. Ctrl-C ends the wait, and not the job."""
        try:
            return self.control(lambda job: job.wait(timeout, progress))
        except KeyboardInterrupt as interrupt:
            told = f"job {self.job_id!r} goes on; follow it again with choreography.job({self.job_id!r}).wait()"
            interrupt.add_note(f"{told}, end it with .stop()")
            raise interrupt.with_traceback(None) from None

    def stop(self) -> None:
        """See `AsyncJobHandle.stop`."""
        self.control(lambda job: job.stop())

    def drain(self, timeout: float | timedelta = 60.0) -> DrainResult:
        """See `AsyncJobHandle.drain`."""
        return self.control(lambda job: job.drain(timeout))

    def resume(self) -> ResumeResult:
        """See `AsyncJobHandle.resume`."""
        return self.control(lambda job: job.resume())

    def retry_failed_steps(self) -> int:
        """See `AsyncJobHandle.retry_failed_steps`."""
        return self.control(lambda job: job.retry_failed_steps())

    def remove(self, timeout: float | timedelta = 60.0, *, force: bool = False) -> None:
        """See `AsyncJobHandle.remove`."""
        self.control(lambda job: job.remove(timeout, force=force))


async def _page(job: AsyncJobHandle) -> str:
    record = await job.record()
    return job_html(record, await job.failures(SHOWN_FAILURES) if record.progress.failed else ())


class StepHandle:
    """One step of a job, by id; see `AsyncStepHandle`. It pickles, as its job's handle does."""

    def __init__(self, job: JobHandle, step_id: StepId) -> None:
        self.job_id = job.job_id
        self.step_id = step_id
        self._job = job

    def __repr__(self) -> str:
        return f"<StepHandle {clean(self.step_id)} of {clean(self.job_id)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        try:
            return step_html(self.record())
        except ChoreographyError as error:
            return text_html(f"{self!r}: {error}")

    def record(self) -> StepRecord:
        """All that is told of it."""
        return self._job.read(lambda job: job.step(self.step_id).record())

    def stop(self, answer_timeout: float | timedelta = 60.0) -> JobStepStatus:
        """See `AsyncStepHandle.stop`."""
        return self._job.control(lambda job: job.step(self.step_id).stop(answer_timeout))

    def remove(self) -> None:
        """See `AsyncStepHandle.remove`."""
        self._job.read(lambda job: job.step(self.step_id).remove())
