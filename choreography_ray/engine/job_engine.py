"""Carries out what a job machine wants, over the ports: one turn after the other, each in its order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.explaining import Explained
from choreography_ray.core.job_machine import JobMachine
from choreography_ray.engine.confirmation import Confirmation
from choreography_ray.engine.hooks import Hooks
from choreography_ray.engine.plans import Plans
from choreography_ray.engine.ports import Clock, HostsPort, Lease, ThrottlePort, Work
from choreography_ray.engine.recorder import Recorder, Write
from choreography_ray.engine.settling import settle_run
from choreography_ray.engine.silent import SilentHooks
from choreography_ray.engine.tally import Counted, Measured, Tally
from choreography_ray.engine.writes import JobWriter, Writer
from choreography_ray.errors import Fenced
from choreography_ray.model import HostId, JobStatus
from choreography_ray.records import FailedStep, OutcomeDocument, OutcomeKind, Payload
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

PAGE = 1_000

_CAUSES: Mapping[type[e.Event], str] = {
    e.HostDied: "died",
    e.HostFailedToStart: "failed_to_start",
    e.HostWithdrawn: "not_placed",
}
"""Why a host is lost, as numbers tell it."""


class JobEngine:
    """One incarnation of a job from the saved plan on.

    `run` returns when the job is finished and everything about it is durable, and raises `Fenced` when a newer
    incarnation has taken over: then nothing more may be written.
    """

    def __init__(
        self,
        machine: JobMachine,
        storage: JobStorage,
        job_writer: JobWriter,
        writer: Writer,
        hooks: Hooks | SilentHooks,
        plans: Plans,
        clock: Clock,
        confirmation: Confirmation,
        tally: Tally,
    ) -> None:
        self.machine = machine
        self.hosts: HostsPort | None = None
        self.throttle: ThrottlePort | None = None
        self._storage = storage
        self._recorder = Recorder(storage, job_writer, writer, plans, machine.ledger)
        self._writer = writer
        self._hooks = hooks
        self._plans = plans
        self._clock = clock
        self._confirmation = confirmation
        self._tally = tally
        self._job_id = machine.document.job_id
        self._events: list[e.Event] = []
        self._news = asyncio.Event()
        self._wake_at: float | None = None
        self._receipts: dict[int, asyncio.Future[Any]] = {}
        self._next_receipt = 0
        self._first_work: dict[HostId, asyncio.Future[Work]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._is_closed = False
        self.started: asyncio.Future[c.ReportStart] = asyncio.get_running_loop().create_future()

    @property
    def trouble(self) -> str:
        """The store's last error while a write is being repeated."""
        return self._writer.trouble

    def explain(self) -> Explained:
        """For what each step waits that is not final, as of the last turn [S14.4]."""
        explained = self.machine.explain(self._clock.instant())
        return replace(explained, trouble=self.trouble, status=self.machine.document.status)

    # What the world tells.

    def post(self, event: e.Event) -> None:
        """Tell the machine an event, with the next turn."""
        if isinstance(event, e.HostDied | e.HostFailedToStart | e.HostWithdrawn) and self.machine.owes(event.host):
            self._tally.count(Counted.LOST_HOSTS, kind=_CAUSES[type(event)])
        self._events.append(event)
        self._news.set()

    async def deliver(self, document: OutcomeDocument) -> None:
        """A host's outcomes; returns once they are recorded. Raises `Fenced` when this incarnation is over."""
        receipt, done = self._new_receipt()
        arrived = self._clock.instant().now
        self._tally.count(Counted.DELIVERIES)
        self._tally.measure(Measured.STEP, document.seconds / len(document.outcomes))
        self.post(e.OutcomesReported(document, receipt))
        await done
        self._tally.measure(Measured.RECORDING, self._clock.instant().now - arrived)

    async def request(self, make: Callable[[int], e.Request]) -> str | int:
        """Ask for a change of the job; the answer, once what it says is durable. Raises `Fenced` as `deliver` does."""
        receipt, done = self._new_receipt()
        self.post(make(receipt))
        answer: str | int = await done
        return answer

    async def save_state(self, state: Payload) -> None:
        """Save the job's state; durable when this returns."""
        receipt, done = self._new_receipt()
        self.post(e.StateWritten(state, receipt))
        await done

    def _new_receipt(self) -> tuple[int, asyncio.Future[Any]]:
        if self._is_closed:
            raise Fenced(self._job_id)  # nobody would answer any more
        receipt, self._next_receipt = self._next_receipt, self._next_receipt + 1
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._receipts[receipt] = done
        return receipt, done

    async def ask(self, host: HostId, is_first: bool) -> Lease:
        """A host asks for its lease."""
        if self.machine.is_finished or not self.machine.knows(host):
            return Lease(None)
        document = self.machine.document
        left = self._confirmation.left()
        if not is_first:
            return Lease(left, document.fence)
        waiting = self._first_work.get(host)
        if waiting is None:
            return Lease(None)  # only the incarnation that created a host gives it its first lease [S10.1]
        self.post(e.HostCameUp(host))
        await asyncio.wait({waiting})
        if waiting.cancelled():
            return Lease(None)
        # The lease counts from when the host asked, but no longer than this incarnation is confirmed now.
        left = self._confirmation.left()
        if left <= 0:
            raise Fenced(self._job_id)
        return Lease(left, document.fence, waiting.result(), document.code, document.options)

    # The loop.

    async def run(self, begin: list[c.Command]) -> JobStatus:
        """Carry out `begin`, then turn after turn until the job is finished."""
        self._confirmation.refuted.add_done_callback(lambda _: self._fail(Fenced(self._job_id)))
        try:
            await self._carry_out_turn(begin)
            while not self.machine.is_finished:
                if not self._events and not self.machine.wants_turn:
                    await self._wait()
                if self._failed is not None:
                    raise self._failed
                events, self._events = self._events, []
                self._news.clear()
                await self._carry_out_turn(self.machine.handle(events, self._clock.instant()))
        finally:
            self._close()
        return self.machine.document.status

    async def _wait(self) -> None:
        if self._wake_at is None:
            await self._news.wait()
            return
        left = self._wake_at - self._clock.instant().now
        if left > 0:
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _close(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for done in self._receipts.values():
            if not done.done():
                done.set_exception(Fenced(self._job_id))
                done.exception()  # a host that is gone leaves nobody to read it
        for work in self._first_work.values():
            work.cancel()

    async def _carry_out_turn(self, commands: list[c.Command]) -> None:
        for command in commands:
            await self._carry_out(command)

    async def _carry_out(self, command: c.Command) -> None:
        if isinstance(command, Write):
            await self._recorder.write(command)
            if isinstance(command, c.SaveRetries):
                self._tally.count(Counted.RETRIES, len(command.items))
        else:
            self._tell(command)

    def _tell(self, command: c.Command) -> None:
        assert self.hosts is not None and self.throttle is not None
        match command:
            case c.Acknowledge(receipts):
                self._answer_receipts(receipts, None)
            case c.Answer(receipts, answer):
                self._answer_receipts(receipts, answer)
            case c.StopGroup(host, run, ordinals):
                self.hosts.stop(host, run, ordinals)
            case c.KillHost(host, grace):
                self._forget_host(host)  # one that asks only now gets nothing to begin
                self.hosts.kill(host, grace)
            case c.SendExchange(message):
                self.throttle.send(message)
            case c.CreateHost(host, kind):
                self._first_work[host] = asyncio.get_running_loop().create_future()
                self.hosts.create(host, self.machine.ledger.kinds[kind])
            case c.TellGroup():
                self._spawn(self._tell_group(command))
            case c.EndHost(host):
                self._forget_host(host)
                self.hosts.end(host)
            case c.InspectHosts(groups):
                self.hosts.inspect(groups)
            case c.SetTimer(at):
                self._wake_at = at
            case c.ReportStart():
                if not self.started.done():
                    self.started.set_result(command)
            case _:
                self._ask(command)

    def _answer_receipts(self, receipts: tuple[int, ...], answer: Any) -> None:
        for receipt in receipts:
            done = self._receipts.pop(receipt)
            if not done.done():
                done.set_result(answer)

    def _ask(self, command: c.Command) -> None:
        """What takes its time and is answered by an event."""
        hooks = self._hooks
        match command:
            case c.RunHooks(ticket, items):
                self._answer(lambda: hooks.run_group(ticket, items))
            case c.AskFailureBehavior(stage):

                async def behavior() -> e.FailureBehaviorAnswered:
                    return e.FailureBehaviorAnswered(stage, await hooks.failure_behavior(stage))

                self._answer(behavior)
            case c.RunResumeHook():
                is_incomplete = self.machine.document.has_started_hook and not self.machine.was_running
                self._answer(lambda: hooks.resume(is_incomplete))
            case c.RunCompletionHook():
                self._answer(hooks.complete)
            case c.RunStoppedHook():
                self._answer(hooks.stopped)
            case c.CheckResume():
                self._answer(hooks.check_resume)
            case c.CheckRetry():
                self._answer(hooks.check_retry)
            case c.ReadFailedSteps():
                self._answer(self._read_failed_steps)
            case c.SettleRun():
                self._answer(lambda: self._settle(command))
            case c.DeleteOutcomes(keys):

                async def delete() -> None:
                    await self._writer.certain(lambda: self._storage.delete_outcomes(self._job_id, keys))

                self._spawn(delete())
            case c.AskAdmission(moment):
                reached = self.machine.document.stage
                self._answer(lambda: hooks.admit(moment, reached))
            case c.CheckIncarnation():
                self._answer(self._check_incarnation)
            case _:
                raise AssertionError(f"{command} is not told or asked")

    async def _settle(self, command: c.SettleRun) -> e.RunSettled:
        outcomes = [
            o._replace(value=await self._hooks.cancelled_value(o.ordinal)) if o.kind is OutcomeKind.STOPPED else o
            for o in command.outcomes
        ]
        documents = await settle_run(self._storage, self._writer, self._job_id, command.host, command.run, outcomes)
        if not outcomes:  # the watchdog looked
            found = (o for document in documents for o in document.outcomes)
            awaited = sum(self.machine.awaits(command.run, o.ordinal) for o in found)
            self._tally.count(Counted.WATCHDOG_FINDINGS, awaited)
        return e.RunSettled(command.host, command.run, documents)

    async def _read_failed_steps(self) -> e.FailedStepsRead:
        found: list[FailedStep] = []
        while page := await self._writer.certain(partial(self._failed_page, len(found))):
            found += page
        return e.FailedStepsRead(tuple(found))

    async def _failed_page(self, skip: int) -> list[FailedStep]:
        return await self._storage.read_failures(self._job_id, skip=skip, take=PAGE)

    async def _check_incarnation(self) -> e.IncarnationConfirmed:
        stored = await self._writer.certain(lambda: self._storage.read_job(self._job_id))
        if stored is None or stored.fence != self.machine.document.fence:
            raise Fenced(self._job_id)
        return e.IncarnationConfirmed()

    def _answer(self, question: Callable[[], Coroutine[Any, Any, e.Event]]) -> None:
        async def answer() -> None:
            self.post(await question())

        self._spawn(answer())

    async def _tell_group(self, command: c.TellGroup) -> None:
        group, ledger = command.group, self.machine.ledger
        kind = ledger.kinds[ledger.kind(group.ordinals[0])]
        work = await self._plans.work(group, kind, is_again=command.is_again)
        if command.is_new_host:
            first = self._first_work.get(group.host)
            if first is not None and not first.done():
                first.set_result(work)
        else:
            assert self.hosts is not None
            self.hosts.tell(work)

    def _forget_host(self, host: HostId) -> None:
        first = self._first_work.pop(host, None)
        if first is not None:
            first.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A broken promise of ours or the store's: this incarnation cannot go on, the next one can.
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._news.set()
