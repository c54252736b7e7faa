"""Does captured code find its own modules and classes where there are none of their names, or others [S13]?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_code import run_python

FILES = {
    "app/__init__.py": "VERSION = 1\n",
    "app/parts.py": "from . import VERSION\ndef version():\n    return VERSION\n",
    "app/deep/__init__.py": "",
    "app/deep/er.py": """
def beyond():
    from .... import nothing
def near():
    from ..parts import version
    return version()
""",
    "spaces/inner.py": "def told():\n    return 'inner'\n",
    "late.py": """
import sys
def told():
    return 'captured', sys.modules[__name__].told is told
""",
    "plugins.py": """
from pydantic import BaseModel

class Plugin:
    made = []
    by_tag = {}
    def __init_subclass__(cls, tag, **kwargs):
        super().__init_subclass__(**kwargs)
        Plugin.made.append(cls)
        Plugin.by_tag[tag] = cls

class First(Plugin, tag="first"): pass
class Second(First, tag="second"): pass

class Shape(BaseModel):
    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs):
        SHAPES[cls.__name__] = cls

SHAPES = {}
class Square(Shape):
    side: int = 1
class Box(Shape):
    inner: Square = Square()

def check():
    class Third(First, tag="third"): pass
    assert Plugin.made == [First, Second, Third], Plugin.made
    assert Plugin.by_tag == {"first": First, "second": Second, "third": Third}
    assert Second.__bases__ == (First,)
    assert SHAPES == {"Square": Square, "Box": Box}
    assert type(Box.model_validate({"inner": {"side": "3"}}).inner) is Square
    return "whole"
""",
    "job.py": """
import json, pickle, sys
from pydantic import BaseModel
from choreography_ray import Job, JobState, JobStep, JobStepState
from choreography_ray.code import describe_code
import plugins

class Nothing(BaseModel): pass

class Step(JobStep[Nothing, object, JobStepState]):
    def initialize_state(self, request): pass
    def perform_step(self, state, context): pass

class OfPackage(Step):
    def perform_step(self, state, context):
        from app.parts import version
        return version()

class OfDeepPackage(Step):
    def perform_step(self, state, context):
        import app.deep.er
        return app.deep.er.near()

class OfNamespacePackage(Step):
    def perform_step(self, state, context):
        from spaces.inner import told
        return told()

class OfModule(Step):
    def perform_step(self, state, context):
        import late
        return late.told()

class OfRegistry(Step):
    def perform_step(self, state, context):
        return plugins.check()

class Tries(Job[Nothing, JobState]):
    def prepare_steps(self, request):
        return [self.create_step(cls, Nothing()) for cls in Step.__subclasses__()]

if __name__ == "__main__":
    open(sys.argv[1], "wb").write(pickle.dumps(describe_code(Tries)))
""",
}
PERFORM = """
import json, pickle, sys
from choreography_ray.code import load_code
ref, copy = pickle.load(open(sys.argv[1], "rb"))
job = load_code(ref, copy, is_alone=True).job_class
steps = [step.step_class() for step in job().prepare_steps(None)]
print(json.dumps({type(step).__name__: step.perform_step(None, None) for step in steps}))
"""
EXPECTED = {
    "OfPackage": 1,
    "OfDeepPackage": 1,
    "OfNamespacePackage": "inner",
    "OfModule": ["captured", True],
    "OfRegistry": "whole",
}
TASK = """
import asyncio, pickle, sys
import ray.cloudpickle
from choreography_ray.actors.connection import load_stored_code
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.writes import Writer
from choreography_ray.storage.memory import MemoryStorage
ref, copy = pickle.load(open(sys.argv[1], "rb"))

async def load():
    storage = MemoryStorage()
    await storage.save_code(ref.digest, copy, {}, __import__("datetime").datetime.now())
    await load_stored_code(storage, Writer(SystemClock()), ref)

asyncio.run(load())
import late
open(sys.argv[2], "wb").write(ray.cloudpickle.dumps(late.told))
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a script of many modules captured of its job."""
    folder = tmp_path_factory.mktemp("captured")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    out = tmp_path_factory.mktemp("copy") / "copy"
    run_python("job.py", str(out), cwd=folder)
    return out


def perform(captured: Path, where: Path) -> Any:
    return json.loads(run_python("-c", PERFORM, str(captured), cwd=where))


def test_bodies_find_packages_that_they_import_when_they_run(captured: Path, tmp_path: Path) -> None:
    """Relative imports and packages without `__init__` too; an import that is wrong is wrong only where it runs.

    What a class notes of its subclasses is there once, and names the very classes.
    """
    assert perform(captured, tmp_path) == EXPECTED


def test_a_process_of_the_job_takes_no_newer_module_of_the_same_name(captured: Path, tmp_path: Path) -> None:
    """The script was edited since: its job goes on with the code that it was started with."""
    for name in ("late.py", "app/__init__.py", "app/parts.py", "spaces/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('this is another version')")
    assert perform(captured, tmp_path) == EXPECTED


def test_tasks_of_ray_that_a_body_starts_need_no_captured_module(captured: Path, tmp_path: Path) -> None:
    """Functions of such a module leave the process by value, also once it was imported there."""
    run_python("-c", TASK, str(captured), str(tmp_path / "task"), cwd=tmp_path)
    called = "import pickle, sys; assert pickle.load(open(sys.argv[1], 'rb')).__name__ == 'told'; print('found')"
    assert run_python("-c", called, str(tmp_path / "task"), cwd=tmp_path).strip() == "found"


LAZY = """
import functools, json, pickle
from pydantic import BaseModel
from choreography_ray import Job, JobState
from choreography_ray.code import describe_code

def wrapping(function):
    @functools.wraps(function)
    def inner(*arguments): return function(*arguments)
    return inner

@wrapping
def wrapped():
    import wrapped_helper
    return wrapped_helper.told

class Outer:
    @property
    def behind(self):
        import property_helper
        return property_helper.told
    @functools.cached_property
    def once(self):
        import cached_helper
        return cached_helper.told
    class Inner:
        @staticmethod
        def nested():
            import nested_helper
            return nested_helper.told

def applied(_):
    import partial_helper
    return partial_helper.told
TABLE = {"applied": functools.partial(applied, 1)}
del applied

class Nothing(BaseModel): pass
class Work(Job[Nothing, JobState]):
    def prepare_steps(self, request):
        return [wrapped(), Outer().behind, Outer().once, Outer.Inner.nested(), TABLE["applied"]()]
pickle.dump(describe_code(Work), open("out", "wb"))
"""


def test_modules_that_functions_import_are_found_wherever_the_functions_are_held(tmp_path: Path) -> None:
    """Behind a decorator, a property, in a class within a class, in a table of partial applications."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    kinds = ["wrapped", "property", "cached", "nested", "partial"]
    for kind in kinds:
        (here / f"{kind}_helper.py").write_text(f"told = {kind!r}\n")
    (here / "script.py").write_text(LAZY)
    run_python(str(here / "script.py"), cwd=here)
    read = (
        "import json, pickle, sys; from choreography_ray.code import load_code; "
        "loaded = load_code(*pickle.load(open(sys.argv[1], 'rb')), is_alone=True); "
        "print(json.dumps(loaded.job_class().prepare_steps(None)))"
    )
    assert json.loads(run_python("-c", read, str(here / "out"), cwd=there)) == kinds
