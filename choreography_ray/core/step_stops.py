"""Which single steps are to stop, and how far is each of them? [S9.7]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.hosts import HostPhase, HostView
from choreography_ray.core.instant import Instant
from choreography_ray.core.ledger import Assignment
from choreography_ray.core.situation import Situation
from choreography_ray.core.stopping import Stopping, never_started, waiting_for_retry
from choreography_ray.model import JobStatus
from choreography_ray.records import Run, StepCode, StepDocument

STOP_TIMED_OUT = "STOP_TIMED_OUT"
IS_NOT_RUNNING = "JOB_IS_NOT_RUNNING"
IS_BEING_REMOVED = "JOB_IS_BEING_REMOVED"

CONFIRM_SECONDS = 5.0
"""What the end of a process may take to be confirmed before whoever stops the step is told that it takes longer."""


@dataclass(slots=True)
class _Stop:
    """One step that is to stop. `item`: it has no run, and this is what the hooks are told of it."""

    deadline: float = 0.0
    receipts: list[int] = field(default_factory=list[int])
    item: c.ReportedOutcome | None = None
    is_handed: bool = False
    run: Run | None = None
    """The run in which the step document says that it is stopped."""
    since: float = 0.0
    is_told: bool = False


class StepStops:
    """Settles steps that somebody stops while their job goes on.

    One that runs: the stop is saved in its step document, its host is told, and ended when the body does not end. One
    that has no run goes to the hooks at once. The answer is the step's status, given when that is durable.
    """

    def __init__(self, job: Situation, stopping: Stopping) -> None:
        self._job = job
        self._stopping = stopping
        self._pending: dict[int, _Stop] = {}

    def restore(self, documents: Iterable[StepDocument]) -> None:
        """Take up what an earlier incarnation had saved and not settled."""
        ledger = self._job.ledger
        for document in documents:
            assigned = ledger.assignment(document.ordinal)
            run = document.run if ledger.code(document.ordinal) == StepCode.AWAITING_RETRY else None
            if document.stop is not None and document.stop == (assigned.run if assigned is not None else run):
                self._pending[document.ordinal] = _Stop(run=document.stop)
                self._job.stopping_steps.add(document.ordinal)

    def ask(self, event: e.StepStopAsked, time: Instant) -> None:
        """Take a request, or refuse it."""
        refusal = self._refusal(event.ordinal)
        if refusal:
            self._job.turn.say(c.Answer((event.receipt,), refusal))
            return
        stop = self._pending.setdefault(event.ordinal, _Stop())
        stop.receipts.append(event.receipt)
        stop.deadline = time.now + 2 * self._stopping.patience + CONFIRM_SECONDS
        self._job.stopping_steps.add(event.ordinal)

    def _refusal(self, ordinal: int) -> str:
        if StepCode(self._job.ledger.code(ordinal)).status.is_final:
            return ""  # the answer says so: whoever asks again is not told an error
        match self._job.status:
            case JobStatus.REMOVING:
                return IS_BEING_REMOVED
            case JobStatus.FAILED:
                return IS_NOT_RUNNING
            case _:
                return ""

    def pursue(self, time: Instant) -> None:
        """Bring each of them further. While a mark is set nothing is decided: it may prepare the step anew."""
        if self._pending and not self._job.document.mark and not self._job.turn.changes.get("mark"):
            for ordinal, stop in tuple(self._pending.items()):
                self._pursue(ordinal, stop, time)

    def _pursue(self, ordinal: int, stop: _Stop, time: Instant) -> None:
        job = self._job
        code = StepCode(job.ledger.code(ordinal))
        if code is StepCode.STOPPED or code.status.is_final:
            return self._resolve(ordinal, stop, code.status)
        if stop.item is None and not job.is_resting:  # what comes to rest is accounted as a whole
            self._take_up(ordinal, code, stop, time)
        # An answer of the job's code may bring a journal of its own: two cannot be saved at once.
        if stop.item is not None and not stop.is_handed and not job.asked:
            stop.is_handed = True
            job.inbox.put(stop.item)
        if job.status is JobStatus.REMOVING:
            self._answer(stop, IS_BEING_REMOVED)
        elif job.status is JobStatus.STOPPED and job.document.is_stop_finalized:
            self._resolve(ordinal, stop, code.status)  # of a stage that was not reached: it stands until a resume
        elif stop.run is not None and time.now >= stop.deadline:
            self._answer(stop, STOP_TIMED_OUT)
        return None

    def _take_up(self, ordinal: int, code: StepCode, stop: _Stop, time: Instant) -> None:
        job = self._job
        attempt = job.queue.withdraw(ordinal)
        assigned = job.ledger.assignment(ordinal)
        if attempt is not None:
            if assigned is not None:
                stop.item = self._stopping.given_up(ordinal, attempt)
            elif code is StepCode.AWAITING_RETRY:
                stop.item = waiting_for_retry(ordinal, attempt)
            else:
                stop.item = never_started(ordinal, attempt)
        elif assigned is not None and ordinal in job.inbox.left(assigned.run):
            self._stop_run(ordinal, assigned, stop, time)

    def _stop_run(self, ordinal: int, assigned: Assignment, stop: _Stop, time: Instant) -> None:
        """Saved before the host is told: whoever comes after us settles it too."""
        job, run = self._job, assigned.run
        if stop.run != run:
            stop.run, stop.since, stop.is_told = run, time.now, False
            crashes, base = job.crashes.get(ordinal, 0), job.bases.get(ordinal, 0)
            job.turn.raised.append(
                StepDocument(ordinal, run, attempt=assigned.attempt, crashes=crashes, base=base, stop=run)
            )
            job.documented.add(ordinal)
        view = job.hosts.get(assigned.host)
        if view is None or view.phase is HostPhase.FOUND or self._stopping.is_ended(view.host):
            return  # what became of the host is being found out, and settles the step
        if view.phase is HostPhase.LIVE and not stop.is_told:
            stop.is_told, stop.since = True, time.now
            job.turn.say(c.StopGroup(view.host, run, (ordinal,)))
        elif time.now >= stop.since + self._patience(view, run):
            self._stopping.end(view.host)

    def _patience(self, view: HostView, run: Run) -> float:
        """Others that may be at work in the same process have one more timeout; they run again, uncharged [S9.2]."""
        siblings = self._job.inbox.left(run) - self._job.stopping_steps
        if view.phase is HostPhase.STARTING:
            return self._stopping.patience if siblings else 0.0
        is_shared = bool(siblings) and view.group is not None and view.group.width > 1
        return 2 * self._stopping.patience if is_shared else self._stopping.patience

    def _resolve(self, ordinal: int, stop: _Stop, status: str) -> None:
        del self._pending[ordinal]
        self._job.stopping_steps.discard(ordinal)
        self._job.queue.readmit(ordinal)
        self._answer(stop, str(status))

    def _answer(self, stop: _Stop, answer: str) -> None:
        if stop.receipts:
            self._job.turn.say(c.Answer(tuple(stop.receipts), answer))
            stop.receipts.clear()

    @property
    def wake_at(self) -> float | None:
        """When a patience or a deadline ends."""
        job = self._job
        times: list[float] = []
        for ordinal, stop in self._pending.items():
            if stop.receipts and stop.run is not None:
                times.append(stop.deadline)
            assigned = job.ledger.assignment(ordinal)
            view = None if assigned is None else job.hosts.get(assigned.host)
            if assigned is None or view is None or stop.run != assigned.run or self._stopping.is_ended(view.host):
                continue
            if view.phase is not HostPhase.FOUND and ordinal in job.inbox.left(assigned.run):
                times.append(stop.since + self._patience(view, assigned.run))
        return min(times, default=None)
