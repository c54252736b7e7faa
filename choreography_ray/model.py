"""The vocabulary shared by every layer: ids, statuses, results, progress and the records that readers see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from pydantic import BaseModel, ConfigDict

JobId = NewType("JobId", str)
StepId = NewType("StepId", str)
HostId = NewType("HostId", str)

MAX_ID_BYTES = 1024
"""The longest job or step id, in UTF-8 bytes [S2.1]."""
MAX_MESSAGE = 4_096
MAX_TRACEBACK = 16_384
"""Characters that are kept of an error's texts [S7.1]: a message's beginning, a traceback's end."""


class JobStatus(StrEnum):
    """Where a job stands [S3]."""

    PREPARING_JOB = "PREPARING_JOB"
    PREPARING_STEPS = "PREPARING_STEPS"
    STARTING_STEPS = "STARTING_STEPS"
    RUNNING = "RUNNING"
    COMPLETED_SUCCESSFULLY = "COMPLETED_SUCCESSFULLY"
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    REMOVING = "REMOVING"

    @property
    def is_interruptible(self) -> bool:
        """True while an actor should be working on the job; without one the job is interrupted [S3]."""
        return self in _WORKING

    @property
    def is_final(self) -> bool:
        """True when the job will never run again by itself: completed or failed."""
        return self in _FINAL


_WORKING = frozenset({JobStatus.PREPARING_JOB, JobStatus.PREPARING_STEPS, JobStatus.STARTING_STEPS, JobStatus.RUNNING})
_FINAL = frozenset({JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES, JobStatus.FAILED})


class JobStepStatus(StrEnum):
    """Where a step stands [S3]. `RUNNING` is never stored: its host tells it."""

    PREPARED = "PREPARED"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    AWAITING_RETRY = "AWAITING_RETRY"
    COMPLETED_SUCCESSFULLY = "COMPLETED_SUCCESSFULLY"
    COMPLETED_WITH_FAILURE = "COMPLETED_WITH_FAILURE"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    REMOVING = "REMOVING"
    UNREACHABLE = "UNREACHABLE"

    @property
    def is_final(self) -> bool:
        """True when no further attempt follows: the step counts toward completion [S3.1]."""
        return self in _FINAL_STEP


_FINAL_STEP = frozenset(
    {
        JobStepStatus.COMPLETED_SUCCESSFULLY,
        JobStepStatus.COMPLETED_WITH_FAILURE,
        JobStepStatus.FAILED,
        JobStepStatus.UNREACHABLE,
    }
)


class StageFailureBehavior(StrEnum):
    """What a stage with failed steps does to the stages after it [S5.3]."""

    STOP_JOB = "STOP_JOB"
    CONTINUE_WITH_NEXT_STAGE = "CONTINUE_WITH_NEXT_STAGE"


class StepHosting(StrEnum):
    """Which actor performs a step: one made for it, or a warm one that performs many [S14.2]."""

    OWN_ACTOR = "OWN_ACTOR"
    SHARED_ACTORS = "SHARED_ACTORS"


class ResumeResult(StrEnum):
    """What a resume found or did [S9.5]."""

    RESUMED = "RESUMED"
    ALREADY_RUNNING = "ALREADY_RUNNING"
    COMPLETED = "COMPLETED"


class DrainResult(StrEnum):
    """What a drain came to [S9.4]."""

    DRAINED = "DRAINED"
    TIMED_OUT = "TIMED_OUT"
    COMPLETED = "COMPLETED"


class AdmissionMoment(StrEnum):
    """When admission is asked [S11]."""

    START = "START"
    RESUME = "RESUME"
    RECOVERY = "RECOVERY"
    STAGE = "STAGE"


class Frozen(BaseModel):
    """A record that never changes: a change makes a new one. Unknown fields of newer versions are kept [S12.1]."""

    model_config = ConfigDict(frozen=True, extra="allow", arbitrary_types_allowed=True, defer_build=True)


