"""The real time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from choreography_ray.core.instant import Instant


class SystemClock:
    """Monotonic seconds for waits, UTC for what is stored."""

    def instant(self) -> Instant:
        """See `engine.ports.Clock`."""
        return Instant(time.monotonic(), datetime.now(UTC))

    async def sleep(self, seconds: float) -> None:
        """See `engine.ports.Clock`."""
        await asyncio.sleep(seconds)
