"""The durable records, as the core and the stores exchange them; their layout is that of SPEC S12.2.

All are frozen: a change makes a new one. A `Payload` is a value in the codec's stored form, opaque here: only
None, bool, int (64 bits), float, str, bytes, datetime, list and dict with harmless text keys occur in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from choreography_ray.model import HistoryEntry, HostId, JobId, JobStatus, JobStepStatus, StepHosting, StepId
from choreography_ray.options import JobsOptions

Payload = Any

SCHEMA_VERSION = 1
SEGMENT_STEPS = 500
"""Steps of a plan or ledger segment. Part of the stored format: a job keeps the value it was planned with."""


Columns = tuple[tuple[Any, ...], ...]
_Row = TypeVar("_Row", bound=NamedTuple)


def columns(rows: Sequence[NamedTuple]) -> Columns:
    """Records of one kind field by field, as they travel between processes."""
    return tuple(zip(*rows, strict=True))


def rows(kind: type[_Row], stored: Columns) -> tuple[_Row, ...]:
    """The records again."""
    # As `_make` does it, but without a call of Python's for each.
    make: Any = partial(tuple.__new__, kind)  # pyright: ignore[reportUnknownMemberType]
    return tuple(map(make, zip(*stored, strict=True)))


class Run(NamedTuple):
    """Identifies one assignment to a host: the fence of the job actor that made it, then a counter. Ordered."""

    fence: int
    counter: int


class StepCode(IntEnum):
    """A step's status as one byte of the ledger. The numbers are stored: never reuse one."""

    PREPARED = 0
    SCHEDULED = 1
    AWAITING_RETRY = 2
    COMPLETED_SUCCESSFULLY = 3
    COMPLETED_WITH_FAILURE = 4
    FAILED = 5
    STOPPED = 6
    UNREACHABLE = 7

    @property
    def status(self) -> JobStepStatus:
        """The public name of this code."""
        return JobStepStatus[self.name]


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of final and stopped steps, as saved in the job document with each group [S3.1]."""

    succeeded: int = 0
    failed: int = 0
    stopped: int = 0
    unreachable: int = 0


class StageCounts(NamedTuple):
    """Counts of one stage, as saved in the job document."""

    stage: int
    total: int
    succeeded: int = 0
    failed: int = 0
    stopped: int = 0
    unreachable: int = 0


MAX_STAGE_COUNTS = 64


@dataclass(frozen=True, slots=True)
class CodeRef:
    """Where a job's code is: importable (`digest` empty) or a captured copy with this digest [S13]."""

    module: str
    qualname: str
    digest: str = ""
    python: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class PlanRef:
    """Names the saved plan: without it the plan does not count as saved [S4]."""

    fence: int
    segments: int
    total: int
    segment_steps: int = SEGMENT_STEPS


@dataclass(frozen=True, slots=True)
class StepKind:
    """What steps of a plan have in common: one entry of the plan's table, named by its index."""

    stage: int
    step_type: str
    hosting: StepHosting = StepHosting.OWN_ACTOR
    steps_per_actor: int = 1
    ray_options: Payload = None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step as `prepare_steps` made it; `kind` indexes the plan's table."""

    step_id: StepId
    name: str
    kind: int
    request: Payload


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """The `index`-th run of consecutive ordinals of a plan."""

    index: int
    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True, slots=True)
