"""What a job machine wants done: imperatives, frozen, carried out by the engine in their order.

The writes of a turn come first and block; their order is the crash semantics [PROTOCOLS part 1]. What follows them
is sent off and answered by events.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from choreography_ray.core.slot_messages import Exchange
from choreography_ray.model import AdmissionMoment, HostId
from choreography_ray.records import (
    Group,
    JobDocument,
    LedgerSegment,
    Outcome,
    OutcomeKey,
    Run,
    StepCode,
    StepDocument,
)


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Write the changed fields of the job document, under its fence and save number."""

    document: JobDocument
    changed: frozenset[str]


@dataclass(frozen=True, slots=True)
class SaveStepDocuments:
    """Raise the step documents of steps that run again to their new run, before the ledger names it."""

    documents: tuple[StepDocument, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """An outcome and the run that it ended."""

    run: Run
    outcome: Outcome
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class SaveRetries:
    """Close the run of each failed attempt in its step document, with the next attempt and when it is due."""

    items: tuple[Decided, ...]


@dataclass(frozen=True, slots=True)
class SaveFailures:
    """Save a failed-step record for each, with what earlier attempts left."""

    items: tuple[Decided, ...]


@dataclass(frozen=True, slots=True)
class SaveResults:
    """Keep the values of these successes."""

    items: tuple[Decided, ...]


@dataclass(frozen=True, slots=True)
class DeleteStepDocuments:
    """Delete what steps with a final outcome still have of their own."""

    closed: tuple[tuple[int, Run], ...]


@dataclass(frozen=True, slots=True)
class SaveLedger:
    """Write the changed segments."""

    segments: tuple[LedgerSegment, ...]


@dataclass(frozen=True, slots=True)
class SaveStops:
    """Close the run of each stopped step in its document, with the state that it goes on from."""

    items: tuple[Decided, ...]


@dataclass(frozen=True, slots=True)
class DeleteFailures:
    """Delete the records of failed steps that run again, each only as it was read."""

    failures: tuple[tuple[int, Run], ...]


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job's document; the id is free again."""


@dataclass(frozen=True, slots=True)
class ClearJob:
    """Delete the job's records but its document [S9.8]."""

    keep_results: bool


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the hosts that these deliveries are recorded."""

    receipts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer whoever asked for a change of the job."""

    receipts: tuple[int, ...]
    answer: str | int


@dataclass(frozen=True, slots=True)
class StopGroup:
    """Tell a host to stop steps of a run, all if none is named: what has not begun never will.

    Repeated until it has answered.
    """

    host: HostId
    run: Run
    ordinals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KillHost:
    """End a host's process from outside; `HostDied` once that is confirmed. A callback that has begun may finish within
    `grace` seconds [S9.2].
    """

    host: HostId
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class DeleteOutcomes:
    """Delete outcome documents of runs that are over; whether and when is no matter of safety."""

    keys: tuple[OutcomeKey, ...]


@dataclass(frozen=True, slots=True)
class SettleRun:
    """Insert these outcomes at the run's first free place, unless earlier entries name the steps; then tell all."""

    host: HostId
    run: Run
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateHost:
    """Create the host, once per name; it will ask, and is then told its group."""

    host: HostId
    kind: int


@dataclass(frozen=True, slots=True)
class TellGroup:
    """Tell a host its steps; repeated until it has answered or is gone."""

    group: Group
    is_new_host: bool
    is_again: bool
    """Some of its steps had a run before."""


@dataclass(frozen=True, slots=True)
class EndHost:
    """End the host's process. A host that is dead already is no error."""

    host: HostId


@dataclass(frozen=True, slots=True)
class InspectHosts:
    """Find out whether these hosts live and have begun; each is answered by `HostCameUp` or `HostDied` [S10.1]."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class SendExchange:
    """Send the message to the throttle."""

    message: Exchange


@dataclass(frozen=True, slots=True)
class CheckIncarnation:
    """Make sure at store and GCS that this actor is the current one: `IncarnationConfirmed`, or exit."""


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """An outcome that waits for the hooks; `may_retry`: attempts are left."""

    key: OutcomeKey | None
    outcome: Outcome
    may_retry: bool
    left: StepCode = StepCode.SCHEDULED
    """Where a step stands that has no outcome document (`key` None): never started, or waiting for a retry."""
    is_made_by_job: bool = False
    """No host said this: what the step's own code would say of it is asked in the job's process."""
    failed: int = 1
    """Attempts that failed with this one, since the step's attempts were last fresh: what the delay doubles by."""


@dataclass(frozen=True, slots=True)
class RunHooks:
    """Ask and tell the job about outcomes, in this order, on a working copy of its state [S6.5]."""

    ticket: int
    items: tuple[ReportedOutcome, ...]


@dataclass(frozen=True, slots=True)
class AskFailureBehavior:
    """Ask the job what the failures of a stage mean for the next [S5.3]."""

    stage: int


@dataclass(frozen=True, slots=True)
class AskAdmission:
    """Ask whether the job may go on."""

    moment: AdmissionMoment


@dataclass(frozen=True, slots=True)
class RunResumeHook:
    """Run `on_before_resuming_job_steps`, then `on_before_dispatching_job_steps`."""


@dataclass(frozen=True, slots=True)
class RunStoppedHook:
    """Run `on_stopped`."""


@dataclass(frozen=True, slots=True)
class CheckResume:
    """Ask `can_resume` and admission, then run the resume hooks."""


@dataclass(frozen=True, slots=True)
class CheckRetry:
    """Ask `can_retry_failed_steps`."""


@dataclass(frozen=True, slots=True)
class ReadFailedSteps:
    """Read every failed-step record."""


@dataclass(frozen=True, slots=True)
class RunCompletionHook:
    """Run `on_all_steps_completed`."""


@dataclass(frozen=True, slots=True)
class ReportStart:
    """Answer those that wait for the start; what it says is in the job document too."""

    error: str
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call the machine again at this time of the monotonic clock, at the latest."""

    at: float


Command = (
    SaveJob
    | SaveStepDocuments
    | SaveRetries
    | SaveFailures
    | SaveResults
    | SaveStops
    | DeleteFailures
    | DeleteJob
    | DeleteStepDocuments
    | SaveLedger
    | ClearJob
    | Acknowledge
    | Answer
    | StopGroup
    | KillHost
    | RunStoppedHook
    | CheckResume
    | CheckRetry
    | ReadFailedSteps
    | DeleteOutcomes
    | SettleRun
    | CreateHost
    | TellGroup
    | EndHost
    | InspectHosts
    | SendExchange
    | CheckIncarnation
    | RunHooks
    | AskFailureBehavior
    | AskAdmission
    | RunResumeHook
    | RunCompletionHook
    | ReportStart
    | SetTimer
)
