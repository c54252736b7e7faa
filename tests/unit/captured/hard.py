"""What pydantic and functools make that pickle alone would not bring back: caches, new types, models in a circle."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, ClassVar, Generic, NewType, TypeVar, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    RootModel,
    Tag,
    computed_field,
    field_serializer,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass


@functools.lru_cache(maxsize=5)
def slow(number: int) -> int:
    return number + 1


UserId = NewType("UserId", str)
Number = TypeVar("Number", int, float)


def upper(text: str) -> str:
    return text.upper()


class A(BaseModel):
    x: int = 0


class B(BaseModel):
    y: int = 0


def tag_of(value: Any) -> str:
    return "a" if isinstance(value, A) or "x" in value else "b"


@pydantic_dataclass
class Checked:
    x: int = 1


@dataclasses.dataclass
class Plain:
    must: int
    more: list[int] = dataclasses.field(default_factory=list)


class Numbers(RootModel[list[int]]):
    pass


class Measure(BaseModel, Generic[Number]):
    value: Number
    parts: list[Measure[Number]] = []


class Hard(BaseModel):
    model_config = ConfigDict(extra="allow")
    kind: ClassVar[str] = "hard"
    user: UserId = UserId("u")
    checked: Checked = Checked()
    numbers: Numbers = Numbers([1])
    shouted: Annotated[str, AfterValidator(upper)] = "X"
    either: Annotated[Union[Annotated[A, Tag("a")], Annotated[B, Tag("b")]], Discriminator(tag_of)] = A()  # noqa: UP007
    made: list[int] = Field(default_factory=lambda: [slow(0)], max_length=9)
    measure: Measure[int] = Measure[int](value=1)
    plain: Plain = Plain(1)
    inner: Hard | None = None
    _private: int = PrivateAttr(default=5)

    @computed_field
    @property
    def twice(self) -> int:
        return slow(1) * 2

    @functools.cached_property
    def remembered(self) -> int:
        return slow(2)

    @field_serializer("shouted")
    def _lower(self, value: str) -> str:
        return value.lower()
