"""Durable batch jobs on Ray: a job is a detached actor, its steps are named actors, MongoDB holds the state."""

from typing import TYPE_CHECKING, Any

from choreography_ray.authoring.context import BlockingStepContext, StepContext
from choreography_ray.authoring.result import JobStepResult
from choreography_ray.errors import (
    CallbackReason,
    CallbackRejected,
    ChoreographyError,
    ClusterUnavailable,
    EmbeddedStoreUnavailable,
    InvalidId,
    InvalidJobType,
    InvalidTransition,
    JobNotFound,
    JobRemoved,
    NotStorable,
    OwnedElsewhere,
    RemoveJobError,
    RemoveJobReason,
    RemoveStepError,
    RemoveStepReason,
    ResumeJobError,
    ResumeJobReason,
    RetryFailedStepsError,
    RetryFailedStepsReason,
    StartJobError,
    StartJobReason,
    StartReport,
    StepCancelled,
    StepNotFound,
    StepRefused,
    StepStopError,
    StepStopReason,
    StepTimedOut,
    StopJobError,
    StopJobReason,
    StorageUnavailable,
    TooLarge,
    UnknownJobType,
)
from choreography_ray.job import Job, JobState, StepDetails
from choreography_ray.model import (
    AdmissionMoment,
    AdmissionQuestion,
    AttemptRecord,
    DrainResult,
    Explanation,
    Finding,
    FindingKind,
    HistoryEntry,
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    Progress,
    ResumeResult,
    StageFailureBehavior,
    StageProgress,
    StepHosting,
    StepId,
    StepOutput,
    StepRecord,
    Verification,
    Waiting,
    WaitReason,
)
from choreography_ray.options import ClusterOptions, JobsOptions
from choreography_ray.step import JobStep, JobStepState

if TYPE_CHECKING:
    from choreography_ray.client import (
        AsyncChoreography,
        AsyncJobHandle,
        AsyncStepHandle,
        Choreography,
        JobHandle,
        StepHandle,
    )

__all__ = [
    "AdmissionMoment",
    "AdmissionQuestion",
    "AsyncChoreography",
    "AsyncJobHandle",
    "AsyncStepHandle",
    "AttemptRecord",
    "BlockingStepContext",
    "CallbackReason",
    "CallbackRejected",
    "Choreography",
    "ChoreographyError",
    "ClusterOptions",
    "ClusterUnavailable",
    "DrainResult",
    "EmbeddedStoreUnavailable",
    "Explanation",
    "Finding",
    "FindingKind",
    "HistoryEntry",
    "InvalidId",
    "InvalidJobType",
    "InvalidTransition",
    "Job",
    "JobHandle",
    "JobId",
    "JobNotFound",
    "JobRecord",
    "JobRemoved",
    "JobState",
    "JobStatus",
    "JobStep",
    "JobStepResult",
    "JobStepState",
    "JobStepStatus",
    "JobsOptions",
    "NotStorable",
    "OwnedElsewhere",
    "Progress",
    "RemoveJobError",
    "RemoveJobReason",
    "RemoveStepError",
    "RemoveStepReason",
    "ResumeJobError",
    "ResumeJobReason",
    "ResumeResult",
    "RetryFailedStepsError",
    "RetryFailedStepsReason",
    "StageFailureBehavior",
    "StageProgress",
    "StartJobError",
    "StartJobReason",
    "StartReport",
    "StepCancelled",
    "StepContext",
    "StepDetails",
    "StepHandle",
    "StepHosting",
    "StepId",
    "StepNotFound",
    "StepOutput",
    "StepRecord",
    "StepRefused",
    "StepStopError",
    "StepStopReason",
    "StepTimedOut",
    "StopJobError",
    "StopJobReason",
    "StorageUnavailable",
    "TooLarge",
    "UnknownJobType",
    "Verification",
    "WaitReason",
    "Waiting",
]

_CLIENT = frozenset(
    {"AsyncChoreography", "AsyncJobHandle", "AsyncStepHandle", "Choreography", "JobHandle", "StepHandle"}
)


def __getattr__(name: str) -> Any:
    # The client brings Ray with it; core, engine and the classes that users write do without.
    if name in _CLIENT:
        from choreography_ray import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
