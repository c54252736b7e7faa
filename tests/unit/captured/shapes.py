"""A module beside the script: what payloads are made of, and things that cannot be pickled."""

from __future__ import annotations

import dataclasses
import enum
import logging
import socket
import threading
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union

from pydantic import BaseModel, Field, field_validator

log = logging.getLogger(__name__)
LOCK = threading.Lock()
SOCKET = socket.socket()
FACTOR = 2


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T] = []
    next: Page[T] | None = None


class Base(BaseModel):
    a: int = 1


class Sub(Base):
    b: str = "x"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


Pet = Annotated[Union[Cat, Dog], Field(discriminator="kind")]  # noqa: UP007


class Tree(BaseModel):
    name: str = ""
    children: list[Tree] = []


class Outer(BaseModel):
    class Inner(BaseModel):
        n: int = 0

    inner: Inner = Inner()

    @field_validator("inner", mode="before")
    @classmethod
    def _guarded(cls, value: Any) -> Any:
        log.debug("checking")
        with LOCK:
            return value


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Talker(BaseModel):
    """Needs something that cannot leave its process, so it cannot be captured; the others can."""

    def send(self) -> None:
        SOCKET.send(b"")


def double(number: int) -> int:
    return number * FACTOR
