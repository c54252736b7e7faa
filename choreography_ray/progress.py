"""What readers are told of a stored job: its progress and its record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from choreography_ray.model import JobRecord, JobStatus, Progress, StageProgress
from choreography_ray.options import JobsOptions
from choreography_ray.records import Counts, JobDocument, StageCounts
from choreography_ray.storage import sizes


def progress_of(document: JobDocument, recounted: Sequence[StageCounts] | None = None) -> Progress:
    """The counts that the job document carries [S3.1], per stage as far as it lists stages; or those of a recount."""
    stage_counts = document.stage_counts if recounted is None else recounted
    counts = document.counts if recounted is None else Counts(*(sum(s[i] for s in recounted) for i in range(2, 6)))
    steps = document.plan.total if document.plan else sum(stage.total for stage in stage_counts)
    stages = {
        s.stage: StageProgress(
            total=s.total, succeeded=s.succeeded, failed=s.failed, stopped=s.stopped, unreachable=s.unreachable
        )
        for s in stage_counts
    }
    return Progress(
        total=steps,
        succeeded=counts.succeeded,
        failed=counts.failed,
        stopped=counts.stopped,
        unreachable=counts.unreachable,
        stages=stages,
    )


def record_of(document: JobDocument, recounted: Sequence[StageCounts] | None = None) -> JobRecord:
    """A job as readers see it, with its own counts or those of a recount."""
    return JobRecord(
        job_id=document.job_id,
        type_name=document.type_name,
        status=document.status,
        labels=document.labels,
        details=document.details,
        options=_told(document.options),
        progress=progress_of(document, recounted),
        stage=document.stage,
        created_at=document.created_at,
        updated_at=document.updated_at,
        history=document.history,
        error=document.error,
        start_error=document.start_error or None,
        actor_name=document.actor_name,
        is_accounted=document.status is not JobStatus.STOPPED or document.is_stop_finalized,
        python=document.code.python,
        document_bytes=sizes.payload_size(document.request) + sizes.payload_size(document.state),
        max_document_bytes=sizes.MAX_PAYLOAD_BYTES,
    )


def _told(options: JobsOptions) -> dict[str, str]:
    values = {name: getattr(options, name) for name in options.model_dump(exclude_defaults=True)}
    return {name: f"{v.total_seconds():g} s" if isinstance(v, timedelta) else str(v) for name, v in values.items()}
