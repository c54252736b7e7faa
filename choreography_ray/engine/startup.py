"""From a saved job record to prepared steps: plan, save the plan, prepare in batches [S4]."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Generator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from choreography_ray.authoring.result import describe_exception
from choreography_ray.codec import decode, encode
from choreography_ray.core.ledger import Ledger, split
from choreography_ray.engine.behind import Behind
from choreography_ray.engine.hooks import Hooks
from choreography_ray.engine.ports import Loaded, UserCode
from choreography_ray.engine.rest import Desk
from choreography_ray.engine.writes import JobWriter, Writer
from choreography_ray.errors import ChoreographyError, Fenced, NotStorable, StartJobReason, TooLarge, UnknownJobType
from choreography_ray.job import StepDetails
from choreography_ray.model import JobStatus, StepId
from choreography_ray.records import (
    MAX_STAGE_COUNTS,
    SEGMENT_STEPS,
    JobDocument,
    LedgerSegment,
    PlannedStep,
    PlanRef,
    PlanSegment,
    PreparedSegment,
    StepKind,
)
from choreography_ray.storage.protocol import JobStorage

T = TypeVar("T")

MAX_KINDS = 65_535
MAX_REASONS = 20
SEGMENTS_AT_ONCE = 4
"""Segments of a plan that are written together."""
READ_AHEAD = 4
"""Segments of a plan that are read before they are needed."""
MAX_DETAILS = 16_384
"""Characters that are kept of what `get_job_details` says."""


class StartRefused(ChoreographyError):
    """The start ends here; what it says is saved with the job."""

    def __init__(self, reason: StartJobReason, details: tuple[str, ...]) -> None:
        super().__init__()
        self.reason = reason
        self.details = details

    def describe(self) -> str:
        return f"{self.reason}: {'; '.join(self.details)}"


class StartInterrupted(Exception):
    """Somebody stops or removes the job while it is being prepared, or it is not admitted again [S11]."""

    def __init__(self, why: str = "stopped while it was prepared", error: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.error = error


class Startup:
    """The start of one job, by one incarnation. Each part may be repeated by the next one."""

    def __init__(
        self,
        storage: JobStorage,
        job: JobWriter,
        writer: Writer,
        code: Loaded,
        hooks: Hooks,
        user: UserCode,
        desk: Desk,
    ) -> None:
        self._storage = storage
        self._job = job
        self._writer = writer
        self._code = code
        self._hooks = hooks
        self._user = user
        self._desk = desk
        self._kinds: list[StepKind] = []
        self._kind_index: dict[tuple[Any, ...], int] = {}
        self._plain_kinds: dict[tuple[int, type], int] = {}
        """The same for steps that have the options of their class, which most have: nothing to compare."""

    async def plan(self) -> bool:
        """Call `prepare_steps` and save the whole plan. False: it is empty. Raises `StartRefused`."""
        document = self._job.document
        # What is there was left by an earlier job of this id, or by a try whose plan was never saved.
        await self._writer.certain(lambda: self._storage.clear_job(document.job_id, document.fence, keep_results=False))
        details = await self._details()
        pages = self._pages()
        total = segments = 0
        seen: set[StepId] = set()
        waiting: list[PlanSegment] = []
        async with Behind() as behind:
            async for page in pages:
                waiting.append(PlanSegment(segments, self._planned(page, total, seen)))
                total += len(page)
                segments += 1
                self._check_interrupted()
                if len(waiting) == SEGMENTS_AT_ONCE:
                    await behind.put(partial(self._save_segments, tuple(waiting)))
                    waiting.clear()
            if waiting:
                await behind.put(partial(self._save_segments, tuple(waiting)))
        if not total:
            return False
        await self._writer.certain(lambda: self._storage.save_plan(document.job_id, document.fence, tuple(self._kinds)))
        ref = PlanRef(document.fence, segments, total, SEGMENT_STEPS)
        await self._job.change_status(JobStatus.PREPARING_STEPS, plan=ref, details=details)
        return True

    @property
    def _is_interrupted(self) -> bool:
        return self._desk.wants_rest and self._job.document.status.is_interruptible

    def _check_interrupted(self) -> None:
        """A stop waits for what is being saved, not for the rest [S9.1]."""
        if self._is_interrupted:
            raise StartInterrupted

    async def is_prepared(self) -> bool:
        """Whether every step of the saved plan is prepared."""
        document = self._job.document
        if document.plan is None:
            return False
        job_id, plan = document.job_id, document.plan
        done = await self._writer.certain(lambda: self._storage.prepared_segments(job_id, plan.fence))
        return len(done) >= plan.segments

    async def _details(self) -> str:
        try:
            return str(await self._hooks.call("get_job_details"))[:MAX_DETAILS]
        except Exception as error:
            raise _unknown("get_job_details", error) from error

    async def _pages(self) -> AsyncIterator[list[StepDetails]]:
        """The plan in segments, pulled from the user's list or generator as they are needed."""
        try:
            steps: Any = await self._unless_interrupted(self._hooks.call("prepare_steps", self._hooks.job.request))
            iterator = _iterate(steps)
            while page := await self._unless_interrupted(self._user.pull(iterator, SEGMENT_STEPS)):
                yield page
        except (NotStorable, TooLarge, StartRefused, StartInterrupted):
            raise
        except Exception as error:
            raise _unknown("prepare_steps", error) from error

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T], patience: float = 0.0) -> T:
        """What the user's code gives; a stop waits for it no longer than `patience`, in seconds [S9.1]."""
        working = asyncio.ensure_future(work)
        rest = asyncio.ensure_future(self._until_rest(patience))
        try:
            await asyncio.wait({working, rest}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            working.cancel()
            rest.cancel()
        self._hooks.abandon()
        raise StartInterrupted

    async def _until_rest(self, patience: float) -> None:
        await self._desk.until_rest_is_wanted()
        await asyncio.sleep(patience)

    def _planned(self, page: list[StepDetails], begin: int, seen: set[StepId]) -> tuple[PlannedStep, ...]:
        planned: list[PlannedStep] = []
        for ordinal, step in enumerate(page, begin):
            if not isinstance(step, StepDetails):
                raise _invalid(f"step {ordinal}: prepare_steps gave {step!r}, not what create_step returns")
            if step.step_id in seen:
                raise _invalid(f"step {step.step_id!r}: its id is used twice in the plan")
            seen.add(step.step_id)
            try:
                request = encode(step.request, "request")
                kind = self._kind(step)
            except (NotStorable, TooLarge, UnknownJobType) as error:
                raise _invalid(f"step {step.step_id!r}: {error}") from error
            planned.append(PlannedStep(step.step_id, step.name, kind, request))
        return tuple(planned)

    def _kind(self, step: StepDetails) -> int:
        cls = step.step_class
        if step.ray_options is cls.ray_options and (plain := self._plain_kinds.get((step.stage, cls))) is not None:
            return plain
        step_type = f"{cls.__module__}:{cls.__qualname__}"
        if self._code.resolve(step_type) is not cls:
            raise NotStorable("step_class", f"another class has its name, {step_type}, by which hosts find it")
        key = (step.stage, step_type, repr(sorted(step.ray_options.items())))
        index = self._kind_index.get(key)
        if index is None:
            index = len(self._kinds)
            if index > MAX_KINDS:
                raise NotStorable("ray_options", f"a plan can have {MAX_KINDS:,} kinds of steps at most")
            options = encode(dict(step.ray_options), "ray_options")
            self._kinds.append(StepKind(step.stage, step_type, cls.hosting, cls.steps_per_actor, options))
            self._kind_index[key] = index
        if step.ray_options is cls.ray_options:
            self._plain_kinds[step.stage, cls] = index
        return index

    async def _save_segments(self, segments: tuple[PlanSegment, ...]) -> None:
        document = self._job.document
        try:
            await self._writer.certain(
                lambda: self._storage.save_plan_segments(document.job_id, document.fence, segments)
            )
        except TooLarge as error:
            raise _invalid(str(error)) from error

    async def prepare(self) -> Ledger:
        """Prepare every step that is not, segment by segment, and save the ledger with it. Raises `StartRefused`."""
        document, plan = self._job.document, self._job.document.plan
        assert plan is not None
        job_id = document.job_id
        kinds = await self._writer.certain(lambda: self._storage.read_plan(job_id, plan.fence))
        done = await self._writer.certain(lambda: self._storage.prepared_segments(job_id, plan.fence))
        refused: list[str] = []
        batch: list[tuple[PlanSegment, PreparedSegment | None]] = []
        is_cut_short = False
        async with aclosing(self._segments(plan)) as segments, Behind() as behind:
            async for segment in segments:
                is_new = segment.index not in done
                if is_new and self._is_interrupted:
                    is_cut_short = True
                    break
                try:
                    prepared = await self._prepare_segment(segment, kinds, refused) if is_new else None
                except StartInterrupted:
                    is_cut_short = True
                    break
                if refused:
                    continue  # only to learn of every refusal
                batch.append((segment, prepared))
                if len(batch) == SEGMENTS_AT_ONCE:
                    await behind.put(partial(self._save_prepared, tuple(batch)))
                    batch.clear()
            if batch and not refused:
                await behind.put(partial(self._save_prepared, tuple(batch)))
        if refused:
            await self._tell_failed_to_prepare()
            more = (f"and {len(refused) - MAX_REASONS} more",) if len(refused) > MAX_REASONS else ()
            raise StartRefused(StartJobReason.COULD_NOT_PREPARE_JOB_STEPS, (*refused[:MAX_REASONS], *more))
        if is_cut_short:
            raise StartInterrupted
        # What an earlier incarnation was still inserting may have landed after this one had raised the fence.
        await self._writer.certain(lambda: self._storage.fence_ledger(job_id, document.fence))
        saved = await read_ledger(self._storage, self._writer, document)
        if saved is None:
            raise LookupError(f"the ledger of job {job_id!r} is not whole")
        return saved

    async def _segments(self, plan: PlanRef) -> AsyncGenerator[PlanSegment]:
        """The saved plan, read a little ahead."""
        reading: deque[asyncio.Task[PlanSegment]] = deque()
        loop = asyncio.get_running_loop()
        try:
            for index in range(plan.segments):
                reading.append(loop.create_task(self._read_segment(plan.fence, index)))
                if len(reading) > READ_AHEAD:
                    yield await reading.popleft()
            while reading:
                yield await reading.popleft()
        finally:
            for task in reading:
                task.cancel()

    async def _read_segment(self, fence: int, index: int) -> PlanSegment:
        job_id = self._job.document.job_id
        segment = await self._writer.certain(lambda: self._storage.read_plan_segment(job_id, fence, index))
        if segment is None:
            raise LookupError(f"segment {index} of the plan of job {job_id!r} is missing")
        return segment

    def _ledger_segment(self, segment: PlanSegment) -> LedgerSegment:
        document = self._job.document
        assert document.plan is not None
        part = next(split([step.kind for step in segment.steps], document.fence, SEGMENT_STEPS, document.plan.fence))
        return replace(part, index=segment.index)

    async def _prepare_segment(
        self, segment: PlanSegment, kinds: tuple[StepKind, ...], refused: list[str]
    ) -> PreparedSegment:
        # A step that never comes to an end holds up a stop no longer than its body would.
        patience = max(0.0, self._job.document.options.step_stop_timeout.total_seconds())
        working = self._user.call(self._prepare_steps, segment, kinds, refused)
        states = await self._unless_interrupted(working, patience)
        plan = self._job.document.plan
        assert plan is not None
        return PreparedSegment(segment.index, tuple(s.step_id for s in segment.steps), tuple(states), plan.fence)

    async def _save_prepared(self, batch: tuple[tuple[PlanSegment, PreparedSegment | None], ...]) -> None:
        job_id, certain = self._job.document.job_id, self._writer.certain
        prepared = [new for _, new in batch if new is not None]
        try:
            await certain(lambda: self._storage.save_prepared(job_id, prepared))
        except TooLarge as error:
            raise _invalid(str(error)) from error
        ledger = [self._ledger_segment(segment) for segment, _ in batch]
        await certain(lambda: self._storage.insert_ledger(job_id, ledger))

    def _prepare_steps(self, *about: Any) -> list[Any] | Coroutine[Any, Any, list[Any]]:
        # One call for the whole segment, on a thread; from its first `async def` on it goes on where those run.
        work = self._preparing(*about)
        try:
            first = next(work)
        except StopIteration as done:
            states: list[Any] = done.value
            return states
        return _awaiting(work, first)

    def _preparing(
        self, segment: PlanSegment, kinds: tuple[StepKind, ...], refused: list[str]
    ) -> Generator[Awaitable[Any], None, list[Any]]:
        states: list[Any] = []
        classes: dict[int, Any] = {}
        for step in segment.steps:
            try:
                if (cls := classes.get(step.kind)) is None:
                    cls = classes[step.kind] = self._code.resolve(kinds[step.kind].step_type)
                instance = cls()
                request = decode(step.request, self._code.resolve)
                for method in (instance.prepare_step, instance.initialize_state):
                    answer = method(request)
                    if answer is not None:
                        yield answer
            except Exception as error:  # noqa: BLE001 - refused or raised: the job fails with each reason [S4.3]
                refused.append(f"step {step.step_id!r}: {_sentence(error)}")
                continue
            try:
                states.append(encode(instance.state, "state"))
            except (NotStorable, TooLarge) as error:
                raise _invalid(f"step {step.step_id!r}: {error}") from error
        return states

    async def _tell_failed_to_prepare(self) -> None:
        try:
            await self._hooks.call("on_failed_to_prepare")
        except Exception as error:  # noqa: BLE001 - recorded and not repeated [S14.3]
            await self._job.change(error=_sentence(error))

    async def before_starting(self) -> None:
        """Mark and run the start hooks [S2.1]. Raises `StartRefused`."""
        try:
            await self._job.change(has_started_hook=True)
            await self._hooks.call("on_before_starting_job_steps")
            await self._hooks.call("on_before_dispatching_job_steps", False)
            state = self._hooks.changed_state()
        except Fenced:
            raise
        except Exception as error:
            raise _unknown("a start hook", error) from error
        if state is not None:
            await self._job.change(state=state)


async def _awaiting(work: Generator[Awaitable[Any], None, T], answer: Awaitable[Any]) -> T:
    """Come to the end of what has begun, awaiting each answer that it yields."""
    while True:
        try:
            await answer
        except Exception as error:  # noqa: BLE001 - it belongs to who asked
            step = partial(work.throw, error)
        else:
            step = partial(next, work)
        try:
            answer = step()
        except StopIteration as done:
            value: T = done.value
            return value


def _iterate(steps: Any) -> Iterator[Any] | AsyncIterator[Any]:
    if hasattr(steps, "__aiter__"):
        pages: AsyncIterator[Any] = aiter(steps)
        return pages
    if not hasattr(steps, "__iter__"):
        raise TypeError(f"prepare_steps returned {type(steps).__name__}, not a list or generator of steps")
    page: Iterator[Any] = iter(steps)
    return page


async def read_ledger(storage: JobStorage, writer: Writer, document: JobDocument) -> Ledger | None:
    """The ledger of a job whose plan is saved; None while it is not whole: no step was ever assigned then."""
    plan, job_id = document.plan, document.job_id
    if plan is None:
        return None
    segments = await writer.certain(lambda: storage.read_ledger(job_id, plan.fence))
    if len(segments) < plan.segments:
        return None
    kinds = await writer.certain(lambda: storage.read_plan(job_id, plan.fence))
    return Ledger(kinds, segments, plan.segment_steps)


def initial_counts(ledger: Ledger) -> Any:
    """What the job document says of a plan before anything ran."""
    stages = ledger.stage_counts()
    return stages if len(stages) <= MAX_STAGE_COUNTS else ()


def _sentence(error: BaseException) -> str:
    described = describe_exception(error)
    if isinstance(error, ChoreographyError):
        return described.message
    return f"{described.error_type}: {described.message}"


def _unknown(what: str, error: BaseException) -> StartRefused:
    return StartRefused(StartJobReason.UNKNOWN, (f"{what} raised {_sentence(error)}",))


def _invalid(why: str) -> StartRefused:
    return StartRefused(StartJobReason.INVALID_STEP_PLAN, (why,))
