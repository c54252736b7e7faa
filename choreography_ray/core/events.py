"""What can happen to a job: past participles, frozen, told to the job machine."""

from __future__ import annotations

from dataclasses import dataclass

from choreography_ray.core.slot_messages import Reply
from choreography_ray.model import AdmissionMoment, HostId, StageFailureBehavior
from choreography_ray.records import FailedStep, Failure, OutcomeDocument, Payload, Run


@dataclass(frozen=True, slots=True)
class OutcomesReported:
    """A host delivered an outcome document. `receipt` names the call that waits for the acknowledgement."""

    document: OutcomeDocument
    receipt: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the job's hooks said of one outcome: run it again after `retry_after` seconds, or it is final (None)."""

    retry_after: float | None = None
    step_id: str = ""
    """Told where a person will read of it: for failed starts."""


@dataclass(frozen=True, slots=True)
class HooksRan:
    """Answers `RunHooks`, a verdict per item in its order. `state` None: the job's state did not change."""

    ticket: int
    verdicts: tuple[Verdict, ...]
    state: Payload = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class HostCameUp:
    """A host asked for its lease for the first time."""

    host: HostId


@dataclass(frozen=True, slots=True)
class HostWaited:
    """A host waits for its resources; it counts as started for whoever waits for the start [S4.4]."""

    host: HostId


@dataclass(frozen=True, slots=True)
class HostFailedToStart:
    """The host's constructor or runtime_env failed; its process, if there was one, is gone."""

    host: HostId
    failure: Failure


@dataclass(frozen=True, slots=True)
class HostWithdrawn:
    """The host was not placed in time and will never run [S14.4]."""

    host: HostId


@dataclass(frozen=True, slots=True)
class HostDied:
    """The host's death is confirmed [S10.2]. `is_charged`: neither its node's fault nor ours."""

    host: HostId
    is_charged: bool
    failure: Failure


@dataclass(frozen=True, slots=True)
class RunSettled:
    """Answers `SettleRun`: every outcome document of the run, in the order of n, whoever wrote it."""

    host: HostId
    run: Run
    documents: tuple[OutcomeDocument, ...]


@dataclass(frozen=True, slots=True)
class ThrottleReplied:
    """The throttle answered an exchange."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class ExchangeFailed:
    """The call of exchange `n` raised; whether the throttle saw it is not known."""

    n: int


@dataclass(frozen=True, slots=True)
class IncarnationConfirmed:
    """Store and GCS say that this is the current incarnation; one that is not gets no event, it exits."""


@dataclass(frozen=True, slots=True)
class FailureBehaviorAnswered:
    """Answers `AskFailureBehavior`."""

    stage: int
    behavior: StageFailureBehavior


@dataclass(frozen=True, slots=True)
class AdmissionAnswered:
    """Answers `AskAdmission`; None: it raised or was silent, which is no refusal [S11]."""

    is_allowed: bool | None
    moment: AdmissionMoment
    why: str = ""


@dataclass(frozen=True, slots=True)
class ResumeHookRan:
    """Answers `RunResumeHook`; an empty error: it succeeded. With the state if the hooks changed it."""

    state: Payload = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StateWritten:
    """A hook asked for the state to be saved; `receipt` names the call that waits until it is."""

    state: Payload
    receipt: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody stops the job, or drains it; `receipt` waits for the answer [S9.1, S9.4]."""

    receipt: int
    is_drain: bool = False


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """Somebody resumes the job [S9.5]."""

    receipt: int


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """Somebody runs the failed steps again [S7.3]; asked again without an answer, with the same `call`."""

    receipt: int
    call: str = ""


@dataclass(frozen=True, slots=True)
class RemoveAsked:
    """Somebody removes the job [S9.6]."""

    receipt: int


@dataclass(frozen=True, slots=True)
class ResumeChecked:
    """Answers `CheckResume`: an empty refusal means that the job may go on. With the state if the hooks changed it."""

    refusal: str = ""
    state: Payload = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class RetryChecked:
    """Answers `CheckRetry`."""

    is_allowed: bool


@dataclass(frozen=True, slots=True)
class FailedStepsRead:
    """Answers `ReadFailedSteps`: all failed-step records of the job."""

    failures: tuple[FailedStep, ...]


@dataclass(frozen=True, slots=True)
class StoppedHookRan:
    """Answers `RunStoppedHook`."""

    state: Payload = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class CompletionHookRan:
    """Answers `RunCompletionHook`, with the state if the hook changed it."""

    state: Payload = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepStopAsked:
    """Somebody stops one step [S9.7]."""

    receipt: int
    ordinal: int


Request = StopAsked | ResumeAsked | RetryAsked | RemoveAsked | StepStopAsked
"""What people ask for."""

CodeAnswer = (
    FailureBehaviorAnswered
    | AdmissionAnswered
    | ResumeHookRan
    | CompletionHookRan
    | ResumeChecked
    | RetryChecked
    | FailedStepsRead
    | StoppedHookRan
)
"""What answers the one question that is open."""

Event = (
    Request
    | CodeAnswer
    | OutcomesReported
    | HooksRan
    | HostCameUp
    | HostWaited
    | HostFailedToStart
    | HostWithdrawn
    | HostDied
    | RunSettled
    | ThrottleReplied
    | ExchangeFailed
    | IncarnationConfirmed
    | StateWritten
)
