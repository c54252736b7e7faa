"""What did a benchmark find: medians of pairs measured side by side, their target, and how they are told."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any


@dataclass(frozen=True)
class Target:
    """A bound on a finding's value: from below, or from above."""

    bound: float
    is_minimum: bool

    def is_met(self, value: float) -> bool:
        """Whether a value keeps to it."""
        return value >= self.bound if self.is_minimum else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.is_minimum else '≤'} {self.bound:g}"


def at_least(bound: float) -> Target:
    """A target that is met from the bound up."""
    return Target(bound, is_minimum=True)


def at_most(bound: float) -> Target:
    """A target that is met up to the bound."""
    return Target(bound, is_minimum=False)


@dataclass(frozen=True)
class Finding:
    """The answer to a question, in one number.

    `ours` and `other` are side by side, a pair a round; without `other` our own number is the answer. `settings`
    tell what else one must know to read it. Rates and durations alike: the target knows which side is the good one.
    """

    what: str
    unit: str
    ours: tuple[float, ...]
    against: str = ""
    other: tuple[float, ...] = ()
    target: Target | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.ours or (self.other and len(self.other) != len(self.ours)):
            raise ValueError(f"{self.what}: {len(self.ours)} of ours beside {len(self.other)} of the other")

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours against the other, a ratio a pair."""
        return tuple(ours / other for ours, other in zip(self.ours, self.other, strict=bool(self.other)))

    @property
    def value(self) -> float:
        """What the target is about: the median ratio, or the median of ours where there is no other."""
        return statistics.median(self.ratios or self.ours)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None when there is none."""
        return None if self.target is None else self.target.is_met(self.value)

    @property
    def verdict(self) -> str:
        """The same as a word."""
        return {None: "", True: "met", False: "missed"}[self.is_met]

    def lines(self) -> list[str]:
        """For people."""
        told = [self.what, f"  {'choreography-ray':30} {statistics.median(self.ours):12,.4g} {self.unit}"]
        if self.other:
            told.append(f"  {self.against:30} {statistics.median(self.other):12,.4g} {self.unit}")
            spread = f"median of {len(self.ratios)}, {min(self.ratios):.2f} to {max(self.ratios):.2f}"
            told.append(f"  {'ratio':30} {self.value:12,.3g} ({spread})")
        if self.target is not None:
            told.append(f"  {'target':30} {self.target!s:>12} {self.verdict}")
        told += [f"  {name}: {value}" for name, value in self.settings.items()]
        return told

    def as_json(self) -> dict[str, Any]:
        """For programs; `from_json` reads it."""
        return asdict(self) | {"value": self.value, "is_met": self.is_met}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Finding:
        """What `as_json` told."""
        target = None if found["target"] is None else Target(**found["target"])
        return cls(
            found["what"],
            found["unit"],
            tuple(found["ours"]),
            found["against"],
            tuple(found["other"]),
            target,
            found["settings"],
        )


def conditions() -> dict[str, Any]:
    """Where and when: absolute numbers depend on the machine and on what else it does."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "ray": version("ray"),
        "choreography-ray": version("choreography-ray"),
    }
