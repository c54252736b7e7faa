"""Until when may an incarnation promise its hosts anything? While store or GCS say that it is the job's [S10.2]."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf

from choreography_ray.engine.ports import Clock

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 0.5
"""Pause after a question that got no answer."""

Question = Callable[[], Awaitable[bool]]
"""Is this incarnation still the job's? Raises when nobody answers."""


class Confirmation:
    """What confirms one incarnation: for a lease from when it asked. Either witness will do, so a database that is
    away ends nobody; one that says no refutes it for good.

    Without `is_current`, the question to the GCS, nothing bounds what is promised: for worlds without one.
    """

    def __init__(self, clock: Clock, lease: float, is_current: Question | None) -> None:
        self._clock = clock
        self._lease = lease
        self._is_current = is_current
        self._until = -inf
        self._tasks: list[asyncio.Task[None]] = []
        self.refuted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if is_current is not None:
            self.keep_asking(is_current, lease / 6)

    def left(self) -> float:
        """Seconds that a lease given now may last; not above zero: none may be given."""
        if self.refuted.done():
            return 0.0
        if self._is_current is None:
            return self._lease
        return min(self._lease, self._until - self._clock.instant().now)

    async def is_current(self) -> bool:
        """What the GCS says, once it answers."""
        while self._is_current is not None:
            try:
                return await self._is_current()
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
                log.info("the GCS did not answer: %s", error)
                await self._clock.sleep(ASK_AGAIN_SECONDS)
        return True

    def keep_asking(self, question: Question, interval: float) -> None:
        """Ask this witness now, then every `interval` seconds, until `close`."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep_asking(question, interval)))

    async def _keep_asking(self, question: Question, interval: float) -> None:
        while not self.refuted.done():
            asked = self._clock.instant().now
            try:
                is_ours = await question()
            except Exception as error:  # noqa: BLE001 - silence neither confirms nor refutes
                log.info("the incarnation was not confirmed: %s", error)
                await self._clock.sleep(ASK_AGAIN_SECONDS)
                continue
            if is_ours:
                self._until = max(self._until, asked + self._lease)
                await self._clock.sleep(interval)
            elif not self.refuted.done():
                self.refuted.set_result(None)

    def close(self) -> None:
        """Ask no more; nothing is confirmed any longer."""
        for task in self._tasks:
            task.cancel()
        if not self.refuted.done():
            self.refuted.set_result(None)
