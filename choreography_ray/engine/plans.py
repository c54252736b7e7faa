"""Where the engine finds the steps of a saved plan: segments read when needed, a bounded number kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from choreography_ray.core.attempts import kept_attempts
from choreography_ray.core.commands import Decided
from choreography_ray.engine.ports import StepWork, Work
from choreography_ray.engine.writes import Writer
from choreography_ray.model import JobId, StepId
from choreography_ray.records import (
    FailedStep,
    Failure,
    Group,
    KeptResult,
    Outcome,
    OutcomeKind,
    Payload,
    PlanRef,
    PreparedSegment,
    StepDocument,
    StepKind,
)
from choreography_ray.storage.protocol import JobStorage
from choreography_ray.storage.sizes import MAX_PAYLOAD_BYTES, payload_size

KEPT_SEGMENTS = 32


class Plans:
    """Ids and states of a job's prepared steps."""

    def __init__(self, job_id: JobId, storage: JobStorage, writer: Writer, plan: PlanRef) -> None:
        self._job_id = job_id
        self._storage = storage
        self._writer = writer
        self._plan = plan.fence
        self._segment_steps = plan.segment_steps
        self._kept: OrderedDict[int, PreparedSegment] = OrderedDict()

    async def _segment(self, index: int) -> PreparedSegment:
        segment = self._kept.get(index)
        if segment is None:
            segment = await self._writer.certain(lambda: self._storage.read_prepared(self._job_id, self._plan, index))
            if segment is None:
                raise LookupError(f"segment {index} of job {self._job_id!r} was never prepared")
            self._kept[index] = segment
            if len(self._kept) > KEPT_SEGMENTS:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(index)
        return segment

    async def step_id(self, ordinal: int) -> StepId:
        """The id of a step."""
        segment = await self._segment(ordinal // self._segment_steps)
        return segment.step_ids[ordinal % self._segment_steps]

    async def work(self, group: Group, kind: StepKind, *, is_again: bool) -> Work:
        """What a host is told of a group. `is_again`: some ran before; they begin from what their document has."""
        own: dict[int, StepDocument] = {}
        if is_again:
            ordinals = group.ordinals
            documents = await self._writer.certain(lambda: self._storage.read_step_documents(self._job_id, ordinals))
            own = {d.ordinal: d for d in documents}
        size = self._segment_steps
        segments = {index: await self._segment(index) for index in {ordinal // size for ordinal in group.ordinals}}
        steps: list[StepWork] = []
        for ordinal, attempt in zip(group.ordinals, group.attempts, strict=True):
            segment, at = segments[ordinal // size], ordinal % size
            document = own.get(ordinal)
            state = segment.states[at] if document is None or document.state is None else document.state
            crashes = 0 if document is None else document.crashes
            base = 0 if document is None else document.base
            steps.append(StepWork(ordinal, attempt, segment.step_ids[at], state, crashes, base))
        return Work(group.host, group.run, group.width, kind.stage, kind.step_type, tuple(steps))

    async def _documents(self, ordinals: Iterable[int]) -> dict[int, StepDocument]:
        wanted = tuple(ordinals)
        if not wanted:
            return {}
        found = await self._writer.certain(lambda: self._storage.read_step_documents(self._job_id, wanted))
        return {document.ordinal: document for document in found}

    async def _earlier(self, items: tuple[Decided, ...]) -> dict[int, StepDocument]:
        """What the steps have that an outcome does not tell: earlier attempts, and the state of one made by the job."""
        return await self._documents(item.outcome.ordinal for item in items if _may_have_more(item.outcome))

    async def retries(self, items: tuple[Decided, ...]) -> list[StepDocument]:
        """The documents that close the runs of failed attempts and say when the next is due."""
        before = await self._earlier(items)
        return [
            StepDocument(
                item.outcome.ordinal,
                item.run,
                is_closed=True,
                attempt=item.outcome.attempt + 1,
                due=item.due,
                crashes=item.outcome.crash,
                base=known.base if known is not None else 0,
                state=item.outcome.state,
                attempts=_with(known, item.outcome.failure),
            )
            for item in items
            for known in (before.get(item.outcome.ordinal),)
        ]

    async def stops(self, items: tuple[Decided, ...]) -> list[StepDocument]:
        """The documents that close the runs of stopped steps and keep what a resume goes on from."""
        known = await self._documents(item.outcome.ordinal for item in items)
        return [
            StepDocument(
                item.outcome.ordinal,
                item.run,
                is_closed=True,
                attempt=item.outcome.attempt,
                crashes=item.outcome.crash,
                base=known[item.outcome.ordinal].base if item.outcome.ordinal in known else 0,
                state=item.outcome.state,
            )
            for item in items
        ]

    async def last_failure(self, ordinal: int) -> Failure | None:
        """What is known of a step's last failed attempt while it waits for the next."""
        document = (await self._documents((ordinal,))).get(ordinal)
        return document.attempts[-1] if document is not None and document.attempts else None

    async def state(self, ordinal: int) -> Payload:
        """The last durable state of a step."""
        document = (await self._documents((ordinal,))).get(ordinal)
        if document is not None and document.state is not None:
            return document.state
        segment = await self._segment(ordinal // self._segment_steps)
        return segment.states[ordinal % self._segment_steps]

    async def failures(self, items: tuple[Decided, ...]) -> list[FailedStep]:
        """The records of steps that failed for good.

        Where the step's document is gone already this is a repetition: the record that is there knows more.
        """
        before = await self._earlier(items)
        lost = [o.ordinal for o in (item.outcome for item in items) if _may_have_more(o) and o.ordinal not in before]
        there = await self._recorded(lost)
        return [
            await self._failed_step(item, before.get(item.outcome.ordinal), there.get(item.outcome.ordinal))
            for item in items
        ]

    async def _failed_step(self, item: Decided, known: StepDocument | None, there: FailedStep | None) -> FailedStep:
        outcome = item.outcome
        if there is not None and there.attempt == outcome.attempt:
            return there
        state = outcome.state if outcome.state is not None or known is None else known.state
        # Together they may be more than one document holds: a retry goes on from the state [S12.4].
        has_room = payload_size(outcome.value) + payload_size(state) <= MAX_PAYLOAD_BYTES
        return FailedStep(
            outcome.ordinal,
            await self.step_id(outcome.ordinal),
            outcome.attempt,
            item.run,
            _with(known, outcome.failure),
            value=outcome.value if has_room else None,
            state=state,
        )

    async def _recorded(self, ordinals: list[int]) -> dict[int, FailedStep]:
        if not ordinals:
            return {}
        found = await self._writer.certain(lambda: self._storage.read_failures(self._job_id, ordinals))
        return {failed.ordinal: failed for failed in found}

    async def results(self, items: tuple[Decided, ...], stage_of: Callable[[int], int]) -> list[KeptResult]:
        """What is kept of successes."""
        return [
            KeptResult(
                item.outcome.ordinal,
                await self.step_id(item.outcome.ordinal),
                item.outcome.value,
                stage_of(item.outcome.ordinal),
                item.run.fence,
            )
            for item in items
        ]


def _may_have_more(outcome: Outcome) -> bool:
    """Whether a failed step may have something beside its outcome. One without a cause waited when a stop came."""
    is_stateless = outcome.state is None and (outcome.has_document or outcome.kind is not OutcomeKind.FAILED)
    return outcome.attempt > 1 or outcome.failure is None or is_stateless


def _with(known: StepDocument | None, failure: Failure | None) -> tuple[Failure, ...]:
    return kept_attempts(known.attempts if known is not None else (), failure)
