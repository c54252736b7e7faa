"""Every error a user can meet: one tree, each with data fields, a reason, and a message made from them; all pickle."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar

from choreography_ray.plain import clean

MAX_WORDS = 8_000
"""Characters of a message at most: its fields have the rest."""


class ChoreographyError(Exception):
    """Base of all errors of this package.

    Subclasses name their fields in `__init__`; the message is derived from them, so that an error keeps its
    data through pickle and between processes [S2.4]. As it may quote what a user's code said, the message is one line
    of plain text, whatever the fields hold.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__dict__.copy(), self.args))

    def __str__(self) -> str:
        return clean(self.describe(), MAX_WORDS)

    def describe(self) -> str:
        """One clear sentence for a person."""
        return super().__str__()


def _rebuild(cls: type[ChoreographyError], fields: dict[str, Any], args: tuple[Any, ...]) -> ChoreographyError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error


class StartJobReason(StrEnum):
    """Why a start did not start the job [S2.4]."""

    UNKNOWN = "UNKNOWN"
    NOT_ADMITTED = "NOT_ADMITTED"
    ADMISSION_UNANSWERED = "ADMISSION_UNANSWERED"
    INVALID_STEP_PLAN = "INVALID_STEP_PLAN"
    COULD_NOT_PREPARE_JOB_STEPS = "COULD_NOT_PREPARE_JOB_STEPS"
    ALL_JOB_STEPS_FAILED_STARTING = "ALL_JOB_STEPS_FAILED_STARTING"
    STOPPED = "STOPPED"
    ALREADY_STARTED = "ALREADY_STARTED"


class StartReport(StrEnum):
    """What a start that did start the job still has to say, in `JobHandle.start_error` [S4.1, S4.4]."""

    NO_JOB_STEPS_TO_START = "NO_JOB_STEPS_TO_START"
    FAILED_STARTING_SOME_JOB_STEPS = "FAILED_STARTING_SOME_JOB_STEPS"


class StartJobError(ChoreographyError):
    """The job was not started. `job` is a handle when a record of the id exists; `details` has a line per cause."""

    def __init__(self, reason: StartJobReason, job_id: str = "", details: Sequence[str] = (), job: Any = None) -> None:
        super().__init__()
        self.reason = reason
        self.job_id = job_id
        self.details = tuple(details)
        self.job = job

    _WORDS: ClassVar[dict[StartJobReason, str]] = {
        StartJobReason.UNKNOWN: "could not be started",
        StartJobReason.NOT_ADMITTED: "was not admitted",
        StartJobReason.ADMISSION_UNANSWERED: "got no answer from admission",
        StartJobReason.INVALID_STEP_PLAN: "has a plan that cannot be stored",
        StartJobReason.COULD_NOT_PREPARE_JOB_STEPS: "has steps that could not be prepared",
        StartJobReason.ALL_JOB_STEPS_FAILED_STARTING: "could start none of its steps",
        StartJobReason.STOPPED: "was stopped while it started",
        StartJobReason.ALREADY_STARTED: "was started before: the id is taken until the job is removed",
    }

    def describe(self) -> str:
        shown = "; ".join(self.details[:5])
        more = f"; and {len(self.details) - 5} more" if len(self.details) > 5 else ""
        return f"job {self.job_id!r} {self._WORDS[self.reason]} ({self.reason})" + (f": {shown}{more}" if shown else "")


class StopJobReason(StrEnum):
    """Why a job was not stopped [S9.1]."""

    JOB_IS_COMPLETED = "JOB_IS_COMPLETED"
    JOB_IS_NOT_RUNNING = "JOB_IS_NOT_RUNNING"
    UNKNOWN_JOB_TYPE = "UNKNOWN_JOB_TYPE"
    OWNED_ELSEWHERE = "OWNED_ELSEWHERE"
    UNANSWERED = "UNANSWERED"


