"""Where does what is stored of a job differ from what must be there? Records go in, findings come out [S3.2].

Each check needs its records read in an order that makes a difference certain while the job goes on: the job document
before and after the ledger, a step's records between two looks at its ledger segment. What is read so may be ahead of
the ledger by what the job's journal says, and by nothing else [PROTOCOLS part 1].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from choreography_ray.core.decisions import CODE_OF
from choreography_ray.core.ledger import total
from choreography_ray.core.transitions import FINAL_CODES
from choreography_ray.model import Finding, FindingKind, JobStatus, StepId
from choreography_ray.records import (
    Beside,
    Counts,
    Decision,
    FailedStep,
    JobDocument,
    JournalEntry,
    KeptResult,
    LedgerSegment,
    OutcomeKey,
    PlanSegment,
    PreparedSegment,
    Run,
    StageCounts,
    StepCode,
    StepDocument,
    StepKind,
)

_FAILED = (StepCode.COMPLETED_WITH_FAILURE, StepCode.FAILED)
_NOT_BEGUN = (StepCode.PREPARED, StepCode.STOPPED, StepCode.UNREACHABLE)
"""What a step of a later stage may be: a single one may be stopped ahead of its stage [S9.7]."""
_COMPLETED = (JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES)
_BEFORE_STARTING = (JobStatus.PREPARING_JOB, JobStatus.PREPARING_STEPS)


def is_settled(before: JobDocument, after: JobDocument) -> bool:
    """Whether the job document was not written between two looks."""
    return (before.save, before.fence) == (after.save, after.fence)


def must_be_prepared(document: JobDocument) -> bool:
    """Whether every step of the job must have been prepared: its steps were about to start, or more."""
    was_ready = document.status not in _BEFORE_STARTING and document.status is not JobStatus.FAILED
    return document.has_started_hook or (was_ready and document.status is not JobStatus.STOPPED)


def kinds_of(segment: LedgerSegment) -> tuple[int, ...]:
    """The kind of each step of a segment."""
    return tuple(memoryview(segment.kinds).cast("H")) if len(segment.kinds) % 2 == 0 else ()


# The structure: plan, prepared, ledger. None of them changes once it is there, but for the ledger's codes and groups.


def check_plan(plan: PlanSegment | None, index: int, size: int, kinds: int) -> Iterator[Finding]:
    """A segment of the plan against what the job document says of it."""
    what = f"plan segment {index}"
    if plan is None:
        yield Finding(kind=FindingKind.PLAN, stored=f"no {what}", expected=f"{what} with {size} steps")
        return
    if len(plan.steps) != size:
        yield Finding(kind=FindingKind.PLAN, stored=f"{what} has {len(plan.steps)} steps", expected=f"{size} steps")
    for step in plan.steps:
        if not 0 <= step.kind < kinds:
            wrong = f"kind {step.kind} of {kinds}"
            yield Finding(kind=FindingKind.PLAN, step_id=step.step_id, stored=wrong, expected="a kind of the plan")


def check_prepared(prepared: PreparedSegment | None, plan: PlanSegment | None, *, is_due: bool) -> Iterator[Finding]:
    """A prepared segment against the plan's."""
    if plan is None:
        return
    if prepared is None:
        if is_due:
            missing = f"segment {plan.index} is not prepared"
            yield Finding(kind=FindingKind.PREPARED, stored=missing, expected="ids and states of its steps")
        return
    wanted = tuple(step.step_id for step in plan.steps)
    if len(prepared.states) != len(wanted) or prepared.step_ids != wanted:
        odd = next((i for i, pair in enumerate(zip(prepared.step_ids, wanted, strict=False)) if pair[0] != pair[1]), 0)
        yield Finding(
            kind=FindingKind.PREPARED,
            step_id=wanted[odd] if odd < len(wanted) else None,
            stored=f"segment {plan.index} prepares {len(prepared.states)} steps, not as the plan names them",
            expected=f"the {len(wanted)} steps of the plan",
        )


