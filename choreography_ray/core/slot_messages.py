"""What do a job and the throttle say to each other about slots? [S5.7, protocol part 2]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from choreography_ray.model import HostId, JobId
from choreography_ray.records import Run


@dataclass(frozen=True, slots=True)
class Held:
    """Slots in use: `width` concurrent bodies of one run on one host that is not known to be over."""

    host: HostId
    run: Run
    width: int


class ExchangeKey(NamedTuple):
    """Tells one exchange from every other, over restarts of the job actor."""

    job: JobId
    actor: str
    fence: int
    n: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A job's statement, and its question for `wanted` more slots.

    `held` and `unused` are the whole truth of what the job holds: they replace what the throttle knew, so a slot that
    is missing from them is thereby given back. `actor` is the job actor's id at Ray, `boot` the throttle rebuild that
    the job believes to address, `n` grows with each exchange of a fence and makes every earlier one void.
    """

    job: JobId
    actor: str
    fence: int
    boot: int
    n: int
    held: tuple[Held, ...]
    unused: int
    wanted: int

    @property
    def key(self) -> ExchangeKey:
        """What the reply is addressed to."""
        return ExchangeKey(self.job, self.actor, self.fence, self.n)

    @property
    def size(self) -> int:
        """Slots that the job holds in all."""
        return self.unused + sum(held.width for held in self.held)


@dataclass(frozen=True, slots=True)
class Granted:
    """`k` further slots, zero or more, for exchange `n` and nothing else."""

    boot: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Restate:
    """The throttle is rebuild `boot`, not the one addressed: say again what you hold. Nothing was changed."""

    boot: int


@dataclass(frozen=True, slots=True)
class FencedReply:
    """Exchange `n` came from somebody who seems not to be the job's actor any more. Nothing was changed."""

    n: int


Reply = Granted | Restate | FencedReply
