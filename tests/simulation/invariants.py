"""What must hold after every write, whoever wrote: read from the stored records themselves [S3, S5, S6, S7, S9, S10].

The witness of `world` sees bodies, `check` looks when a story is over; this looks at each moment between.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from choreography_ray.core.transitions import FINAL_CODES, JOB_TRANSITIONS, STEP_TRANSITIONS
from choreography_ray.engine.verification import verify_job
from choreography_ray.model import JobId, JobStatus
from choreography_ray.records import JobDocument, LedgerSegment, StepCode

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

LEGAL = frozenset((before, after) for before, others in STEP_TRANSITIONS.items() for after in others)
FINAL = frozenset(int(code) for code in FINAL_CODES)
WORKED = (JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES)


class Invariants:
    """Looks at one world's store after each write that changes a job or its ledger."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[JobId, JobDocument] = {}
        self._segments: dict[tuple[JobId, int, int], LedgerSegment] = {}
        self._stages: dict[tuple[JobId, int, int], tuple[int, ...]] = {}
        self.looks = 0
        """How often it looked at a job."""
        self.recounts = 0
        """How often it had a whole job verified."""
        self.verifies_every = 10
        """Each so-many-th look has the job verified as `verify` does it; 0: never."""

    def look(self, name: str) -> None:
        """After a write: what must not be is a violation of the world."""
        if name not in ("raise_fence", "save_job", "save_ledger", "fence_ledger", "insert_ledger"):
            return
        for job_id, document in self._world.store._documents.items():
            if document is not self._jobs.get(job_id) or "ledger" in name:
                self.looks += 1
                self._look_at(document)
                if self.verifies_every and self.looks % self.verifies_every == 0:
                    self._verify(job_id)

    def _look_at(self, now: JobDocument) -> None:
        before = self._jobs.get(now.job_id)
        self._jobs[now.job_id] = now
        if before is not None and before.created_at == now.created_at:
            self._check_job(before, now)
        if now.plan is None or now.is_cleared or now.status is JobStatus.REMOVING:
            return
        codes = b""
        kept = self._world.store._job(now.job_id).ledger
        for index in range(now.plan.segments):
            segment = kept.get((now.plan.fence, index))
            if segment is None:
                return  # not all of it is there yet
            self._check_segment(now, index, segment)
            codes += segment.codes
        self._check_ledger(now, codes)

    def _demand(self, holds: bool, document: JobDocument, what: str) -> None:
        if not holds:
            self._world._demand(False, f"{document.job_id}: {what}")

    def _check_job(self, before: JobDocument, now: JobDocument) -> None:
        self._demand(now.fence >= before.fence, now, f"its fence fell from {before.fence} to {now.fence} [S10.1]")
        is_legal = now.status is before.status or now.status in JOB_TRANSITIONS[before.status]
        self._demand(is_legal, now, f"{now.status} followed {before.status} [S3]")
        is_set_aside = before.mark or now.mark or before.status is JobStatus.STOPPED
        for what in ("succeeded", "failed", "unreachable"):
            was, is_now = getattr(before.counts, what), getattr(now.counts, what)
            self._demand(bool(is_set_aside) or is_now >= was, now, f"it counted {was} {what}, then {is_now} [S3.2]")
        if now.plan is not None:
            counted = now.counts.succeeded + now.counts.failed + now.counts.unreachable + now.counts.stopped
            self._demand(counted <= now.plan.total, now, f"it counts {counted} of {now.plan.total} steps [S3.1]")
        if now.status in WORKED and before.status is not now.status:
            self._demand(not now.journal and not now.mark, now, "it completed with decisions to carry out [S6.5]")
        if now.is_stop_finalized and not before.is_stop_finalized:
            self._demand(not now.journal, now, "its stop was accounted with decisions to carry out [S6.5]")
            running = sum(n for (job_id, _), n in self._world.running.items() if job_id == now.job_id)
            self._demand(not running, now, f"its stop was accounted while {running} bodies ran [S9.4]")

    def _check_segment(self, document: JobDocument, index: int, now: LedgerSegment) -> None:
        assert document.plan is not None
        key = (document.job_id, document.plan.fence, index)
        before, self._segments[key] = self._segments.get(key), now
        assigned = [ordinal for group in now.groups for ordinal in group.ordinals]
        scheduled = {
            index * document.plan.segment_steps + i for i, code in enumerate(now.codes) if code == StepCode.SCHEDULED
        }
        self._demand(len(assigned) == len(set(assigned)), document, f"steps are assigned twice: {assigned} [S10.1]")
        self._demand(set(assigned) == scheduled, document, f"{scheduled} are scheduled, {assigned} assigned [S12.2]")
        if before is None or before is now:
            return
        self._demand(now.fence >= before.fence, document, f"the fence of segment {index} fell [S10.1]")
        for place, (was, code) in enumerate(zip(before.codes, now.codes, strict=True)):
            if was != code and (was, code) not in LEGAL:
                self._demand(False, document, f"step {place}: {StepCode(code).name} followed {StepCode(was).name} [S3]")
            if was in FINAL and code not in FINAL:
                self._demand(bool(document.mark), document, f"step {place} is open again without a mark [S7.3]")

    def _check_ledger(self, now: JobDocument, codes: bytes) -> None:
        planned = self._world.planned.get(now.job_id)
        stages = () if planned is None else planned.stages
        scheduled = [stages[o] for o, code in enumerate(codes) if code == StepCode.SCHEDULED] if stages else []
        open_stages = [stages[o] for o, code in enumerate(codes) if code not in FINAL] if stages else []
        if scheduled:
            is_early = max(scheduled) > min(open_stages)
            self._demand(not is_early, now, f"stage {max(scheduled)} began before {min(open_stages)} ended [S5.2]")
        if now.status in WORKED:
            left = sum(code not in FINAL for code in codes)
            self._demand(not left, now, f"it is {now.status}, and {left} steps have no outcome [S3.1]")
        if now.is_stop_finalized and now.status is JobStatus.STOPPED:
            self._demand(not scheduled, now, "its stop was accounted, and steps are scheduled [S9.1]")

    def _verify(self, job_id: JobId) -> None:
        """The whole of it, at this very moment: the memory store answers without a pause."""
        verified = _at_once(verify_job(self._world.store, job_id))
        if verified is None:
            return  # it wanted to look again later
        self.recounts += 1
        found = [finding for finding in verified.findings if not finding.is_debris]
        if not self._world.is_woken(job_id):
            self._demand(not found, self._jobs[job_id], f"verify finds {found[:3]}")


def _at_once(work: Coroutine[Any, Any, T]) -> T | None:
    """The value of what never waits; None when it does."""
    try:
        work.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    work.close()
    return None