class AdmissionQuestion(Frozen):
    """What a callable of `JobsOptions.admissions` is told: it answers True or False, or an awaitable of it [S11]."""

    moment: AdmissionMoment
    job_id: JobId
    type_name: str
    labels: dict[str, str] = {}
    request: Any = None
    """What the job was, or is to be, started with."""
    stage: int | None = None
    """The stage that the job has reached; None before its first."""


class StageProgress(Frozen):
    """Counts of the steps of one stage, or of a whole job [S3.1]."""

    total: int = 0
    succeeded: int = 0
    failed: int = 0
    stopped: int = 0
    unreachable: int = 0

    @property
    def is_completed(self) -> bool:
        """True when every step has a final outcome."""
        return self.succeeded + self.failed + self.unreachable == self.total


class Progress(StageProgress):
    """Counts of a whole job and of each of its stages, keyed by the stage's value [S3.1]."""

    stages: dict[int, StageProgress] = {}


class HistoryEntry(Frozen):
    """One change of a job's status: when (aware UTC), to what, and why."""

    at: datetime
    status: JobStatus
    why: str = ""


class AttemptRecord(Frozen):
    """What is known of one attempt that failed [S7.1]. Texts are bounded."""

    attempt: int
    began_at: datetime | None = None
    ended_at: datetime | None = None
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    node: str = ""
    pid: int = 0


class StepRecord(Frozen):
    """A step as readers see it. `failure` tells the last failed attempt, `attempts` all that are known [S7.1]."""

    step_id: StepId
    ordinal: int
    name: str = ""
    step_type: str = ""
    stage: int = 0
    status: JobStepStatus = JobStepStatus.PREPARED
    attempt: int = 1
    """Of a step that succeeded 1, whatever it took: it leaves nothing of its own that would tell [S6.6]."""
    host: str | None = None
    """The name of the actor that performs it: `ray.get_actor` finds it in the Ray namespace of the jobs [S14.1]."""
    retry_due: datetime | None = None
    failure: AttemptRecord | None = None
    attempts: tuple[AttemptRecord, ...] = ()


NEARLY_FULL = 0.8
"""The share of what request and state may take from which on a job is said to be near its limit."""


class JobRecord(Frozen):
    """A job as readers see it: a snapshot of what is stored."""

    job_id: JobId
    type_name: str
    status: JobStatus
    labels: dict[str, str] = {}
    details: str = ""
    options: dict[str, str] = {}
    """Its options that differ from the defaults, as text [S15]."""
    progress: Progress = Progress()
    stage: int | None = None
    created_at: datetime
    updated_at: datetime
    history: tuple[HistoryEntry, ...] = ()
    error: str = ""
    start_error: str | None = None
    actor_name: str = ""
    is_accounted: bool = True
    """False while a stopped job still settles what its steps were doing [S9.1]."""
    python: str = ""
    """The Python that its captured code needs, as "3.11"; empty: its code is installed, and imported [S13]."""
    document_bytes: int = 0
    """What request and state take of the job's own document, in bytes. Nothing else in it grows, and the state only by
    what the job's hooks add to it."""
    max_document_bytes: int = 0
    """What they may take together: more is refused as `TooLarge` [S12.4]."""

    @property
    def is_nearly_full(self) -> bool:
        """Whether request and state take over 80 % of what they may; the job's actor has logged a warning."""
        return self.document_bytes > NEARLY_FULL * self.max_document_bytes > 0


class NodeRecord(Frozen):
    """A node of the cluster, and which version of this package it has [S14.6]."""

    node_id: str
    address: str
    version: str = ""
    """Empty where the package is not installed."""
    problem: str = ""
    """A sentence where steps cannot run there, or would run on another version than the process that asks."""