class ResumeJobReason(StrEnum):
    """Why a job was not resumed [S9.5]."""

    JOB_IS_NOT_PREPARED = "JOB_IS_NOT_PREPARED"
    JOB_CANNOT_BE_RESUMED = "JOB_CANNOT_BE_RESUMED"
    NOT_ADMITTED = "NOT_ADMITTED"
    ADMISSION_UNANSWERED = "ADMISSION_UNANSWERED"
    RESUME_HOOK_FAILED = "RESUME_HOOK_FAILED"
    JOB_IS_BEING_REMOVED = "JOB_IS_BEING_REMOVED"
    DRAIN_PENDING = "DRAIN_PENDING"
    UNKNOWN_JOB_TYPE = "UNKNOWN_JOB_TYPE"
    OWNED_ELSEWHERE = "OWNED_ELSEWHERE"
    UNANSWERED = "UNANSWERED"


class RetryFailedStepsReason(StrEnum):
    """Why failed steps were not run again [S7.3]."""

    NOT_SUPPORTED = "NOT_SUPPORTED"
    JOB_IS_NOT_COMPLETED_WITH_FAILURES = "JOB_IS_NOT_COMPLETED_WITH_FAILURES"
    COULD_NOT_PERSIST = "COULD_NOT_PERSIST"
    UNKNOWN_JOB_TYPE = "UNKNOWN_JOB_TYPE"
    OWNED_ELSEWHERE = "OWNED_ELSEWHERE"
    UNANSWERED = "UNANSWERED"


class RemoveJobReason(StrEnum):
    """Why a job was not removed [S9.6]."""

    UNKNOWN_JOB_TYPE = "UNKNOWN_JOB_TYPE"
    TIMED_OUT = "TIMED_OUT"
    OWNED_ELSEWHERE = "OWNED_ELSEWHERE"
    UNANSWERED = "UNANSWERED"


_WORDS_OF_CONTROL: dict[str, str] = {
    StopJobReason.JOB_IS_COMPLETED: "it has ended",
    StopJobReason.JOB_IS_NOT_RUNNING: "it is FAILED or being removed",
    StopJobReason.UNANSWERED: "its actor did not answer in time: what was asked may still be done",
    ResumeJobReason.JOB_IS_NOT_PREPARED: "no plan of it was saved",
    ResumeJobReason.JOB_CANNOT_BE_RESUMED: "its status or its can_resume does not allow it",
    ResumeJobReason.NOT_ADMITTED: "admission refused it",
    ResumeJobReason.ADMISSION_UNANSWERED: "admission did not answer",
    ResumeJobReason.RESUME_HOOK_FAILED: "its on_before_resuming_job_steps failed",
    ResumeJobReason.JOB_IS_BEING_REMOVED: "it is being removed",
    ResumeJobReason.DRAIN_PENDING: "a drain waits until nothing of it runs",
    RetryFailedStepsReason.NOT_SUPPORTED: "it has stages, or its can_retry_failed_steps does not allow it",
    RetryFailedStepsReason.JOB_IS_NOT_COMPLETED_WITH_FAILURES: "only a job that completed with failures is",
    RetryFailedStepsReason.COULD_NOT_PERSIST: "the store did not take it",
    RemoveJobReason.TIMED_OUT: "its steps have not ended yet: the removal goes on",
}
"""What a reason means; those of what `details` tell are left out."""


class _ControlError(ChoreographyError):
    """A request that a job refused, or that nobody answered."""

    _VERB: ClassVar[str]

    def __init__(self, reason: StrEnum, job_id: str = "", details: str = "") -> None:
        super().__init__()
        self.reason = reason
        self.job_id = job_id
        self.details = details

    def describe(self) -> str:
        words = _WORDS_OF_CONTROL.get(self.reason)
        told = f"job {self.job_id!r} was not {self._VERB}: {self.reason}" + (f", {words}" if words else "")
        return told + (f" ({self.details})" if self.details else "")


class StopJobError(_ControlError):
    """The job was not stopped; `reason` is a `StopJobReason`."""

    _VERB = "stopped"


class ResumeJobError(_ControlError):
    """The job was not resumed; `reason` is a `ResumeJobReason`."""

    _VERB = "resumed"