class PreparedSegment:
    """What hosts need of a segment: the ids and initial states of its steps, written when they were prepared.

    `plan` is the fence of the plan that it belongs to: an earlier job of the same id had another.
    """

    index: int
    step_ids: tuple[StepId, ...]
    states: tuple[Payload, ...]
    plan: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Steps assigned to a host at once: one run, `width` slots, ordinals and their attempts side by side."""

    host: HostId
    run: Run
    width: int
    ordinals: tuple[int, ...]
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerSegment:
    """The truth about a segment's steps: a `StepCode` per step, and the groups that are assigned [S3.2].

    `kinds` (two bytes a step, little-endian) is written once. `fence` and `save` guard every write [S10.1]. `plan` is
    the fence of the plan that it belongs to: an earlier job of the same id had another.
    """

    index: int
    fence: int
    save: int
    codes: bytes
    kinds: bytes
    groups: tuple[Group, ...] = ()
    plan: int = 0


class OutcomeKind(StrEnum):
    """How an attempt ended, or that its run was given up (`MOVED`) [S6.4]."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    START_FAILED = "START_FAILED"
    CRASHED = "CRASHED"
    MOVED = "MOVED"


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of a failed attempt [S7.1]; texts are bounded by whoever makes it."""

    error_type: str
    message: str
    attempt: int = 1
    traceback: str = ""
    began_at: datetime | None = None
    ended_at: datetime | None = None
    node: str = ""
    pid: int = 0


class Outcome(NamedTuple):
    """What happened to one step of a run.

    `value` is the result (or a partial one); `state` the step's last state of a failed or stopped attempt, None
    when it never changed; `crash` the crash number of a moved one.
    """

    ordinal: int
    attempt: int
    kind: OutcomeKind
    value: Payload = None
    failure: Failure | None = None
    state: Payload = None
    crash: int = 0
    has_document: bool = False
    """The step has a step document, which goes when this outcome is recorded."""


class OutcomeKey(NamedTuple):
    """The place of an outcome document: whoever inserts it first decides [S6.4]."""

    host: HostId
    run: Run
    n: int


@dataclass(frozen=True, slots=True)
class OutcomeDocument:
    """Outcomes of one run that wait until the job has recorded them. `seconds` is what the bodies took in all."""

    job_id: JobId
    key: OutcomeKey
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # Column by column: to pickle a thousand outcomes one by one takes longer than to write them.
        return _outcome_document, (self.job_id, self.key, columns(self.outcomes), self.seconds)


def _outcome_document(job_id: JobId, key: OutcomeKey, stored: Columns, seconds: float) -> OutcomeDocument:
    return OutcomeDocument(job_id, key, rows(Outcome, stored), seconds)


@dataclass(frozen=True, slots=True)
class StepDocument:
    """Only for a step that has something of its own [S12.2]: a checkpoint, a retry, a crash count, a stop.

    Written only where the stored (`run`, `is_closed`) is not greater, a closed run being greater than the open one.
    A write with `state` None, `stop` None or empty `attempts` leaves those as they are stored.
    """

    ordinal: int
    run: Run
    is_closed: bool = False
    attempt: int = 1
    due: datetime | None = None
    crashes: int = 0
    stop: Run | None = None
    """The run that somebody stopped, this step alone: of a later run it says nothing [S9.7]."""
    base: int = 0
    """Attempts that were used up before the failed steps were last run again: the budget counts from there [S7.3]."""
    state: Payload = None
    attempts: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedStep:
    """What stays of a failed step: its attempts, and the state that a retry begins from."""

    ordinal: int
    step_id: StepId
    attempt: int
    run: Run
    attempts: tuple[Failure, ...]
    value: Payload = None
    state: Payload = None


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A success's value, kept when the job asks for it [S18.8]."""

    ordinal: int
    step_id: StepId
    value: Payload
    stage: int = 0
    fence: int = 0
    """Of the incarnation that kept it."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What some steps have beside plan and ledger, by ordinal, without payloads, tracebacks and attempts."""

    documents: tuple[StepDocument, ...] = ()
    failures: tuple[FailedStep, ...] = ()
    results: tuple[KeptResult, ...] = ()


class Decision(StrEnum):
    """What the job decided about outcomes of one kind."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    START_FAILED = "START_FAILED"
    RETRY = "RETRY"
    STOPPED = "STOPPED"
    UNREACHABLE = "UNREACHABLE"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Decisions saved with the job document and then carried out; repeated after a crash where the ledger still
    shows what they answer [S6.5].

    `key` is the outcome document decided upon; `attempts` and `dues` lie beside `ordinals` (`dues` only for
    retries). Without a document (`key` None) the entry answers steps whose ledger code is `left`; `UNREACHABLE`
    without ordinals means every such step of a stage later than `after_stage`.
    """

    decision: Decision
    key: OutcomeKey | None = None
    ordinals: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    dues: tuple[datetime, ...] = ()
    left: StepCode = StepCode.PREPARED
    after_stage: int = 0


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that took a job over under `fence`, as its cluster names it [S10.3]. Without a cluster: nobody."""

    cluster: str = ""
    """The id of the cluster's GCS: a head that is restarted over what it remembers keeps it."""
    actor: str = ""
    worker: str = ""
    node: str = ""
    pid: int = 0
    fence: int = 0


