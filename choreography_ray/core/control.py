"""What people do with a job: stop, drain, resume, run failed steps again, remove; asked once or many times [S9]."""

from __future__ import annotations

from dataclasses import replace

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.instant import Instant
from choreography_ray.core.situation import Situation
from choreography_ray.core.stages import Stages
from choreography_ray.core.stopping import Stopping
from choreography_ray.model import JobStatus
from choreography_ray.records import FailedStep, StepCode, StepDocument

LINGER_SECONDS = 10.0
"""How long an incarnation that has nothing to do waits for somebody to ask it for something."""

RESUME = "resume"
RETRY = "retry"

STOPPED = "STOPPED"
IS_COMPLETED = "JOB_IS_COMPLETED"
IS_NOT_RUNNING = "JOB_IS_NOT_RUNNING"
RESUMED = "RESUMED"
ALREADY_RUNNING = "ALREADY_RUNNING"
COMPLETED = "COMPLETED"
CANNOT_BE_RESUMED = "JOB_CANNOT_BE_RESUMED"
IS_BEING_REMOVED = "JOB_IS_BEING_REMOVED"
DRAIN_PENDING = "DRAIN_PENDING"
NOT_SUPPORTED = "NOT_SUPPORTED"
IS_NOT_COMPLETED_WITH_FAILURES = "JOB_IS_NOT_COMPLETED_WITH_FAILURES"
REMOVED = "REMOVED"

_COMPLETED = (JobStatus.COMPLETED_SUCCESSFULLY, JobStatus.COMPLETED_WITH_FAILURES)
_FAILED_CODES = (StepCode.COMPLETED_WITH_FAILURE, StepCode.FAILED)