class RetryFailedStepsError(_ControlError):
    """Failed steps were not run again; `reason` is a `RetryFailedStepsReason`."""

    _VERB = "run again"


class RemoveJobError(_ControlError):
    """The job was not removed; `reason` is a `RemoveJobReason`."""

    _VERB = "removed"


class StepStopReason(StrEnum):
    """Why nobody can say that a step is stopped [S9.7]."""

    STOP_TIMED_OUT = "STOP_TIMED_OUT"
    """The stop is saved; that the step has ended is not confirmed yet. It is accounted later, once."""
    FAILED_TO_REPORT_TO_JOB = "FAILED_TO_REPORT_TO_JOB"
    """The job did not hear of it, or cannot act on it; the step's state is kept."""
    FAILED_TO_PERSIST = "FAILED_TO_PERSIST"
    """The job cannot save it now; it may still do so later."""
    JOB_IS_COMPLETED = "JOB_IS_COMPLETED"
    JOB_IS_NOT_RUNNING = "JOB_IS_NOT_RUNNING"
    JOB_IS_NOT_PREPARED = "JOB_IS_NOT_PREPARED"
    JOB_IS_BEING_REMOVED = "JOB_IS_BEING_REMOVED"
    STEP_IS_FINAL = "STEP_IS_FINAL"


class RemoveStepReason(StrEnum):
    """Why the records of a step were kept [S9.7]."""

    JOB_IS_STORED = "JOB_IS_STORED"


class _StepControlError(ChoreographyError):
    """A request about one step that was refused, or that nobody confirmed."""

    _VERB: ClassVar[str]

    def __init__(self, reason: StrEnum, job_id: str = "", step_id: str = "", details: str = "") -> None:
        super().__init__()
        self.reason = reason
        self.job_id = job_id
        self.step_id = step_id
        self.details = details

    def describe(self) -> str:
        what = f"step {self.step_id!r} of job {self.job_id!r} {self._VERB}: {self.reason}"
        return what + (f" ({self.details})" if self.details else "")


class StepStopError(_StepControlError):
    """The step is not known to be stopped; `reason` is a `StepStopReason`."""

    _VERB = "was not stopped"


class RemoveStepError(_StepControlError):
    """The step's records are kept; `reason` is a `RemoveStepReason`."""

    _VERB = "was not removed"


class JobNotFound(ChoreographyError):
    """No job of this id is stored."""

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id

    def describe(self) -> str:
        return f"no job {self.job_id!r} is stored: it was never started, was removed, or its retention ended"


