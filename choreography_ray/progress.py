"""What readers are told of a stored job: its progress and its record."""

from __future__ import annotations

from choreography_ray.model import JobRecord, JobStatus, Progress, StageProgress
from choreography_ray.records import JobDocument


def progress_of(document: JobDocument) -> Progress:
    """The counts that the job document carries [S3.1]; per stage as far as it lists stages."""
    counts = document.counts
    total = document.plan.total if document.plan else sum(stage.total for stage in document.stage_counts)
    stages = {
        s.stage: StageProgress(
            total=s.total, succeeded=s.succeeded, failed=s.failed, stopped=s.stopped, unreachable=s.unreachable
        )
        for s in document.stage_counts
    }
    return Progress(
        total=total,
        succeeded=counts.succeeded,
        failed=counts.failed,
        stopped=counts.stopped,
        unreachable=counts.unreachable,
        stages=stages,
    )


def record_of(document: JobDocument) -> JobRecord:
    """A job as readers see it."""
    return JobRecord(
        job_id=document.job_id,
        type_name=document.type_name,
        status=document.status,
        labels=document.labels,
        details=document.details,
        progress=progress_of(document),
        stage=document.stage,
        created_at=document.created_at,
        updated_at=document.updated_at,
        history=document.history,
        error=document.error,
        start_error=document.start_error or None,
        actor_name=document.actor_name,
        is_accounted=document.status is not JobStatus.STOPPED or document.is_stop_finalized,
    )
