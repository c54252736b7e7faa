"""Does an Enum of the user come back from its copy as it was [S13, S12.3]?"""

from __future__ import annotations

import pickle
from array import array
from enum import Enum
from typing import Any

import pytest

from choreography_ray.code import LoadedCode, load_code
from choreography_ray.code.enums import reduce_member
from choreography_ray.codec import decode, encode
from tests.unit.test_code import run_python

SCRIPT = """
import dataclasses, datetime, enum, pickle, sys, uuid
from pydantic import BaseModel
from choreography_ray import Job, JobState
from choreography_ray.code import describe_code
from choreography_ray.codec import encode

class Planet(enum.Enum):
    EARTH = 6e24, 6e6
    TERRA = 6e24, 6e6
    MARS = 6e23, 3e6
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius
    @property
    def ratio(self): return self.mass / self.radius

class Label(enum.StrEnum):
    def __new__(cls, value, label):
        made = str.__new__(cls, value)
        made._value_, made.label = value, label
        return made
    A = "a", "the letter"

class Code(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made
    PX = 7, "P.X"
    def __repr__(self): return self.label

@dataclasses.dataclass(frozen=True)
class Info:
    size: int
    kind: str = "k"
class Sized(Info, enum.Enum):
    BIG = 3, "x"
    SMALL = 4

class Right(enum.Flag):
    R = 1
    W = 2
    RW = R | W
    X = 4
class Strict(enum.IntFlag, boundary=enum.STRICT):
    A = 1
class Day(datetime.date, enum.Enum):
    FIRST = 2020, 1, 2

class Meta(enum.EnumMeta):
    def __call__(cls, value="default", *more): return super().__call__(value, *more)
class Chosen(enum.Enum, metaclass=Meta):
    @staticmethod
    def _generate_next_value_(name, start, count, last): return name + "!"
    DEFAULT = "default"
    TEXT = enum.auto()
    @classmethod
    def _missing_(cls, value): return cls.TEXT
    @property
    def next(self): return NEXT[self]
NEXT = {Chosen.DEFAULT: Chosen.TEXT, Chosen.TEXT: Chosen.DEFAULT}
Chosen.DEFAULT.partner = Chosen.TEXT
Chosen.TEXT.partner = Chosen.DEFAULT

def told():
    return {
        "planet": (Planet.EARTH.ratio, Planet.TERRA is Planet.EARTH, Planet["TERRA"].name, len(Planet),
                   Planet((6e23, 3e6)).radius),
        "label": (Label.A.label, Label("a") is Label.A, Label.A + "!", repr(Label.A)),
        "code": (Code.PX.label, Code(7) is Code.PX, bytes(Code.PX)),
        "sized": (Sized.BIG.size, Sized.SMALL.kind, repr(Sized.BIG), Sized(Sized.BIG.value) is Sized.BIG),
        "right": (Right.RW.name, Right.R | Right.W is Right.RW, list(Right.RW), repr(~Right.R), repr(Right(5)),
                  WX is Right.W | Right.X),
        "strict": (Strict.__members__.keys() == {"A"}, Strict._boundary_ is enum.STRICT),
        "day": (Day.FIRST.year, Day.FIRST.isoformat()),
        "chosen": (repr(Chosen()), Chosen("?").value, Chosen.TEXT.next.next.name, Chosen.DEFAULT.partner.partner.name),
    }
WX = Right.W | Right.X

class Nothing(BaseModel): pass
class Work(Job[Nothing, JobState]):
    def prepare_steps(self, request): return told()

if __name__ == "__main__":
    values = [Right.RW, Right.R | Right.X, Planet.TERRA, Label.A, Code.PX, Sized.SMALL, Day.FIRST]
    pickle.dump((describe_code(Work), repr(told()), encode(values), repr(values)), open(sys.argv[1], "wb"))
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedCode, str, Any, str]:
    folder = tmp_path_factory.mktemp("enums")
    run_python("-c", SCRIPT, str(folder / "out"), cwd=folder)
    (ref, copy), told, stored, values = pickle.loads((folder / "out").read_bytes())
    return load_code(ref, copy), told, stored, values


def test_enums_come_back_with_all_that_their_members_are(captured: tuple[LoadedCode, str, Any, str]) -> None:
    """Attributes of `__init__` and `__new__`, aliases, mixed-in values, combinations, metaclass, boundary, cycles."""
    loaded, told, _, _ = captured
    there: Any = loaded.job_class().prepare_steps(None)  # type: ignore[arg-type]
    assert repr(there) == told


def test_stored_members_and_combinations_decode_to_those_of_the_copy(
    captured: tuple[LoadedCode, str, Any, str],
) -> None:
    """What was stored where the Enum is defined is read where only its copy is, and written alike."""
    loaded, _, stored, values = captured
    read = decode(stored, loaded.resolve)
    assert repr(read) == values
    assert encode(read) == stored
    right: Any = loaded.resolve("__main__:Right")
    assert read[0] is right.RW
    assert read[1] is right.R | right.X


def test_an_enum_of_what_cannot_be_copied_is_refused() -> None:
    """Its value is known to the built-in class alone, which does not tell it."""

    class Odd(array, Enum):  # type: ignore[type-arg]
        ONE = "b", [1]

    with pytest.raises(pickle.PicklingError, match="Odd is also a array, which cannot be copied"):
        reduce_member(Odd.ONE)
