"""What the engines need of the world: clock, hosts, throttle and user code. Ray, or the testing harness, provides it.

The fifth port is `storage.protocol.JobStorage`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from choreography_ray.job import Job
from choreography_ray.model import HostId, JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, Columns, Group, OutcomeDocument, Payload, Run, StepKind, columns, rows

if TYPE_CHECKING:  # a host starts without what only job and supervisor need
    from choreography_ray.core.instant import Instant
    from choreography_ray.core.slot_messages import Exchange
    from choreography_ray.core.supervising import ListedActor

T = TypeVar("T")


class Clock(Protocol):
    """Time, real or virtual."""

    def instant(self) -> Instant:
        """The present."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Loaded(Protocol):
    """A job's code, loaded."""

    @property
    def job_class(self) -> type[Job[Any, Any]]: ...

    def resolve(self, name: str) -> Any:
        """The class that a payload names."""
        ...


class StepWork(NamedTuple):
    """One step that a host is to perform."""

    ordinal: int
    attempt: int
    step_id: StepId
    state: Payload
    crashes: int = 0
    base: int = 0
    """As in its `StepDocument`: a checkpoint writes it again."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a host is told: the steps of one run, `width` of them at a time."""

    host: HostId
    run: Run
    width: int
    stage: int
    step_type: str
    steps: tuple[StepWork, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _work, (self.host, self.run, self.width, self.stage, self.step_type, columns(self.steps))


def _work(host: HostId, run: Run, width: int, stage: int, step_type: str, steps: Columns) -> Work:
    return Work(host, run, width, stage, step_type, rows(StepWork, steps))


@dataclass(frozen=True, slots=True)
class Lease:
    """Answers a host that asks. `seconds` count from when it asked; None: nothing is left to do, it ends itself.

    The first answer says what the host needs to know of the job, and what to perform first, if that is known by then.
    """

    seconds: float | None
    fence: int = 0
    work: Work | None = None
    code: CodeRef | None = None
    options: JobsOptions | None = None


class JobPort(Protocol):
    """The job actor, as its hosts see it. Calls may be lost, repeated, or answered by a later incarnation."""

    async def ask(self, host: HostId, is_first: bool) -> Lease:
        """Ask for a lease, or to renew it."""
        ...

    async def deliver(self, document: OutcomeDocument) -> None:
        """Tell outcomes; returns once they are recorded [S6.4]."""
        ...


class HostsPort(Protocol):
    """The hosts, as their job sees them. Nothing here blocks; what happens comes back as events."""

    def create(self, host: HostId, kind: StepKind) -> None:
        """Create the host: `HostFailedToStart`, `HostWaited`, `HostWithdrawn` and `HostDied` tell what became of it."""
        ...

    def tell(self, work: Work) -> None:
        """Tell a live host a group, until it has answered or is gone."""
        ...

    def stop(self, host: HostId, run: Run, ordinals: tuple[int, ...] = ()) -> None:
        """Tell a live host to stop steps of a run, all if none is named: what has not begun never will.

        Until it has answered or is gone.
        """
        ...

    def end(self, host: HostId) -> None:
        """End the process of a host that has nothing left to tell."""
        ...

    def kill(self, host: HostId, grace: float) -> None:
        """End a host's process from outside; `HostDied` once that is confirmed.

        As long as a callback runs there that had begun, and answers are given, it may go on for `grace` seconds.
        """
        ...

    def inspect(self, groups: Sequence[Group]) -> None:
        """After recovery: adopt what has begun (`HostCameUp`), end the rest (`HostDied`, once confirmed)."""
        ...


class JobActors(Protocol):
    """The actors of all jobs of a namespace, as the supervisor sees them. Calls raise when nobody answers."""

    @property
    def cluster(self) -> str:
        """The id of the cluster that they are in."""
        ...

    def name(self, job_id: JobId) -> str:
        """How a job's actor is listed."""
        ...

    def job_id(self, name: str) -> JobId | None:
        """Whose actor is listed by this name; None where the name does not tell."""
        ...

    async def listed(self) -> Mapping[str, ListedActor]:
        """Every actor of a job that the GCS runs, or will run by itself, by its name."""
        ...

    async def revive(self, job_id: JobId) -> None:
        """Make the job's actor if there is none; returns once it has taken the job over, raises when it cannot."""
        ...

    async def end(self, job_id: JobId, actor_id: str) -> None:
        """End the job's actor for good, if it is this one. One that is gone is no error."""
        ...

    async def silences(self) -> Mapping[str, float]:
        """Seconds since the throttle has heard of each actor of a job that it knows, by its name."""
        ...


class ThrottlePort(Protocol):
    """The throttle; a reply comes back as `ThrottleReplied`, a failed call as `ExchangeFailed`."""

    def send(self, message: Exchange) -> None:
        """Send an exchange."""
        ...


class UserCode(Protocol):
    """Runs the user's functions off the actor's loop: `def` on a thread, `async def` on a loop of its own [S14.3]."""

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """The function's value, awaited if it is awaitable. Raises what it raises, or `TimeoutError`."""
        ...

    async def pull(self, iterator: Iterator[T] | AsyncIterator[T], most: int) -> list[T]:
        """The next values of a generator of the user's, at most `most`; fewer only at its end."""
        ...


class BodyRunner(Protocol):
    """Performs steps, `width` at a time: blocking bodies on threads, async ones on a loop of their own thread."""

    async def run_blocking(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], None]) -> None:
        """Call `perform` for each step; it never raises."""
        ...

    async def run_async(self, steps: Sequence[StepWork], width: int, perform: Callable[[StepWork], Any]) -> None:
        """Await `perform` for each step; it never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a process is, for the records of failures."""

    node: str
    pid: int


class Process(Protocol):
    """The host's own process."""

    @property
    def whereabouts(self) -> Whereabouts: ...

    def live_until(self, seconds: float) -> None:
        """Have the kernel end the process so many seconds from now, whatever it does then; a later call replaces it."""
        ...

    def end(self) -> None:
        """End the process at once, without leaving anything behind."""
        ...
