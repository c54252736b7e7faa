"""The contract of a store: what each write guarantees, what a lost race returns, in which order things come back.

Three rules hold for every method:

* A call that returns has been made durable (majority, journaled); one that raises `StorageUnavailable` may or may
  not have been applied, and the caller repeats it *unchanged* until it returns [S10.1].
* Every method can be repeated unchanged with the same result. A guarded write that finds its own save id there
  returns True again.
* Lists come back in the order that their docstring names.

Payloads are opaque and come back equal. Readers ignore fields that they do not know and fill in missing ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from choreography_ray.model import HostId, JobId, JobStatus, StepId
from choreography_ray.options import ClusterOptions
from choreography_ray.records import (
    Beside,
    FailedStep,
    JobBrief,
    JobDocument,
    KeptResult,
    LedgerSegment,
    OutcomeDocument,
    OutcomeKey,
    Owner,
    PlanSegment,
    PreparedSegment,
    RemovedJob,
    Run,
    StepDocument,
    StepKind,
)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a reader wants: all given conditions hold. Empty `statuses`: any."""

    type_name: str | None = None
    statuses: Collection[JobStatus] = ()
    labels: dict[str, str] = field(default_factory=dict[str, str])
    created_before: datetime | None = None


class JobStorage(Protocol):
    """Where the jobs of one choreography namespace are kept."""

    async def open(self) -> None:
        """Connect and make sure that the indexes exist. Raises `StorageUnavailable`.

        Whoever connects to a namespace does it first. The actors that then work there need not, and start the faster.
        """
        ...

    async def close(self) -> None:
        """Give back connections. Nothing is lost by not calling it."""
        ...

    # ---- jobs

    async def insert_job(self, document: JobDocument) -> bool:
        """Save a new job. False when the id is taken, whoever took it: only one of many callers gets True [S4.7].

        A repeated call that finds exactly its own insert (same `created_at` and save 0) returns True.
        """
        ...

    async def read_job(self, job_id: JobId) -> JobDocument | None:
        """The job, or None when the store says for certain that there is none. Raises `UnreadableRecord`."""
        ...

    async def list_jobs(self, wanted: JobFilter, skip: int = 0, take: int = 100) -> list[JobDocument]:
        """Jobs that match, newest first (`created_at`, then the id's address). A page is short of those of its records
        that this version cannot read; each is logged.
        """
        ...

    async def raise_fence(
        self, job_id: JobId, expected: int, fence: int, owner: Owner | None = None, crashes: int | None = None
    ) -> bool:
        """Compare-and-set of the job's fence; False when it is neither `expected` nor already `fence` [S10.1].

        `fence` is drawn by the caller so that no other caller draws the same. `owner` and `crashes`, where given, are
        written with it: all or nothing.
        """
        ...

    async def beat(self, job_id: JobId, fence: int) -> bool:
        """The owner's sign of life: count `beats` up by one or more where the fence is `fence` [S10.3].

        False: fenced, or gone. Touches nothing that a save names.
        """
        ...

    async def save_job(self, document: JobDocument, changed: Collection[str]) -> bool:
        """Write the `changed` fields (and `save`, `updated_at`) where the stored fence is `document.fence` and the
        stored save is `document.save - 1`. True also when it finds `document.save` under the same fence: applied
        before. False: fenced, or gone.
        """
        ...

    async def delete_job(self, document: JobDocument) -> None:
        """Delete the job document where the stored fence and `created_at` are the document's. The id is free again.

        One that was taken over meanwhile, or another job of that id, stays. `removed_jobs` tells of it before it goes.
        """
        ...

    async def clear_job(self, job_id: JobId, fence: int, *, keep_results: bool, keep_failures: bool = False) -> None:
        """Delete everything that belongs to the job but its document (and what is to be kept) [S9.8]: all that was
        written under fences up to `fence`. What a later job of that id has is of higher ones, and stays.
        """
        ...

    async def unfinished_jobs(self, after: JobBrief | None = None, take: int = 100) -> list[JobBrief]:
        """Jobs that somebody should be working on, oldest first (`created_at`, then id), those after `after`: being
        prepared, running, being removed, stopped and not accounted, or of a final status with an owner that names a
        cluster: it has not let go.
        """
        ...

    async def ended_jobs(self, before: datetime, after: JobBrief | None = None, take: int = 100) -> list[JobBrief]:
        """Jobs of a final status that were last saved before a moment, as `unfinished_jobs` in order."""
        ...

    async def removed_jobs(self, before: datetime, take: int = 100) -> list[RemovedJob]:
        """Jobs that were deleted, or soon will be, and last saved before a moment; until they are forgotten."""
        ...

    async def forget_removed(self, removed: Sequence[RemovedJob]) -> None:
        """Tell no more of these; those that are forgotten are no error."""
        ...

    # ---- plan

    async def save_plan(self, job_id: JobId, fence: int, kinds: Sequence[StepKind]) -> None:
        """Save the table of a plan. Counts only once the job document names (`fence`, number of segments) [S4]."""
        ...

    async def read_plan(self, job_id: JobId, fence: int) -> tuple[StepKind, ...]:
        """The table of a saved plan; empty when there is none."""
        ...

    async def save_plan_segments(self, job_id: JobId, fence: int, segments: Sequence[PlanSegment]) -> None:
        """Save segments of a plan, replacing what an earlier try under the same fence left. A segment of any size."""
        ...

    async def read_plan_segment(self, job_id: JobId, fence: int, index: int) -> PlanSegment | None:
        """One segment of a plan."""
        ...

    async def save_prepared(self, job_id: JobId, segments: Sequence[PreparedSegment]) -> None:
        """Save ids and initial states of prepared steps, replacing what an earlier try left. Of any size."""
        ...

    async def find_planned(self, job_id: JobId, fence: int, step_id: StepId) -> list[int]:
        """Indexes of the segments of a plan that may name this step, in order; none is left out."""
        ...

    async def read_prepared(self, job_id: JobId, plan: int, index: int) -> PreparedSegment | None:
        """Ids and initial states of the steps of a plan's segment; None when it was not prepared."""
        ...

    async def prepared_segments(self, job_id: JobId, plan: int) -> set[int]:
        """Indexes of a plan's segments that are prepared."""
        ...

    # ---- ledger

    async def insert_ledger(self, job_id: JobId, segments: Sequence[LedgerSegment]) -> None:
        """Save new segments; those that exist are left as they are."""
        ...

    async def fence_ledger(self, job_id: JobId, fence: int) -> None:
        """Raise the fence of every segment where it is lower. Later saves under a lower fence fail."""
        ...

    async def read_ledger(
        self, job_id: JobId, plan: int, begin: int = 0, end: int | None = None
    ) -> list[LedgerSegment]:
        """Segments of a plan's ledger from index `begin` up to `end` (None: to the last), by index. Each is read at one
        moment.
        """
        ...

    async def save_ledger(self, job_id: JobId, segments: Sequence[LedgerSegment]) -> bool:
        """Write `codes` and `groups` of each segment where its stored fence is the segment's and its save one less.

        Each segment is one atomic write; a crash may leave some written and others not. True when every one is
        applied, now or before. False: fenced.
        """
        ...

    # ---- outcomes

    async def insert_outcome(self, document: OutcomeDocument) -> OutcomeDocument | None:
        """Save an outcome document if its key is free: None. Taken: what is there, whoever wrote it [S6.4]."""
        ...

    async def read_outcomes(
        self, job_id: JobId, host: HostId | None = None, run: Run | None = None
    ) -> list[OutcomeDocument]:
        """The outcome documents of a job, or of one run of a host, by (host, run, n)."""
        ...

    async def read_outcome_keys(self, job_id: JobId) -> list[OutcomeKey]:
        """The keys of a job's outcome documents, in their order."""
        ...

    async def delete_outcomes(self, job_id: JobId, keys: Sequence[OutcomeKey]) -> None:
        """Delete outcome documents; those that are gone are no error."""
        ...

    # ---- what single steps have of their own

    async def save_step_documents(self, job_id: JobId, documents: Sequence[StepDocument]) -> list[int]:
        """Write each document, made if absent, where the stored (run, is_closed) is not greater than its own.

        `state` None, `stop` None and empty `attempts` leave the stored ones as they are; the other fields are replaced.

        Returns the ordinals that were refused because a greater one is there.
        """
        ...

    async def read_step_documents(self, job_id: JobId, ordinals: Sequence[int] | None = None) -> list[StepDocument]:
        """Step documents of the job, by ordinal; all, or those of the given steps."""
        ...

    async def first_due(self, job_id: JobId) -> datetime | None:
        """When the first of the job's retries that wait is due; None when none does."""
        ...

    async def delete_step_documents(self, job_id: JobId, closed: Sequence[tuple[int, Run]]) -> None:
        """Delete the documents of these ordinals where the stored (run, is_closed) is not greater than (run, True)."""
        ...

    async def save_failures(self, job_id: JobId, failures: Sequence[FailedStep]) -> None:
        """Save records of failed steps, each replacing one of the same ordinal whose run has no later fence."""
        ...

    async def read_failures(
        self, job_id: JobId, ordinals: Sequence[int] | None = None, skip: int = 0, take: int = 100
    ) -> list[FailedStep]:
        """Records of failed steps, by ordinal; of the given steps, or a page of all."""
        ...

    async def delete_failures(self, job_id: JobId, failures: Sequence[tuple[int, Run]]) -> None:
        """Delete the records of these ordinals where the stored run is the given one."""
        ...

    async def save_results(self, job_id: JobId, results: Sequence[KeptResult]) -> None:
        """Save kept results, each replacing one of the same ordinal that no later incarnation kept."""
        ...

    async def delete_results(self, job_id: JobId, results: Sequence[tuple[int, int]]) -> None:
        """Delete the kept results of these ordinals where they were kept under the given fence."""
        ...

    async def read_results(
        self,
        job_id: JobId,
        after: int = -1,
        take: int = 100,
        *,
        stage: int | None = None,
        before_stage: int | None = None,
    ) -> list[KeptResult]:
        """A page of kept results with an ordinal above `after`, by ordinal; of one stage, or of those before one.

        It ends early once it holds some MiB, so that large results are read a few at a time; empty when none is left.
        """
        ...

    async def read_beside(self, job_id: JobId, begin: int, end: int) -> Beside:
        """What steps from ordinal `begin` up to `end` have beside plan and ledger, without what may be large."""
        ...

    async def count_records(self, job_id: JobId) -> dict[str, int]:
        """How many records there are of a job, by kind, its own document left out; empty when there are none."""
        ...

    # ---- the namespace

    async def save_code(self, digest: str, captured: bytes, about: dict[str, Any], now: datetime) -> None:
        """Keep a captured copy of code under its digest, of any size; the first that is whole there stays.

        Either way it counts as saved `now`: from then on `delete_unused_code` spares it for a while, or as long as a
        job points at it.
        """
        ...

    async def read_code(self, digest: str) -> bytes | None:
        """A captured copy of code."""
        ...

    async def delete_unused_code(self, before: datetime) -> None:
        """Delete the copies that no job points at and that were last saved before a moment.

        One that is saved again meanwhile is there, whole, when `save_code` returns.
        """
        ...

    async def read_cluster_options(self) -> ClusterOptions:
        """The namespace's options; defaults when none were saved. Unknown fields of newer versions are ignored."""
        ...

    async def save_cluster_options(self, changed: ClusterOptions) -> ClusterOptions:
        """Replace the fields that `changed` sets explicitly; returns what holds now."""
        ...

    async def next_number(self, name: str) -> int:
        """Draw a number from the named counter, above all that were drawn before: 1, 2, ... (not repeatable)."""
        ...
