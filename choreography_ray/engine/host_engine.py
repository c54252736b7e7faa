"""What a host does: ask for its lease, perform the groups it is told, persist their outcomes, deliver them [S6.4]."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from typing import Any

from choreography_ray.core.policies import delivery_delay
from choreography_ray.engine.ports import BodyRunner, Clock, JobPort, Lease, Loaded, Process, StepWork, UserCode, Work
from choreography_ray.engine.settling import insert_at_first_free, outcome_parts
from choreography_ray.engine.step_run import StepRun, Surroundings
from choreography_ray.engine.writes import Writer
from choreography_ray.errors import StepTimedOut
from choreography_ray.model import HostId, JobId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, Outcome, OutcomeDocument, OutcomeKey, Run
from choreography_ray.step import JobStep
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.25
"""How long a finished outcome may wait for others of its group before it is persisted."""
ASK_AGAIN_SECONDS = 0.5
"""Pause before a lease is asked for again when the job actor did not answer."""

LoadCode = Callable[[CodeRef], Awaitable[Loaded]]


class HostEngine:
    """One host. It performs a run once, refuses fences below the highest it has seen, and begins nothing unleased."""

    def __init__(
        self,
        job_id: JobId,
        host: HostId,
        storage: JobStorage,
        load_code: LoadCode,
        job: JobPort,
        runner: BodyRunner,
        user: UserCode,
        clock: Clock,
        process: Process,
    ) -> None:
        self.job_id = job_id
        self.host = host
        self._storage = storage
        self._load_code = load_code
        self._job = job
        self._runner = runner
        self._user = user
        self._clock = clock
        self._process = process
        self._writer = Writer(clock)
        self._fence = 0
        self._last_run = Run(0, 0)
        self._stopped_runs: set[Run] = set()
        self._stopped_steps: dict[Run, set[int]] = {}
        self._around: Surroundings | None = None
        self._group: GroupRun | None = None
        self.tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Get the first lease and begin the first group. The process ends when the lease is not renewed any more."""
        lease = await self._ask(is_first=True)
        if lease.seconds is None or lease.work is None or lease.code is None or lease.options is None:
            self._process.end()
            return
        self.spawn(self._renew(lease.seconds))  # loading the code may take longer than a lease
        self._around = await self._surround(lease.code, lease.options)
        self.accept(lease.work)

    async def _renew(self, seconds: float | None) -> None:
        while seconds is not None:
            await self._clock.sleep(seconds / 3)
            seconds = (await self._ask(is_first=False)).seconds
        self._process.end()

    async def _ask(self, *, is_first: bool) -> Lease:
        while True:
            asked = self._clock.instant().now
            try:
                lease = await self._job.ask(self.host, is_first)
            except Exception as error:  # noqa: BLE001 - unavailable is not dead: the kernel's timer decides
                log.info("host %r of job %r asks again: %s", self.host, self.job_id, error)
                await self._clock.sleep(ASK_AGAIN_SECONDS)
                continue
            if lease.seconds is None:
                return lease
            if lease.fence and lease.fence < self._fence:
                continue
            self._fence = max(self._fence, lease.fence)
            # The lease runs from when it was asked for, not from when the answer came [S10.2].
            self._process.live_until(lease.seconds - (self._clock.instant().now - asked))
            return lease

    async def _surround(self, code: CodeRef, options: JobsOptions) -> Surroundings:
        loaded = await self._load_code(code)
        loop = asyncio.get_running_loop()
        return Surroundings(
            self.job_id,
            self._storage,
            self._writer,
            self._clock,
            loaded,
            options,
            self._user,
            loop,
            self._process.whereabouts,
            self._process.end,
        )

    def accept(self, work: Work) -> bool:
        """Begin a group. False: it is of a lower fence, or was begun before; both are no error."""
        if self._around is None or work.run.fence < self._fence or work.run <= self._last_run:
            return False
        self._fence, self._last_run = work.run.fence, work.run
        self._group = GroupRun(self, self._around, work)
        if work.run in self._stopped_runs:
            self._group.stop()
        self._group.stop_steps(self._stopped_steps.pop(work.run, set()))
        self.spawn(self._group.perform(self._runner))
        return True

    def stop(self, run: Run, fence: int, ordinals: Collection[int] = ()) -> None:
        """Stop steps of a run, all if none is named: what has not begun never will [S6.4].

        Also when the run itself is told only afterwards.
        """
        self._fence = max(self._fence, fence)
        is_here = self._group is not None and self._last_run == run
        if not ordinals:
            self._stopped_runs.add(run)
        elif not is_here:
            self._stopped_steps.setdefault(run, set()).update(ordinals)
        if is_here and self._group is not None:
            if ordinals:
                self._group.stop_steps(ordinals)
            else:
                self._group.stop()

    def has_begun(self, run: Run, fence: int) -> bool:
        """Whether this host has begun the run; asking so is how a new job actor adopts it [S10.1]."""
        self._fence = max(self._fence, fence)
        return self._last_run == run

    @property
    def is_in_callback(self) -> bool:
        """Whether a callback of the body's runs: what it does is not cut off at once [S9.2]."""
        return self._group is not None and self._group.is_in_callback

    async def report(self, work: Work, n: int, outcomes: tuple[Outcome, ...], seconds: float) -> int:
        """Persist outcomes, in as many documents as their sizes ask for, then deliver them in the background.

        Returns the next free n.
        """
        for some in outcome_parts(outcomes):
            share = seconds * len(some) / len(outcomes)
            document = OutcomeDocument(self.job_id, OutcomeKey(work.host, work.run, n), tuple(some), share)
            written, found = await insert_at_first_free(self._storage, self._writer, document)
            if written is None:
                n += len(found)
            else:
                self.spawn(self._deliver(written))
                n = written.key.n + 1
        return n

    async def _deliver(self, document: OutcomeDocument) -> None:
        assert self._around is not None
        options = self._around.options
        for failed in range(1, options.step_delivery_max_attempts + 1):
            try:
                await self._job.deliver(document)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the outcome is persisted: tell it again
                log.info("outcomes of host %r are delivered again: %s", self.host, error)
                await self._clock.sleep(delivery_delay(options, failed))
            else:
                return
        log.warning("outcomes of host %r were not acknowledged: the watchdog settles them", self.host)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something in the background of this host."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("host %r of job %r is broken and ends", self.host, self.job_id, exc_info=error)
            self._process.end()

    async def end_after(self, outcomes: tuple[Outcome, ...], work: Work, n: int, seconds: float) -> None:
        """Persist the last outcomes, then end the process under whatever body still runs [S6.8]."""
        await self.report(work, n, outcomes, seconds)
        self._process.end()