def check_segment(
    segment: LedgerSegment | None, plan: PlanSegment | None, begin: int, *, is_due: bool, newest: int
) -> Iterator[Finding]:
    """A ledger segment in itself and against the plan; `newest` is the fence of a job document read afterwards."""
    if plan is None:
        return
    if segment is None:
        if is_due:
            yield Finding(
                kind=FindingKind.LEDGER,
                stored=f"no ledger segment {plan.index}",
                expected=f"a status for each of its {len(plan.steps)} steps",
            )
        return
    if (len(segment.codes), kinds_of(segment)) != (len(plan.steps), tuple(step.kind for step in plan.steps)):
        yield Finding(
            kind=FindingKind.LEDGER,
            stored=f"ledger segment {plan.index} has {len(segment.codes)} steps, or kinds unlike the plan's",
            expected=f"the {len(plan.steps)} steps of the plan",
        )
        return
    assigned: Counter[int] = Counter()
    for group in segment.groups:
        assigned.update(group.ordinals)
        if group.run.fence > newest:
            stored = f"a run of fence {group.run.fence}"
            yield Finding(kind=FindingKind.LEDGER, stored=stored, expected=f"at most the job's fence, {newest}")
    for place, code in enumerate(segment.codes):
        ordinal, step_id = begin + place, plan.steps[place].step_id
        if code >= len(StepCode):
            stored, expected = f"status number {code}", "one of this version"
        elif code == StepCode.SCHEDULED and assigned[ordinal] != 1:
            stored, expected = f"SCHEDULED at {assigned[ordinal]} hosts", "one host"
        elif code != StepCode.SCHEDULED and assigned[ordinal]:
            stored, expected = f"{StepCode(code).name}, and a host has it", "a host only for a SCHEDULED step"
        else:
            continue
        yield Finding(kind=FindingKind.LEDGER, ordinal=ordinal, step_id=step_id, stored=stored, expected=expected)


# Where the steps stand, and what the job says of that.


@dataclass
class Recount:
    """Steps by stage and status, from segments alone, with what a journal decided that they do not show yet."""

    kinds: Sequence[StepKind]
    journal: Sequence[JournalEntry] = ()
    tally: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])

    def add(self, segment: LedgerSegment, begin: int) -> None:
        """Count a segment whose first step has the ordinal `begin`."""
        codes = bytearray(segment.codes)
        kinds = kinds_of(segment)
        if len(kinds) != len(codes):
            return  # told elsewhere
        runs = {ordinal: group.run for group in segment.groups for ordinal in group.ordinals}
        for entry in self.journal:
            self._carry_out(entry, codes, kinds, begin, runs)
        for (kind, code), count in Counter(zip(kinds, codes, strict=True)).items():
            if kind < len(self.kinds):
                self.tally[self.kinds[kind].stage, code] += count

    def _carry_out(
        self, entry: JournalEntry, codes: bytearray, kinds: Sequence[int], begin: int, runs: dict[int, Run]
    ) -> None:
        if entry.decision is Decision.UNREACHABLE and not entry.ordinals:
            for place, code in enumerate(codes):
                kind = kinds[place]
                is_later = kind < len(self.kinds) and self.kinds[kind].stage > entry.after_stage
                if code == StepCode.PREPARED and is_later:
                    codes[place] = StepCode.UNREACHABLE
            return
        for ordinal in entry.ordinals:
            place = ordinal - begin
            if not 0 <= place < len(codes):
                continue
            is_shown = codes[place] == entry.left if entry.key is None else runs.get(ordinal) == entry.key.run
            if is_shown:
                codes[place] = CODE_OF[entry.decision]

    def count(self, *codes: StepCode) -> int:
        """Steps with one of the codes."""
        return sum(count for (_, code), count in self.tally.items() if code in codes)

    def stages(self) -> tuple[StageCounts, ...]:
        """Counts per stage, in their order [S3.1]."""

        def of(stage: int, *codes: StepCode) -> int:
            return sum(self.tally[stage, code] for code in codes)

        return tuple(
            StageCounts(
                stage,
                of(stage, *StepCode),
                of(stage, StepCode.COMPLETED_SUCCESSFULLY),
                of(stage, *_FAILED),
                of(stage, StepCode.STOPPED),
                of(stage, StepCode.UNREACHABLE),
            )
            for stage in sorted({kind.stage for kind in self.kinds})
        )


def check_counts(before: JobDocument, recounted: Recount, after: JobDocument) -> list[Finding] | None:
    """Counts of the job document against a recount of what was read after `before` and ahead of `after`.

    Exact when the document did not change meanwhile and the job is at rest. A job at work may have more successes in
    the ledger than it counts: those that no hook is told of are counted within a second. When the document changed,
    what is final can only have become more, and failures lie between the two looks. None: not even that can be told,
    as a resume or a retry of failed steps lies between.
    """
    if before.mark or after.mark:
        return None
    stages = recounted.stages()
    counts = total(stages)
    if not is_settled(before, after):
        if before.history[-1:] != after.history[-1:] or len(before.history) != len(after.history):
            return None
        return [
            Finding(
                kind=FindingKind.COUNTS,
                stored=f"{name}: {low} counted before, {high} after the ledger was read",
                expected=f"{counted} in the ledger, which must lie between",
            )
            for name in ("succeeded", "failed", "unreachable")
            for low, counted, high in (
                (getattr(before.counts, name), getattr(counts, name), getattr(after.counts, name)),
            )
            if counted < low or (counted > high and name != "succeeded")
        ]
    may_lag = not is_at_rest(before)
    found = [] if _agree(before.counts, counts, may_lag=may_lag) else [_counted("the job", before.counts, counts)]
    found += [
        _counted(f"stage {said.stage}", said, is_so)
        for said, is_so in zip(before.stage_counts, stages, strict=False)
        if (said.stage, said.total) != (is_so.stage, is_so.total) or not _agree(said, is_so, may_lag=may_lag)
    ]
    if before.stage_counts and len(before.stage_counts) != len(stages):
        found.append(_counted("stages", len(before.stage_counts), len(stages)))
    return found


