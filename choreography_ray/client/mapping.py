"""How are the items of a map saved while they come, so that no more than a page of them is ever in memory [S2.3]?

The job's record is there first, without a plan: if whoever saves the items dies, nobody goes on with it, and it is
deleted after `dead_job_threshold` [S9.8]. One write then names the plan, whole; only then is the job's actor made. So
a map needs no copy of its items beside the plan, and a start that fails leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from choreography_ray.code import type_reference
from choreography_ray.codec import Encoder, encode
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.writes import JobWriter, Writer
from choreography_ray.errors import Fenced, NotStorable, StartJobError, StartJobReason, StorageUnavailable, TooLarge
from choreography_ray.mapping import MapItem, MapStep
from choreography_ray.model import JobId, JobStatus, StepId
from choreography_ray.records import SEGMENT_STEPS, CodeRef, JobDocument, PlannedStep, PlanRef, PlanSegment, StepKind
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

PAGE_STEPS = 4 * SEGMENT_STEPS
"""Items that are taken, and saved, at once."""
SIGN_SECONDS = 60.0
"""How often a plan that takes long to be saved shows on the job's record."""


class MapPlan:
    """The plan of one map, while it is being saved. After an error, and on any other way out, `give_up`."""

    def __init__(
        self,
        storage: JobStorage,
        document: JobDocument,
        step_class: type[MapStep],
        captured: bytes | None,
        encoder: Encoder,
    ) -> None:
        self.document = document
        self._captured = captured
        self._encoder = encoder
        self._storage = storage
        self._step_class = step_class
        self._clock = SystemClock()
        self._certain = Writer(self._clock).certain
        self._job = JobWriter(document, storage, self._clock, Writer(self._clock))
        self._plan_fence = 0
        self._total = 0
        self._signed_at = self._clock.instant().now
        self._is_started = False

    async def add(self, items: Sequence[Any]) -> None:
        """Save a page of `PAGE_STEPS` items, or the last ones. Raises `StartJobError` for one that cannot be stored."""
        if not self._plan_fence:
            await self._begin()
        begin = self._total
        steps = [self._planned(begin + place, item) for place, item in enumerate(items)]
        segments = [
            PlanSegment((begin + place) // SEGMENT_STEPS, tuple(steps[place : place + SEGMENT_STEPS]))
            for place in range(0, len(steps), SEGMENT_STEPS)
        ]
        try:
            await self._certain(lambda: self._storage.save_plan_segments(self._job_id, self._plan_fence, segments))
        except TooLarge as error:
            raise self._invalid(str(error)) from error
        self._total += len(steps)
        now = self._clock.instant().now
        if now - self._signed_at > SIGN_SECONDS:
            self._signed_at = now
            await self._save(details=f"{self._total:,} items so far")

    async def finish(self) -> JobDocument:
        """Make it a job with a plan. An empty one is left for the job to find out. Raises `StartJobError`."""
        if not self._plan_fence:
            self.document = replace(self.document, request=_marked_empty(self.document.request))
            await self._insert()
            self._is_started = True
            return self.document
        cls = self._step_class
        kind = StepKind(0, type_reference(cls), cls.hosting, cls.steps_per_actor, encode(dict(cls.ray_options)))
        await self._certain(lambda: self._storage.save_plan(self._job_id, self._plan_fence, (kind,)))
        segments = -(-self._total // SEGMENT_STEPS)
        plan = PlanRef(self._plan_fence, segments, self._total, SEGMENT_STEPS)
        await self._save(JobStatus.PREPARING_STEPS, plan=plan, details="")
        self._is_started = True
        return self._job.document

    async def give_up(self) -> None:
        """Leave nothing of a map that was not started."""
        if self._is_started or not self._plan_fence:
            return
        self._is_started = True
        try:
            there = await self._storage.read_job(self._job_id)
            if there is None or (there.plan is None and there.fence == self.document.fence):
                await self._storage.clear_job(self._job_id, self._plan_fence, keep_results=False)
                await self._storage.delete_job(there or self.document)
        except StorageUnavailable as error:  # it is found and deleted later [S9.8]; what ended the map matters more
            log.warning("map %r was not started, and what it had saved is still there: %s", self._job_id, error)

    @property
    def _job_id(self) -> JobId:
        return self.document.job_id

    async def _begin(self) -> None:
        await self._insert()
        # The job's own fence stays as it is: its actor is the first to raise it, and begins rather than recovers.
        self._plan_fence = await self._certain(lambda: self._storage.next_number("fence"))

    async def _insert(self) -> None:
        await self._certain(lambda: save_code(self._storage, self.document.code, self._captured))
        if not await self._certain(lambda: self._storage.insert_job(self.document)):
            raise StartJobError(StartJobReason.ALREADY_STARTED, self._job_id)

    def _planned(self, ordinal: int, item: Any) -> PlannedStep:
        try:
            request = self._encoder.encode(MapItem.model_construct({"item"}, item=item), "")
        except NotStorable as error:
            path = f"items[{ordinal}]{error.path.removeprefix('item')}"
            raise self._invalid(f"{path}: {error.why}") from error
        return PlannedStep(StepId(str(ordinal)), "", 0, request)

    async def _save(self, status: JobStatus | None = None, **fields: Any) -> None:
        try:
            if status is None:
                await self._job.change(**fields)
            else:
                await self._job.change_status(status, **fields)
        except Fenced as error:
            there = await self._storage.read_job(self._job_id)
            why = ("somebody stopped or removed it while its items were being saved",)
            details = why if there is None else (*why, *there.start_details)
            raise StartJobError(StartJobReason.STOPPED, self._job_id, details) from error

    def _invalid(self, why: str) -> StartJobError:
        return StartJobError(StartJobReason.INVALID_STEP_PLAN, self._job_id, (why,))


async def save_code(storage: JobStorage, ref: CodeRef, captured: bytes | None) -> None:
    """Save the copy that a job is about to point at, right before its record: unused ones are deleted in time."""
    if captured is not None:
        about = {"module": ref.module, "qualname": ref.qualname}
        await storage.save_code(ref.digest, captured, about, datetime.now(UTC))


def _marked_empty(request: Any) -> Any:
    return {**request, "is_empty": True}


def pages_of(items: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """The items in pages for `MapPlan.add`."""
    left = iter(items)
    while page := list(islice(left, PAGE_STEPS)):
        yield page


async def async_pages_of(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Sequence[Any]]:
    """The same from either kind of iterable; a plain one is pulled on a thread, since it may block."""
    if not isinstance(items, AsyncIterable):
        pages = pages_of(items)
        while page := await asyncio.to_thread(next, pages, ()):
            yield page
        return
    waiting: list[Any] = []
    async for item in items:
        waiting.append(item)
        if len(waiting) == PAGE_STEPS:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
