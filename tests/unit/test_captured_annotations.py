"""Do annotations that are text mean in a copy what they meant where it was made [S13]?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.test_code import run_python

KINDS = """
from __future__ import annotations

import dataclasses, pickle, typing
from datetime import datetime as moment
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
import pydantic
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType, TypedDict
from choreography_ray import Job, JobState

Tree = TypeAliasType("Tree", "list[Tree] | Shape | Leaf")
Leaf = TypeAliasType("Leaf", "dict[str, moment]")
U = TypeVar("U")
Several = TypeAliasType("Several", list[U], type_params=(U,))
Count = Annotated[int, Field(gt=0)]

@dataclasses.dataclass
class Plain:
    when: moment | None = None
    inner: list[Plain] = dataclasses.field(default_factory=list)
class Pair(NamedTuple):
    when: moment
    count: Count = 1
class Typed(TypedDict):
    when: moment
    shape: Shape
@pydantic.dataclasses.dataclass
class Checked:
    when: moment | None = None
    shape: Shape | None = None
T = TypeVar("T", bound="Shape")
class Box(BaseModel, Generic[T]):
    item: T
class Shape(BaseModel):
    side: int = 1
class Many(BaseModel):
    plain: Plain
    pair: Pair
    typed: Typed
    checked: Checked
    box: Box[Shape]
    tree: Tree
    several: Several[int]
    @pydantic.computed_field
    @property
    def when(self) -> moment | None: return self.plain.when

def told():
    class Local(BaseModel):
        when: moment
        shape: Shape
    @dataclasses.dataclass
    class Loose:
        count: Count
    day = "2020-01-02"
    many = Many(
        plain={"when": day, "inner": [{"when": day}]}, pair=[day], typed={"when": day, "shape": {"side": "2"}},
        checked={"when": day, "shape": {}}, box={"item": {"side": "3"}},
        tree=[[{"side": 4}], {"on": day}], several=["5"],
    )
    hints = typing.get_type_hints(Plain)["when"], typing.get_type_hints(Loose, include_extras=True)["count"]
    return [
        repr(many), many.model_dump_json(), repr(Local(when=day, shape={})), repr(Checked(when=day)), repr(hints),
        repr(pydantic.TypeAdapter(Plain).validate_python({"when": day})),
        repr(pydantic.TypeAdapter(Loose).validate_python({"count": "2"})),
        repr(Box(item=Shape())), repr(pickle.loads(pickle.dumps(Shape(side=4)))),
    ]

class Nothing(BaseModel): pass
class Work(Job[Nothing, JobState]):
    def prepare_steps(self, request): return told()
"""
WRITE = """
import json, pickle, sys
from choreography_ray.code import describe_code
pickle.dump((describe_code({job}), json.dumps({told}())), open("out", "wb"))
"""
TRY = """
from choreography_ray.code import describe_code
try:
    describe_code(Work)
except Exception as error:
    print(error)
"""
READ = """
moment = "another thing of this process"
import json, pickle, sys
from choreography_ray.code import load_code
(ref, copy), told = pickle.load(open(sys.argv[1], "rb"))
job = load_code(ref, copy, is_alone=True).job_class
print(json.dumps([json.loads(told), job().prepare_steps(None)]))
"""


@pytest.mark.parametrize("place", ["script", "module"])
def test_annotations_that_are_text_are_found_where_the_script_and_its_modules_are_not(
    place: str, tmp_path: Path
) -> None:
    """In models, dataclasses, tuples, dicts, type variables, and in what bodies define, ask for, and pickle."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    if place == "script":
        (here / "script.py").write_text(KINDS + WRITE.format(job="Work", told="told"))
    else:
        (here / "kinds.py").write_text(KINDS)
        (here / "script.py").write_text("import kinds\n" + WRITE.format(job="kinds.Work", told="kinds.told"))
    run_python(str(here / "script.py"), cwd=here)
    told, again = json.loads(run_python("-c", READ, str(here / "out"), cwd=there))
    assert again == told


def test_a_type_alias_that_holds_itself_is_refused_by_a_sentence(tmp_path: Path) -> None:
    """Only `type` statements make one; the text in a TypeAliasType means the same."""
    script = KINDS + '\nobject.__setattr__(Several, "__value__", list[Several])\n' + TRY
    assert "the type alias Several contains itself: name it there as text" in run_python("-c", script, cwd=tmp_path)


def test_a_copy_whose_annotations_mean_nothing_elsewhere_is_refused(tmp_path: Path) -> None:
    """The trial does not find what only this process has: a function that an annotation calls is not taken along."""
    script = KINDS.replace(
        "@dataclasses.dataclass\nclass Plain", "def odd(): return moment\n\n@dataclasses.dataclass\nclass Plain"
    )
    script = script.replace("    when: moment\n    count", "    when: odd()\n    count")
    assert "its captured copy would not load (" in run_python("-c", script + TRY, cwd=tmp_path)


BASES = """
from __future__ import annotations
from datetime import datetime as moment
from typing_extensions import TypedDict
class Base(TypedDict):
    when: moment
"""
HEIRS = """
from __future__ import annotations
import sys
from datetime import date as moment
from pydantic import BaseModel
from bases import Base
from choreography_ray import Job, JobState

sys.seen = []
class Heir(Base):
    day: moment
class Watching(BaseModel):
    heir: Heir
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        getattr(sys, "seen", []).append(sys.modules.get("heirs"))
        return handler(source)
class Work(Job[Watching, JobState]):
    def prepare_steps(self, request): return repr(Watching(heir={"when": "2020-01-02T03:04", "day": "2020-01-02"}))
"""
START = """
import json, pickle, sys
import heirs
from choreography_ray.code import describe_code
sys.seen.clear()
captured = describe_code(heirs.Work)
pickle.dump((captured, json.dumps(heirs.Work().prepare_steps(None))), open("out", "wb"))
print(len(sys.seen), all(seen is heirs for seen in sys.seen))
"""


def test_while_a_copy_is_tried_other_threads_find_their_own_modules(tmp_path: Path) -> None:
    """Two starts at once: the second would capture the classes of the first one's copy, which nobody's values have.

    And a dict that inherits from another module's has annotations that mean what they mean there.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    for name, text in {"bases": BASES, "heirs": HEIRS, "script": START}.items():
        (here / f"{name}.py").write_text(text)
    seen, is_own = run_python(str(here / "script.py"), cwd=here).split()
    assert int(seen) > 0
    assert is_own == "True"
    told, again = json.loads(run_python("-c", READ, str(here / "out"), cwd=there))
    assert again == told