@dataclass(frozen=True, slots=True)
class JobDocument:
    """A job, whole and small: nothing in it grows with the steps. Every write names `fence` and the `save` before."""

    job_id: JobId
    type_name: str
    code: CodeRef
    request: Payload
    state: Payload
    options: JobsOptions
    created_at: datetime
    updated_at: datetime
    status: JobStatus = JobStatus.PREPARING_JOB
    fence: int = 0
    save: int = 0
    labels: dict[str, str] = field(default_factory=dict[str, str])
    details: str = ""
    history: tuple[HistoryEntry, ...] = ()
    plan: PlanRef | None = None
    stage: int | None = None
    counts: Counts = Counts()
    stage_counts: tuple[StageCounts, ...] = ()
    """Counts per stage, in their order; empty when there are more than `MAX_STAGE_COUNTS` stages: recount them."""
    journal: tuple[JournalEntry, ...] = ()
    mark: str = ""
    retry_call: str = ""
    """Who last had failed steps run again: whoever asks so again gets the same answer, and nothing is done twice."""
    retried_steps: int = 0
    """How many these were."""
    has_started_hook: bool = False
    """`on_before_starting_job_steps` was, or is about to be, called: it is never called again."""
    is_background: bool = False
    """The start returned before the plan was saved: recovery may plan again [S4]."""
    is_stop_finalized: bool = False
    """The job is stopped and every step of the reached stage is accounted [S9.1]."""
    is_draining: bool = False
    """Somebody drains: until it is quiet, resume is refused [S9.4]."""
    is_cleared: bool = False
    """Everything but this summary was deleted [S9.8]."""
    error: str = ""
    start_error: str = ""
    start_details: tuple[str, ...] = ()
    crashes: int = 0
    """Deaths of its process since outcomes were last recorded, nobody else's fault [S10]."""
    owner: Owner | None = None
    """Written with the fence, in one write: who raised it last to work on the job."""
    beats: int = 0
    """Counted up by the owner: the sign of life that other clusters look for."""
    actor_name: str = ""
    runtime_env: Payload = None
    """Of the driver that started it, as far as it holds on other clusters: the job's processes get it [S13]."""
    keep_results: bool = False
    is_forced: bool = False
    """Its removal was forced, or is retention's: what is left is deleted without hooks [S9.6, S9.8]."""

    @property
    def is_broken(self) -> bool:
        """Its code ended its process so often that it is loaded no more [S10]."""
        return self.crashes >= self.options.max_job_crashes


class RemovedJob(NamedTuple):
    """What is remembered of a job that was deleted, so that what a late writer left of it can be swept."""

    job_id: JobId
    fence: int


@dataclass(frozen=True, slots=True)
class JobBrief:
    """What whoever looks after all jobs needs to know of one; read without its payloads."""

    job_id: JobId
    status: JobStatus
    created_at: datetime
    updated_at: datetime
    fence: int = 0
    has_plan: bool = False
    is_background: bool = False
    is_stop_finalized: bool = False
    is_forced: bool = False
    save: int = 0
    beats: int = 0
    cluster: str = ""
    """Where its owner is."""


def brief_of(document: JobDocument) -> JobBrief:
    """A job's brief."""
    same = {f.name for f in dataclasses.fields(JobBrief)} - {"has_plan", "cluster"}
    own = {name: getattr(document, name) for name in same}
    cluster = "" if document.owner is None else document.owner.cluster
    return JobBrief(has_plan=document.plan is not None, cluster=cluster, **own)
