"""What one incarnation knows of its job: the ground that the parts of the job machine share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from choreography_ray.core import commands as c
from choreography_ray.core.decisions import carry_out
from choreography_ray.core.hosts import HostTable
from choreography_ray.core.inbox import Inbox
from choreography_ray.core.instant import Instant
from choreography_ray.core.ledger import Ledger, total
from choreography_ray.core.policies import COUNTS_SECONDS, HOST_START_SECONDS
from choreography_ray.core.slots import JobSlots
from choreography_ray.core.starting import StartWatch
from choreography_ray.core.transitions import bounded, check_job
from choreography_ray.core.turn import Turn
from choreography_ray.core.work import WorkQueue
from choreography_ray.model import HistoryEntry, HostId, JobStatus
from choreography_ray.records import (
    MAX_STAGE_COUNTS,
    Decision,
    JobDocument,
    JournalEntry,
    Outcome,
    OutcomeKey,
    Run,
    StageCounts,
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
    is_told_of_successes: bool = True
    """The job's code hears of each success; else a success needs no decision of its own."""

    def is_kept(self, status: JobStatus) -> bool:
        """Whether the records of a job that ended so stay until retention [S9.8]."""
        if status is JobStatus.COMPLETED_SUCCESSFULLY:
            return self.keep_after_completed
        return status is JobStatus.FAILED or self.keep_after_completed_with_failures


