"""Which steps start now, and where: the window, the slots, the hosts [S5.6, S5.7, S14.2]."""

from __future__ import annotations

from choreography_ray.core import commands as c
from choreography_ray.core.hosts import HostPhase, HostView, host_id
from choreography_ray.core.instant import Instant
from choreography_ray.core.situation import Situation
from choreography_ray.core.work import Batch
from choreography_ray.model import JobStatus, StepHosting
from choreography_ray.records import Group, StepDocument


class Placing:
    """Fills the window. A slot first, then the ledger, then a host: nothing idles on reserved resources."""

    def __init__(self, job: Situation) -> None:
        self._job = job

    def fill(self, time: Instant) -> None:
        """Assign what can be, want what could be, and give back what cannot be used."""
        job = self._job
        for host in job.hosts.idle_until(time.now):
            job.end(host)
        if not self._may_start:
            job.slots.want(0)
            job.slots.give_back()
            return
        room = self._room
        while job.slots.unused and self._can_place(time) and (batch := self._take_batch(room)):
            self._place(batch, time)
            room -= len(batch.ordinals)
        starts = job.hosts.idle_count
        if job.waits_for_warm_until(time.now) is None:
            starts += job.document.options.max_concurrent_step_starts - job.hosts.starting
        wanted = min(job.queue.slots_wanted(room), max(0, starts) * self._width())
        if job.slots.unused > wanted:
            job.slots.give_back()
        job.slots.want(max(0, wanted - job.slots.unused))

    @property
    def _may_start(self) -> bool:
        job = self._job
        is_open = job.is_stage_open and not job.owes_resume and not job.is_finished and not job.document.mark
        return is_open and job.status is JobStatus.RUNNING

    @property
    def _room(self) -> int:
        window = self._job.rules.window
        if window is None:
            return len(self._job.ledger)
        return max(1, window) - self._job.inbox.active

    def _can_place(self, time: Instant) -> bool:
        job = self._job
        kind = job.queue.next_kind()
        if kind is None:
            return False
        if job.hosts.has_idle(kind):
            return True
        if job.hosts.starting >= job.document.options.max_concurrent_step_starts:
            return False
        width = job.queue.width(kind)
        if width == 1 or job.hosts.alike(kind) * width < job.slots.size:
            return True
        # The hosts that are there could use every slot: one of them is free sooner than a new one would be up. If that
        # is not so, a new one is started after all.
        if job.waits_for_warm_since is None:
            job.waits_for_warm_since = time.now
        return job.waits_for_warm_until(time.now) is None

    def _take_batch(self, room: int) -> Batch | None:
        return self._job.queue.take(room, self._job.slots.unused, self._job.hosts.busy)

    def _width(self) -> int:
        kind = self._job.queue.next_kind()
        return 0 if kind is None else self._job.queue.width(kind)

    def _place(self, batch: Batch, time: Instant) -> None:
        job = self._job
        kind = job.ledger.kinds[batch.kind]
        run = job.next_run()
        idle = job.hosts.take_idle(batch.kind) if kind.hosting is StepHosting.SHARED_ACTORS else None
        host = idle or host_id(kind.hosting, run, batch.ordinals[0])
        width = min(kind.steps_per_actor, len(batch.ordinals), job.slots.unused)
        group = Group(host, run, width, batch.ordinals, batch.attempts)
        job.ledger.assign(group)
        job.inbox.expect(group)
        job.slots.take(host, run, width)
        again = [pair for pair in zip(batch.ordinals, batch.attempts, strict=True) if pair[0] in job.documented]
        for ordinal, attempt in again:
            crashes, base = job.crashes.get(ordinal, 0), job.bases.get(ordinal, 0)
            job.turn.raised.append(StepDocument(ordinal, run, attempt=attempt, crashes=crashes, base=base))
        job.waits_for_warm_since = None
        if idle is None:
            job.hosts.add(HostView(host, batch.kind, HostPhase.STARTING))
            job.start.created(host, time.now)
            job.turn.say(c.CreateHost(host, batch.kind))
        job.hosts.give(host, group, is_single=len(batch.ordinals) == 1)
        job.turn.say(c.TellGroup(group, idle is None, bool(again)))
