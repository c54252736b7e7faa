"""How does an incarnation become the job's? Under a fence that it raises, by itself and for certain [S10.1]."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from choreography_ray.core.ownership import SILENCED, Death, is_elsewhere, may_be_crash, was_ended_for_silence
from choreography_ray.engine.confirmation import Confirmation
from choreography_ray.engine.ownership import read_when_free
from choreography_ray.engine.ports import Clock
from choreography_ray.engine.writes import Writer
from choreography_ray.errors import Fenced, JobNotFound, OwnedElsewhere, StorageUnavailable
from choreography_ray.model import JobId
from choreography_ray.records import JobDocument, Owner
from choreography_ray.storage.protocol import JobStorage

log = logging.getLogger(__name__)

Obituary = Callable[[Owner], Awaitable[Death]]
"""What the cluster tells of a process of its own that has died. Raises when it does not answer."""


class Takeover:
    """One process's way to a job, and away from it.

    The death of the process before is counted with the fence, in one write, before any code of the user is loaded.
    """

    def __init__(
        self,
        job_id: JobId,
        me: Owner,
        storage: JobStorage,
        clock: Clock,
        writer: Writer,
        confirmation: Confirmation,
        lease: float,
        obituary: Obituary | None,
    ) -> None:
        self._job_id = job_id
        self._me = me
        self._storage = storage
        self._clock = clock
        self._writer = writer
        self._confirmation = confirmation
        self._lease = lease
        self._obituary = obituary
        self.is_first = False
        """Nobody has had the job before."""
        self.is_doubtful = False
        """Another cluster has the job, as far as is known: what it left here is not ours to keep alive."""
        self.cause = ""
        """What is known of the death of the process before, if it was counted."""

    async def take(self) -> JobDocument:
        """Raise the fence in job and ledger; the job as it is from then on.

        Raises `Fenced` when this process is not the job's, `JobNotFound`, `OwnedElsewhere`.
        """
        fence = await self._raise_fence()
        await self._writer.certain(lambda: self._storage.fence_ledger(self._job_id, fence))
        document = await self._writer.certain(lambda: self._storage.read_job(self._job_id))
        if document is None or document.fence != fence:
            raise Fenced(self._job_id)
        # A beat is a question too: the store says whether the fence is still mine. Others look for it [S10.3].
        self._confirmation.keep_asking(lambda: self._storage.beat(self._job_id, fence), self._lease / 3)
        return document

    async def _raise_fence(self) -> int:
        while True:
            before = await self._read()
            crashes = before.crashes + await self._has_crashed(before)
            fence = await self._writer.certain(lambda: self._storage.next_number("fence"))
            if not await self._confirmation.is_current():
                raise Fenced(self._job_id)
            known, me = before.fence, replace(self._me, fence=fence)
            if await self._writer.certain(
                lambda: self._storage.raise_fence(self._job_id, known, fence, me, crashes)  # noqa: B023
            ):
                self.is_first = known == 0
                self.is_doubtful = False
                return fence
            # An incarnation that is not the job's any more was faster: the GCS says whose turn it is.

    async def _read(self) -> JobDocument:
        before = await self._writer.certain(lambda: self._storage.read_job(self._job_id))
        if before is None:
            raise JobNotFound(self._job_id)
        if is_elsewhere(before, self._me.cluster):
            self.is_doubtful = True
            return await read_when_free(self._storage, self._job_id, self._me.cluster, self._clock, self._lease)
        return before

    async def _has_crashed(self, before: JobDocument) -> bool:
        if before.owner is None or not may_be_crash(before, self._me):
            if was_ended_for_silence(before):
                self.cause = SILENCED
            return False
        if self._obituary is None:
            return True
        try:
            death = await self._obituary(before.owner)
        except Exception as error:  # noqa: BLE001 - a cluster that does not answer does not tell that it was to blame
            log.info("nothing is known of the death of %s: %s", before.owner.worker, error)
            return True
        self.cause = death.cause
        return not death.is_blameless

    async def is_lost(self, fence: int) -> bool:
        """Whether the job is not this process's any more, which had it under a fence. Waits for the store."""
        stored = await self._writer.certain(lambda: self._storage.read_job(self._job_id))
        return stored is None or stored.fence != fence

    async def find_out(self, fenced: Fenced) -> Fenced | OwnedElsewhere:
        """Who fenced me: another process of this cluster, or another cluster, which ends this actor for good."""
        try:
            stored = await self._storage.read_job(self._job_id)
        except StorageUnavailable:
            return fenced  # the next process of this actor will see
        if stored is None or stored.owner is None or not is_elsewhere(stored, self._me.cluster):
            return fenced
        return OwnedElsewhere(self._job_id, stored.owner.cluster)

    async def let_go(self, fence: int) -> None:
        """The actor ends, the job rests: whoever wants it next need not wait for a sign of this one."""
        try:
            await self._storage.raise_fence(self._job_id, fence, fence, Owner())
        except StorageUnavailable as error:
            log.info("job %r keeps its owner: %s", self._job_id, error)
