"""What lists of jobs and steps are: lists, that a notebook shows as tables, page by page."""

from __future__ import annotations

from typing import Self, SupportsIndex, TypeVar, overload

from choreography_ray.display import jobs_html, steps_html
from choreography_ray.model import JobRecord, StepRecord

T = TypeVar("T")


class Paged(list[T]):
    """A list whose slices are such lists too: `steps[100:200]` shows the second page."""

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> T: ...

    @overload
    def __getitem__(self, index: slice, /) -> Self: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> T | Self:
        return type(self)(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)


class StepList(Paged[StepRecord]):
    """Steps of a job, in the order of its plan."""

    def _repr_html_(self) -> str:
        return steps_html(self)


class JobList(Paged[JobRecord]):
    """Jobs, in the order in which the store gave them."""

    def _repr_html_(self) -> str:
        return jobs_html(self)
