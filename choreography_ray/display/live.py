"""What is a live view, and what must it know beside the latest record? The rate, and which stages to show."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from choreography_ray.model import JobRecord, StageProgress, StepRecord

SHOWN_FAILURES = 20
"""Failures that a live view tells one by one; further ones are only counted."""
SHOWN_STAGES = 10
"""Stages that a live view has a bar for; the others are folded into one line."""
RATE_WINDOW = 30.0
"""Seconds over which the rate is measured."""


class LiveView(Protocol):
    """Shows a job while it runs, as a context: whatever happens inside, it leaves things in order."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, record: JobRecord, failures: Sequence[StepRecord] = ()) -> None:
        """Show `record`, and those of `failures` that were not told before."""
        ...

    @property
    def failures_told(self) -> int:
        """How many failures were told one by one."""
        ...

    @property
    def wants_failures(self) -> bool:
        """False once enough were told: the caller may save itself reading them."""
        ...


class Rate:
    """Steps per second over the last `RATE_WINDOW`, and what that means for the rest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, done: int) -> None:
        """Take note that `done` steps are settled now."""
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > RATE_WINDOW:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """Zero until something was settled while it was watched."""
        (began, before), (ended, after) = self._seen[0], self._seen[-1]
        return max(0, after - before) / (ended - began) if ended > began else 0.0

    def seconds_for(self, steps: int) -> float | None:
        """How long `steps` more will take at this rate; None when there is none to go by."""
        rate = self.per_second
        return steps / rate if rate else None


def shown_stages(record: JobRecord) -> list[tuple[int | None, StageProgress]]:
    """At most `SHOWN_STAGES` stages around the one that the job has reached; the sum of the others under None."""
    stages = sorted(record.progress.stages.items())
    if len(stages) <= SHOWN_STAGES:
        return list(stages)
    reached = sum(1 for stage, _ in stages if record.stage is not None and stage < record.stage)
    first = max(0, min(reached - SHOWN_STAGES // 2, len(stages) - SHOWN_STAGES))
    shown, others = stages[first : first + SHOWN_STAGES], stages[:first] + stages[first + SHOWN_STAGES :]
    folded = StageProgress(
        total=sum(counts.total for _, counts in others),
        succeeded=sum(counts.succeeded for _, counts in others),
        failed=sum(counts.failed for _, counts in others),
        stopped=sum(counts.stopped for _, counts in others),
        unreachable=sum(counts.unreachable for _, counts in others),
    )
    return [*shown, (None, folded)]
