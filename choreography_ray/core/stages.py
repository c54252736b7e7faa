"""When does the next stage begin, and when is the job over? [S5.1 to S5.4]"""

from __future__ import annotations

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.admission import Admission
from choreography_ray.core.instant import Instant
from choreography_ray.core.situation import Situation
from choreography_ray.model import AdmissionMoment, JobStatus, StageFailureBehavior
from choreography_ray.records import Decision, JournalEntry, StepCode

STEP_STOPPED = "STEP_STOPPED"
"""Why a job is stopped that nobody has stopped as a whole [S9.7]."""


class Stages:
    """Leads the job from its first stage to its end. Goes on only when all is quiet: what it rests on is durable."""

    def __init__(self, job: Situation, admission: Admission) -> None:
        self._job = job
        self._admission = admission
        self.is_closing = False

    def enter(self, stage: int) -> None:
        """Take up the steps of a stage; warm hosts that it has no use for end."""
        job = self._job
        codes = job.ledger
        had_a_place = [o for o in job.documented if codes.code(o) == StepCode.PREPARED and codes.stage(o) == stage]
        job.queue.enter_stage(stage, had_a_place)
        job.is_stage_open = True
        here = (k for k, kind in enumerate(job.ledger.kinds) if kind.stage == stage)
        for host in job.hosts.useless(here):
            job.end(host)

    def reopen(self, stage: int) -> None:
        """The job goes on after it had ended or was stopped."""
        self.is_closing = False
        self.enter(stage)

    def advance(self, time: Instant) -> None:
        """Take the next step of the job's way, if there is one to take."""
        job = self._job
        if not job.is_quiet or job.document.mark:
            return
        if self.is_closing:
            self._close()
        elif job.status is JobStatus.STARTING_STEPS and not job.owes_resume:
            stage = job.ledger.stages[0]
            job.turn.change(stage=stage)
            job.change_status(JobStatus.RUNNING, time)
            self.enter(stage)
        elif job.status is JobStatus.RUNNING and self._is_over(job.document.stage):
            self._leave(time)
        elif job.status is JobStatus.RUNNING and self._is_stopped(job.document.stage):
            # Single steps were stopped, and nothing else of the stage can run: the job comes to rest [S9.7].
            job.start.stopped()
            job.change_status(JobStatus.STOPPED, time, why=STEP_STOPPED)
            job.turn.change(is_stop_finalized=False, is_draining=False)

    def _is_over(self, stage: int | None) -> bool:
        return stage is not None and self._job.ledger.open_steps(stage) == 0

    def _is_stopped(self, stage: int | None) -> bool:
        if stage is None:
            return False
        return 0 < self._job.ledger.open_steps(stage) == self._job.ledger.count(stage, StepCode.STOPPED)

    def _leave(self, time: Instant) -> None:
        job, stage = self._job, self._job.document.stage
        assert stage is not None
        if job.ledger.open_steps() == 0:
            self.complete()
        elif job.owes_resume or not self._admission.may_ask(time):
            return
        elif job.ledger.count(stage, StepCode.COMPLETED_WITH_FAILURE, StepCode.FAILED):
            job.ask("failures", c.AskFailureBehavior(stage))
        else:
            self._ask_for_next()

    def after_failures(self, event: e.FailureBehaviorAnswered, time: Instant) -> None:
        """The job said what failures of this stage mean [S5.3]."""
        job = self._job
        if event.stage != job.document.stage or job.status is not JobStatus.RUNNING:
            return  # a stop was faster: it beats a stage that is not yet saved [S5.4]
        if event.behavior is StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE:
            self._ask_for_next()
            return
        entry = JournalEntry(Decision.UNREACHABLE, after_stage=event.stage)
        job.carry_out((entry,), time)
        job.turn.change(journal=(entry,))

    def _ask_for_next(self) -> None:
        if self._job.rules.is_admission_asked:
            self._admission.ask(AdmissionMoment.STAGE)
        else:
            self._begin_next()

    def after_admission(self, event: e.AdmissionAnswered, time: Instant) -> None:
        """Admission answered for the next stage."""
        if self._admission.take(event, time):
            self._begin_next()

    def _begin_next(self) -> None:
        job, reached = self._job, self._job.document.stage
        stage = next(stage for stage in job.ledger.stages if reached is None or stage > reached)
        job.turn.change(stage=stage, journal=())
        self.enter(stage)

    def take_back(self) -> None:
        """A stop beats a stage that is not yet saved: the job stays at the one before [S5.4]."""
        reached = self._job.document.stage
        if self._job.turn.changes.pop("stage", None) is not None and reached is not None:
            self.enter(reached)

    def complete(self) -> None:
        """Every step of the job is final: the hook, then the end."""
        if self._job.document.journal:
            self._job.turn.change(journal=())
        self._job.ask("completion", c.RunCompletionHook())

    def after_completion_hook(self, event: e.CompletionHookRan, time: Instant) -> None:
        """Give the job its final status and, unless it is kept, clear what it leaves [S9.8]."""
        job = self._job
        if job.status is JobStatus.REMOVING:
            return  # a removal was faster: no status follows it
        if event.state is not None:
            job.turn.change(state=event.state)
        counts = job.ledger.counts()
        if event.error:
            job.turn.change(error=event.error)
            status = JobStatus.FAILED
        elif counts.failed or counts.unreachable:
            status = JobStatus.COMPLETED_WITH_FAILURES
        else:
            status = JobStatus.COMPLETED_SUCCESSFULLY
        job.turn.change(journal=())
        job.change_status(status, time)
        self.end_hosts()
        job.start.completed()
        if not job.rules.is_kept(status):
            job.turn.clear = c.ClearJob(job.rules.keep_results)
        self.is_closing = True

    def end_hosts(self) -> None:
        """Nothing will be started any more: no host and no slot is left."""
        job = self._job
        job.is_stage_open = False
        job.slots.want(0)
        job.slots.give_back()
        for view in job.hosts.all():
            job.end(view.host)

    def _close(self) -> None:
        """The last turn, when all that the job leaves is durable."""
        job = self._job
        if not job.rules.is_kept(job.document.status):
            # The summary that stays has neither request nor state [S9.8].
            job.turn.change(is_cleared=True, request=None, state=None)
        job.is_finished = True
