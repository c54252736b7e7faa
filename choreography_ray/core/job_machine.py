"""What a job does next: events and time in, commands out; nothing is awaited, read or drawn here.

One machine lives as long as one incarnation of the job actor, from the moment when the plan is prepared until the job
is finished. A call of `handle` takes the events that have come in and returns one *turn*: first the writes, in the
order of PROTOCOLS part 1, then what is told and asked. The engine carries a turn out whole before it asks for the
next, so what a turn rests on is durable.

The parts: `inbox` (outcomes), `placing` (what starts), `stages` (the way to the end), `stopping`, `step_stops` and
`control` (what people ask for), over one `situation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_never

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.admission import Admission
from choreography_ray.core.control import Control
from choreography_ray.core.decisions import write_journal
from choreography_ray.core.explaining import Explained, explain
from choreography_ray.core.hosts import HostPhase, HostView
from choreography_ray.core.inbox import Deciding
from choreography_ray.core.instant import Instant
from choreography_ray.core.ledger import Ledger
from choreography_ray.core.placing import Placing
from choreography_ray.core.policies import LOOK_AGAIN_SECONDS, MAX_DECIDED, due_after, ticks_to_skip
from choreography_ray.core.situation import JobRules, Situation
from choreography_ray.core.slot_messages import Held
from choreography_ray.core.slots import IncarnationDoubted, JobSlots
from choreography_ray.core.stages import Stages
from choreography_ray.core.starting import REMOVED
from choreography_ray.core.step_stops import StepStops
from choreography_ray.core.stopping import Stopping
from choreography_ray.errors import Fenced
from choreography_ray.model import AdmissionMoment, HostId, JobStatus, StepHosting
from choreography_ray.records import (
    JobDocument,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    Run,
    StepCode,
    StepDocument,
)


class JobMachine:
    """One incarnation of one job. `handle` is the only mutator."""

    def __init__(self, document: JobDocument, ledger: Ledger, slots: JobSlots, rules: JobRules, start: Instant) -> None:
        self._job = Situation(document, ledger, slots, rules, start)
        self._placing = Placing(self._job)
        self._admission = Admission(self._job)
        self._stages = Stages(self._job, self._admission)
        self._stopping = Stopping(self._job)
        self._step_stops = StepStops(self._job, self._stopping)
        self._control = Control(self._job, self._stages, self._stopping, start)
        self._resume_failures = 0
        self._ticks_to_skip = 0
        self._tick_at = self._first_tick(start)
        self.wants_turn = True
        """The next turn need not wait for an event: what it may rest on has become durable."""
        self.was_running = document.status is not JobStatus.STARTING_STEPS
        """This incarnation found the job with its steps started."""

    @property
    def document(self) -> JobDocument:
        """The job as of the last turn."""
        return self._job.document

    @property
    def ledger(self) -> Ledger:
        """Where each step stands."""
        return self._job.ledger

    @property
    def slots(self) -> JobSlots:
        """What the job holds of the throttle."""
        return self._job.slots

    @property
    def is_finished(self) -> bool:
        """The last turn was made: when it is carried out there is nothing more to do."""
        return self._job.is_finished

    def knows(self, host: HostId) -> bool:
        """Whether the host belongs to this job and is not given up."""
        return host in self._job.hosts

    def awaits(self, run: Run, ordinal: int) -> bool:
        """Whether the step was assigned to the run, and the job knows of no outcome."""
        return ordinal in self._job.inbox.left(run)

    def owes(self, host: HostId) -> bool:
        """Whether steps that the host was given have no outcome yet, as far as the job knows."""
        view = self._job.hosts.get(host)
        return view is not None and view.group is not None and bool(self._job.inbox.left(view.group.run))

    def would_be_last(self, host: HostId) -> bool:
        """Whether the step that the host performs alone has no death of its process left [S10]."""
        view = self._job.hosts.get(host)
        if view is None or view.group is None or not view.is_single:
            return False
        crashes = self._job.crashes.get(view.group.ordinals[0], 0)
        return crashes + 1 >= self.document.options.max_step_crashes

    def explain(self, time: Instant) -> Explained:
        """For what each step waits that is not final [S14.4]. Changes nothing."""
        return explain(self._job, self._admission, time)

    # The whole of the input.

    def handle(self, events: Sequence[e.Event], time: Instant) -> list[c.Command]:
        """Take events and return the turn that answers them. Raises `Fenced` when a newer incarnation is seen."""
        for event in events:
            self._take(event, time)
        self._job.queue.ripen(time.now)
        self._tick(time)
        self._step_stops.pursue(time)
        self._control.pursue(time)
        self._admission.pursue(time)
        self._tell_hooks()
        self._stages.advance(time)
        self._placing.fill(time)
        self._report_start(time)
        return self._close_turn(time)

    def begin(self, time: Instant) -> list[c.Command]:
        """The first turn of a job whose steps were never started."""
        self._job.slots.restore(())
        return self._close_turn(time)

    def recover(
        self,
        outcomes: Sequence[OutcomeDocument],
        documents: Sequence[StepDocument],
        time: Instant,
        *,
        is_admitted: bool = False,
    ) -> list[c.Command]:
        """The first turn after an earlier incarnation: finish its journal, take its outcomes, find its hosts.

        `is_admitted`: this incarnation has asked already whether the job may go on.
        Raises `Fenced` when the ledger names a run of a newer incarnation: its hosts are not ours to look for [S7.4].
        """
        job = self._job
        if any(group.run.fence > job.document.fence for group in job.ledger.groups()):
            raise Fenced(job.document.job_id)
        for document in documents:
            job.note_step_document(document)
        for outcome_document in outcomes:
            job.inbox.note(outcome_document)
        self._step_stops.restore(documents)
        waiting = [d for d in documents if job.ledger.code(d.ordinal) == StepCode.AWAITING_RETRY]
        job.carry_out(job.document.journal, time)
        for document in waiting:
            # One that the journal counted as failed is told to nobody again; one that it made wait is queued by it.
            if job.ledger.code(document.ordinal) == StepCode.AWAITING_RETRY:
                due = ((document.due or time.at) - time.at).total_seconds()
                job.queue.put_retry(document.ordinal, document.attempt, time.now + due)
        groups = tuple(job.ledger.groups())
        for group in groups:
            job.inbox.expect(group)
        # A host was given another group only when all of the one before had been reported: only its last is open.
        current = {group.host: group for group in sorted(groups, key=lambda group: group.run)}
        for group in current.values():
            kind = job.ledger.kind(group.ordinals[0])
            is_single = job.ledger.kinds[kind].hosting is StepHosting.OWN_ACTOR
            job.hosts.add(HostView(group.host, kind, HostPhase.FOUND, group, is_single))
        job.slots.restore(Held(group.host, group.run, min(group.width, len(group.ordinals))) for group in groups)
        for outcome_document in outcomes:
            self._take_document(outcome_document, time)
        if groups:
            job.turn.say(c.InspectHosts(tuple(current.values())))
        if job.document.stage is not None and not job.status.is_final:
            self._stages.enter(job.document.stage)
        if job.status.is_interruptible and not job.document.mark:
            job.owes_resume = True
            if job.rules.is_admission_asked and not is_admitted:
                self._admission.is_owed = True
                self._admission.pursue(time)
            else:
                job.ask("resume", c.RunResumeHook())
        return self._close_turn(time)

    def _take(self, event: e.Event, time: Instant) -> None:
        match event:
            case e.OutcomesReported():
                self._job.inbox.put_receipt(event.receipt)
                self._take_document(event.document, time)
            case e.RunSettled():
                for document in event.documents:
                    self._take_document(document, time)
            case e.HostCameUp():
                self._host_came_up(event.host, time)
            case e.HostWaited():
                self._job.start.waited(event.host)
                self._job.hosts.waited(event.host)
            case e.HostFailedToStart():
                self._job.start.failed(event.host)
                self._give_up(event.host, OutcomeKind.START_FAILED, event)
            case e.HostWithdrawn():
                self._give_up(event.host, OutcomeKind.MOVED, None)
            case e.HostDied():
                self._give_up(event.host, OutcomeKind.CRASHED, event)
            case e.ThrottleReplied():
                if isinstance(self._job.slots.receive(event.reply, time.now), IncarnationDoubted):
                    self._job.turn.say(c.CheckIncarnation())
            case e.IncarnationConfirmed():
                self._job.slots.confirm()
            case e.ExchangeFailed():
                self._job.slots.failed(event.n, time.now)
            case e.StateWritten():
                self._job.turn.change(state=event.state)
                self._job.turn.say(c.Acknowledge((event.receipt,)))
            case e.HooksRan():
                self._decide(event, time)
            case e.StopAsked() | e.ResumeAsked() | e.RetryAsked() | e.RemoveAsked() | e.StepStopAsked():
                self._take_request(event, time)
            case _:
                self._take_answer(event, time)

    def _take_request(self, event: e.Request, time: Instant) -> None:
        match event:
            case e.StopAsked():
                self._control.stop(event, time)
            case e.ResumeAsked():
                self._control.resume(event)
            case e.RetryAsked():
                self._control.retry(event)
            case e.RemoveAsked():
                self._control.remove(event, time)
            case e.StepStopAsked():
                self._step_stops.ask(event, time)
            case _:
                assert_never(event)

    def _take_answer(self, event: e.CodeAnswer, time: Instant) -> None:
        self._job.asked = ""
        match event:
            case e.FailureBehaviorAnswered():
                self._stages.after_failures(event, time)
            case e.AdmissionAnswered():
                self._after_admission(event, time)
            case e.CompletionHookRan():
                self._stages.after_completion_hook(event, time)
            case e.ResumeHookRan():
                self._after_resume_hook(event)
            case e.ResumeChecked():
                self._control.after_resume_check(event, time)
            case e.RetryChecked():
                self._control.after_retry_check(event, time)
            case e.FailedStepsRead():
                self._control.after_failed_steps_read(event)
            case e.StoppedHookRan():
                self._control.after_stopped_hook(event, time)
            case _:
                assert_never(event)

    # Outcomes: accepted once, decided in groups.

    def _take_document(self, document: OutcomeDocument, time: Instant) -> None:
        job, run = self._job, document.key.run
        if run.fence > job.document.fence:
            raise Fenced(job.document.job_id)
        taken = job.inbox.take(document)
        silent = [outcome for outcome in taken if self._is_silent(outcome)]
        if silent:
            job.record_silently(document.key, silent, time)
            job.forgive_crashes()
        for outcome in taken:
            if not self._is_silent(outcome):
                self._accept(document.key, outcome)
        if taken:
            kind, width = job.ledger.kind(taken[0].ordinal), job.hosts.width(document.key.host)
            job.queue.learn(kind, len(taken), document.seconds, width)
        if job.inbox.close_if_over(run):
            self._run_over(document.key.host, run, time)
        elif taken:
            job.slots.narrow(document.key.host, run, len(job.inbox.left(run)))

    def _is_silent(self, outcome: Outcome) -> bool:
        return outcome.kind is OutcomeKind.SUCCEEDED and not self._job.rules.is_told_of_successes

    def _accept(self, key: OutcomeKey, outcome: Outcome) -> None:
        job = self._job
        if outcome.kind is OutcomeKind.MOVED:
            job.crashes[outcome.ordinal] = outcome.crash
            job.documented.add(outcome.ordinal)
            job.queue.put_single(outcome.ordinal, outcome.attempt)
            self._stopping.note_moved(outcome.ordinal, key)
            return
        used = outcome.attempt - job.bases.get(outcome.ordinal, 0)
        may_retry = outcome.kind is OutcomeKind.FAILED and used < job.document.options.max_step_attempts
        may_retry = may_retry and not job.is_to_stop(outcome.ordinal)
        job.inbox.put(c.ReportedOutcome(key, outcome, may_retry, failed=used))

    def _run_over(self, host: HostId, run: Run, time: Instant) -> None:
        job = self._job
        job.slots.release(host, run)
        view = job.hosts.get(host)
        if view is None or view.group is None or view.group.run != run:
            return  # it was given its next group before this one was recorded
        job.hosts.rest(host, time.now)
        if not view.is_shared:
            job.end(host)

    def _tell_hooks(self) -> None:
        job = self._job
        group = job.inbox.next_group(job.next_number(), MAX_DECIDED)
        if group is not None:
            job.turn.say(c.RunHooks(group.ticket, group.items))
        elif receipts := job.inbox.idle_receipts():
            job.turn.say(c.Acknowledge(receipts))

    def _decide(self, event: e.HooksRan, time: Instant) -> None:
        job = self._job
        group = job.inbox.decided(event.ticket)
        if group is None:
            return
        dues = [None if v.retry_after is None else due_after(time.at, v.retry_after) for v in event.verdicts]
        journal = write_journal(tuple(zip(group.items, dues, strict=True)))
        job.carry_out(journal, time)
        job.turn.change(journal=journal)
        job.forgive_crashes()
        if event.state is not None:
            job.turn.change(state=event.state)
        if event.error:
            job.turn.change(error=event.error)
        self._note_failed_starts(group, event)
        if group.receipts:
            job.turn.say(c.Acknowledge(group.receipts))

    def _note_failed_starts(self, group: Deciding, event: e.HooksRan) -> None:
        for item, verdict in zip(group.items, event.verdicts, strict=True):
            if item.outcome.kind is OutcomeKind.START_FAILED and item.outcome.failure is not None:
                self._job.start.step_failed(verdict.step_id, item.outcome.failure.message)

    # Hosts: started, lost, given up.

    def _host_came_up(self, host: HostId, time: Instant) -> None:
        job = self._job
        if host not in job.hosts:
            job.turn.say(c.EndHost(host))
            return
        job.hosts.came_up(host, time.now)
        job.start.came_up(host)

    def _give_up(self, host: HostId, kind: OutcomeKind, event: e.HostFailedToStart | e.HostDied | None) -> None:
        """The host will do nothing more: settle what it owes [S6.4]. An outcome that it persisted goes first."""
        job = self._job
        view = job.hosts.drop(host)
        if view is None or view.group is None:
            return
        is_charged = isinstance(event, e.HostDied) and event.is_charged and view.is_single
        left = job.inbox.left(view.group.run)
        pairs = zip(view.group.ordinals, view.group.attempts, strict=True)
        outcomes = tuple(self._given_up(o, a, kind, event, is_charged=is_charged) for o, a in pairs if o in left)
        job.turn.say(c.SettleRun(host, view.group.run, outcomes))

    def _given_up(
        self,
        ordinal: int,
        attempt: int,
        kind: OutcomeKind,
        event: e.HostFailedToStart | e.HostDied | None,
        *,
        is_charged: bool,
    ) -> Outcome:
        job = self._job
        crash = job.crashes.get(ordinal, 0) + is_charged
        # Its host may have made a checkpoint of which the job was told nothing.
        may_have_document = kind is OutcomeKind.CRASHED
        is_crashed = kind is OutcomeKind.CRASHED and is_charged and crash >= job.document.options.max_step_crashes
        if kind is OutcomeKind.START_FAILED or is_crashed:
            failure = event.failure if event is not None else None
            return Outcome(ordinal, attempt, kind, failure=failure, crash=crash, has_document=may_have_document)
        if job.is_to_stop(ordinal):
            return Outcome(ordinal, attempt, OutcomeKind.STOPPED, crash=crash, has_document=may_have_document)
        return Outcome(ordinal, attempt, OutcomeKind.MOVED, crash=crash)

    # The start's answer, the watchdog, and the end of a turn.

    def _report_start(self, time: Instant) -> None:
        report = self._job.start.report(time.now)
        if report is not None:
            if report.error and report.error != REMOVED:
                self._job.turn.change(start_error=report.error, start_details=report.details)
            self._job.turn.say(report)

    def _first_tick(self, start: Instant) -> float | None:
        interval = self._job.document.options.job_watchdog_interval
        if interval is None or interval <= timedelta(0):
            return None
        return start.now + min(interval.total_seconds(), 1.0)

    def _tick(self, time: Instant) -> None:
        """Settle persisted outcomes whose report never came; retry a resume hook that failed [S8]."""
        job = self._job
        interval = job.document.options.job_watchdog_interval
        if interval is None or self._tick_at is None or time.now < self._tick_at:
            return
        self._tick_at = time.now + interval.total_seconds()
        for view in job.hosts.all():
            if view.group is not None and job.inbox.is_expected(view.group.run):
                job.turn.say(c.SettleRun(view.host, view.group.run))
        if job.owes_resume and not self._admission.is_owed and not job.asked and job.status.is_interruptible:
            if self._ticks_to_skip:
                self._ticks_to_skip -= 1
            else:
                job.ask("resume", c.RunResumeHook())

    def _after_admission(self, event: e.AdmissionAnswered, time: Instant) -> None:
        if event.moment is AdmissionMoment.STAGE:
            self._stages.after_admission(event, time)
        elif self._admission.take(event, time):
            self._job.ask("resume", c.RunResumeHook())

    def _after_resume_hook(self, event: e.ResumeHookRan) -> None:
        job = self._job
        job.owes_resume = bool(event.error)
        if event.state is not None:
            job.turn.change(state=event.state)
        if event.error:
            self._resume_failures += 1
            self._ticks_to_skip = ticks_to_skip(self._resume_failures)
            job.turn.change(error=event.error)

    def _close_turn(self, time: Instant) -> list[c.Command]:
        job = self._job
        turn = job.close_turn(time)
        exchange = job.slots.exchange_due(time.now, is_last=job.is_finished)
        if exchange is not None:
            turn.speak(exchange, is_last=job.is_finished)
        self.wants_turn = turn.has_writes and not job.is_finished
        wake_at = self._wake_at(time.now)
        if wake_at is not None:
            turn.say(c.SetTimer(wake_at))
        return turn.commands()

    def _wake_at(self, now: float) -> float | None:
        job = self._job
        times = (
            None if job.owes_resume else job.queue.next_due,
            job.hosts.next_idle_end,
            job.waits_for_warm_until(now),
            job.slots.next_due(),
            job.start.wake_at,
            self._admission.ask_again_at,
            self._stopping.wake_at,
            self._step_stops.wake_at,
            self._control.wake_at,
            self._tick_at,
            job.counts_due,
        )
        # What was due and could not be done waits for an event; that it is looked at again soon is only a precaution.
        return min((t if t > now else now + LOOK_AGAIN_SECONDS for t in times if t is not None), default=None)
