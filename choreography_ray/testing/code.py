"""A job's code as it stands in this process: also what a test defines inside its own function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from choreography_ray.code import type_reference
from choreography_ray.codec.classes import led_to
from choreography_ray.errors import UnknownJobType
from choreography_ray.job import Job
from choreography_ray.step import JobStep


@dataclass(frozen=True)
class LivingCode:
    """See `engine.ports.Loaded`. Nothing is captured, and nothing is imported that is not there."""

    job_class: type[Job[Any, Any]]
    types: dict[str, type] = field(default_factory=dict[str, type])
    """Those that no module has, by the name that payloads use; more are found when they are asked for."""

    def resolve(self, name: str) -> type:
        """The class that a payload names "module:qualname". Raises `UnknownJobType`."""
        module, _, qualname = name.partition(":")
        if name not in self.types:
            found = led_to(sys.modules.get(module), qualname)
            if isinstance(found, type):
                return found
            self.types.update({type_reference(cls): cls for cls in _descendants(Job, JobStep, BaseModel)})
        if name not in self.types:
            raise UnknownJobType(name, f"no class {qualname} is in module {module}")
        return self.types[name]


def _descendants(*roots: type) -> Iterator[type]:
    """Newest last: a test that ran before may have made others of the same name."""
    waiting: list[type] = list(roots)
    while waiting:
        below: list[type] = waiting.pop(0).__subclasses__()
        for cls in below:
            waiting.append(cls)
            if "<locals>" in cls.__qualname__:
                yield cls
