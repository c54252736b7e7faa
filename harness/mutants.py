"""Would a test fail if a rule of the core were wrong? `python -m harness.mutants --mutants 150 --seed 1`.

Takes a sample of small changes to `choreography_ray/core`, spread over its files: a comparison moved or turned, a
condition negated, `and` for `or`, a number one more, plus for minus, `min` for `max`, a statement dropped. Each is made
in a copy of the checkout, and the fastest tests run first, until one fails. What survives is printed, for a reader to
judge.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CORE = Path("choreography_ray/core")
NEEDED = ("choreography_ray", "tests", "harness", "pyproject.toml")
_CORE = "attempts decisions hosts inbox job_machine ledger policies starting transitions verifying work"
UNIT = [
    *(f"tests/unit/test_core_{name}.py" for name in _CORE.split()),
    *(f"tests/unit/test_{name}.py" for name in ("throttle", "supervising", "waiting")),
]
"""What runs first, for every mutant."""
OF_FILE = {
    "admission": ("admission",),
    "attempts": ("failures", "too_large"),
    "control": ("virtual_cluster", "control"),
    "explaining": ("explaining",),
    "job_machine": ("virtual_cluster", "control"),
    "ownership": ("two_clusters",),
    "stages": ("control",),
    "starting": ("stories", "explaining"),
    "step_stops": ("step_stops",),
    "stopping": ("virtual_cluster", "step_stops"),
    "supervising": ("supervisor",),
    "verifying": ("verification",),
}
"""Tests of the simulation that know a file best; the others have `USUAL`."""
USUAL = ("stories", "failures", "random_walks")
STAGE_SECONDS = 400.0
"""With a mutant that makes a loop endless the tests take so long."""

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """One change of one file."""

    file: Path
    line: int
    before: str
    after: str
    text: str
    """The whole file with it."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}"


def _negated(test: ast.expr) -> ast.expr:
    return test.operand if isinstance(test, ast.UnaryOp) else ast.UnaryOp(ast.Not(), test)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may stand in the place of this one."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in _TURNED:
            yield ast.Compare(left, [_TURNED[type(op)]()], [right])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.If(test, body, orelse):
            yield ast.If(_negated(test), body, orelse)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(_negated(test), body, orelse)
        case ast.comprehension(target, source, [first, *others], is_async):
            yield ast.comprehension(target, source, [_negated(first), *others], is_async)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)) | ast.Constant(float(value)):
            yield ast.Constant(value + 1)
        case ast.BinOp(left, ast.Add(), right):
            yield ast.BinOp(left, ast.Sub(), right)
        case ast.BinOp(left, ast.Sub(), right):
            yield ast.BinOp(left, ast.Add(), right)
        case ast.Call(ast.Name(name), given, named) if name in _SWAPPED:
            yield ast.Call(ast.Name(_SWAPPED[name]), given, named)
        case ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case _:
            pass


_NOT_CODE = ("annotation", "returns", "decorator_list", "type_params", "bases", "keywords_of_class")


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node with where it hangs, but for annotations and decorators."""
    for name, value in ast.iter_fields(tree):
        if name in _NOT_CODE:
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if isinstance(child, ast.AST):
                yield tree, name, index if isinstance(value, list) else None, child
                yield from _places(child)


def mutants_of(file: Path) -> list[Mutant]:
    """All of a file, in the order of its lines."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found: list[Mutant] = []
    for parent, name, index, child in list(_places(tree)):
        for other in _changed(child):
            ast.fix_missing_locations(ast.copy_location(other, child) if hasattr(child, "lineno") else other)
            where = getattr(parent, name)
            if index is None:
                setattr(parent, name, other)
            else:
                where[index] = other
            text = ast.unparse(ast.fix_missing_locations(copy.copy(tree)))
            if index is None:
                setattr(parent, name, child)
            else:
                where[index] = child
            line = getattr(child, "lineno", getattr(getattr(child, "target", None), "lineno", 0))
            found.append(Mutant(file, line, _short(child), _short(other), text))
    return found


def _short(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).split("\n", 1)[0][:100]


def sample(count: int, seed: int) -> list[Mutant]:
    """So many, of each file in proportion to what there is to change in it, but at least two."""
    chance = random.Random(seed)
    files = sorted(path.relative_to(ROOT) for path in (ROOT / CORE).glob("*.py"))
    by_file = {file: found for file in files if (found := mutants_of(file))}
    total = sum(map(len, by_file.values()))
    chosen = [
        one
        for found in by_file.values()
        for one in chance.sample(found, min(len(found), max(2, round(count * len(found) / total))))
    ]
    chance.shuffle(chosen)
    return chosen


def _simulation(names: Iterable[str]) -> list[str]:
    return [f"tests/simulation/test_{name}.py" for name in names]


def stages_of(file: Path) -> list[list[str]]:
    """What runs for a mutant of a file, the fastest first."""
    known = OF_FILE.get(file.stem)
    return [UNIT, *([_simulation(known)] if known else []), _simulation(USUAL)]


def killer_of(checkout: Path, mutant: Mutant) -> str:
    """What kills it; empty: nothing does."""
    target = checkout / mutant.file
    original = target.read_text(encoding="utf-8")
    target.write_text(mutant.text, encoding="utf-8")
    try:
        for number, stage in enumerate(stages_of(mutant.file), 1):
            if how := failure_of(checkout, stage):
                return f"{how} at stage {number}"
    finally:
        target.write_text(original, encoding="utf-8")
    return ""


def failure_of(checkout: Path, stage: list[str]) -> str:
    """Whether a test of a stage fails, or takes too long; empty: neither."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *stage]
    quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=checkout, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return "fails" if process.wait(STAGE_SECONDS) else ""
    except subprocess.TimeoutExpired:
        return "hangs"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """The exit code: 1 when the tests fail as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no other after so long")
    given = parser.parse_args()
    began, killed, lived = time.monotonic(), defaultdict[str, int](int), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = Path(folder)
        for name in NEEDED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, checkout / name)  # type: ignore[operator]
        if how := failure_of(checkout, [*UNIT, *_simulation(USUAL)]):
            print(f"without a change a test {how}")
            return 1
        for number, mutant in enumerate(sample(given.mutants, given.seed), 1):
            if time.monotonic() - began > given.minutes * 60:
                break
            if by := killer_of(checkout, mutant):
                killed[by] += 1
            else:
                lived += 1
                print(f"SURVIVES {mutant}", flush=True)
            if number % 10 == 0:
                print(f"{time.monotonic() - began:.0f} s: {number} tried, {lived} live", flush=True)
    print(f"{sum(killed.values())} killed, {lived} live, in {time.monotonic() - began:.0f} s: {dict(killed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
