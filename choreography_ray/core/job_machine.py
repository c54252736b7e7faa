"""What a job does next: events and time in, commands out; nothing is awaited, read or drawn here.

One machine lives as long as one incarnation of the job actor, from the moment when the plan is prepared until the job
is finished. A call of `handle` takes the events that have come in and returns one *turn*: first the writes, in the
order of PROTOCOLS part 1, then what is told and asked. The engine carries a turn out whole before it asks for the
next, so what a turn rests on is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.decisions import carry_out, write_journal
from choreography_ray.core.hosts import HostPhase, HostTable, HostView, host_id
from choreography_ray.core.instant import Instant
from choreography_ray.core.ledger import Ledger, total
from choreography_ray.core.policies import ticks_to_skip
from choreography_ray.core.slot_messages import Held
from choreography_ray.core.slots import IncarnationDoubted, JobSlots
from choreography_ray.core.starting import StartWatch
from choreography_ray.core.transitions import bounded, check_job
from choreography_ray.core.turn import Turn
from choreography_ray.core.work import Batch, WorkQueue
from choreography_ray.errors import Fenced
from choreography_ray.model import AdmissionMoment, HistoryEntry, HostId, JobStatus, StageFailureBehavior, StepHosting
from choreography_ray.records import (
    MAX_STAGE_COUNTS,
    Decision,
    Group,
    JobDocument,
    JournalEntry,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    Run,
    StepCode,
    StepDocument,
)


@dataclass(frozen=True, slots=True)
class JobRules:
    """What the machine must know of the job's class. `window` is in steps; None: as many as get slots [S5.6]."""

    window: int | None = None
    keep_results: bool = False
    keep_after_completed: bool = False
    keep_after_completed_with_failures: bool = True
    is_admission_asked: bool = False


