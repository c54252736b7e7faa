"""How does a request reach a job's actor? Whoever knows a way gives an `Asker`; what can come of it stands here."""

from __future__ import annotations

from typing import Protocol

from choreography_ray.engine.rest import Request


class Unanswered(Exception):
    """Nobody answered in time."""


class NobodyWorks(Exception):
    """The job has no actor, and one that is made for this request would go on with the job."""

    def __str__(self) -> str:
        return "no actor works on the job, and one made now would go on with it: stop or resume the job first"


class Asker(Protocol):
    """The way to one job's actor."""

    async def ask(self, what: Request, timeout: float) -> str | int:
        """The job's answer.

        Raises `JobNotFound`, `UnknownJobType`, `OwnedElsewhere`, `NobodyWorks`, or `Unanswered` after `timeout`
        seconds.
        """
        ...

    async def trouble(self) -> str:
        """What keeps the job's actor from writing, as far as it says within a moment; else empty."""
        ...

    async def remove_by_force(self) -> None:
        """Delete every record without any hook, after ending the job's actor for good: fence first [S9.6]."""
        ...