class Control:
    """Answers requests. Each answer is given when what it says is durable.

    A resume and a retry of failed steps are done under a mark in the job document: while it is set nothing starts or
    completes, and the next incarnation finishes it [S7.3].
    """

    def __init__(self, job: Situation, stages: Stages, stopping: Stopping, time: Instant) -> None:
        self._job = job
        self._stages = stages
        self._stopping = stopping
        self._resuming: list[int] = []
        self._resumed: list[int] = []
        """Those whose resume is done under the mark that is set; who asks after a stop beside it gets a resume anew."""
        self._retrying: list[int] = []
        self._removing: list[int] = []
        self._retry_call = ""
        """The call whose retry the job's code is asked about."""
        self._is_marking = False
        self._lingers_until = time.now + LINGER_SECONDS

    def _answer(self, receipts: list[int], answer: str | int) -> None:
        if receipts:
            self._job.turn.say(c.Answer(tuple(receipts), answer))
            receipts.clear()

    # What is asked.

    def stop(self, event: e.StopAsked, time: Instant) -> None:
        """`STOPPED` first; the steps are told, and accounted afterwards [S9.1]."""
        job = self._job
        if job.status in _COMPLETED:
            return self._answer([event.receipt], IS_COMPLETED)
        if job.status in (JobStatus.FAILED, JobStatus.REMOVING):
            return self._answer([event.receipt], IS_NOT_RUNNING)
        if job.status is not JobStatus.STOPPED:
            self._stages.take_back()
            job.start.stopped()
            job.change_status(JobStatus.STOPPED, time, why="drained" if event.is_drain else "stopped")
            job.turn.change(is_stop_finalized=False, is_draining=event.is_drain)
        elif event.is_drain and not job.document.is_stop_finalized:
            job.turn.change(is_draining=True)
        return self._answer([event.receipt], STOPPED)

    def resume(self, event: e.ResumeAsked) -> None:
        """First finishes a stop that is not accounted; then asks the job's code, and goes on [S9.5]."""
        job = self._job
        if job.status in _COMPLETED:
            self._answer([event.receipt], COMPLETED)
        elif job.status is JobStatus.FAILED:
            self._answer([event.receipt], CANNOT_BE_RESUMED)
        elif job.status is JobStatus.REMOVING:
            self._answer([event.receipt], IS_BEING_REMOVED)
        elif job.status is not JobStatus.STOPPED:
            self._answer([event.receipt], ALREADY_RUNNING)
        elif job.turn.changes.get("is_draining", job.document.is_draining):
            self._answer([event.receipt], DRAIN_PENDING)
        else:
            self._resuming.append(event.receipt)

    def retry(self, event: e.RetryAsked) -> None:
        """Only for a job that completed with failures, has one stage, and says that it can [S7.3]."""
        job = self._job
        if event.call and event.call == job.document.retry_call and not job.document.mark:
            self._answer([event.receipt], job.document.retried_steps)
        elif event.call and event.call in (self._retry_call, job.document.retry_call):
            self._retrying.append(event.receipt)
        elif self._retrying or job.status is not JobStatus.COMPLETED_WITH_FAILURES:
            self._answer([event.receipt], IS_NOT_COMPLETED_WITH_FAILURES)
        elif len(job.ledger.stages) > 1 or not job.rules.is_kept(job.status):
            self._answer([event.receipt], NOT_SUPPORTED)
        else:
            self._retrying.append(event.receipt)
            self._retry_call = event.call
            job.ask("retry check", c.CheckRetry())

    def remove(self, event: e.RemoveAsked, time: Instant) -> None:
        """`REMOVING` first; then everything that belongs to the job goes [S9.6]."""
        job = self._job
        if job.status is not JobStatus.REMOVING:
            self._stages.take_back()
            job.change_status(JobStatus.REMOVING, time, why="removed")
            job.turn.change(is_stop_finalized=False, mark="")
        self._removing.append(event.receipt)

    # What goes on by itself.

    def pursue(self, time: Instant) -> None:
        """Bring stops, resumes, retries and removals further."""
        job = self._job
        if job.is_finished:
            return
        if self._stopping.pursue(time):
            self._come_to_rest()
        elif job.document.mark and job.is_quiet:
            self._finish_mark()
        elif job.status is JobStatus.STOPPED and job.document.is_stop_finalized and job.is_quiet:
            if self._resuming:
                job.ask("resume check", c.CheckResume())
            else:
                self._linger(time)
        elif (
            job.document.status.is_final and job.is_quiet and not (self._stages.is_closing or self._stopping.is_pursued)
        ):
            self._linger(time)

    def _linger(self, time: Instant) -> None:
        if self._is_left_alone and time.now >= self._lingers_until:
            self._stages.end_hosts()
            self._job.is_finished = True

    @property
    def _is_left_alone(self) -> bool:
        return not (self._resuming or self._resumed or self._retrying or self._removing)

    @property
    def wake_at(self) -> float | None:
        """When to look again."""
        is_resting = self._job.document.is_stop_finalized or self._job.document.status.is_final
        return self._lingers_until if is_resting and not self._job.is_finished else None

    def _come_to_rest(self) -> None:
        job = self._job
        if job.status is JobStatus.STOPPED and job.ledger.open_steps() == 0:
            self._stages.complete()  # nothing is left to run: the job completes instead
        else:
            job.ask("stopped", c.RunStoppedHook())

    def after_stopped_hook(self, event: e.StoppedHookRan, time: Instant) -> None:
        """The stop is accounted; a removal deletes what is left."""
        job = self._job
        if event.error:
            job.turn.change(error=event.error)
        self._stages.end_hosts()
        if job.status is JobStatus.REMOVING:
            job.start.removed()
            job.turn.clear = c.ClearJob(keep_results=False)
            job.turn.is_job_deleted = True
            self._answer(self._removing, REMOVED)
            job.is_finished = True
            return
        job.start.completed()
        if event.state is not None:
            job.turn.change(state=event.state)
        job.turn.change(is_stop_finalized=True, is_draining=False, journal=())
        self._lingers_until = time.now if self._is_left_alone else time.now + LINGER_SECONDS

    def after_resume_check(self, event: e.ResumeChecked, time: Instant) -> None:
        """The job's code said whether it may go on; its hooks have run."""
        job = self._job
        if event.error:
            job.turn.change(error=event.error)
        if job.status is not JobStatus.STOPPED:
            self._answer(self._resuming, IS_BEING_REMOVED)
        elif event.refusal:
            if event.state is not None:
                job.turn.change(state=event.state)
            self._lingers_until = time.now
            self._answer(self._resuming, event.refusal)
        else:
            if event.state is not None:
                job.turn.change(state=event.state)
            job.change_status(JobStatus.RUNNING, time, why="resumed")
            job.turn.change(mark=RESUME, journal=(), is_stop_finalized=False)
            self._resumed, self._resuming = self._resuming, []

    def after_retry_check(self, event: e.RetryChecked, time: Instant) -> None:
        """The job's code said whether its failed steps may run again."""
        job = self._job
        if job.status is not JobStatus.COMPLETED_WITH_FAILURES:
            self._retry_call = ""
            self._answer(self._retrying, IS_NOT_COMPLETED_WITH_FAILURES)
        elif not event.is_allowed:
            self._retry_call = ""
            self._lingers_until = time.now
            self._answer(self._retrying, NOT_SUPPORTED)
        else:
            job.change_status(JobStatus.RUNNING, time, why="failed steps run again")
            job.turn.change(mark=RETRY, journal=(), retry_call=self._retry_call)
            job.turn.change(retried_steps=job.document.counts.failed)
            self._retry_call = ""

    def _finish_mark(self) -> None:
        """The ledger first, all of it; once that is durable, the counts, and the mark goes."""
        job = self._job
        if self._is_marking:
            self._take_off_mark()
        elif job.document.mark == RETRY:
            job.ask("failed steps", c.ReadFailedSteps())
        else:
            for ordinal in job.ledger.ordinals_with(StepCode.STOPPED):
                job.ledger.settle(ordinal, StepCode.PREPARED)
            self._ledger_marked()

    def _ledger_marked(self) -> None:
        self._is_marking = True
        if not (self._job.ledger.is_dirty or self._job.turn.has_writes):
            self._take_off_mark()

    def _take_off_mark(self) -> None:
        job = self._job
        self._is_marking = False
        stage = job.document.stage if job.document.stage is not None else job.ledger.stages[0]
        job.turn.change(mark="", stage=stage)
        job.turn.wants_counts = True
        job.owes_resume = False
        self._stages.reopen(stage)  # also beside a stop, which accounts what was prepared
        self._answer(self._resumed, RESUMED)
        self._answer(self._retrying, job.document.retried_steps)

    def after_failed_steps_read(self, event: e.FailedStepsRead) -> None:
        """Every failed step is prepared for its next attempt, from the state of the last [S7.3]."""
        job = self._job
        for failure in event.failures:
            if job.ledger.code(failure.ordinal) in _FAILED_CODES:
                self._prepare_again(failure)
            job.turn.deleted_failures.append((failure.ordinal, failure.run))
        self._ledger_marked()

    def _prepare_again(self, failure: FailedStep) -> None:
        job = self._job
        document = StepDocument(
            failure.ordinal,
            job.next_run(),
            attempt=failure.attempt + 1,
            base=failure.attempt,
            state=failure.state,
            attempts=failure.attempts,
        )
        job.turn.raised.append(document)
        job.note_step_document(replace(document, state=None, attempts=()))
        job.ledger.settle(failure.ordinal, StepCode.PREPARED)
