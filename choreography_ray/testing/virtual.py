"""A cluster for a test: jobs run in its process and in virtual time, and whatever it asks for goes wrong [S17]."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Generator, Mapping
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from choreography_ray.access.starting import concluded, new_document, require_admission, require_startable
from choreography_ray.codec import Encoder
from choreography_ray.core.commands import ReportStart
from choreography_ray.core.instant import seconds_of
from choreography_ray.core.starting import REMOVED
from choreography_ray.errors import JobNotFound, JobRemoved, StartJobError, StartJobReason
from choreography_ray.job import Job, check_id
from choreography_ray.model import JobId, JobRecord
from choreography_ray.options import JobsOptions
from choreography_ray.progress import record_of
from choreography_ray.records import CodeRef
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.storage.protocol import JobFilter
from choreography_ray.testing.asking import revive
from choreography_ray.testing.cluster import Cluster
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.faults import Cut, Fate, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import VirtualLoop, close
from choreography_ray.testing.turns import virtual_sleep
from choreography_ray.testing.user_code import SimUserCode, call_inline
from choreography_ray.testing.virtual_job import WAIT, VirtualJob, VirtualJobAccess

T = TypeVar("T")
TRequest = TypeVar("TRequest", bound=BaseModel)

TEST_OPTIONS = JobsOptions(job_watchdog_interval=timedelta(hours=1))
"""What a virtual cluster's jobs have unless it is told otherwise: the watchdog looks less often than in production."""
TEST_LEASE = timedelta(hours=1)


