"""Who looks after all jobs: brings back the interrupted, ends the silent, forgets the old [S10, S10.4, S9.8].

Nothing that it knows is durable, and nothing depends on there being only one: an actor is made by its name, and what is
written or deleted is so under a fence that only one can have raised. One that wakes up late does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import timedelta
from typing import Any

from choreography_ray.core.ownership import sign_of
from choreography_ray.core.supervising import (
    Duty,
    ElsewhereWatch,
    ListedActor,
    Revivals,
    SilenceWatch,
    duty_of,
    is_expired,
)
from choreography_ray.engine.ports import Clock, JobActors
from choreography_ray.engine.taking import delete_taken, give_status, take_over
from choreography_ray.errors import OwnedElsewhere
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import ClusterOptions
from choreography_ray.records import JobBrief, JobDocument, brief_of
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

MAX_INTERVAL = 10.0
"""Seconds between two looks, unless a third of a lease is less."""
PATIENCE_SECONDS = 15.0
"""How long a job may take to come up before its place goes to the next: it comes up beside it."""
ANSWER_SECONDS = 10.0
"""How long the throttle may take to say whom it hears."""
PAGE = 100
SPARED = timedelta(hours=1)
"""How long captured code is kept that no record points at yet, whatever the threshold: a start saves it first, with the
time of its own machine.
"""
SWEEP_AFTER = timedelta(hours=1)
"""When the records of a removed job are deleted again: what somebody was still writing has landed by then."""


class ThrottleSilent(Exception):
    """The throttle did not answer: without its word nobody is silent."""


class Supervisor:
    """Looks when it begins, when it is told to, and every few seconds; applies retention once per cadence."""

    def __init__(self, storage: JobStorage, actors: JobActors, clock: Clock) -> None:
        self._storage = storage
        self._actors = actors
        self._clock = clock
        self._options = ClusterOptions()
        self._lease = 0.0
        """The longest lease seen: job actors keep the one that they began with."""
        self._revivals = Revivals()
        self._watch = SilenceWatch()
        self._others = ElsewhereWatch()
        self._elsewhere: set[JobId] = set()
        """Jobs whose actor found a living owner in another cluster."""
        self._names: dict[str, JobId] = {}
        """Whose actors are listed, or may be soon."""
        self._news = asyncio.Event()
        self._is_asked = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._cleaning: asyncio.Task[None] | None = None
        self._cleaned_at: float | None = None

    def look(self) -> None:
        """Look at once, with the options as they are stored now. However often it is asked, it looks once more."""
        self._is_asked = True
        self._news.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            self._news.clear()
            is_asked, self._is_asked = self._is_asked, False
            try:
                await self._look(is_asked=is_asked)
            except Exception as error:  # noqa: BLE001 - whatever did not answer is asked again with the next look
                log.warning("the supervisor could not look after its jobs: %s", error)
                self._watch.blink()
                self._others.blink()
            try:
                async with asyncio.timeout(min(self._options.step_lease_timeout.total_seconds() / 3, MAX_INTERVAL)):
                    await self._news.wait()
            except TimeoutError:
                pass

    # What is found.

    async def _look(self, *, is_asked: bool) -> None:
        self._options = await self._storage.read_cluster_options()
        self._lease = max(self._lease, self._options.step_lease_timeout.total_seconds())
        # Actors first: a job that ends afterwards is not found unfinished, and one that begins has its actor soon.
        listed = await self._actors.listed()
        jobs = await self._unfinished()
        at, now = self._clock.instant().at, self._clock.instant().now
        actors = {job.job_id: listed.get(self._actors.name(job.job_id)) for job in jobs}
        unlisted = [job for job in jobs if actors[job.job_id] is None]
        free = self._free(unlisted, now)
        duties = {job.job_id: duty_of(job, at, self._options) for job in unlisted if free(job)}
        if is_asked:
            self._revivals.forgive(now)
        self._revivals.look([job_id for job_id, duty in duties.items() if duty is Duty.REVIVE], now)
        self._bring_back()
        self._learn_names(listed, jobs)
        await self._watch_out({job_id: listed.get(name) for name, job_id in self._names.items()})
        for job in jobs:
            if duties.get(job.job_id) is Duty.DELETE:
                await self._delete_unfinished(job)
        self._clean_in_time(now)

    def _learn_names(self, listed: Collection[str], jobs: list[JobBrief]) -> None:
        """Not every name tells the job; then it is remembered from when the job was seen unfinished."""
        unfinished = {self._actors.name(job.job_id): job.job_id for job in jobs}
        told = {name: job_id for name in listed if (job_id := self._actors.job_id(name)) is not None}
        remembered = {name: job_id for name, job_id in self._names.items() if name in listed}
        self._names = remembered | told | unfinished

    def _free(self, jobs: list[JobBrief], now: float) -> Callable[[JobBrief], bool]:
        """Which of these no living process of another cluster owns, as far as is known [S10.3]."""
        elsewhere = {job.job_id: sign_of(job) for job in jobs if job.cluster not in ("", self._actors.cluster)}
        silent = self._others.silent(elsewhere, self._lease, now)
        self._elsewhere &= elsewhere.keys() - silent

        def is_free(job: JobBrief) -> bool:
            if job.job_id not in elsewhere or job.job_id in silent or job.is_forced:
                return True
            # Its actor finds out whether the owner lives, once; but nobody finds out for a job without a plan.
            return job.job_id not in self._elsewhere and (job.has_plan or job.is_background)

        return is_free

    async def _unfinished(self) -> list[JobBrief]:
        found: list[JobBrief] = []
        while page := await self._storage.unfinished_jobs(found[-1] if found else None, PAGE):
            found += page
        return found

    # The interrupted.

    def _bring_back(self) -> None:
        now = self._clock.instant().now
        for job_id in self._revivals.next(self._options.max_concurrent_rehydration, now):
            self._spawn(self._revive(job_id))

    async def _revive(self, job_id: JobId) -> None:
        log.info("job %r is brought back", job_id)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._actors.revive(job_id)
        except OwnedElsewhere as error:
            self._elsewhere.add(job_id)
            log.info("job %r is left alone: %s", job_id, error)
        except TimeoutError:
            log.warning("job %r takes long to come back; others go on beside it", job_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's: it holds up no other
            log.warning("job %r could not be brought back: %s", job_id, error)
        finally:
            self._revivals.done(job_id)
        self._bring_back()

    # The silent.

    async def _watch_out(self, actors: Mapping[JobId, ListedActor | None]) -> None:
        """End actors that are silent; also one that is stuck at the end of its job, which nobody would else [S14.5]."""
        try:
            silences = await self._silences()
            overdue = self._watch.observe(actors, silences, self._lease, self._clock.instant().now)
            for job_id in overdue:
                document = await self._storage.read_job(job_id)
                # Asked again: whoever takes the job over and speaks from now on has a fence above the one read.
                actor, silence = actors[job_id], (await self._silences()).get(job_id, 0.0)
                if actor is not None and silence >= self._lease:
                    await self._replace(job_id, actor, document)
        except ThrottleSilent as error:
            log.info("nobody says who is heard: %s", error)
            self._watch.blink()

    async def _silences(self) -> dict[JobId, float]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                heard = await self._actors.silences()
        except Exception as error:
            raise ThrottleSilent(f"{type(error).__name__}: {error}") from error
        return {job_id: heard[name] for name, job_id in self._names.items() if name in heard}

    async def _replace(self, job_id: JobId, actor: ListedActor, document: JobDocument | None) -> None:
        """End a silent actor for good, fence first; an unfinished job is made anew after lease and margin [S10.4].

        It counts as the death that it is: the fence hides it from the next process, which may be silenced as well.
        """
        if document is not None:
            crashes = document.crashes + 1
            if await take_over(self._storage, job_id, document.fence, crashes) is None:
                return  # it was taken over just now: somebody is at work
        log.warning("the actor of job %r says nothing: it is ended", job_id)
        self._watch.replaced(job_id)
        wait = (self._options.step_lease_timeout + self._options.lease_margin).total_seconds()
        self._revivals.postpone(job_id, self._clock.instant().now + wait)
        await self._actors.end(job_id, actor.actor_id)

    # The old.

    async def _delete_unfinished(self, job: JobBrief) -> None:
        """Delete what a forced removal left, or a start that died without a plan; only as it was found."""
        if job.fence == 0:
            # No actor ever took it over: it has nothing but its document, and a fence would frighten a new one's start.
            document = await self._storage.read_job(job.job_id)
            if document is not None and brief_of(document) == job:
                await self._storage.delete_job(document)
            return
        taken = await take_over(self._storage, job.job_id, job.fence)
        at = self._clock.instant().at
        if taken is None or duty_of(brief_of(taken), at, self._options) is not Duty.DELETE:
            return
        if not taken.is_forced:
            taken = await give_status(
                self._storage, taken, JobStatus.REMOVING, "its start died before there was a plan", at, is_forced=True
            )
        if taken is not None:
            await delete_taken(self._storage, taken)

    def _clean_in_time(self, now: float) -> None:
        cadence = self._options.cleanup_cadence.total_seconds()
        is_at_it = self._cleaning is not None and not self._cleaning.done()
        is_due = self._cleaned_at is None or now >= self._cleaned_at + cadence
        if cadence > 0 and is_due and not is_at_it:
            self._cleaned_at = now
            self._cleaning = self._spawn(self._clean())

    async def _clean(self) -> None:
        """One round: old jobs, the oldest first, what late writers left of removed ones, and code that nobody uses.

        A start that dies between its code and its record is as dead as one without a plan.
        """
        try:
            await self._expire()
            await self._sweep()
            spared = max(self._options.dead_job_threshold, SPARED)
            await self._storage.delete_unused_code(self._clock.instant().at - spared)
        except Exception as error:  # noqa: BLE001 - the next round finds all that is left
            log.warning("cleaning up was cut short: %s", error)

    async def _expire(self) -> None:
        kept = self._options.terminal_job_retention
        if kept is None:
            return
        before = self._clock.instant().at - kept
        places = asyncio.Semaphore(self._options.max_concurrent_cleanup)
        left = self._options.max_terminal_jobs_per_cleanup
        last: JobBrief | None = None
        while left > 0 and (page := await self._storage.ended_jobs(before, last, min(PAGE, left))):
            last = page[-1]
            # Actors last: one that is not listed now and comes later has a higher fence than the page tells.
            listed = await self._actors.listed()
            quiet = [job for job in page if self._actors.name(job.job_id) not in listed]
            left -= sum(await asyncio.gather(*(self._forget(job, places) for job in quiet)))

    async def _forget(self, job: JobBrief, places: asyncio.Semaphore) -> bool:
        """Delete a job whose retention is over, unless somebody has taken it up. True: it is gone."""
        async with places:
            taken = await take_over(self._storage, job.job_id, job.fence)
            at = self._clock.instant().at
            if taken is None or not is_expired(brief_of(taken), at, self._options):
                return False
            why = "its retention is over"
            removing = await give_status(self._storage, taken, JobStatus.REMOVING, why, at, is_forced=True)
            if removing is None:
                return False
            await delete_taken(self._storage, removing)
            return True

    async def _sweep(self) -> None:
        """Delete again what removed jobs had: nothing that a later job of the id has, whose fences are higher."""
        before = self._clock.instant().at - SWEEP_AFTER
        while removed := await self._storage.removed_jobs(before, PAGE):
            for job_id, fence in removed:
                await self._storage.clear_job(job_id, fence, keep_results=False)
            await self._storage.forget_removed(removed)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