class GroupRun:
    """The steps of one run, `width` at a time; finished outcomes are persisted in groups."""

    def __init__(self, host: HostEngine, around: Surroundings, work: Work) -> None:
        self._host = host
        self._around = around
        self._work = work
        self._type: type[JobStep[Any, Any, Any]] = around.code.resolve(work.step_type)
        self._done: deque[tuple[Outcome, float]] = deque()
        self._is_told = False
        self._active: dict[StepRun, float] = {}
        """When each began."""
        self._is_stopped = False
        self._stopped: set[int] = set()
        self._claimed: set[int] = set()
        self._claiming = threading.Lock()
        self._drops: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._n = 0
        self._flushing = asyncio.Lock()

    async def perform(self, runner: BodyRunner) -> None:
        """Perform every step; returns when all outcomes are persisted."""
        loop = self._around.loop
        flusher = loop.create_task(self._flush_while_running())
        work = self._work
        if self._type.is_async:
            await runner.run_async(work.steps, work.width, self._perform_async)
        else:
            await runner.run_blocking(work.steps, work.width, self._perform_blocking)
        while self._drops:
            await asyncio.wait(self._drops)
        flusher.cancel()
        await asyncio.gather(flusher, return_exceptions=True)
        await self._flush()

    def stop(self) -> None:
        """Stop every step of the run: bodies are told, what has not begun never does [S9.2]."""
        self._is_stopped = True
        for run in tuple(self._active):
            run.stop()

    def stop_steps(self, ordinals: Collection[int]) -> None:
        """Stop single steps of the run; those that wait for their turn are accounted at once."""
        self._stopped.update(ordinals)
        for run in tuple(self._active):
            if run.work.ordinal in ordinals:
                run.stop()
        for step in self._work.steps:
            if step.ordinal in ordinals and self._claim(step):
                task = self._around.loop.create_task(self._drop(step))
                self._drops.add(task)
                task.add_done_callback(self._drops.discard)

    async def _drop(self, step: StepWork) -> None:
        run = self._begin(step)
        perform = run.perform_async if self._type.is_async else run.perform_blocking
        self._finished(run, await self._around.user.call(perform))

    def _claim(self, step: StepWork) -> bool:
        """True for the first who takes this step on, whether to perform it or to drop it."""
        with self._claiming:
            is_first = step.ordinal not in self._claimed
            self._claimed.add(step.ordinal)
            return is_first

    @property
    def is_in_callback(self) -> bool:
        """Whether one of its bodies has a callback that runs."""
        return any(run.is_in_callback for run in tuple(self._active))

    def _begin(self, step: StepWork) -> StepRun:
        run = StepRun(self._around, self._type, self._work.run, self._work.stage, step)
        self._active[run] = self._around.loop.time()
        if self._is_stopped or step.ordinal in self._stopped:  # told before it was among the active ones
            run.stop()
        return run

    def _perform_blocking(self, step: StepWork) -> None:
        if not self._claim(step):
            return
        run = self._begin(step)
        watch = self._watch(run)
        outcome = run.perform_blocking()
        self._finished(run, outcome)
        if watch is not None:
            watch.cancel()

    async def _perform_async(self, step: StepWork) -> None:
        if not self._claim(step):
            return
        run = self._begin(step)
        watch = self._watch(run)
        outcome = await run.perform_async()
        self._finished(run, outcome)
        if watch is not None:
            watch.cancel()

    def _finished(self, run: StepRun, outcome: Outcome) -> None:
        # Called on the body's thread: the deque takes it at once, and the loop is woken once per pause at most.
        self._done.append((outcome, self._around.loop.time() - self._active.pop(run)))
        if not self._is_told:
            self._is_told = True
            self._around.loop.call_soon_threadsafe(self._news.set)

    def _watch(self, run: StepRun) -> Future[None] | None:
        # On the host's loop, which goes on whatever the body does.
        timeout = self._type.step_timeout
        if timeout is None:
            return None
        return asyncio.run_coroutine_threadsafe(self._time_out(run, timeout.total_seconds()), self._around.loop)

    async def _time_out(self, run: StepRun, seconds: float) -> None:
        """The end of the body cancels this, until its process is being ended under it."""
        await asyncio.sleep(seconds)
        if run.time_out(seconds):
            await asyncio.sleep(max(0.0, self._around.options.step_stop_timeout.total_seconds()))
            # On its own: outcomes that it takes, of other steps too, must be persisted whatever this body does.
            self._host.spawn(self._end(run, seconds))

    async def _end(self, run: StepRun, seconds: float) -> None:
        async with self._flushing:
            if run in self._active:
                outcomes, taken = self._take()
                timed_out = run.failed(StepTimedOut(seconds))
                await self._host.end_after((*outcomes, timed_out), self._work, self._n, taken + seconds)

    async def _flush_while_running(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(FLUSH_SECONDS)
            self._news.clear()
            await asyncio.shield(self._flush())

    def _take(self) -> tuple[tuple[Outcome, ...], float]:
        """What has finished since, and the seconds that the bodies took in all."""
        self._is_told = False
        done = [self._done.popleft() for _ in range(len(self._done))]
        return tuple(outcome for outcome, _ in done), sum(seconds for _, seconds in done)

    async def _flush(self) -> None:
        async with self._flushing:
            outcomes, seconds = self._take()
            if outcomes:
                self._n = await self._host.report(self._work, self._n, outcomes, seconds)
