"""A map's function travels like the code of a job: whatever can be called with an item, with what it uses."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from choreography_ray.code import load_code, type_reference
from choreography_ray.codec import encode
from choreography_ray.errors import InvalidJobType
from choreography_ray.mapping import MapItem, classes_for

ROOT = Path(__file__).parents[2]
SCRIPT = """
import functools, math, pickle, sys
import helper
from choreography_ray.code import describe_made_code, type_reference
from choreography_ray.mapping import classes_for

factor = 3

def plain(item):
    return item * factor

def lazy(item):
    import other
    return other.triple(item)

async def awaited(item):
    return helper.double(item)

class Caller:
    def __init__(self, by):
        self.by = by
    def __call__(self, item):
        return item * self.by
    def method(self, item):
        return item + self.by

def closing(function):
    return lambda item: function(item) + 1

functions = {
    "plain": plain, "lazy": lazy, "awaited": awaited, "lambda": lambda item: helper.double(item) + factor,
    "closure": closing(helper.double), "partial": functools.partial(pow, 2), "partial_of_user": functools.partial(
    helper.scaled, by=helper.Scale(5)), "method": Caller(5).method, "object": Caller(7), "builtin": math.sqrt,
    "beside": helper.double, "recursive": helper.factorial,
}
out = {}
for name, function in functions.items():
    job, step = classes_for(function)
    out[name] = (*describe_made_code(job, step, function), type_reference(step))
open(sys.argv[1], "wb").write(pickle.dumps(out))
"""
HELPER = """
class Scale:
    def __init__(self, by):
        self.by = by
def double(item):
    return item * 2
def scaled(item, by):
    return item * by.by
def factorial(item):
    return 1 if item < 2 else item * factorial(item - 1)
"""
EXPECTED = {
    "plain": 12,
    "lazy": 12,
    "awaited": 8,
    "lambda": 11,
    "closure": 9,
    "partial": 16,
    "partial_of_user": 20,
    "method": 9,
    "object": 28,
    "builtin": 2.0,
    "beside": 8,
    "recursive": 24,
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process captured, whose folder this one has not on its path."""
    folder = tmp_path_factory.mktemp("captured")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text(HELPER)
    (folder / "other.py").write_text("def triple(item):\n    return item * 3\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "script.py", "out"], cwd=folder, env=environment, check=True, timeout=60)
    found: dict[str, Any] = pickle.loads((folder / "out").read_bytes())
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_a_function_of_any_kind_works_where_its_modules_are_not(captured: dict[str, Any], name: str) -> None:
    """Lambdas, closures, methods, partial applications, callables, async functions, built-ins."""
    ref, copy, step_type = captured[name]
    step: Any = load_code(ref, copy).resolve(step_type)()
    step.initialize_state(MapItem(item=4))
    done = step.perform_step(step.state, None)
    assert (asyncio.run(done) if name == "awaited" else done) == EXPECTED[name]


def test_each_function_is_code_of_its_own(captured: dict[str, Any]) -> None:
    """Also two lambdas of one line: a copy is found by what it says."""
    assert len({ref.digest for ref, _, _ in captured.values()}) == len(EXPECTED)


class Wired:
    def __call__(self, item: Any) -> Any:
        return item


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (3, "something that can be called with an item"),
        (lambda: 1, "map calls it with one item: too many positional arguments"),
        (lambda a, b: 1, "map calls it with one item: missing a required argument: 'b'"),
        (lambda item: (yield item), "it cannot yield"),
    ],
)
def test_what_cannot_be_called_with_an_item_is_refused(function: Any, why: str) -> None:
    with pytest.raises(InvalidJobType, match=why):
        classes_for(function)


def test_an_item_is_stored_as_it_is() -> None:
    """The plan is readable."""
    assert encode(MapItem(item={"a": 1})) == {"~": "choreography_ray.mapping:MapItem", "item": {"a": 1}}
    job, step = classes_for(Wired())
    assert job.is_concrete
    assert step.is_concrete
    assert "<locals>" in type_reference(step), "no module has it under this name"
