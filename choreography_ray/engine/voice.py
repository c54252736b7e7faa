"""What a job says to the throttle while it has no machine: what its ledger shows as assigned [S5.7].

A throttle that was rebuilt waits for every job actor that Ray lists, and takes a new actor of a job for the holder of
what the last one held until it has spoken. And one that says nothing for a lease is taken for stuck [S10.4]. So one
that loads its code or prepares for long, or only rests, must speak too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from choreography_ray.core.slot_messages import Exchange, Held, Reply
from choreography_ray.core.slots import JobSlots
from choreography_ray.engine.ports import Clock

log = logging.getLogger(__name__)

Speak = Callable[[Exchange], Awaitable[Reply | None]]
"""One exchange with the throttle; None: it was dropped there. Raises when the call fails."""


class Voice:
    """Speaks for one incarnation until its machine does."""

    def __init__(self, slots: JobSlots, speak: Speak | None, clock: Clock) -> None:
        self._slots = slots
        self._speak = speak
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def begin(self, held: Iterable[Held]) -> None:
        """State what is held, again and again."""
        if self._speak is not None and self._task is None:
            self._slots.restore(held)
            self._task = asyncio.get_running_loop().create_task(self._live(self._speak))

    def end(self) -> None:
        """Somebody else speaks from now on, or nobody."""
        if self._task is not None:
            self._task.cancel()

    async def _live(self, speak: Speak) -> None:
        while True:
            now = self._clock.instant().now
            exchange = self._slots.exchange_due(now)
            if exchange is None:
                await self._clock.sleep(max(0.01, min(self._slots.next_due() - now, self._slots.lease)))
                continue
            try:
                reply = await speak(exchange)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the next one says the same
                log.info("the throttle was not reached: %s", error)
                self._slots.failed(exchange.n, self._clock.instant().now)
            else:
                if reply is not None:
                    self._slots.receive(reply, self._clock.instant().now)