class VirtualCluster:
    """A namespace of its own in this process: no Ray, no MongoDB, and time that passes only in its methods.

    Jobs run on the same core and engine as in production; bodies and hooks run when a method lets time pass, a `def` on
    a thread of its own, where `time.sleep` takes virtual time too. Bodies must not wait for anything else outside.
    The same test plays the same story each time. Works from plain and from async tests. A context manager.
    """

    def __init__(
        self,
        *,
        max_parallel_steps: int = 4,
        options: JobsOptions = TEST_OPTIONS,
        lease: float | timedelta = TEST_LEASE,
        seed: int = 0,
        store: MemoryStorage | None = None,
    ) -> None:
        """`max_parallel_steps`: bodies that run at once. `lease`, in seconds: 30 s in production; a longer one lets
        days pass faster, and after `restart` steps that were assigned wait as long. `seed`: of how long things take.
        """
        self._loop = VirtualLoop(horizon=math.inf)
        self._options = options
        self._cluster = Cluster(slots=max_parallel_steps, seed=seed, lease=seconds_of(lease), has_threads=True)
        if store is not None:
            self._cluster.store = store
        self._is_closed = False
        self._after_start: list[tuple[int, Cut]] = []
        self.writes_of_start = 0
        """How many writes job actors had made when the first job was started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End whatever still runs. Again has no effect."""
        if not self._is_closed:
            self._is_closed = True
            with _no_other_loop(), virtual_sleep():
                close(self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let virtual time pass until a coroutine is done, which runs beside the jobs; its value."""
        with _no_other_loop(), virtual_sleep():
            return self._loop.run_until_complete(work)

    def call(self, function: Callable[[], T]) -> T:
        """Call something where the jobs run, now."""

        async def call() -> T:
            return function()

        return self.run(call())

    # Time.

    @property
    def now(self) -> datetime:
        """The virtual present, aware UTC; it begins in the year 2030."""
        return self.call(lambda: self._cluster.clock.instant().at)

    def advance(self, by: float | timedelta) -> None:
        """Let so much time pass: seconds, or a `timedelta`."""
        self.run(asyncio.sleep(seconds_of(by)))

    def advance_until(
        self, condition: Callable[[], bool], timeout: float | timedelta = WAIT, step: float | timedelta = 0.1
    ) -> None:
        """Let time pass until the condition holds; it is looked at every `step`. Raises `TimeoutError`."""
        until = self.now + timedelta(seconds=seconds_of(timeout))
        while not condition():
            if self.now >= until:
                raise TimeoutError(f"the condition does not hold after {timeout} of virtual time")
            self.advance(step)

    # Jobs.

    def start(
        self,
        job_class: type[Job[TRequest, Any]],
        request: TRequest,
        *,
        job_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> VirtualJob:
        """Start a job, as `Choreography.start` does. Returns once its first steps run or wait for a place.

        Raises what that raises: `StartJobError`, `InvalidJobType`, `InvalidId`, `NotStorable`, `TooLarge`.
        """
        try:
            access = self.run(self._start(job_class, request, job_id, labels))
        except StartJobError as error:
            if isinstance(error.job, VirtualJobAccess):
                error.job = VirtualJob(self, error.job)
            raise
        self.writes_of_start = self.writes_of_start or self.job_writes
        while self._after_start:
            self.crash_job_at_write(*self._after_start.pop())
        return VirtualJob(self, access)

    async def _start(
        self, job_class: type[Job[Any, Any]], request: BaseModel, job_id: str | None, labels: Mapping[str, str] | None
    ) -> VirtualJobAccess:
        require_startable(job_class, request)
        code = CodeRef(job_class.__module__, job_class.__qualname__)
        at = self._cluster.clock.instant().at
        document = new_document(job_class, code, Encoder(), request, self._options, at, job_id, labels)
        await require_admission(job_class, request, document, SimUserCode(call_inline))
        job = await self._cluster.live(document, LivingCode(job_class))
        access = VirtualJobAccess(self._cluster, document.job_id)
        if job is None:
            raise StartJobError(StartJobReason.ALREADY_STARTED, document.job_id, job=access)
        return access if document.is_background else concluded(access, await self._started(job))

    async def _started(self, job: SimJob) -> ReportStart:
        await asyncio.wait({job.started, job.ended}, return_when=asyncio.FIRST_COMPLETED)
        if job.started.done():
            report: ReportStart = job.started.result()
            if report.error == REMOVED:
                raise JobRemoved(job.job_id)
            return report
        job.ended.result()
        document = await self._cluster.document(job.job_id)
        return ReportStart(document.start_error, document.start_details)

    def job(self, job_id: str) -> VirtualJob:
        """A job of this cluster by its id. Raises `JobNotFound`."""
        chosen = JobId(check_id("job id", job_id))
        if chosen not in self._cluster.jobs:
            raise JobNotFound(chosen)
        return VirtualJob(self, VirtualJobAccess(self._cluster, chosen))

    def jobs(self) -> list[JobRecord]:
        """All jobs that are stored, newest first."""
        return [record_of(document) for document in self.run(self._cluster.store.list_jobs(JobFilter()))]

    # Faults. Writes and messages are counted from now on, the next one being 1.

    @property
    def job_writes(self) -> int:
        """How often job actors have written to the store so far."""
        return self._cluster.job_writes[0]

    @property
    def host_writes(self) -> int:
        """How often hosts, which perform the steps, have written to the store so far."""
        return self._cluster.host_writes[0]

    @property
    def messages(self) -> int:
        """How many messages went between processes so far."""
        return self._cluster.messages

    def crash_job_at_write(self, n: int = 1, cut: Cut = Cut.AFTER) -> None:
        """The process of whichever job actor makes the n-th write from now on dies before, inside, or after it."""
        self._cluster.job_faults.append(Fault(self.job_writes + n - 1, cut, kills=True))

    def crash_job_after_start(self, n: int = 1, cut: Cut = Cut.AFTER) -> None:
        """The same, counted from when the first job is started: one that dies before has no plan, and fails [S4]."""
        self._after_start.append((n, cut))

    def crash_host_at_write(self, n: int = 1, cut: Cut = Cut.AFTER) -> None:
        """The same for the processes that perform steps."""
        self._cluster.host_faults.append(Fault(self.host_writes + n - 1, cut, kills=True))

    def lose_answer_of_job_write(self, n: int = 1, cut: Cut = Cut.AFTER) -> None:
        """The n-th write of job actors from now on gets no answer, whether it was applied (`cut`) or not."""
        self._cluster.job_faults.append(Fault(self.job_writes + n - 1, cut, kills=False))

    def disturb_message(self, n: int, fate: Fate) -> None:
        """The n-th message from now on is lost, repeated, late, or overtaken by the next."""
        self._cluster.message_faults[self.messages + n - 1] = fate

    def store_unavailable(self, duration: float | timedelta) -> None:
        """The store answers nobody for so long. Reading through handles goes on: it is the test's own."""
        self._cluster.store_away_until = self._loop.time() + seconds_of(duration)

    def crash_throttle(self, duration: float | timedelta = 2.0) -> None:
        """The throttle dies and comes back after so long, without its memory."""
        self.call(lambda: self._cluster.kill_throttle(seconds_of(duration)))

    def restart(self) -> None:
        """Head and nodes are gone, and with a new cluster all jobs that were not at rest go on."""
        self.run(self._restart())

    async def _restart(self) -> None:
        going = [job for job in self._cluster.jobs.values() if not job.is_over]
        self._cluster.black_out()
        await asyncio.sleep(1.0)
        for job in going:
            revive(job)


@contextlib.contextmanager
def _no_other_loop() -> Generator[None]:
    """In an async test the test's own loop waits, while the virtual one, which never waits for anything, runs."""
    running = asyncio._get_running_loop()  # noqa: SLF001 - for makers of event loops, as their docstrings say
    asyncio._set_running_loop(None)  # noqa: SLF001
    try:
        yield
    finally:
        asyncio._set_running_loop(running)  # noqa: SLF001
