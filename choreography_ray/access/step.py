"""One step of a job by its id: what can be read of it, and asked of it [S9.7]."""

from __future__ import annotations

from datetime import timedelta

from choreography_ray.access.asker import Asker, NobodyWorks, Unanswered
from choreography_ray.access.orphans import delete_orphan
from choreography_ray.access.reading import Reader
from choreography_ray.core.instant import seconds_of
from choreography_ray.core.step_stops import CONFIRM_SECONDS
from choreography_ray.engine.rest import NO_SUCH_STEP, StopStep
from choreography_ray.errors import (
    OwnedElsewhere,
    RemoveStepError,
    RemoveStepReason,
    StepNotFound,
    StepStopError,
    StepStopReason,
    UnknownJobType,
)
from choreography_ray.model import JobId, JobStatus, JobStepStatus, StepId, StepRecord
from choreography_ray.plain import clean
from choreography_ray.storage.protocol import JobStorage

_COMPLETED = (JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES)


class AsyncStepHandle:
    """One step, by its job's id and its own. Reading works without a cluster."""

    def __init__(self, storage: JobStorage, reader: Reader, asker: Asker, step_id: StepId) -> None:
        self.job_id: JobId = reader.job_id
        self.step_id = step_id
        self._storage = storage
        self._reader = reader
        self._asker = asker

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {clean(self.step_id)} of {clean(self.job_id)}>"

    async def record(self) -> StepRecord:
        """All that is told of it. Raises `JobNotFound`, `StepNotFound`."""
        return await self._reader.step(self.step_id)

    async def stop(self, answer_timeout: float | timedelta = 60.0) -> JobStepStatus:
        """Stop this step while its job goes on; returns once it is accounted: where it stands then [S9.7].

        `STOPPED` is not final: a resume runs it again, and when nothing else of its stage can run the job is stopped.
        A step that waits for a retry is `COMPLETED_WITH_FAILURE`, as its next attempt will not be made; one whose body
        came to its end first has the status that it ended with. Of a stopped job, a step of a stage that was not
        reached stays `PREPARED`. Asking again does no harm. `answer_timeout`: what the job may take to answer, in
        seconds, on top of what the stop takes.

        Raises `StepStopError`: with `STOP_TIMED_OUT` the stop is saved and will be carried out; with another reason
        that begins with `FAILED` nobody said that it is. Raises `JobNotFound`, `StepNotFound`.
        """
        document = await self._reader.document()
        if document.status in _COMPLETED:
            raise self._refused(StepStopReason.JOB_IS_COMPLETED)
        if document.plan is None:
            raise self._refused(StepStopReason.JOB_IS_NOT_PREPARED)
        record = await self.record()
        if record.status.is_final:
            raise self._refused(StepStopReason.STEP_IS_FINAL, str(record.status))
        patience = 2 * max(0.0, document.options.step_stop_timeout.total_seconds()) + CONFIRM_SECONDS
        answer = await self._ask(StopStep(record.ordinal, self.step_id), patience + seconds_of(answer_timeout))
        if answer == NO_SUCH_STEP:
            raise StepNotFound(self.job_id, self.step_id)
        if answer in tuple(StepStopReason):
            raise self._refused(StepStopReason(str(answer)))
        return JobStepStatus(str(answer))

    async def _ask(self, what: StopStep, timeout: float) -> str | int:
        try:
            return await self._asker.ask(what, timeout)
        except (UnknownJobType, OwnedElsewhere, NobodyWorks) as error:
            raise self._refused(StepStopReason.FAILED_TO_REPORT_TO_JOB, str(error)) from error
        except Unanswered as unanswered:
            trouble = await self._asker.trouble()
            if trouble:
                raise self._refused(StepStopReason.FAILED_TO_PERSIST, trouble) from unanswered
            why = f"the job did not answer within {timeout:g} s"
            raise self._refused(StepStopReason.FAILED_TO_REPORT_TO_JOB, why) from unanswered

    def _refused(self, reason: StepStopReason, details: str = "") -> StepStopError:
        return StepStopError(reason, self.job_id, self.step_id, details)

    async def remove(self) -> None:
        """Delete what is left of this step of a job that is gone; nothing while the job is stored [S9.7].

        Raises `RemoveStepError` when the job is stored, `StepNotFound` when nothing is left that names the step, and
        `StorageUnavailable` when the store does not say for certain that the job is gone: then all is kept.
        """
        if not await delete_orphan(self._storage, self.job_id, self.step_id):
            raise RemoveStepError(RemoveStepReason.JOB_IS_STORED, self.job_id, self.step_id)