class JobMachine:
    """One incarnation of one job. `handle` is the only mutator."""

    def __init__(self, document: JobDocument, ledger: Ledger, slots: JobSlots, rules: JobRules, start: Instant) -> None:
        self.document = document
        self.ledger = ledger
        self.slots = slots
        self.rules = rules
        self._attempts: dict[int, int] = {}
        self._crashes: dict[int, int] = {}
        self._queue = WorkQueue(ledger, self._attempts)
        self._hosts = HostTable(ledger.kinds)
        self._start = StartWatch(document, start.now)
        self._turn = Turn()
        self._run = 0
        self._inbox: list[c.ReportedOutcome] = []
        self._receipts: list[int] = []
        self._deciding: tuple[int, tuple[c.ReportedOutcome, ...], tuple[int, ...]] | None = None
        self._unreported: dict[Run, set[int]] = {}
        self._documents: dict[OutcomeKey, dict[int, Outcome]] = {}
        self._documented: set[int] = set()
        self._over: list[OutcomeKey] = []
        self._asked: str = ""
        self._is_stage_open = False
        self._is_closing = False
        self._owes_resume = False
        self._resume_failures = 0
        self._ticks_to_skip = 0
        self._admission_failures = 0
        self._ask_again_at: float | None = None
        self._tick_at = self._first_tick(start)
        self.is_finished = False
        self.wants_turn = True
        self.was_running = document.status is not JobStatus.STARTING_STEPS
        """This incarnation found the job with its steps started."""

    def knows(self, host: HostId) -> bool:
        """Whether the host belongs to this job and is not given up."""
        return host in self._hosts

    # The whole of the input.

    def handle(self, events: Sequence[e.Event], time: Instant) -> list[c.Command]:
        """Take events and return the turn that answers them. Raises `Fenced` when a newer incarnation is seen."""
        for event in events:
            self._take(event, time)
        self._queue.ripen(time.now)
        self._tick(time)
        self._tell_hooks()
        self._advance(time)
        self._assign(time)
        self._report_start(time)
        return self._close_turn(time)

    def _take(self, event: e.Event, time: Instant) -> None:
        match event:
            case e.OutcomesReported():
                self._receipts.append(event.receipt)
                self._take_document(event.document, time)
            case e.RunSettled():
                for document in event.documents:
                    self._take_document(document, time)
            case e.HooksRan():
                self._decide(event, time)
            case e.HostCameUp():
                self._host_came_up(event.host, time)
            case e.HostWaited():
                self._start.waited(event.host)
            case e.HostFailedToStart():
                self._start.failed(event.host)
                self._give_up(event.host, OutcomeKind.START_FAILED, event)
            case e.HostWithdrawn():
                self._give_up(event.host, OutcomeKind.MOVED, None)
            case e.HostDied():
                self._give_up(event.host, OutcomeKind.CRASHED, event)
            case e.ThrottleReplied():
                if isinstance(self.slots.receive(event.reply, time.now), IncarnationDoubted):
                    self._turn.say(c.CheckIncarnation())
            case e.IncarnationConfirmed():
                self.slots.confirm()
            case e.ExchangeFailed():
                self.slots.failed(event.n, time.now)
            case e.FailureBehaviorAnswered():
                self._asked = ""
                self._after_failures(event, time)
            case e.AdmissionAnswered():
                self._asked = ""
                self._after_admission(event, time)
            case e.ResumeHookRan():
                self._after_resume_hook(event)
            case e.StateWritten():
                self._turn.change(state=event.state)
                self._turn.say(c.Acknowledge((event.receipt,)))
            case e.CompletionHookRan():
                self._asked = ""
                self._complete(event, time)
            case _:
                assert_never(event)

    def begin(self, time: Instant) -> list[c.Command]:
        """The first turn of a job whose steps were never started."""
        self.slots.restore(())
        return self._close_turn(time)

    # What is loaded: a new incarnation begins from storage alone.

    def recover(
        self, outcomes: Sequence[OutcomeDocument], documents: Sequence[StepDocument], time: Instant
    ) -> list[c.Command]:
        """Take up what an earlier incarnation left: finish its journal, then its outcomes, then find its hosts."""
        for document in documents:
            self._note_step_document(document, time)
        self._documents.update({d.key: {o.ordinal: o for o in d.outcomes} for d in outcomes})
        self._carry_out(self.document.journal, time)
        groups = tuple(self.ledger.groups())
        for group in groups:
            self._unreported[group.run] = set(group.ordinals)
            kind = self.ledger.kind(group.ordinals[0])
            single = len(group.ordinals) == 1
            self._hosts.add(HostView(group.host, kind, HostPhase.FOUND, group, single))
        self.slots.restore(Held(group.host, group.run, group.width) for group in groups)
        for outcome_document in outcomes:
            self._take_document(outcome_document, time)
        if groups:
            self._turn.say(c.InspectHosts(groups))
        if self.document.stage is not None:
            self._enter_stage(self.document.stage)
        self._owes_resume = True
        self._ask("resume", c.RunResumeHook())
        return self._close_turn(time)

    def _note_step_document(self, document: StepDocument, time: Instant) -> None:
        ordinal, code = document.ordinal, self.ledger.code(document.ordinal)
        self._documented.add(ordinal)
        self._attempts[ordinal] = document.attempt
        self._crashes[ordinal] = document.crashes
        if code == StepCode.AWAITING_RETRY:
            due = document.due or time.at
            self._queue.put_retry(ordinal, document.attempt, time.now + (due - time.at).total_seconds())

    # Outcomes: accepted once, decided in groups.

    def _take_document(self, document: OutcomeDocument, time: Instant) -> None:
        run = document.key.run
        if run.fence > self.document.fence:
            raise Fenced(self.document.job_id)
        left = self._unreported.get(run)
        if not left:
            return
        taken = 0
        for outcome in document.outcomes:
            if outcome.ordinal in left and self._is_at(outcome, run):
                left.discard(outcome.ordinal)
                self._accept(document.key, outcome)
                taken += 1
        if taken:
            self._documents.setdefault(document.key, {o.ordinal: o for o in document.outcomes})
            self._queue.learn(self.ledger.kind(document.outcomes[0].ordinal), taken, document.seconds)
        if not left:
            self._run_over(document.key.host, run, time)

    def _is_at(self, outcome: Outcome, run: Run) -> bool:
        assigned = self.ledger.assignment(outcome.ordinal)
        return assigned is not None and assigned.run == run and assigned.attempt == outcome.attempt

    def _accept(self, key: OutcomeKey, outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.MOVED:
            self._crashes[outcome.ordinal] = outcome.crash
            self._documented.add(outcome.ordinal)
            self._queue.put_single(outcome.ordinal, outcome.attempt)
            return
        is_failure = outcome.kind is OutcomeKind.FAILED
        may_retry = is_failure and outcome.attempt < self.document.options.max_step_attempts
        self._inbox.append(c.ReportedOutcome(key, outcome, may_retry))

    def _run_over(self, host: HostId, run: Run, time: Instant) -> None:
        del self._unreported[run]
        self.slots.release(host, run)
        view = self._hosts.get(host)
        if view is None:
            return
        self._hosts.rest(host, time.now)
        if not view.is_shared:
            self._end(host)

    def _end(self, host: HostId) -> None:
        if self._hosts.drop(host) is not None:
            self._turn.say(c.EndHost(host))

    def _tell_hooks(self) -> None:
        if self._deciding is None and self._inbox:
            items, receipts = tuple(self._inbox), tuple(self._receipts)
            self._inbox, self._receipts = [], []
            self._run += 1
            self._deciding = (self._run, items, receipts)
            self._turn.say(c.RunHooks(self._run, items))
        elif self._deciding is None and self._receipts:
            self._turn.say(c.Acknowledge(tuple(self._receipts)))
            self._receipts = []

    def _decide(self, event: e.HooksRan, time: Instant) -> None:
        if self._deciding is None or self._deciding[0] != event.ticket:
            return
        _, items, receipts = self._deciding
        self._deciding = None
        journal = write_journal([(i, _due(v, time)) for i, v in zip(items, event.verdicts, strict=True)])
        self._carry_out(journal, time)
        self._turn.change(journal=journal)
        if event.state is not None:
            self._turn.change(state=event.state)
        if event.error:
            self._turn.change(error=event.error)
        for item, verdict in zip(items, event.verdicts, strict=True):
            if item.outcome.kind is OutcomeKind.START_FAILED and item.outcome.failure is not None:
                self._start.step_failed(verdict.step_id, item.outcome.failure.message)
        if receipts:
            self._turn.say(c.Acknowledge(receipts))

    def _carry_out(self, journal: Sequence[JournalEntry], time: Instant) -> None:
        effects = carry_out(
            self.ledger, journal, self._find, documented=self._documented, keep_results=self.rules.keep_results
        )
        self._turn.effects.append(effects)
        for entry in journal:
            if entry.key is not None and self.ledger.is_run_over(entry.key.run):
                self.ledger.forget_run(entry.key.run)
                self._over += [key for key in self._documents if key.run == entry.key.run]
        self._documented.difference_update(ordinal for ordinal, _ in effects.closed)
        for item in effects.retries:
            assert item.due is not None
            ordinal, attempt = item.outcome.ordinal, item.outcome.attempt + 1
            self._attempts[ordinal] = attempt
            self._documented.add(ordinal)
            self._queue.put_retry(ordinal, attempt, time.now + (item.due - time.at).total_seconds())

    def _find(self, key: OutcomeKey, ordinal: int) -> Outcome:
        return self._documents[key][ordinal]

    # Hosts: started, lost, given up.

    def _host_came_up(self, host: HostId, time: Instant) -> None:
        view = self._hosts.get(host)
        if view is None:
            self._turn.say(c.EndHost(host))
            return
        self._hosts.came_up(host, time.now)
        self._start.came_up(host)

    def _give_up(self, host: HostId, kind: OutcomeKind, event: e.HostFailedToStart | e.HostDied | None) -> None:
        view = self._hosts.drop(host)
        if view is None or view.group is None:
            return
        run = view.group.run
        left = self._unreported.get(run, set())
        is_charged = isinstance(event, e.HostDied) and event.is_charged and view.is_single
        failure = event.failure if event is not None else None
        outcomes: list[Outcome] = []
        for ordinal in view.group.ordinals:
            if ordinal not in left:
                continue
            attempt = self.ledger.assignment(ordinal)
            crash = self._crashes.get(ordinal, 0) + is_charged
            is_lost = kind is OutcomeKind.START_FAILED or (
                kind is OutcomeKind.CRASHED and crash >= self.document.options.max_step_crashes
            )
            entry = kind if is_lost else OutcomeKind.MOVED
            assert attempt is not None
            outcomes.append(Outcome(ordinal, attempt.attempt, entry, failure=failure if is_lost else None, crash=crash))
        self._turn.say(c.SettleRun(host, run, tuple(outcomes)))

    # Stages.

    def _enter_stage(self, stage: int) -> None:
        self._queue.enter_stage(stage)
        self._is_stage_open = True
        here = (k for k, kind in enumerate(self.ledger.kinds) if kind.stage == stage)
        for host in self._hosts.useless(here):
            self._end(host)

    def _is_quiet(self) -> bool:
        """Nothing is on its way that could change what is final."""
        return not (self._inbox or self._deciding or self._asked or self._turn.has_writes or self.ledger.is_dirty)

    def _advance(self, time: Instant) -> None:
        if not self._is_quiet():
            return
        if self._is_closing:
            self._close()
        elif self.document.status is JobStatus.STARTING_STEPS and not self._owes_resume:
            stage = self.ledger.stages[0]
            self._turn.change(stage=stage)
            self._change_status(JobStatus.RUNNING, time)
            self._enter_stage(stage)
        elif self.document.status is JobStatus.RUNNING and self._is_stage_over():
            self._leave_stage(time)

    def _is_stage_over(self) -> bool:
        stage = self.document.stage
        return stage is not None and self.ledger.open_steps(stage) == 0

    def _leave_stage(self, time: Instant) -> None:
        if self.ledger.open_steps() == 0:
            if self.document.journal:
                self._turn.change(journal=())
            self._ask("completion", c.RunCompletionHook())
        elif self._owes_resume or (self._ask_again_at is not None and time.now < self._ask_again_at):
            return
        elif self._has_failures():
            assert self.document.stage is not None
            self._ask("failures", c.AskFailureBehavior(self.document.stage))
        else:
            self._ask_for_next_stage(time)

    def _has_failures(self) -> bool:
        assert self.document.stage is not None
        return self.ledger.count(self.document.stage, StepCode.COMPLETED_WITH_FAILURE, StepCode.FAILED) > 0

    def _ask(self, what: str, command: c.Command) -> None:
        self._asked = what
        self._turn.say(command)

    def _after_failures(self, event: e.FailureBehaviorAnswered, time: Instant) -> None:
        if event.stage != self.document.stage:
            return
        if event.behavior is StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE:
            self._ask_for_next_stage(time)
            return
        entry = JournalEntry(Decision.UNREACHABLE, after_stage=event.stage)
        self._carry_out((entry,), time)
        self._turn.change(journal=(entry,))

    def _ask_for_next_stage(self, time: Instant) -> None:
        if self.rules.is_admission_asked:
            self._ask("admission", c.AskAdmission(AdmissionMoment.STAGE))
        else:
            self._next_stage()

    def _after_admission(self, event: e.AdmissionAnswered, time: Instant) -> None:
        if event.is_allowed:
            self._admission_failures = 0
            self._ask_again_at = None
            self._next_stage()
            return
        # Neither a refusal nor silence starts the stage; asked again after 1 s doubling to 60 s [S11].
        self._ask_again_at = time.now + min(2.0**self._admission_failures, 60.0)
        self._admission_failures = min(self._admission_failures + 1, 16)

    def _next_stage(self) -> None:
        later = [stage for stage in self.ledger.stages if self.document.stage is None or stage > self.document.stage]
        self._turn.change(stage=later[0], journal=())
        self._enter_stage(later[0])

    def _complete(self, event: e.CompletionHookRan, time: Instant) -> None:
        if event.state is not None:
            self._turn.change(state=event.state)
        if event.error:
            self._turn.change(error=event.error)
            status = JobStatus.FAILED
        elif self.ledger.counts().failed or self.ledger.counts().unreachable:
            status = JobStatus.COMPLETED_WITH_FAILURES
        else:
            status = JobStatus.COMPLETED_SUCCESSFULLY
        self._turn.change(journal=())
        self._change_status(status, time)
        self.slots.want(0)
        self.slots.give_back()
        for view in self._hosts.all():
            self._end(view.host)
        self._start.completed()
        self._is_stage_open = False
        if not self._is_kept(status):
            self._turn.clear = c.ClearJob(self.rules.keep_results)
        self._is_closing = True

    def _close(self) -> None:
        """The last turn, when all that the job leaves is durable."""
        if not self._is_kept(self.document.status):
            # The summary that stays has neither request nor state [S9.8].
            self._turn.change(is_cleared=True, request=None, state=None)
        self._turn.say(c.Finish(self.document.status))
        self.is_finished = True

    def _is_kept(self, status: JobStatus) -> bool:
        if status is JobStatus.COMPLETED_SUCCESSFULLY:
            return self.rules.keep_after_completed
        return status is JobStatus.FAILED or self.rules.keep_after_completed_with_failures

    def _change_status(self, status: JobStatus, time: Instant, why: str = "") -> None:
        check_job(self.document.status, status)
        entry = HistoryEntry(at=time.at, status=status, why=why)
        self._turn.change(
            status=status, history=bounded((*self.document.history, entry), self.document.options.max_history)
        )

    # Starting steps.

    @property
    def _room(self) -> int:
        window = self.rules.window
        if window is None:
            return len(self.ledger)
        return max(1, window) - sum(map(len, self._unreported.values()))

    def _assign(self, time: Instant) -> None:
        for host in self._hosts.idle_until(time.now):
            self._end(host)
        if not self._may_start():
            self.slots.want(0)
            self.slots.give_back()
            return
        while self.slots.unused and self._can_place() and (batch := self._take_batch()):
            self._place(batch, time)
        room = self.document.options.max_concurrent_step_starts - self._hosts.starting + self._hosts.idle_count
        wanted = min(self._queue.slots_wanted(self._room), max(0, room))
        if self.slots.unused > wanted:
            self.slots.give_back()
        self.slots.want(max(0, wanted - self.slots.unused))

    def _may_start(self) -> bool:
        if self._owes_resume or not self._is_stage_open or self.is_finished:
            return False
        return JobStatus.RUNNING in (self.document.status, self._turn.changes.get("status"))

    def _can_place(self) -> bool:
        kind = self._queue.next_kind()
        if kind is None:
            return False
        has_start = self._hosts.starting < self.document.options.max_concurrent_step_starts
        return has_start or self._hosts.has_idle(kind)

    def _take_batch(self) -> Batch | None:
        return self._queue.take(self._room, self._hosts.busy + self.slots.unused)

    def _place(self, batch: Batch, time: Instant) -> None:
        kind = self.ledger.kinds[batch.kind]
        self._run += 1
        run = Run(self.document.fence, self._run)
        idle = self._hosts.take_idle(batch.kind) if kind.hosting is StepHosting.SHARED_ACTORS else None
        host = idle or host_id(kind.hosting, run)
        width = min(kind.steps_per_actor, len(batch.ordinals), self.slots.unused)
        group = Group(host, run, width, batch.ordinals, batch.attempts)
        self.ledger.assign(group)
        self._unreported[run] = set(batch.ordinals)
        self.slots.take(host, run, width)
        again = [pair for pair in zip(batch.ordinals, batch.attempts, strict=True) if pair[0] in self._documented]
        for ordinal, attempt in again:
            crashes = self._crashes.get(ordinal, 0)
            self._turn.raised.append(StepDocument(ordinal, run, attempt=attempt, crashes=crashes))
        if idle is None:
            self._hosts.add(HostView(host, batch.kind, HostPhase.STARTING))
            self._start.created(host, time.now)
            self._turn.say(c.CreateHost(host, batch.kind))
        self._hosts.give(host, group, is_single=len(batch.ordinals) == 1)
        self._turn.say(c.TellGroup(group, idle is None, bool(again)))

    # The start's answer, the watchdog, and the end of a turn.

    def _report_start(self, time: Instant) -> None:
        report = self._start.report(time.now)
        if report is not None:
            if report.error:
                self._turn.change(start_error=report.error, start_details=report.details)
            self._turn.say(report)

    def _first_tick(self, start: Instant) -> float | None:
        interval = self.document.options.job_watchdog_interval
        if interval is None or interval <= timedelta(0):
            return None
        return start.now + min(interval.total_seconds(), 1.0)

    def _tick(self, time: Instant) -> None:
        """Settle persisted outcomes whose report never came; retry a resume hook that failed [S8]."""
        interval = self.document.options.job_watchdog_interval
        if interval is None or self._tick_at is None or time.now < self._tick_at:
            return
        self._tick_at = time.now + interval.total_seconds()
        for view in self._hosts.all():
            if view.group is not None and view.group.run in self._unreported:
                self._turn.say(c.SettleRun(view.host, view.group.run))
        if self._owes_resume and not self._asked:
            if self._ticks_to_skip:
                self._ticks_to_skip -= 1
            else:
                self._ask("resume", c.RunResumeHook())

    def _after_resume_hook(self, event: e.ResumeHookRan) -> None:
        self._asked = ""
        self._owes_resume = bool(event.error)
        if event.state is not None:
            self._turn.change(state=event.state)
        if event.error:
            self._resume_failures += 1
            self._ticks_to_skip = ticks_to_skip(self._resume_failures)
            self._turn.change(error=event.error)

    def _close_turn(self, time: Instant) -> list[c.Command]:
        turn, self._turn = self._turn, Turn()
        if turn.changes.get("journal") or "status" in turn.changes:
            stages = self.ledger.stage_counts()
            turn.change(counts=total(stages), stage_counts=stages if len(stages) <= MAX_STAGE_COUNTS else ())
        if turn.changes:
            self.document = replace(self.document, **turn.changes, save=self.document.save + 1, updated_at=time.at)
            turn.save = c.SaveJob(self.document, frozenset(turn.changes))
            self._drop_documents(turn)
        turn.ledger = self.ledger.take_changes(self.document.fence)
        exchange = self.slots.exchange_due(time.now)
        if exchange is not None:
            turn.say(c.SendExchange(exchange))
        self.wants_turn = turn.has_writes and not self.is_finished
        wake_at = self._wake_at()
        if wake_at is not None:
            turn.say(c.SetTimer(wake_at))
        return turn.commands()

    def _drop_documents(self, turn: Turn) -> None:
        # This write replaces the journal, so what an earlier one decided upon will not be read again.
        kept = {entry.key for entry in self.document.journal}
        gone = tuple(key for key in self._over if key not in kept)
        self._over = [key for key in self._over if key in kept]
        for key in gone:
            self._documents.pop(key, None)
        if gone:
            turn.say(c.DeleteOutcomes(gone))

    def _wake_at(self) -> float | None:
        due = None if self._owes_resume else self._queue.next_due
        idle_end = self._hosts.next_idle_end
        times = (due, self._tick_at, self._ask_again_at, self._start.wake_at, self.slots.next_due(), idle_end)
        return min((t for t in times if t is not None), default=None)


def _due(verdict: e.Verdict, time: Instant) -> datetime | None:
    return None if verdict.retry_after is None else time.at + timedelta(seconds=verdict.retry_after)
