"""Has new code another digest than old, whatever is new of it, and equal code the same in every process [S13]?"""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from choreography_ray.code.fingerprint import fingerprint
from tests.unit.test_code import run_python

HEAD = """
import dataclasses, enum, functools, re, sys, threading, typing
from typing import Annotated, Any, Generic, NewType, TypeVar
import pydantic
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType
"""
MEMBER = """
class Kind(enum.Enum):
    def __new__(cls, value, weight):
        made = object.__new__(cls)
        made._value_, made.weight = value, weight
        return made
    A = 1, {}
"""
LOCAL = """
def make():
    class Meta(type):
        kind = {}
    class Made(metaclass=Meta): pass
    return Made
Made = make()
del make
"""
CHANGES = {
    "a union of a field": ("class V(BaseModel):\n    x: {} | None = None", "int", "str"),
    "a pattern": ("P = re.compile('{}')", "a+", "b+"),
    "flags of a pattern": ("P = re.compile('a', {})", "re.A", "re.I"),
    "a pattern of a field": (
        "class V(BaseModel):\n    x: Annotated[str, Field(pattern=re.compile('{}'))] = 'a'",
        "a",
        "b",
    ),
    "a union": ("U = int | {}", "str", "bytes"),
    "a view of bytes": ("M = memoryview(b'{}')", "a", "b"),
    "what __new__ sets on a member": (MEMBER, "10", "20"),
    "what a member mixes in": ("class Kind({}, enum.Enum):\n    A = 1", "int", "float"),
    "an alias of a member": ("class Kind(enum.Enum):\n    A = 1\n    {} = 1", "B", "C"),
    "the config of a dataclass": (
        "@pydantic.dataclasses.dataclass(config=ConfigDict(extra='{}'))\nclass V:\n    x: int = 0",
        "ignore",
        "forbid",
    ),
    "annotations of a function": ("def use(x: {}): return x", "int", "str"),
    "a metaclass made in a function": (LOCAL, "1", "2"),
    "the bound of a type variable": ("T = TypeVar('T', bound={})", "int", "str"),
    "the size of a cache": ("@functools.lru_cache({})\ndef use(): return 1", "1", "2"),
    "an alias of a type": ("A = TypeAliasType('A', {})", "list[int]", "list[str]"),
    "a new type": ("N = NewType('N', {})", "int", "str"),
    "a stream": ("S = sys.{}", "stdout", "stderr"),
    "a constant in a cached property": (
        "class V:\n    @functools.cached_property\n    def x(self): return {}",
        "1",
        "2",
    ),
}


def digest_of(source: str) -> str:
    """Of a module with this text, as if it were the user's."""
    module = ModuleType("mine")
    sys.modules["mine"] = module
    try:
        exec(HEAD + source, vars(module))
    finally:
        del sys.modules["mine"]
    content = {name: value for name, value in vars(module).items() if name != "__builtins__"}
    return fingerprint(content, {"mine"}.__contains__)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    """And what did not change, made anew, is the same."""
    source, before, after = CHANGES[change]
    digests = [digest_of(source.replace("{}", what)) for what in (before, before, after)]
    assert digests[0] == digests[1] != digests[2]


def test_equal_code_has_one_digest_in_every_process() -> None:
    """Hash seeds, addresses and what ran before make no difference."""
    sources = [source.replace("{}", before) for source, before, _ in CHANGES.values()]
    sources.append("lock = threading.RLock()\nT = TypeVar('T', bound='V')\nclass V(BaseModel, Generic[T]):\n    x: T")
    script = (
        "import json, sys\nfrom tests.unit.test_fingerprint import digest_of\n"
        "print(json.dumps([digest_of(source) for source in json.load(sys.stdin)]))"
    )
    there = json.loads(run_python("-c", script, stdin=json.dumps(sources), PYTHONHASHSEED="7"))
    assert there == [digest_of(source) for source in sources]


def test_using_flags_changes_nothing() -> None:
    """Combinations and inversions are kept by the class when they are first made."""
    source = "class R(enum.Flag):\n    A = 1\n    B = 2\n    C = 4\n"
    assert digest_of(source + "R.A | R.B\n~R.A\nR(6)\n") == digest_of(source)


def test_what_cannot_be_told_is_new_each_time() -> None:
    """New code may pass for old never; old code may pass for new."""
    source = "class Odd:\n    def __reduce_ex__(self, protocol): raise TypeError\nodd = Odd()\n"
    assert digest_of(source) != digest_of(source)
