"""Which job does `map` start? One step per item, each a call of the user's function [S2.3]."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from choreography_ray.authoring.context import BlockingStepContext, StepContext
from choreography_ray.errors import InvalidJobType
from choreography_ray.job import Job, JobState, StepDetails
from choreography_ray.model import StepHosting
from choreography_ray.step import JobStep, JobStepState


class MapItem(BaseModel):
    """One item of a map, as the request of its step."""

    item: Any = None


class MapItemState(JobStepState):
    """What a step of a map keeps: its item."""

    item: Any = None


class MapRequest(BaseModel):
    """What a map was started with; its items are in its plan."""

    function: str
    is_empty: bool = False


class MapJob(Job[MapRequest, JobState]):
    """The job of every map. Its plan is saved by the program that starts it, as the items come."""

    keep_results = True

    def prepare_steps(self, request: MapRequest) -> list[StepDetails]:
        """Only called when the plan is not there: it is empty, or whoever was saving it is gone."""
        if request.is_empty:
            return []
        raise RuntimeError("not all items had been saved by the program that started it, and they cannot be had again")

    def can_retry_failed_steps(self) -> bool:
        """A map's steps depend on nothing but their items."""
        return True


class MapStep(JobStep[MapItem, Any, MapItemState]):
    """What steps of maps have in common. Derived classes have the `function`."""

    hosting = StepHosting.SHARED_ACTORS
    function: Callable[[Any], Any]

    def initialize_state(self, request: MapItem) -> None:
        """Keep the item."""
        self.state.item = request.item

    def perform_step(self, state: MapItemState, context: BlockingStepContext) -> Any:
        """Call the function."""
        return type(self).function(state.item)


class AsyncMapStep(MapStep):
    """The same for a function that is `async def`."""

    async def perform_step(self, state: MapItemState, context: StepContext) -> Any:  # type: ignore[override]
        """Call the function and await it."""
        return await type(self).function(state.item)


def title_of(function: object) -> str:
    """How a function is named to people."""
    name = getattr(function, "__qualname__", None) or getattr(function, "func", None)
    return name if isinstance(name, str) else title_of(name) if name is not None else type(function).__qualname__


def classes_for(function: Callable[[Any], Any]) -> tuple[type[MapJob], type[MapStep]]:
    """Job and step class of a map. Raises `InvalidJobType` for what cannot be called with one item."""
    title = title_of(function)
    if not callable(function):
        raise InvalidJobType(title, "map needs something that can be called with an item")
    if type(function).__module__.partition(".")[0] == "ray":
        raise InvalidJobType(title, "map calls the function itself: pass it as it was before ray.remote")
    try:
        inspect.signature(function).bind(None)
    except TypeError as problem:
        raise InvalidJobType(title, f"map calls it with one item: {problem}") from None
    except ValueError:
        pass  # a built-in without a readable signature: it may be right
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidJobType(title, "a function for map returns its result once: it cannot yield")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    # Local classes go into a captured copy by value, whatever module they are of.
    class Mapping(MapJob):
        pass

    class Mapped(AsyncMapStep if is_async else MapStep):  # type: ignore[misc]
        pass

    Mapped.function = staticmethod(function)
    return Mapping, Mapped
