"""What is checked before a job is started, and what its start is reported as: the same wherever it runs [S2.4, S4]."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from choreography_ray.access.job import JobAccess
from choreography_ray.authoring.checks import require_subclass
from choreography_ray.codec import Encoder
from choreography_ray.core.commands import ReportStart
from choreography_ray.engine.admission import ask_to_start, is_asked
from choreography_ray.engine.ports import UserCode
from choreography_ray.errors import InvalidJobType, NotStorable, StartJobError, StartJobReason, StartReport
from choreography_ray.job import Job, check_id, effective_options, label_of
from choreography_ray.model import HistoryEntry, JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument

THandle = TypeVar("THandle", bound=JobAccess)


def require_startable(job_class: Any, request: object) -> None:
    """Raise `InvalidJobType` for what is no job, or not ready to be one, and for a request of another class."""
    require_subclass("start", "what is started", job_class, Job)
    name = job_class.__qualname__
    if not job_class.is_concrete:
        raise InvalidJobType(name, "it is abstract: derive from it and give it all types and methods")
    if not isinstance(request, job_class.request_type):
        wanted, got = job_class.request_type.__name__, type(request).__name__
        raise InvalidJobType(name, f"its request must be a {wanted}, not a {got}")


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Names and values as text. Raises `NotStorable` for what is not Unicode: it would come back as something else."""
    chosen = {str(name): str(value) for name, value in labels.items()}
    for name, value in chosen.items():
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise NotStorable(f"labels[{name!r}]", "it has half of a surrogate pair, which is not Unicode") from None
    return chosen


def new_document(
    job_class: type[Job[Any, Any]],
    code: CodeRef,
    encoder: Encoder,
    request: BaseModel,
    options: JobsOptions,
    at: datetime,
    job_id: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> JobDocument:
    """The record of a job that is to be started. Raises `InvalidId`, `NotStorable`, `TooLarge`."""
    return JobDocument(
        job_id=JobId(uuid.uuid4().hex if job_id is None else check_id("job id", job_id)),
        type_name=label_of(job_class),
        code=code,
        request=encoder.encode(request, "request"),
        state=encoder.encode(job_class.state_type(), "state"),
        options=effective_options(job_class, options),
        created_at=at,
        updated_at=at,
        history=(HistoryEntry(at=at, status=JobStatus.PREPARING_JOB),),
        labels=checked_labels(labels or {}),
        is_background=job_class.start_steps_in_background,
        keep_results=job_class.keep_results,
    )


async def require_admission(
    job_class: type[Job[Any, Any]], request: Any, document: JobDocument, user: UserCode
) -> None:
    """Raise `StartJobError` unless the job may start. Nothing is saved yet: the id stays free [S11]."""
    if not is_asked(job_class, document.options):
        return
    answer = await ask_to_start(job_class, request, document, user)
    if not answer.is_allowed:
        is_refused = answer.is_allowed is False
        reason = StartJobReason.NOT_ADMITTED if is_refused else StartJobReason.ADMISSION_UNANSWERED
        raise StartJobError(reason, document.job_id, (answer.why,))


def concluded(handle: THandle, report: ReportStart) -> THandle:
    """The handle of a job that is started, with what its start has to say. Raises `StartJobError` otherwise."""
    if not report.error:
        return handle
    if report.error in tuple(StartReport):
        handle.start_error = StartReport(report.error)
        return handle
    raise StartJobError(StartJobReason(report.error), handle.job_id, report.details, handle)