def _agree(said: Counts | StageCounts, is_so: Counts | StageCounts, *, may_lag: bool) -> bool:
    if said.succeeded != is_so.succeeded and not (may_lag and said.succeeded < is_so.succeeded):
        return False
    return (said.failed, said.stopped, said.unreachable) == (is_so.failed, is_so.stopped, is_so.unreachable)


def _counted(what: str, stored: Counts | StageCounts | int, expected: Counts | StageCounts | int) -> Finding:
    return Finding(kind=FindingKind.COUNTS, stored=f"{what}: {_told(stored)}", expected=_told(expected))


def _told(counts: Counts | StageCounts | int) -> str:
    if isinstance(counts, int):
        return str(counts)
    said = f"{counts.succeeded} succeeded, {counts.failed} failed, {counts.stopped} stopped"
    return f"{said}, {counts.unreachable} unreachable" + (
        f" of {counts.total}" if isinstance(counts, StageCounts) else ""
    )


def is_at_rest(document: JobDocument) -> bool:
    """Completed, or stopped and accounted: nothing is under way, and the job document counts all that is counted."""
    return document.status in _COMPLETED or (document.status is JobStatus.STOPPED and document.is_stop_finalized)


def check_status(document: JobDocument, recounted: Recount) -> Iterator[Finding]:
    """What the job's status demands of its journal, its mark and its steps. For a document that did not change."""
    status = document.status
    if not is_at_rest(document):
        return
    if document.journal:
        stored = f"{status} with {len(document.journal)} entries in the journal"
        yield Finding(kind=FindingKind.STATUS, stored=stored, expected="an empty journal")
    if document.mark:
        yield Finding(kind=FindingKind.STATUS, stored=f"{status} with the mark {document.mark}", expected="no mark")
    open_codes = [StepCode.SCHEDULED, StepCode.AWAITING_RETRY]
    if status in _COMPLETED:
        open_codes += [StepCode.PREPARED, StepCode.STOPPED]
    for code in open_codes:
        if count := recounted.count(code):
            stored = f"{status} with {count} steps {code.name}"
            yield Finding(kind=FindingKind.STATUS, stored=stored, expected="none")
    failed = recounted.count(*_FAILED, StepCode.UNREACHABLE)
    if status in _COMPLETED and (status is JobStatus.COMPLETED_WITH_FAILURES) != bool(failed):
        stored = f"{status} with {failed} steps failed or unreachable"
        yield Finding(kind=FindingKind.STATUS, stored=stored, expected="the status that these steps make")


def check_stages(before: JobDocument, recounted: Recount, after: JobDocument) -> Iterator[Finding]:
    """No step of a later stage has begun, every step of an earlier one is final [S5.2]."""
    if before.stage is None or after.stage is None or before.mark or after.mark:
        return
    for (stage, code), count in sorted(recounted.tally.items()):
        name = StepCode(code).name if code < len(StepCode) else str(code)
        if stage > after.stage and code not in _NOT_BEGUN:
            stored = f"stage {after.stage} is reached, and {count} steps of stage {stage} are {name}"
            yield Finding(kind=FindingKind.STAGE, stored=stored, expected="PREPARED, STOPPED or UNREACHABLE")
        if stage < before.stage and code not in FINAL_CODES:
            stored = f"stage {before.stage} is reached, and {count} steps of stage {stage} are {name}"
            yield Finding(kind=FindingKind.STAGE, stored=stored, expected="a final status")


# What steps have beside the ledger.


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps whose ledger segments were the same before and after their records were read.

    `after` is the job document, read after the records and before the second look at the segments.
    """

    begin: int
    step_ids: Sequence[StepId]
    stages: Sequence[int]
    codes: bytes
    beside: Beside
    after: JobDocument

    def step(self, kind: FindingKind, ordinal: int, stored: str, expected: str, *, is_debris: bool = False) -> Finding:
        """A finding about one of them."""
        step_id = self.step_ids[ordinal - self.begin]
        return Finding(
            kind=kind, step_id=step_id, ordinal=ordinal, stored=stored, expected=expected, is_debris=is_debris
        )


def check_beside(block: Block, skipped: Container[int] = ()) -> Iterator[Finding]:
    """Each step's failed-step record, kept result and document against its status. `skipped` are not looked at."""
    failures = {failed.ordinal: failed for failed in block.beside.failures}
    results = {kept.ordinal: kept for kept in block.beside.results}
    documents = {document.ordinal: document for document in block.beside.documents}
    under_way = {ordinal for entry in block.after.journal for ordinal in entry.ordinals}
    for place, code in enumerate(block.codes):
        ordinal = block.begin + place
        if ordinal in skipped or code >= len(StepCode):
            continue
        status, is_open = StepCode(code), ordinal in under_way
        yield from _check_failure(block, ordinal, status, failures.get(ordinal), is_under_way=is_open)
        yield from _check_result(block, ordinal, status, results.get(ordinal), is_under_way=is_open)
        yield from _check_document(block, ordinal, status, documents.get(ordinal), is_under_way=is_open)