class StepNotFound(ChoreographyError):
    """The job has no step of this id."""

    def __init__(self, job_id: str, step_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.step_id = step_id

    def describe(self) -> str:
        return f"job {self.job_id!r} has no step {self.step_id!r}"


class JobRemoved(ChoreographyError):
    """The job was removed while somebody waited for it [S9.6]."""

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id

    def describe(self) -> str:
        return f"job {self.job_id!r} was removed"


class NotStorable(ChoreographyError):
    """A value would not survive storage. `path` names the place inside it, as in `pieces[3].handle` [S12.3]."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__()
        self.path = path
        self.why = why

    def describe(self) -> str:
        return f"{self.path or 'the value'}: {self.why}"


class TooLarge(ChoreographyError):
    """A value is too large to be stored: `size` and `limit` in bytes [S12.4]."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__()
        self.what = what
        self.size = size
        self.limit = limit

    def describe(self) -> str:
        return f"{self.what} takes {self.size:,} bytes, the limit is {self.limit:,}"


class UnreadableRecord(ChoreographyError):
    """A job's stored record is of a form that this version does not know. Lists of jobs leave it out and log this."""

    def __init__(self, job_id: str, schema_version: int, why: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.schema_version = schema_version
        self.why = why

    def describe(self) -> str:
        what = f"the record of job {self.job_id!r} (schema {self.schema_version}) cannot be read by this version"
        return f"{what}: {self.why}; read it with the version that wrote it"


class StorageUnavailable(ChoreographyError):
    """The database did not answer, or does not let us in; whether a write was applied is not known."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__()
        self.where = where
        self.why = why

    def describe(self) -> str:
        return f"the database at {self.where} cannot be used: {self.why}"


class ClusterUnavailable(ChoreographyError):
    """The Ray cluster cannot be reached or used."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__()
        self.where = where
        self.why = why

    def describe(self) -> str:
        return f"the Ray cluster {self.where} cannot be used: {self.why}"


class EmbeddedStoreUnavailable(ChoreographyError):
    """The embedded store cannot serve here; the message names the setting that helps [S15]."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why

    def describe(self) -> str:
        return f"the embedded store cannot be used: {self.why}"


class UnknownJobType(ChoreographyError):
    """The job's code cannot be loaded here: a sentence, never a crash of something shared [S13]."""

    def __init__(self, type_name: str, why: str) -> None:
        super().__init__()
        self.type_name = type_name
        self.why = why

    def describe(self) -> str:
        return f"the job type {self.type_name!r} cannot be loaded: {self.why}"


class InvalidJobType(ChoreographyError):
    """A job or step class is written in a way that cannot work; raised where the class is made or used."""

    def __init__(self, type_name: str, why: str) -> None:
        super().__init__()
        self.type_name = type_name
        self.why = why

    def describe(self) -> str:
        return f"{self.type_name}: {self.why}"


class InvalidTransition(ChoreographyError):
    """A status change that the table does not have [S3]."""

    def __init__(self, kind: str, before: str, after: str) -> None:
        super().__init__()
        self.kind = kind
        self.before = before
        self.after = after

    def describe(self) -> str:
        return f"a {self.kind} cannot go from {self.before} to {self.after}"


class CallbackReason(StrEnum):
    """Why a callback was refused; a refused callback never ran [S6.2]."""

    NO_RUN = "NO_RUN"
    STALE_RUN = "STALE_RUN"
    CLOSED = "CLOSED"
    CANCELLED = "CANCELLED"


class CallbackRejected(ChoreographyError):
    """A callback was not run [S6.2]."""

    def __init__(self, reason: CallbackReason) -> None:
        super().__init__()
        self.reason = reason

    def describe(self) -> str:
        return f"the callback was refused and never ran: {self.reason}"


class StepRefused(ChoreographyError):
    """Raise it in `prepare_step` to refuse a request: the job then fails to start with this reason [S4.3]."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def describe(self) -> str:
        return self.why


class StepTimedOut(ChoreographyError):
    """An attempt ran longer than its `step_timeout`, in seconds [S6.8]."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def describe(self) -> str:
        return f"the step ran longer than its timeout of {self.seconds:g} s"


class StepCancelled(ChoreographyError):
    """Raised by `context.cancelled.raise_if_set()`: the step was told to stop [S9.2]."""

    def describe(self) -> str:
        return "the step was told to stop"


class NestedCallback(ChoreographyError):
    """A callback waited for another one, which could only have waited for it in turn [S6.2]."""

    def describe(self) -> str:
        return "invoke_on_actor was called inside a callback of the same step: the second would wait for the first"


class InvalidId(ChoreographyError, ValueError):
    """A job or step id that cannot be used [S2.1]. `what` is "job id" or "step id"."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__()
        self.what = what
        self.why = why

    def describe(self) -> str:
        return f"this {self.what} cannot be used: {self.why}"


class OwnedElsewhere(ChoreographyError):
    """Another cluster that shares the database works on the job, and is alive [S10.3]. `cluster` is its id."""

    def __init__(self, job_id: str, cluster: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.cluster = cluster

    def describe(self) -> str:
        other = f"another cluster that shares this database ({self.cluster[:12]})"
        return f"job {self.job_id!r} is worked on by {other}: control it there"


class Fenced(ChoreographyError):
    """A newer incarnation owns the record: this one must stop [S10.1]. Never reaches a user's call."""

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id

    def describe(self) -> str:
        return f"job {self.job_id!r} is owned by a newer incarnation"