class Situation:
    """Everything that the parts read and change. Each field has one part that writes it, but for the turn."""

    def __init__(self, document: JobDocument, ledger: Ledger, slots: JobSlots, rules: JobRules, time: Instant) -> None:
        self.document = document
        """As last saved, or about to be with the turn that is being made."""
        self.ledger = ledger
        self.slots = slots
        self.rules = rules
        self.attempts: dict[int, int] = {}
        self.bases: dict[int, int] = {}
        """Attempts used up before failed steps were run again [S7.3]."""
        self.crashes: dict[int, int] = {}
        self.documented: set[int] = set()
        """Steps that have a document of their own, as far as the job knows."""
        self.stopping_steps: set[int] = set()
        """Steps that somebody stops, each by itself, until they are accounted [S9.7]."""
        self.queue = WorkQueue(ledger, self.attempts)
        self.hosts = HostTable(ledger.kinds)
        self.inbox = Inbox(ledger)
        self.start = StartWatch(document, time.now)
        self.turn = Turn()
        self.asked = ""
        """What the job's code was asked and has not answered: nothing that rests on it goes on meanwhile."""
        self.waits_for_warm_since: float | None = None
        """Since when steps that could have a new host wait for a warm one instead."""
        self.is_stage_open = False
        self.owes_resume = False
        self.is_finished = False
        self._counter = 0
        self._silent: Counter[int] = Counter()
        """Successes by stage that the ledger will have with this turn, and no journal tells of."""
        self._is_behind = ledger.counts().succeeded > document.counts.succeeded
        """The ledger has successes that the job document does not count yet."""
        self._counted_at = time.now

    @property
    def status(self) -> JobStatus:
        """The job's status, with what this turn makes of it."""
        status: JobStatus = self.turn.changes.get("status", self.document.status)
        return status

    @property
    def is_resting(self) -> bool:
        """Nothing is to run any more, and what runs is to be ended and accounted."""
        is_broken = self.status is JobStatus.FAILED and self.document.is_broken
        return is_broken or self.status in (JobStatus.STOPPED, JobStatus.REMOVING)

    def is_to_stop(self, ordinal: int) -> bool:
        """Whether the step is to come to rest: it gets no further attempt, and no other host."""
        return self.is_resting or ordinal in self.stopping_steps

    def next_number(self) -> int:
        """A number that this incarnation has not used: for runs and tickets."""
        self._counter += 1
        return self._counter

    def next_run(self) -> Run:
        """A new run."""
        return Run(self.document.fence, self.next_number())

    def ask(self, what: str, command: c.Command) -> None:
        """Ask the job's code something that is answered by an event."""
        self.asked = what
        self.turn.say(command)

    def waits_for_warm_until(self, now: float) -> float | None:
        """When steps will have waited long enough for a warm host; None: none waits, or they have."""
        since = self.waits_for_warm_since
        return None if since is None or since + HOST_START_SECONDS <= now else since + HOST_START_SECONDS

    @property
    def is_quiet(self) -> bool:
        """Nothing is on its way that could change what is final, and all that was decided is durable."""
        return self.inbox.is_idle and not self.asked and not self.turn.has_writes and not self.ledger.is_dirty

    def change_status(self, status: JobStatus, time: Instant, why: str = "") -> None:
        """Change the status with this turn; raises `InvalidTransition` when the table forbids it."""
        check_job(self.status, status)
        entry = HistoryEntry(at=time.at, status=status, why=why)
        history = bounded((*self.document.history, entry), self.document.options.max_history)
        self.turn.change(status=status, history=history)

    def end(self, host: HostId) -> None:
        """Give up a host that has nothing left to tell."""
        if self.hosts.drop(host) is not None:
            self.turn.say(c.EndHost(host))

    def carry_out(self, journal: Sequence[JournalEntry], time: Instant) -> None:
        """Do what a journal decided: the ledger here, the other writes with this turn [S6.5]."""
        effects = carry_out(
            self.ledger,
            journal,
            self.inbox.find,
            documented=self.documented,
            keep_results=self.rules.keep_results,
            latest=Run(self.document.fence, self._counter + 1),
        )
        self.turn.effects.append(effects)
        for entry in journal:
            if entry.key is not None and self.ledger.is_run_over(entry.key.run):
                self.ledger.forget_run(entry.key.run)
                self.inbox.run_recorded(entry.key.run)
        self.documented.difference_update(ordinal for ordinal, _ in effects.closed)
        for item in effects.stopped:
            self.attempts[item.outcome.ordinal] = item.outcome.attempt
            self.documented.add(item.outcome.ordinal)
        for item in effects.retries:
            assert item.due is not None
            ordinal, attempt = item.outcome.ordinal, item.outcome.attempt + 1
            self.attempts[ordinal] = attempt
            self.documented.add(ordinal)
            self.queue.put_retry(ordinal, attempt, time.now + (item.due - time.at).total_seconds())

    def record_silently(self, key: OutcomeKey, outcomes: Sequence[Outcome], time: Instant) -> None:
        """Record successes that the job's code is not told of.

        They need no journal: their documents stay until the ledger has them, and who reads them again decides the
        same. The counts of the job document, which are derived from the ledger, follow soon [S3.2].
        """
        ordinals, attempts = tuple(o.ordinal for o in outcomes), tuple(o.attempt for o in outcomes)
        self.carry_out((JournalEntry(Decision.SUCCEEDED, key, ordinals, attempts),), time)
        self._silent.update(self.ledger.stage(ordinal) for ordinal in ordinals)

    @property
    def counts_due(self) -> float | None:
        """When the counts of the job document must follow the ledger; None: they tell the same."""
        return self._counted_at + COUNTS_SECONDS if self._is_behind else None

    def forgive_crashes(self) -> None:
        """Outcomes are recorded with this turn: whatever the job's process died of, the job goes on [S10]."""
        if self.document.crashes and not self.document.is_broken:
            self.turn.change(crashes=0)

    def note_step_document(self, document: StepDocument) -> None:
        """Take up what a step has of its own."""
        self.documented.add(document.ordinal)
        self.attempts[document.ordinal] = document.attempt
        self.crashes[document.ordinal] = document.crashes
        self.bases[document.ordinal] = document.base

    def _counts_before_the_ledger(self) -> tuple[StageCounts, ...]:
        """What the job document may count before this turn's ledger is durable: that and what its journal tells of."""
        stages = self.ledger.stage_counts()
        if not self._silent:
            return stages
        return tuple(s._replace(succeeded=s.succeeded - self._silent[s.stage]) for s in stages)

    def close_turn(self, time: Instant) -> Turn:
        """The turn with its writes made up; a new one begins."""
        turn, self.turn = self.turn, Turn()
        due = self.counts_due
        is_due = due is not None and (bool(turn.changes) or due <= time.now)
        if turn.changes.get("journal") or "status" in turn.changes or turn.wants_counts or is_due:
            stages = self._counts_before_the_ledger()
            turn.change(counts=total(stages), stage_counts=stages if len(stages) <= MAX_STAGE_COUNTS else ())
            self._is_behind, self._counted_at = False, time.now
        self._is_behind = self._is_behind or bool(self._silent)
        self._silent.clear()
        if turn.changes:
            self.document = replace(self.document, **turn.changes, save=self.document.save + 1, updated_at=time.at)
            turn.save = c.SaveJob(self.document, frozenset(turn.changes))
        if gone := self.inbox.drop(self.document.journal):
            turn.say(c.DeleteOutcomes(gone))
        turn.ledger = self.ledger.take_changes(self.document.fence)
        return turn
