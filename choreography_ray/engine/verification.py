"""How is a whole job read so that a difference is one? A verification over the store alone, at rest or at work [S3.2].

The job document is read before and after the ledger, and each block of steps between two looks at its segments: what
changed meanwhile is looked at again, and what never holds still is told as unchecked. Of the steps only a byte each
is held at once; requests and states pass segment by segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from choreography_ray.core import verifying as v
from choreography_ray.model import Finding, FindingKind, JobId, JobStatus, Verification
from choreography_ray.progress import progress_of
from choreography_ray.records import JobDocument, LedgerSegment, PlanSegment, StepKind
from choreography_ray.storage.protocol import JobStorage

MAX_FINDINGS = 1_000
"""Findings that are told one by one; further ones are only counted."""
BLOCK_SEGMENTS = 4
"""Ledger segments whose steps are looked at together."""
LOOKS = 5
"""How often is looked at what keeps changing."""
BETWEEN_LOOKS_SECONDS = 0.05
BEING_CLEARED = "its records are being cleared or removed"


class _Changed(Exception):
    """The job was cleared, removed or made anew while it was read: what was found says nothing."""


async def verify_job(storage: JobStorage, job_id: JobId) -> Verification:
    """Recount a job from its ledger and look for whatever is missing, contradicts itself, or is left over.

    Reads only. Of an id without a job it tells what is stored of it all the same. Raises `StorageUnavailable`.
    """
    for _ in range(LOOKS):
        try:
            return await _Verification(storage, job_id).run()
        except _Changed:
            await asyncio.sleep(BETWEEN_LOOKS_SECONDS)
    document = await storage.read_job(job_id)
    status = None if document is None else document.status
    return Verification(job_id=job_id, status=status, unchecked=(BEING_CLEARED,))


@dataclass(slots=True)
class _Found:
    """Findings, counted and the first of them kept."""

    kept: list[Finding]
    errors: int = 0
    debris: int = 0

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.debris += finding.is_debris
            self.errors += not finding.is_debris
            if len(self.kept) < MAX_FINDINGS:
                self.kept.append(finding)


class _Verification:
    """One try."""

    def __init__(self, storage: JobStorage, job_id: JobId) -> None:
        self._storage = storage
        self._job_id = job_id
        self._found = _Found([])
        self._unchecked: list[str] = []

    async def run(self) -> Verification:
        document = await self._storage.read_job(self._job_id)
        if document is None:
            await self._check_remains({})
            if await self._storage.read_job(self._job_id) is not None:
                raise _Changed
            return self._told(None)
        if document.is_cleared:
            await self._check_cleared(document)
            return self._told(document)
        if document.plan is None or document.status is JobStatus.REMOVING:
            if document.status is JobStatus.REMOVING:
                self._unchecked.append(BEING_CLEARED)
            return self._told(document)
        kinds = await self._storage.read_plan(self._job_id, document.plan.fence)
        recounted = await self._check_ledger(document, kinds)
        prepared = await self._storage.prepared_segments(self._job_id, document.plan.fence)
        for first in range(0, document.plan.segments, BLOCK_SEGMENTS):
            await self._check_block(document, first, kinds)
        await self._check_outcomes(document.plan.fence)
        await self._check_unchanged(document, len(prepared))
        return self._told(document, recounted)

    def _told(self, document: JobDocument | None, recounted: v.Recount | None = None) -> Verification:
        progress = progress_of(document, recounted.stages()) if document and recounted else None
        return Verification(
            job_id=self._job_id,
            status=None if document is None else document.status,
            findings=tuple(self._found.kept),
            errors=self._found.errors,
            debris=self._found.debris,
            unchecked=tuple(self._unchecked),
            **({} if progress is None else {"recount": progress}),
        )

    async def _document(self) -> JobDocument:
        document = await self._storage.read_job(self._job_id)
        if document is None:
            raise _Changed
        return document

    # Jobs of which nothing, or only a summary, is left.

    async def _check_remains(self, allowed: dict[str, int]) -> None:
        for name, count in (await self._storage.count_records(self._job_id)).items():
            if count != allowed.get(name, 0):
                stored, expected = f"{count} records of its {name}", f"{allowed.get(name, 0)}"
                self._found.add((Finding(kind=FindingKind.REMAINS, stored=stored, expected=expected),))

    async def _check_cleared(self, document: JobDocument) -> None:
        """Only the summary is left, and the results that were to be kept [S9.8]."""
        await self._check_remains({"results": document.counts.succeeded if document.keep_results else 0})
        if document.request is not None or document.state is not None:
            stored = "a request or a state in a summary"
            self._found.add((Finding(kind=FindingKind.REMAINS, stored=stored, expected="neither"),))
        if not v.is_settled(document, await self._document()):
            raise _Changed

    async def _check_unchanged(self, document: JobDocument, prepared: int) -> None:
        """A finished job may be cleared at any moment, plan first: then what was missing was no difference."""
        now = await self._document()
        if now.created_at != document.created_at or now.is_cleared or now.status is JobStatus.REMOVING:
            raise _Changed
        if not self._found.errors or not now.status.is_final:
            return
        assert document.plan is not None
        left = len(await self._storage.prepared_segments(self._job_id, document.plan.fence))
        if left != prepared:
            raise _Changed
        if not left and document.plan.segments and v.must_be_prepared(document):
            # Gone as a whole: its actor died while it cleared the job, and the next one goes on with that.
            self._found = _Found([])
            self._unchecked.append(BEING_CLEARED)

    # The ledger as a whole.

    async def _check_ledger(self, document: JobDocument, kinds: tuple[StepKind, ...]) -> v.Recount:
        """Counts, status and stages against a recount."""
        assert document.plan is not None
        looks, after = 0, document
        while True:
            before, looks = after, looks + 1
            recounted = v.Recount(kinds, before.journal)
            for segment in await self._storage.read_ledger(self._job_id, document.plan.fence):
                recounted.add(segment, segment.index * document.plan.segment_steps)
            after = await self._document()
            if v.is_settled(before, after) or looks == LOOKS:
                break
        counted = v.check_counts(before, recounted, after)
        if counted is None:
            self._unchecked.append("counts: the job was being resumed, or its failed steps prepared again")
        else:
            self._found.add(counted)
        self._found.add(v.check_stages(before, recounted, after))
        if v.is_settled(before, after):
            self._found.add(v.check_status(before, recounted))
        elif counted is not None:
            self._unchecked.append("counts: only that they lie between two looks, as the job went on meanwhile")
        return recounted

    async def _check_outcomes(self, plan: int) -> None:
        """Outcome documents that the journal lacks, and such that nothing calls for: those must be seen twice, as one
        may be on its way to be deleted.
        """
        before = await self._document()
        segments = await self._storage.read_ledger(self._job_id, plan)
        found = await self._storage.read_outcome_keys(self._job_id)
        if v.is_settled(before, await self._document()):
            self._found.add(v.check_journal(set(found), segments, before))
        if not found:
            return
        segments = await self._storage.read_ledger(self._job_id, plan)
        if keys := v.uncalled_outcomes(found, segments, await self._document()):
            await asyncio.sleep(BETWEEN_LOOKS_SECONDS)
            there = set(await self._storage.read_outcome_keys(self._job_id))
            for key in keys:
                if key in there:
                    stored = f"outcomes of {key.host}, run {key.run.fence}.{key.run.counter}, number {key.n}"
                    expected = "none of a run that is over"
                    kind = FindingKind.OUTCOME
                    self._found.add((Finding(kind=kind, stored=stored, expected=expected, is_debris=True),))

    # Step by step.

    async def _check_block(self, document: JobDocument, first: int, kinds: tuple[StepKind, ...]) -> None:
        """The plan, prepared and ledger segments from `first` on, then what their steps have of their own."""
        assert document.plan is not None
        plan = document.plan
        end = min(first + BLOCK_SEGMENTS, plan.segments)
        planned: list[PlanSegment | None] = []
        is_due = v.must_be_prepared(document)
        for index in range(first, end):
            segment = await self._storage.read_plan_segment(self._job_id, plan.fence, index)
            planned.append(segment)
            size = min(plan.segment_steps, plan.total - index * plan.segment_steps)
            self._found.add(v.check_plan(segment, index, size, len(kinds)))
            prepared = await self._storage.read_prepared(self._job_id, plan.fence, index)
            self._found.add(v.check_prepared(prepared, segment, is_due=is_due))
        ledger = await self._ledger(plan.fence, first, end)
        newest = (await self._document()).fence
        for index, segment in enumerate(planned, first):
            begin = index * plan.segment_steps
            self._found.add(v.check_segment(ledger.get(index), segment, begin, is_due=is_due, newest=newest))
        whole = {
            index: segment
            for index, segment in enumerate(planned, first)
            if segment is not None
            and index in ledger
            and len(ledger[index].codes) == len(segment.steps)
            and all(0 <= step.kind < len(kinds) for step in segment.steps)
        }
        await self._check_steps(document, whole, kinds)

    async def _check_steps(
        self, document: JobDocument, planned: dict[int, PlanSegment], kinds: tuple[StepKind, ...]
    ) -> None:
        """What steps have beside the ledger; a segment that changes meanwhile is looked at again."""
        assert document.plan is not None
        size, left = document.plan.segment_steps, dict(planned)
        for look in range(LOOKS):
            if not left:
                return
            if look:
                await asyncio.sleep(BETWEEN_LOOKS_SECONDS)
            first, end = min(left), max(left) + 1
            before = await self._ledger(document.plan.fence, first, end)
            beside = await self._storage.read_beside(self._job_id, first * size, end * size)
            now = await self._document()
            after = await self._ledger(document.plan.fence, first, end)
            for index, segment in list(left.items()):
                if index not in before or index not in after or not _is_same(before[index], after[index]):
                    continue
                block = v.Block(
                    index * size,
                    [step.step_id for step in segment.steps],
                    [kinds[step.kind].stage for step in segment.steps],
                    after[index].codes,
                    beside,
                    now,
                )
                self._found.add(v.check_beside(block))
                del left[index]
        steps = sum(len(segment.steps) for segment in left.values())
        self._unchecked.append(f"what {steps} steps from number {min(left) * size} on have: they kept changing")

    async def _ledger(self, plan: int, first: int, end: int) -> dict[int, LedgerSegment]:
        return {segment.index: segment for segment in await self._storage.read_ledger(self._job_id, plan, first, end)}


def _is_same(before: LedgerSegment, after: LedgerSegment) -> bool:
    return (before.save, before.fence) == (after.save, after.fence)
