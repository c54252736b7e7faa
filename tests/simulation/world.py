"""The simulated cluster of the stories, and their witness.

Bodies leave marks here, outside the framework, and the marks are the witness: what must never be is noted in
`violations` at the moment when it is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from choreography_ray.codec import encode
from choreography_ray.job import Job, effective_options
from choreography_ray.model import JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument, StepCode
from choreography_ray.testing.cluster import LEASE, Cluster
from choreography_ray.testing.code import LivingCode
from choreography_ray.testing.job_actor import SimJob
from tests.simulation.invariants import Invariants

MARGIN = LEASE / 10


class Body(NamedTuple):
    """Who performs: what a body tells of itself."""

    job: JobId
    key: str
    ordinal: int
    stage: int
    attempt: int


class Planned(NamedTuple):
    """What the witness knows of a job in advance."""

    stages: tuple[int, ...]
    step_ids: tuple[StepId, ...]
    window: int | None


@dataclass
class World(Cluster):
    """One namespace, and what bodies and people told of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.planned: dict[JobId, Planned] = {}
        self.marks: list[tuple[float, str, Body]] = []
        self.violations: list[str] = []
        self.running: Counter[tuple[JobId, int]] = Counter()
        self.peak = 0
        self.neighbours: list[World] = []
        """Other clusters on this one's store, of which `Work.world` knows: their bodies leave their marks there."""
        self.checkpoints: dict[tuple[JobId, int], int] = {}
        self.open_step_stops = 0
        """Who stops a step and has no answer yet."""
        self.stopped_steps: dict[tuple[JobId, int], datetime] = {}
        """Steps of which somebody was told that they are stopped, and when that was asked for."""
        self.requests = 0
        """How often somebody stopped, drained or resumed a job."""
        self.held_soon = 0
        """Slots that the throttle counts a second after the last job has ended."""
        self.invariants = Invariants(self)

    def called(self, name: str) -> None:
        """After each write what must always hold does."""
        self.invariants.look(name)

    def begin(self, body: Body) -> None:
        """A body begins."""
        self.marks.append((self.now, "begin", body))
        step = (body.job, body.ordinal)
        self.running[step] += 1
        running = self.running.total()
        self.peak = max(self.peak, running)
        slots = sum(world.slots for world in (self, *self.neighbours))
        self._demand(running <= slots, f"{running} bodies at once")
        is_alone = self.running[step] <= 1
        self._demand(is_alone or self._is_succeeded(body.job), f"two bodies of {body} at once")
        window = self.planned[body.job].window
        of_job = sum(n for (job, _), n in self.running.items() if job == body.job)
        is_within = window is None or of_job <= max(1, window)
        self._demand(is_within or self._is_succeeded(body.job), f"{of_job} bodies of {body.job} in its window")
        self._demand(not self._is_stopped(step), f"{body} begins although somebody was told that it is stopped")
        codes = self.codes(body.job)
        self._demand(codes[body.ordinal] == StepCode.SCHEDULED, f"{body} began without its durable SCHEDULED")
        stages = self.planned[body.job].stages
        early = [o for o, s in enumerate(stages) if s < body.stage and not StepCode(codes[o]).status.is_final]
        self._demand(not early, f"{body} began before {early} of earlier stages had ended")

    def _is_succeeded(self, job_id: JobId) -> bool:
        """Whether another cluster owns the job than one that was cut off from the store, and may not have learned of it
        since: the only time at which bodies may overlap [S10.3].
        """
        owner = self.store._documents[job_id].owner
        others = [world for world in (self, *self.neighbours) if owner is not None and world.name != owner.cluster]
        backs = [max(world.store_away_until, *world.without_store.values(), 0.0) for world in others]
        return any(self.now < back + self.lease for back in backs)

    def _is_stopped(self, step: tuple[JobId, int]) -> bool:
        """Whether somebody was told that the step is stopped, and the job has not been resumed since that was asked."""
        asked = self.stopped_steps.get(step)
        history = self.store._documents[step[0]].history
        return asked is not None and not any(entry.why == "resumed" and entry.at >= asked for entry in history)

    def end(self, body: Body) -> None:
        """A body ends, for whatever reason."""
        self.marks.append((self.now, "end", body))
        self.running[body.job, body.ordinal] -= 1

    def resumed(self, body: Body, position: int) -> None:
        """A body says where it begins: never before what it was told to be durable."""
        durable = self.checkpoints.get((body.job, body.ordinal), 0)
        self._demand(position >= durable, f"{body} begins at {position}, {durable} was durable")

    def reached(self, body: Body, position: int) -> None:
        """A body was told that its checkpoint is durable."""
        step = (body.job, body.ordinal)
        self.checkpoints[step] = max(position, self.checkpoints.get(step, 0))

    def _demand(self, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(f"{self.now:.3f}: {what}")

    def codes(self, job_id: JobId) -> bytes:
        """The ledger as stored."""
        document = self.store._documents.get(job_id)
        if document is None or document.plan is None:
            return b""
        segments = sorted(self.store._job(job_id).ledger.items())
        return b"".join(segment.codes for (plan, _), segment in segments if plan == document.plan.fence)

    # Starting and waiting.

    async def start(
        self, job_class: type[Job[Any, Any]], request: Any, *, options: JobsOptions | None = None, job_id: str = "job"
    ) -> SimJob:
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
        stages = tuple(piece.stage for piece in request.pieces)
        ids = tuple(StepId(piece.key) for piece in request.pieces)
        self.planned[document.job_id] = Planned(stages, ids, chosen.max_active_steps_per_job)
        job = await self.live(document, LivingCode(job_class))
        assert job is not None
        return job

    def is_woken(self, job_id: str) -> bool:
        """Whether a process of the job's actor may wake up, or woke, beside another."""
        jobs = [world.jobs.get(JobId(job_id)) for world in (self, *self.neighbours)]
        return any(job is not None and job.zombies for job in jobs)

    async def settle(self) -> None:
        """All jobs have ended: until nothing that was on its way can matter any more."""
        for job in self.jobs.values():
            for process in job.zombies:
                process.heal()
        await self._observe_for(1)
        self.held_soon = 0 if self.table is None else self.table.held
        await self._observe_for(40)
        for job in self.jobs.values():
            if job.process in job.zombies:
                job.end_for_good()  # it hangs, and nobody has replaced it
            for process in job.zombies:
                process.kill()
        await self._observe_for(40)

    async def _observe_for(self, seconds: int) -> None:
        for _ in range(seconds):
            self.observe()
            await asyncio.sleep(1.0)