def _check_failure(
    block: Block, ordinal: int, status: StepCode, failed: FailedStep | None, *, is_under_way: bool
) -> Iterator[Finding]:
    kind = FindingKind.FAILED_STEP
    if block.after.mark:
        return  # failed steps are being prepared again, their records deleted
    if status in _FAILED and failed is None:
        yield block.step(kind, ordinal, f"{status.name} without a record", "what is known of its failure")
    if failed is None:
        return
    if status not in _FAILED and not is_under_way:
        stored = f"a record of attempt {failed.attempt}, and the ledger says {status.name}"
        yield block.step(kind, ordinal, stored, "a record for failed steps only", is_debris=True)
    if failed.step_id != block.step_ids[ordinal - block.begin]:
        yield block.step(kind, ordinal, f"a record of step {failed.step_id!r}", "the id that the plan has")


def _check_result(
    block: Block, ordinal: int, status: StepCode, kept: KeptResult | None, *, is_under_way: bool
) -> Iterator[Finding]:
    kind, is_success = FindingKind.RESULT, status is StepCode.COMPLETED_SUCCESSFULLY
    if is_success and kept is None and block.after.keep_results:
        yield block.step(kind, ordinal, "no kept result", "the value of each success")
    if kept is None:
        return
    # One that no hook is told of is kept before the ledger says so, and no journal names it.
    if not is_success and not is_under_way and status is not StepCode.SCHEDULED:
        yield block.step(kind, ordinal, f"a kept result, and the ledger says {status.name}", "results of successes")
    place = ordinal - block.begin
    if (kept.step_id, kept.stage) != (block.step_ids[place], block.stages[place]):
        stored = f"a result of step {kept.step_id!r} in stage {kept.stage}"
        yield block.step(kind, ordinal, stored, f"id and stage of the plan, here {block.stages[place]}")


def _check_document(
    block: Block, ordinal: int, status: StepCode, document: StepDocument | None, *, is_under_way: bool
) -> Iterator[Finding]:
    kind = FindingKind.STEP_DOCUMENT
    if document is None:
        if status is StepCode.AWAITING_RETRY and not is_under_way:
            yield block.step(kind, ordinal, "AWAITING_RETRY without a document", "the next attempt and when it is due")
        return
    if status in FINAL_CODES and not is_under_way and not block.after.mark:
        stored = f"a document of attempt {document.attempt}, and the ledger says {status.name}"
        yield block.step(kind, ordinal, stored, "none for a final step", is_debris=True)
    # An open one is about to be assigned: the run is raised there before the ledger names it.
    if status is StepCode.AWAITING_RETRY and document.is_closed and document.due is None:
        yield block.step(kind, ordinal, "a closed run without a due time", "when the next attempt is due")


def check_journal(
    keys: Container[OutcomeKey], segments: Iterable[LedgerSegment], document: JobDocument
) -> Iterator[Finding]:
    """The outcomes that the journal was written from are there while the ledger still shows what it decided [S6.5].

    For a document that did not change from before the ledger to after the keys were read.
    """
    shown: dict[Run, set[int]] = {}
    for segment in segments:
        for group in segment.groups:
            shown.setdefault(group.run, set()).update(group.ordinals)
    for entry in document.journal:
        if entry.key is not None and entry.key not in keys and shown.get(entry.key.run, set()) & set(entry.ordinals):
            stored = f"decisions about outcomes of {entry.key.host}, number {entry.key.n}, which are gone"
            yield Finding(kind=FindingKind.OUTCOME, stored=stored, expected="the outcomes that were decided upon")


def uncalled_outcomes(
    keys: Iterable[OutcomeKey], segments: Iterable[LedgerSegment], document: JobDocument
) -> list[OutcomeKey]:
    """Outcome documents that neither a group of the ledger nor the journal calls for."""
    runs = {(group.host, group.run) for segment in segments for group in segment.groups}
    named = {entry.key for entry in document.journal}
    return [key for key in keys if (key.host, key.run) not in runs and key not in named]