class SpanKind(StrEnum):
    """Of what a span of a timeline tells."""

    STEP = "STEP"
    """An actor of its own performed a step, from its creation to its end."""
    HOST = "HOST"
    """A warm actor lived, and performed steps of which no times are kept."""
    FAILED_ATTEMPT = "FAILED_ATTEMPT"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that went on for a while on a node. `ended_at` is None while it goes on."""

    kind: SpanKind
    what: str
    node: str
    began_at: datetime
    ended_at: datetime | None = None
    stage: int | None = None
    """Of a warm actor: None, as it serves whichever stage is open."""
    told: str = ""


class Timeline(Frozen):
    """What is known of when things of a job happened: its statuses from the store, its hosts from its cluster."""

    job_id: JobId
    status: JobStatus
    created_at: datetime
    history: tuple[HistoryEntry, ...] = ()
    spans: tuple[Span, ...] = ()
    """In the order in which they began."""
    unknown: tuple[str, ...] = ()
    """What cannot be told, and why: a sentence each."""


class FindingKind(StrEnum):
    """Where a verification found something."""

    COUNTS = "COUNTS"
    PLAN = "PLAN"
    PREPARED = "PREPARED"
    LEDGER = "LEDGER"
    STAGE = "STAGE"
    STATUS = "STATUS"
    FAILED_STEP = "FAILED_STEP"
    RESULT = "RESULT"
    STEP_DOCUMENT = "STEP_DOCUMENT"
    OUTCOME = "OUTCOME"
    REMAINS = "REMAINS"


class Finding(Frozen):
    """A difference between what is stored and what should be. Debris is what nothing reads: it goes with its job."""

    kind: FindingKind
    stored: str
    expected: str
    step_id: StepId | None = None
    ordinal: int | None = None
    is_debris: bool = False


class Verification(Frozen):
    """What a recount of a job found. `status` is None when there is no such job: then nothing may be stored of it."""

    job_id: JobId
    status: JobStatus | None = None
    recount: Progress = Progress()
    """Counted from the ledger alone, with what was decided and not yet written there."""
    findings: tuple[Finding, ...] = ()
    """The first of them, in the order of the plan."""
    errors: int = 0
    """Findings that are no debris, also those that `findings` has no room for."""
    debris: int = 0
    unchecked: tuple[str, ...] = ()
    """What could not be told for certain, as it kept changing while it was read; empty for a job at rest."""

    @property
    def is_ok(self) -> bool:
        """True when nothing was found but debris."""
        return not self.errors


class WaitReason(StrEnum):
    """For what a step waits [S14.4]."""

    WINDOW = "WINDOW"
    SLOT = "SLOT"
    STARTS = "STARTS"
    RESOURCES = "RESOURCES"
    HOST = "HOST"
    GROUP = "GROUP"
    STAGE = "STAGE"
    RETRY = "RETRY"
    HOOK = "HOOK"
    ADMISSION = "ADMISSION"
    STOP = "STOP"
    STOPPED = "STOPPED"
    OUTCOME = "OUTCOME"
    NOBODY = "NOBODY"


class Waiting(Frozen):
    """Steps that wait for the same: how many, a sentence, and the ids of some."""

    reason: WaitReason
    steps: int
    told: str
    examples: tuple[StepId, ...] = ()
    due: datetime | None = None
    """When the first of them goes on by itself, where that is known."""


class Explanation(Frozen):
    """Why steps of a job do not run [S14.4]: what its actor says, else what the store alone tells."""

    job_id: JobId
    status: JobStatus
    told: str
    """One sentence about the job as a whole."""
    running: int = 0
    """Steps that were given to a live host, which performs them now."""
    waiting: tuple[Waiting, ...] = ()
    is_from_actor: bool = False
    trouble: str = ""
    """Why writes of the job do not get through: the store's last error. Empty while it answers."""


class StepOutput(Frozen):
    """What the process that performs, or last performed, a step printed; `told` says what is to be known of that."""

    step_id: StepId
    host: str = ""
    node: str = ""
    pid: int = 0
    out: str = ""
    err: str = ""
    told: str = ""
