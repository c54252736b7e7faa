"""One life of a job actor: take over under a new fence, then start the job, go on with it, or finish it [S10.1]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from choreography_ray.authoring.result import describe_exception
from choreography_ray.core import control as answers
from choreography_ray.core import events as e
from choreography_ray.core.admission import NOT_ADMITTED, ask_again_delay
from choreography_ray.core.commands import ReportStart
from choreography_ray.core.explaining import Explained
from choreography_ray.core.job_machine import JobMachine
from choreography_ray.core.ledger import Ledger
from choreography_ray.core.ownership import CRASHED, describe_crashes
from choreography_ray.core.situation import JobRules
from choreography_ray.core.slot_messages import Held
from choreography_ray.core.slots import JobSlots
from choreography_ray.core.starting import REMOVED
from choreography_ray.engine.admission import is_asked
from choreography_ray.engine.confirmation import Confirmation, Question
from choreography_ray.engine.hooks import Hooks
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.plans import Plans
from choreography_ray.engine.ports import Clock, HostsPort, Lease, Loaded, ThrottlePort, UserCode
from choreography_ray.engine.rest import NO_SUCH_STEP, Desk, Request, RequestKind, Rest, RetryFailed, StopStep
from choreography_ray.engine.silent import SilentHooks
from choreography_ray.engine.startup import StartInterrupted, StartRefused, Startup, initial_counts, read_ledger
from choreography_ray.engine.takeover import Obituary, Takeover
from choreography_ray.engine.tally import Numbers, Tally
from choreography_ray.engine.voice import Speak, Voice
from choreography_ray.engine.writes import JobWriter, Writer
from choreography_ray.errors import (
    ChoreographyError,
    Fenced,
    JobNotFound,
    OwnedElsewhere,
    StartJobReason,
    StartReport,
    UnknownJobType,
)
from choreography_ray.job import is_overridden
from choreography_ray.model import AdmissionMoment, HostId, JobId, JobStatus, Progress
from choreography_ray.plain import clean
from choreography_ray.progress import progress_of
from choreography_ray.records import CodeRef, JobDocument, OutcomeDocument, Owner
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

_UNASSIGNED = (JobStatus.PREPARING_JOB, JobStatus.PREPARING_STEPS)
"""Statuses in which no step of the job can have been assigned: it holds no slot."""
LOOK_SECONDS = 0.25
"""How soon a start that waits for admission sees that somebody wants the job to stop."""
_STARTING = (*_UNASSIGNED, JobStatus.STARTING_STEPS)
"""Statuses in which somebody may still wait for the start."""
_PHASES = {
    JobStatus.PREPARING_JOB: "its steps are being planned",
    JobStatus.PREPARING_STEPS: "its steps are being prepared",
    JobStatus.STARTING_STEPS: "its start hooks run",
}

LoadCode = Callable[[CodeRef], Awaitable[Loaded]]
Ports = Callable[[JobEngine], tuple[HostsPort, ThrottlePort]]


class Incarnation:
    """Runs a job until it ends, is fenced, or the process dies; then the next one goes on from storage alone."""

    def __init__(
        self,
        job_id: JobId,
        me: Owner,
        storage: JobStorage,
        load_code: LoadCode,
        user: UserCode,
        clock: Clock,
        ports: Ports,
        lease_seconds: float,
        is_current: Question | None = None,
        speak: Speak | None = None,
        obituary: Obituary | None = None,
    ) -> None:
        self.job_id = job_id
        self._me = me
        self._storage = storage
        self._load_code = load_code
        self._user = user
        self._clock = clock
        self._ports = ports
        self._lease_seconds = lease_seconds
        self._writer = Writer(clock)
        self._tally = Tally()
        self._confirmation = Confirmation(clock, lease_seconds, is_current)
        self._takeover = Takeover(job_id, me, storage, clock, self._writer, self._confirmation, lease_seconds, obituary)
        self._job: JobWriter | None = None
        self._hooks: Hooks | SilentHooks | None = None
        self._engine: JobEngine | None = None
        self._plans: Plans | None = None
        self._is_admitted = False
        """Admission was asked before the ledger was read."""
        self._is_over = False
        self._has_ended = False
        """The job has ended, not only this incarnation of its actor: its hosts may go."""
        self._speak = speak
        self._voice: Voice | None = None
        self._slots: JobSlots | None = None
        self._desk = Desk()
        self._over: Exception = Fenced(job_id)
        self._rest: Rest | None = None
        self.loop = asyncio.get_running_loop()
        self.started: asyncio.Future[ReportStart] = self.loop.create_future()
        """What there is to say about the start; every caller of `start` waits for it."""
        self.taken_over: asyncio.Future[None] = self.loop.create_future()
        """Done once this incarnation owns the job and has its code."""

    # What hooks see of it: `JobRuntime`.

    @property
    def document(self) -> JobDocument:
        """The job as last saved."""
        assert self._job is not None
        return self._job.document if self._engine is None else self._engine.machine.document

    @property
    def progress(self) -> Progress:
        """The counts as of now."""
        return progress_of(self.document)

    async def write_state(self) -> None:
        """Save the state that hooks changed. While outcomes are decided it is only marked: their write carries it."""
        assert self._job is not None
        if not isinstance(self._hooks, Hooks) or self._hooks.is_judging:
            return
        state = self._hooks.changed_state()
        if state is None:
            return
        if self._engine is None:
            await self._job.change(state=state)
        else:
            await self._engine.save_state(state)

    # What hosts and clients ask.

    @property
    def trouble(self) -> str:
        """The store's last error while it does not answer."""
        return self._writer.trouble

    def explain(self) -> Explained:
        """For what each step waits that is not final, or what is done before the first of them can start [S14.4]."""
        if self._engine is not None:
            return self._engine.explain()
        phase = "its job actor is taking over" if self._job is None else _PHASES.get(self._job.document.status, "")
        return Explained(phase=phase or "its job actor has not begun with its steps", trouble=self.trouble)

    def numbers(self) -> Numbers | None:
        """What happened since this was asked last; None before the job is taken over."""
        return None if self._job is None else self._tally.take(self.document, self._writer.errors)

    async def ask(self, host: HostId, is_first: bool) -> Lease:
        """A host asks for its lease [S10.2]. Before the ledger is read, leases that exist are renewed.

        Raises `Fenced` when this incarnation cannot tell: only the job's end, not its own, is an end for the host.
        """
        if self._has_ended:
            return Lease(None)
        left = self._confirmation.left()
        if left <= 0 or self._takeover.is_doubtful:
            raise Fenced(self.job_id)
        if self._engine is None:
            return Lease(left) if not is_first else Lease(None)
        return await self._engine.ask(host, is_first)

    async def deliver(self, document: OutcomeDocument) -> None:
        """A host delivers outcomes. Raises `Fenced` when this incarnation is not ready or over: try again."""
        if self._engine is None or self._is_over:
            raise Fenced(self.job_id)
        await self._engine.deliver(document)

    async def request(self, what: Request, born: datetime | None = None) -> str | int:
        """Somebody asks for a change of the job; the answer, once what it says is durable [S9].

        Raises `Fenced` when this incarnation cannot answer any more: ask the next one. Raises `UnknownJobType` when
        the job's code cannot be loaded, and nothing is done. Raises `JobNotFound` when the job is not the one that
        was created at `born`: whoever asks again, as an answer was lost, asks no later job of the id.
        """
        if born is not None:
            await asyncio.shield(self.taken_over)
            if self.document.created_at != born:
                raise JobNotFound(self.job_id)
        if self._is_over:
            raise self._over
        if self._engine is not None:
            return await self._ask_engine(what)
        return await self._desk.ask(what)

    async def _ask_engine(self, what: Request) -> str | int:
        assert self._engine is not None and self._plans is not None
        if isinstance(what, StopStep):
            is_planned = 0 <= what.ordinal < len(self._engine.machine.ledger)
            try:
                if not is_planned or await self._plans.step_id(what.ordinal) != what.step_id:
                    return NO_SUCH_STEP
            except LookupError:  # what the job has is being deleted
                is_removed = self.document.status is JobStatus.REMOVING
                return answers.IS_BEING_REMOVED if is_removed else answers.IS_COMPLETED
        return await self._engine.request(lambda receipt: _event(what, receipt))

    # Its life.

    async def run(self) -> JobStatus:
        """Until the job has ended. Raises `Fenced`, `JobNotFound`, `UnknownJobType`, or what broke."""
        try:
            return await self._take_over_and_live()
        except Fenced as fenced:
            self._over = await self._takeover.find_out(fenced)
            raise self._over from None
        except LookupError as missing:
            # What an old process misses was cleared by whoever has, or had, the job after it.
            if self._job is None or not await self._takeover.is_lost(self.document.fence):
                raise
            self._over = await self._takeover.find_out(Fenced(self.job_id))
            raise self._over from missing
        except (OwnedElsewhere, JobNotFound) as over:
            self._over = over
            raise
        except UnknownJobType as error:
            self._over = error
            await self._record(error)
            self._answer(ReportStart(StartJobReason.UNKNOWN, (str(error),)))
            raise
        finally:
            self._is_over = True
            self._desk.close(self._over)
            if self._voice is not None:
                self._voice.end()
            self._confirmation.close()
            if not self.taken_over.done():
                self.taken_over.set_exception(self._over)
                self.taken_over.exception()  # nobody may wait for it
            self._close_start()

    async def _take_over_and_live(self) -> JobStatus:
        document = await self._take_over()
        if document.is_broken:
            self.taken_over.set_result(None)
            status = await self._live_without_code(document)
        else:
            code = await self._load_code(document.code)
            hooks = self._hooks_of(document, code)
            self.taken_over.set_result(None)
            self._begin(hooks)
            try:
                status = await self._live(document, code, hooks)
            except StartRefused as refused:
                status = await self._refuse(refused)
        self._has_ended = self._is_over = True  # nobody would answer what is asked from here on
        await self._takeover.let_go(document.fence)
        return status

    def _hooks_of(self, document: JobDocument, code: Loaded) -> Hooks:
        try:
            return Hooks(code, self, document, self._user)
        except Exception as error:
            # Its classes are not those that it was saved with: it goes on once they are [S13].
            why = f"its request or state cannot be read with this code: {describe_exception(error).message}"
            raise UnknownJobType(document.type_name, why) from error

    def _begin(self, hooks: Hooks | SilentHooks) -> None:
        assert self._job is not None
        self._hooks = hooks
        self._rest = Rest(self._storage, self._job, self._writer, hooks, self._desk)

    def _close_start(self) -> None:
        """A start without an answer: the job is another cluster's, or whoever asks must ask the next incarnation."""
        if self.started.done():
            return
        if isinstance(self._over, OwnedElsewhere):
            self.started.set_result(ReportStart(StartJobReason.UNKNOWN, (str(self._over),)))
            return
        self.started.set_exception(self._over)
        self.started.exception()  # nobody may be asking

    async def _record(self, error: UnknownJobType) -> None:
        """Show on the job why it does not go on. Its status stays: it goes on once its code can be loaded [S13].

        One that has ended needs nobody who tries again until then: what it leaves goes when its retention is over.
        """
        assert self._job is not None
        with contextlib.suppress(Fenced):
            await self._job.change(error=str(error))
        if self._job.document.status.is_final:
            await self._takeover.let_go(self._job.document.fence)

    async def _take_over(self) -> JobDocument:
        document = await self._takeover.take()
        self._job = JobWriter(document, self._storage, self._clock, self._writer)
        self._tally.begin(document)
        self._slots = JobSlots(self.job_id, self._me.actor, document.fence, self._lease_seconds)
        self._voice = Voice(self._slots, self._speak, self._clock)
        # Whatever it does next may take long, and a job actor that says nothing is taken for stuck [S10.4].
        self._voice.begin(await self._assigned(document))
        return document

    async def _live_without_code(self, document: JobDocument) -> JobStatus:
        """The job's code has ended its process too often: it is `FAILED`, and its code is loaded no more [S10]."""
        self._begin(SilentHooks())
        assert self._job is not None and self._rest is not None and self._voice is not None
        if not (document.status.is_final or document.status is JobStatus.REMOVING):
            await self._give_up(document)
        document = self._job.document
        self._answer(ReportStart(document.start_error, document.start_details))
        if document.has_started_hook and not document.is_cleared:
            ledger = await read_ledger(self._storage, self._writer, document)
            if ledger is not None:
                return await self._run_steps(ledger, None)
        return await self._rest.serve() or document.status

    async def _assigned(self, document: JobDocument) -> list[Held]:
        """The runs that hold slots, as far as the ledger tells."""
        plan = document.plan
        if plan is None or document.is_cleared or document.status in _UNASSIGNED:
            return []
        segments = await self._writer.certain(lambda: self._storage.read_ledger(self.job_id, plan.fence))
        groups = {group.run: group for segment in segments for group in segment.groups}
        return [Held(group.host, group.run, group.width) for group in groups.values()]

    async def _give_up(self, document: JobDocument) -> None:
        assert self._job is not None
        error = describe_crashes(document, self._takeover.cause)
        log.error("job %r failed: %s", self.job_id, clean(error))
        fields: dict[str, Any] = {}
        if document.status in _STARTING:
            fields = {"start_error": str(StartJobReason.UNKNOWN), "start_details": (error,)}
        # Its hosts are still to be ended and accounted, like those of a stopped job.
        await self._job.change_status(
            JobStatus.FAILED, why=CRASHED, error=error, mark="", is_stop_finalized=False, is_draining=False, **fields
        )

    async def _live(self, document: JobDocument, code: Loaded, hooks: Hooks) -> JobStatus:
        assert self._job is not None
        status = document.status
        startup = Startup(self._storage, self._job, self._writer, code, hooks, self._user, self._desk)
        if not status.is_interruptible:
            self._answer(ReportStart(document.start_error, document.start_details))
            return await self._live_at_rest(startup, code, hooks)
        try:
            if not self._takeover.is_first and not document.has_started_hook and hooks.asks_admission:
                await self._await_admission(hooks)
            if status is JobStatus.PREPARING_JOB:
                if not self._takeover.is_first and not document.is_background:
                    raise StartRefused(StartJobReason.UNKNOWN, (_died_early(self._takeover.cause),))
                if not await startup.plan():
                    return await self._complete_empty()
            ledger = await startup.prepare()
            if self._job.document.status is JobStatus.PREPARING_STEPS:
                await self._job.change_status(JobStatus.STARTING_STEPS, stage_counts=initial_counts(ledger))
            if self._job.document.status is JobStatus.STARTING_STEPS and not self._job.document.has_started_hook:
                await startup.before_starting()
        except StartInterrupted as interrupted:
            assert self._rest is not None
            is_stopped = await self._rest.come_to_rest(interrupted.why, interrupted.error)
            self._answer(ReportStart(StartJobReason.STOPPED if is_stopped else REMOVED, ()))
            return await self._live_at_rest(startup, code, hooks)
        return await self._run_steps(ledger, code)

    async def _await_admission(self, hooks: Hooks) -> None:
        """A start that was interrupted is asked for again, before its code plans or prepares anything more [S11]."""
        unanswered = 0
        while True:
            answer = await hooks.admit(AdmissionMoment.RECOVERY, None)
            if answer.is_allowed:
                self._is_admitted = True
                return
            if answer.is_allowed is False:
                raise StartInterrupted(NOT_ADMITTED, answer.why)
            unanswered += 1
            until = self._clock.instant().now + ask_again_delay(unanswered)
            while self._clock.instant().now < until:
                if self._desk.wants_rest:
                    raise StartInterrupted
                await self._clock.sleep(LOOK_SECONDS)

    async def _live_at_rest(self, startup: Startup, code: Loaded, hooks: Hooks) -> JobStatus:
        """The job was ended or stopped: finish what is left of that, and wait a little for somebody to ask for more."""
        assert self._job is not None and self._rest is not None
        document = self._job.document
        if document.status.is_final and not document.is_cleared and not _rules(document, code).is_kept(document.status):
            await self._rest.clear()
        # Prepared is not begun: a job stopped in between has its start hook before it when it is resumed.
        document = self._job.document
        if document.has_started_hook and not document.is_cleared and await startup.is_prepared():
            return await self._run_steps(await startup.prepare(), code)
        while True:
            status = await self._rest.serve()
            if status is not None:
                return status
            refusal = await hooks.admit_resume()
            if not refusal:
                break
            self._desk.answer(refusal)
        ledger = await startup.prepare()
        if not self._job.document.has_started_hook:
            await startup.before_starting()
        return await self._run_steps(ledger, code)

    async def _run_steps(self, ledger: Ledger, code: Loaded | None) -> JobStatus:
        assert self._job is not None and self._hooks is not None
        document = self._job.document
        assert document.plan is not None
        time = self._clock.instant()
        assert self._slots is not None and self._voice is not None
        self._voice.end()
        machine = JobMachine(document, ledger, self._slots, _rules(document, code), time)
        plans = self._plans = Plans(self.job_id, self._storage, self._writer, document.plan)
        if isinstance(self._hooks, Hooks):
            self._hooks.plans = plans
            self._hooks.step_type = lambda ordinal: ledger.kinds[ledger.kind(ordinal)].step_type
        engine = JobEngine(
            machine,
            self._storage,
            self._job,
            self._writer,
            self._hooks,
            plans,
            self._clock,
            self._confirmation,
            self._tally,
        )
        engine.hosts, engine.throttle = self._ports(engine)
        if self._takeover.is_first:
            begin = machine.begin(time)
        else:
            outcomes = await self._writer.certain(lambda: self._storage.read_outcomes(self.job_id))
            documents = await self._writer.certain(lambda: self._storage.read_step_documents(self.job_id))
            begin = machine.recover(outcomes, documents, time, is_admitted=self._is_admitted)
        self._engine = engine
        self._desk.hand_over(self._ask_engine)
        engine.started.add_done_callback(lambda done: self._answer(done.result()))
        try:
            return await engine.run(begin)
        finally:
            if engine.started.done():  # told in the last turn: its callback has had no time to run
                self._answer(engine.started.result())

    def _answer(self, report: ReportStart) -> None:
        if not self.started.done():
            self.started.set_result(report)

    async def _complete_empty(self) -> JobStatus:
        """An empty plan completes at once [S4.1]."""
        assert self._job is not None and self._hooks is not None
        done = await self._hooks.complete()
        status = JobStatus.FAILED if done.error else JobStatus.COMPLETED_SUCCESSFULLY
        report = StartReport.NO_JOB_STEPS_TO_START
        fields = {} if done.state is None else {"state": done.state}
        await self._job.change_status(status, start_error=report, error=done.error, **fields)
        self._answer(ReportStart(report, ()))
        return status

    async def _refuse(self, refused: StartRefused) -> JobStatus:
        assert self._job is not None
        log.warning("job %r was not started: %s", self.job_id, refused)
        try:
            await self._job.change_status(
                JobStatus.FAILED,
                why=str(refused.reason),
                error="; ".join(refused.details)[:4_096],
                start_error=str(refused.reason),
                start_details=refused.details,
            )
        except Fenced:
            raise  # whoever has the job says what becomes of its start
        except ChoreographyError:
            log.exception("the failed start of job %r could not be recorded", self.job_id)
        self._answer(ReportStart(refused.reason, refused.details))
        return JobStatus.FAILED


def _event(what: Request, receipt: int) -> e.Request:
    match what:
        case RequestKind.STOP:
            return e.StopAsked(receipt)
        case RequestKind.DRAIN:
            return e.StopAsked(receipt, is_drain=True)
        case RequestKind.RESUME:
            return e.ResumeAsked(receipt)
        case RetryFailed(call):
            return e.RetryAsked(receipt, call)
        case RequestKind.REMOVE:
            return e.RemoveAsked(receipt)
        case StopStep(ordinal):
            return e.StepStopAsked(receipt, ordinal)


def _died_early(cause: str) -> str:
    return "the job actor died before the plan was saved" + (f": {cause}" if cause else "")


def _rules(document: JobDocument, code: Loaded | None) -> JobRules:
    if code is None:
        return JobRules(keep_results=document.keep_results, keep_after_completed=True)
    job = code.job_class
    return JobRules(
        window=document.options.max_active_steps_per_job,
        keep_results=document.keep_results,
        keep_after_completed=job.keep_after_completed,
        keep_after_completed_with_failures=job.keep_after_completed_with_failures,
        is_admission_asked=is_asked(job, document.options),
        is_told_of_successes=is_overridden(job, "on_step_completed_or_stopped"),
    )
