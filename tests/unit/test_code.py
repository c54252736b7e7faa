"""Jobs outlive the process that wrote them: their code is captured there and comes alive where its modules are not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from pydantic import BaseModel

from choreography_ray import code as code_module
from choreography_ray.actors.connection import Connection
from choreography_ray.client import AsyncChoreography, asynchronous
from choreography_ray.code import describe_code, load_code
from choreography_ray.code.ownership import defined_classes, is_installed
from choreography_ray.codec import Encoder, decode, encode
from choreography_ray.demo.jobs import IndexRequest, IndexStandardLibrary
from choreography_ray.errors import InvalidJobType, NotStorable, StartJobError, UnknownJobType
from choreography_ray.job import Job, JobState
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.storage.protocol import JobFilter

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "captured" / "script.py"


def run_python(*arguments: str, stdin: str | None = None, cwd: Path | None = None, **environment: str) -> str:
    """Standard output of another interpreter, which knows the package and nothing of these tests."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Captured(NamedTuple):
    ref: CodeRef
    copy: bytes
    request: Any
    state: Any


def capture_script(folder: Path, **environment: str) -> Captured:
    """What the script in `captured/` wrote about its job."""
    out = folder / "captured.bin"
    run_python(str(SCRIPT), str(out), cwd=folder, **environment)
    return Captured(*pickle.loads(out.read_bytes()))


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return capture_script(tmp_path_factory.mktemp("captured"), PYTHONHASHSEED="1")


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHOREOGRAPHY_SIGNING_KEY", raising=False)


def test_a_script_and_its_helpers_live_on_without_their_files(captured: Captured) -> None:
    """This process has neither the script nor its modules: payloads decode, steps are made, a body runs [S13]."""
    loaded = load_code(captured.ref, captured.copy)
    request = decode(captured.request, loaded.resolve)
    assert type(request) is loaded.job_class.request_type
    assert [type(item).__name__ for item in request.page.items] == ["Sub", "Base"]
    assert request.page.items[0].b == "kept"
    assert type(request.outer.inner).__qualname__ == "Outer.Inner"
    assert (request.color.value, request.level, request.mode, request.permission.value) == ("b", 1, "fast", 3)
    assert (request.pet.lives, request.tree.children[0].name, request.point.y, request.pair.right) == (
        3,
        "leaf",
        2,
        "r",
    )
    assert decode(captured.state, loaded.resolve).done[0].b == "x"
    job: Any = loaded.job_class()
    first, second, louder = job.prepare_steps(request)
    assert louder.step_class.is_concrete, "what a class inherits unchanged comes back too"
    assert (first.step_id, first.ray_options, second.request.n) == ("one", {"num_cpus": 0}, 7)
    step: Any = first.step_class()
    step.initialize_state(first.request)
    assert step.perform_step(step.state, None) == 12
    assert job.can_resume() is True


def test_a_traceback_of_a_copy_names_the_file_and_not_its_place(captured: Captured) -> None:
    """Whoever reads a failure wants to know which file; where it lay on another machine tells nothing."""
    loaded = load_code(captured.ref, captured.copy)
    names = {loaded.job_class.prepare_steps.__code__.co_filename, Path(SCRIPT).name}
    assert names == {"script.py"}


def test_restored_models_still_validate_and_encode_under_their_names(captured: Captured) -> None:
    """Validators, discriminators and recursive models work, and what is written here reads back here."""
    loaded = load_code(captured.ref, captured.copy)
    request = decode(captured.request, loaded.resolve)
    model = type(request)
    with pytest.raises(ValueError, match="n must be positive"):
        model(n=-1)
    read = model.model_validate_json(request.model_dump_json())
    assert type(read.pet).__name__ == "Cat"
    again = encode(request)
    assert again == captured.request
    assert decode(again, loaded.resolve) == request
    assert decode(encode(model()), loaded.resolve) == model(page=request.page), "one class for each generic argument"


def test_hard_models_come_back_whole(captured: Captured) -> None:
    """Caches, new types, private and computed fields, models that contain themselves, defaults of dataclasses."""
    loaded = load_code(captured.ref, captured.copy)
    hard = loaded.resolve("hard:Hard")
    assert issubclass(hard, BaseModel)
    made: Any = hard.model_validate(
        {"shouted": "abc", "either": {"y": 1}, "numbers": [3], "checked": {"x": "3"}, "inner": {"made": [4]}}
    )
    assert (made.shouted, made.either.y, made.numbers.root, made.checked.x, made.inner.made) == ("ABC", 1, [3], 3, [4])
    assert (made.made, made.twice, made.remembered, made._private, made.kind) == ([1], 4, 3, 5, "hard")
    assert made.model_dump()["shouted"] == "abc"
    assert type(made.measure) is loaded.resolve("hard:Measure")[int]  # type: ignore[index]
    assert decode(encode(made), loaded.resolve) == made
    with pytest.raises(TypeError, match="must"):
        loaded.resolve("hard:Plain")()


def test_two_versions_of_one_script_do_not_share_classes(tmp_path: Path) -> None:
    """A cell that is run again makes new versions of some classes: those of the older copy stay as they were."""
    script = NOTEBOOK.replace("first = describe_code(Small)[0].digest", "older = describe_code(Small)")
    script = script.replace("assert describe_code(Small)[0].digest == first", "").replace(
        "!= first", "!= older[0].digest"
    )
    script = script.replace("pickle.dumps((ref, copy, encode(Request())))", "pickle.dumps((*older, ref, copy))")
    run_python("-c", script, str(tmp_path / "out"), cwd=tmp_path)
    older, older_copy, newer, newer_copy = pickle.loads((tmp_path / "out").read_bytes())
    bodies = [load_code(ref, copy).resolve("__main__:Work") for ref, copy in [(older, older_copy), (newer, newer_copy)]]
    assert [body.perform_step.__globals__["factor"] for body in bodies] == [3, 4]  # type: ignore[attr-defined]


def test_code_that_would_not_load_elsewhere_is_refused_where_the_job_starts(tmp_path: Path) -> None:
    """Objects that pickle as a name in the notebook load here and nowhere else: found by a rehearsal."""
    named = "class Named:\n    def __reduce__(self):\n        return 'guard'\n"
    script = NOTEBOOK.replace("guard = threading.RLock()", named + "guard = Named()")
    script = script.replace("first = describe_code(Small)[0].digest", TOLD)
    said = run_python("-c", script, str(tmp_path / "out"))
    assert said.startswith("InvalidJobType")
    assert "guard of the module __main__ can only be found where that module is" in said


def test_loading_twice_gives_one_set_of_classes(captured: Captured) -> None:
    """A second load, with or without the copy at hand, is the same object."""
    assert load_code(captured.ref, captured.copy) is load_code(captured.ref)


def test_the_digest_depends_on_the_code_and_not_on_the_process(captured: Captured, tmp_path: Path) -> None:
    """Another process with another hash seed captures other bytes, and the same version; changed code is another."""
    again = capture_script(tmp_path, PYTHONHASHSEED="2")
    assert again.ref == captured.ref
    changed = tmp_path / "changed"
    changed.mkdir()
    for source in SCRIPT.parent.glob("*.py"):
        (changed / source.name).write_text(source.read_text().replace("FACTOR = 2", "FACTOR = 3"))
    run_python(str(changed / "script.py"), str(changed / "out"), cwd=changed)
    assert pickle.loads((changed / "out").read_bytes())[0].digest != captured.ref.digest


NOTEBOOK = """
import json, pickle, sys, threading
from enum import Enum
from pydantic import BaseModel
from choreography_ray.code import describe_code
from choreography_ray.codec import encode
from choreography_ray.job import Job, JobState
from choreography_ray.step import JobStep, JobStepState

guard = threading.RLock()
factor = 3

class Kind(Enum):
    BIG = 1

class Request(BaseModel):
    kind: Kind = Kind.BIG

class State(JobStepState):
    pass

class Work(JobStep[Request, int, State]):
    def initialize_state(self, request): pass
    async def perform_step(self, state, context):
        with guard:
            return factor

class Small(Job[Request, JobState]):
    def prepare_steps(self, request):
        return [self.create_step(Work, request)]

first = describe_code(Small)[0].digest
assert describe_code(Small)[0].digest == first
factor = 4
ref, copy = describe_code(Small)
assert ref.digest != first, "another value in another cell is another version"
open(sys.argv[1], "wb").write(pickle.dumps((ref, copy, encode(Request()))))
"""

TOLD = "try:\n    describe_code(Small)\nexcept Exception as error:\n    sys.exit(print(type(error).__name__, error))"
"""Instead of the notebook's first capture: what an attempt says, and no more."""


@pytest.mark.parametrize(
    ("guard", "why"),
    [
        ("open(sys.executable)", "an open file"),
        ("threading.Thread()", "a Thread lives in this process only"),
        ("__import__('ray').ObjectRef(b'1' * 28)", "a ray ObjectRef lives only as long as its cluster"),
        ("__import__('pydantic').validate_call(lambda x: x)", "apply it inside the function that uses it"),
        ("b'x' * 65 * 1024 * 1024", "its captured copy takes 68,"),
    ],
)
def test_what_only_seems_to_travel_is_refused(guard: str, why: str, tmp_path: Path) -> None:
    """Pickling an open file copies what it holds, a thread becomes one that never runs, a handle goes stale [S13]."""
    script = NOTEBOOK.replace("threading.RLock()", guard).replace("first = describe_code(Small)[0].digest", TOLD)
    said = run_python("-c", script, str(tmp_path / "out"), cwd=tmp_path)
    assert said.startswith("InvalidJobType")
    assert why in said


def test_the_streams_of_a_process_are_each_process_s_own(tmp_path: Path) -> None:
    """A body that writes to the notebook's `sys.stderr` by another name writes to that of its own process."""
    script = NOTEBOOK.replace("threading.RLock()", "sys.stderr").replace("with guard:", "if guard is sys.stderr:")
    run_python("-c", script, str(tmp_path / "out"), cwd=tmp_path)
    ref, copy, _ = pickle.loads((tmp_path / "out").read_bytes())
    body: Any = load_code(ref, copy).resolve("__main__:Work")
    assert body.perform_step.__globals__["guard"] is sys.stderr


HELD = {
    "file": "open(sys.executable)",
    "thread": "threading.Thread()",
    "generator": "(number for number in [1])",
    "socket": "socket.socket()",
    "MongoClient": "pymongo.MongoClient('mongodb://localhost:1', connect=False)",
    "Collection": "pymongo.MongoClient('mongodb://localhost:1', connect=False).a.b",
    "AsyncMongoClient": "pymongo.AsyncMongoClient('mongodb://localhost:1')",
    "Connection": "sqlite3.connect(':memory:')",
    "ThreadPoolExecutor": "concurrent.futures.ThreadPoolExecutor()",
    "_UnixSelectorEventLoop": "asyncio.new_event_loop()",
    "ObjectRef": "ray.ObjectRef(b'1' * 28)",
    "ActorHandle": "handle_of_nobody()",
    "Popen": "subprocess.Popen.__new__(subprocess.Popen)",
    "mmap": "mmap.mmap(-1, 10)",
    "ContextVar": "contextvars.ContextVar('x')",
}
HOLDERS = """
import asyncio, concurrent.futures, contextvars, functools, mmap, pymongo, ray, socket, sqlite3, subprocess
from choreography_ray.code import describe_made_code
from choreography_ray.mapping import classes_for

def handle_of_nobody():
    handle = ray.actor.ActorHandle.__new__(ray.actor.ActorHandle)
    # What it looks for when it goes: without them it would ask itself for ever.
    vars(handle).update(_method_shells={}, _ray_is_cross_language=False, _ray_weak_ref=True)
    return handle

def told(attempt):
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "captured"

class Held:
    def __init__(self, held):
        self.held = held
    def method(self, item):
        return item
    def __call__(self, item):
        return item

def closing(held):
    return lambda item: (held, item)

def mapped(function):
    return told(lambda: describe_made_code(*classes_for(function), function))

def nested(item):
    return [guard for _ in range(item)]

out = {}
for kind, made in HELD.items():
    guard = eval(made)
    out[kind] = told(lambda: describe_code(Small))
guard = open(sys.executable)
out["global of a map"] = mapped(nested)
out["caught"] = mapped(closing(guard))
out["method"] = mapped(Held(guard).method)
out["callable"] = mapped(Held(guard))
out["partial"] = mapped(functools.partial(max, guard))
out["default"] = mapped(lambda item, held=guard: item)
out["built-in"] = mapped(guard.read)
print(json.dumps(out))
"""
FAULTS = {
    "global of a map": "nested uses guard of the module __main__ (a TextIOWrapper)",
    "caught": "closing.<locals>.<lambda> has caught held (a TextIOWrapper)",
    "method": "a Held has the attribute held (a TextIOWrapper)",
    "callable": "a Held has the attribute held (a TextIOWrapper)",
    "partial": "a partial application holds a value (a TextIOWrapper)",
    "default": "<lambda> has a default value (a TextIOWrapper)",
    "built-in": "Mapped has the attribute function (a builtin_function_or_method)",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said of each thing that cannot be captured, by what holds it."""
    script = NOTEBOOK.partition("first = ")[0] + f"\nHELD = {HELD!r}\n" + HOLDERS
    said: dict[str, str] = json.loads(run_python("-c", script, cwd=tmp_path_factory.mktemp("refused")))
    return said


@pytest.mark.parametrize("kind", HELD)
def test_what_cannot_leave_its_process_is_refused_by_the_name_that_holds_it(
    refusals: dict[str, str], kind: str
) -> None:
    """Files, threads, sockets, clients, handles of Ray: the sentence names method, global, module and kind [S13]."""
    name = {"file": "TextIOWrapper", "thread": "Thread"}.get(kind, kind)
    who = f"Work.perform_step uses guard of the module __main__ (a {name}), which cannot leave its process: "
    assert refusals[kind].startswith(f"InvalidJobType: __main__:Small: its code cannot be captured: {who}")


@pytest.mark.parametrize("holder", FAULTS)
def test_a_function_for_map_that_holds_on_to_an_open_file_is_refused_before_it_starts(
    refusals: dict[str, str], holder: str
) -> None:
    """Whatever way it holds on to it."""
    assert refusals[holder].startswith("InvalidJobType: ")
    assert f"{FAULTS[holder]}, which cannot leave its process: " in refusals[holder]


@pytest.mark.parametrize("way", ["-c", "-"])
def test_a_notebook_has_no_file_to_come_back_to(way: str, tmp_path: Path) -> None:
    """Classes typed into an interpreter are captured with the values that their bodies use, locks made anew."""
    out = tmp_path / "out"
    if way == "-c":
        run_python("-c", NOTEBOOK, str(out), cwd=tmp_path)
    else:
        run_python("-", str(out), stdin=NOTEBOOK, cwd=tmp_path)
    ref, copy, request = pickle.loads(out.read_bytes())
    loaded = load_code(ref, copy)
    job: Any = loaded.job_class()
    (step,) = job.prepare_steps(decode(request, loaded.resolve))
    assert step.step_class.is_async
    with pytest.raises(StopIteration) as returned:
        step.step_class().perform_step(None, None).send(None)
    assert returned.value.value == 4


def test_what_cannot_be_captured_is_an_error_only_when_needed(captured: Captured) -> None:
    """A class beside the script that holds on to a socket costs itself only, and says why."""
    loaded = load_code(captured.ref, captured.copy)
    with pytest.raises(
        UnknownJobType,
        match=r"Talker\.send uses SOCKET of the module shapes \(a socket\), which",
    ):
        loaded.resolve("shapes:Talker")


def test_a_job_that_needs_what_cannot_leave_its_process_is_refused_with_the_name(tmp_path: Path) -> None:
    """The sentence names the method and the global at fault."""
    script = NOTEBOOK.replace("threading.RLock()", "__import__('socket').socket()")
    said = run_python("-c", script.replace("first = describe_code(Small)[0].digest", TOLD), str(tmp_path / "out"))
    assert said.startswith("InvalidJobType")
    assert "Work.perform_step uses guard of the module __main__ (a socket), which cannot leave its process" in said


def test_installed_code_is_pointed_at_by_name() -> None:
    """Nothing is captured of a job class that every node can import."""
    ref, copy = describe_code(IndexStandardLibrary)
    assert (ref, copy) == (CodeRef("choreography_ray.demo.jobs", "IndexStandardLibrary"), None)
    loaded = load_code(ref)
    assert loaded.job_class is IndexStandardLibrary
    assert loaded.resolve("pathlib:Path") is Path


@pytest.mark.parametrize("module", [json, pytest, dataclasses, code_module])
def test_libraries_are_installed(module: Any) -> None:
    """The standard library, site-packages and this package are found wherever they are installed."""
    assert is_installed(module)


def test_a_module_that_lies_about_is_the_users() -> None:
    """This test module is part of no distribution."""
    assert not is_installed(sys.modules[__name__])


@pytest.mark.parametrize(
    ("ref", "why"),
    [
        (CodeRef("no_such_module_here", "X"), "needs the module 'no_such_module_here', which is not installed here"),
        (CodeRef("json", "NoSuchName"), "the module 'json' has no 'NoSuchName'"),
        (CodeRef("json", "JSONDecoder"), "JSONDecoder in module json is no subclass of Job"),
        (CodeRef("choreography_ray.job", "Job"), "Job in module choreography_ray.job is abstract"),
        (CodeRef("__main__", "X"), "X was defined in a notebook or script"),
        (CodeRef("m", "X", digest="d", python="2.7"), "captured with Python 2.7, and this is Python"),
        (CodeRef("m", "X", digest="d", python=code_module.PYTHON), "its captured copy is not in the store"),
    ],
)
def test_code_that_cannot_be_loaded_is_told_in_a_sentence(ref: CodeRef, why: str) -> None:
    """Whatever is in the way is an `UnknownJobType` that says so [S13]."""
    with pytest.raises(UnknownJobType, match=why):
        load_code(ref, None)


def with_header(copy: bytes, **fields: str) -> bytes:
    """The copy with other fields in its header."""
    head, _, payload = copy.partition(b"\n")
    return json.dumps({**json.loads(head), **fields}).encode() + b"\n" + payload


@pytest.mark.parametrize(
    "damage",
    [
        lambda copy: copy[:-5],
        lambda copy: b"nonsense",
        lambda copy: b"",
        lambda copy: b"[" * 100_000,
        lambda copy: with_header(copy, sha256="\u00fc\ud800"),
    ],
)
def test_a_damaged_copy_is_refused(captured: Captured, damage: Any) -> None:
    """A copy that is cut short or is something else is not unpickled."""
    other = dataclasses.replace(captured.ref, qualname="Damaged")
    with pytest.raises(UnknownJobType, match="damaged"):
        load_code(other, damage(captured.copy))


def test_a_copy_that_needs_a_missing_module_says_which(tmp_path: Path) -> None:
    """Modules that are installed where the job was started, and not here, are named."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "far_away.py").write_text("def help(): return 1\n")
    script = NOTEBOOK.replace("import json,", "import far_away, json,").replace(
        "return factor", "return factor + far_away.help()"
    )
    run_python("-c", script, str(tmp_path / "out"), PYTHONPATH=f"{ROOT}:{site}", cwd=tmp_path)
    ref, copy, _ = pickle.loads((tmp_path / "out").read_bytes())
    with pytest.raises(UnknownJobType, match="needs the module 'far_away', which is not installed here"):
        load_code(ref, copy)


def test_with_a_signing_key_only_copies_signed_with_it_are_loaded(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed: loads. Unsigned, signed with another key, changed, or swapped for another record's: refused [S13]."""
    signed = capture_script(tmp_path, CHOREOGRAPHY_SIGNING_KEY="secret")
    assert signed.ref.digest != captured.ref.digest, "a signed copy must not be stored where an unsigned one is"
    forged = with_header(captured.copy, signature="00")
    monkeypatch.setenv("CHOREOGRAPHY_SIGNING_KEY", "another")
    with pytest.raises(UnknownJobType, match="not signed with this signing key"):
        load_code(signed.ref, signed.copy)
    monkeypatch.setenv("CHOREOGRAPHY_SIGNING_KEY", "secret")
    for ref, copy in [
        (captured.ref, captured.copy),
        (signed.ref, captured.copy),
        (signed.ref, forged),
        (signed.ref, with_header(captured.copy, signature="\u00fc\ud800")),
        (dataclasses.replace(signed.ref, signature="\u00fc"), signed.copy),
        (dataclasses.replace(signed.ref, qualname="Other"), signed.copy),
    ]:
        with pytest.raises(UnknownJobType, match="not signed with this signing key"):
            load_code(ref, copy)
    assert load_code(signed.ref, signed.copy).job_class.__name__ == "EchoJob"


def test_two_modules_with_one_label_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of both would look like versions of one job type [S13]."""
    monkeypatch.setattr(code_module, "_label_owners", {"IndexStandardLibrary": "somewhere.other"})
    with pytest.raises(InvalidJobType, match=r"module somewhere\.other has a job type 'IndexStandardLibrary' as well"):
        describe_code(IndexStandardLibrary)


def test_the_class_that_a_name_leads_to_is_captured_under_it() -> None:
    """In whichever order a module holds it and an older one of the same name, whose cell was run again."""
    for names in (["Old", "Item"], ["Item", "Old"]):
        module = ModuleType("rerun")
        vars(module).update(dict.fromkeys(names))
        for name in ("Old", "Item"):
            setattr(module, name, type("Item", (), {"__module__": "rerun", "Inner": type("Inner", (), {})}))
            inner: Any = getattr(module, name).Inner
            inner.__module__, inner.__qualname__ = "rerun", "Item.Inner"
        item: Any = getattr(module, "Item")  # noqa: B009 - no checker knows it
        assert defined_classes([module]) == {"rerun:Item": item, "rerun:Item.Inner": item.Inner}


JOBS = """
from typing import Any
from pydantic import BaseModel
from choreography_ray import Job, JobState, JobStep, JobStepState
import known
class Request(BaseModel):
    value: Any = None
class Draw(JobStep[Request, Any, JobStepState]):
    def initialize_state(self, request):
        pass
    def perform_step(self, state, context):
        return 1
class DrawAll(Job[Request, JobState]):
    def prepare_steps(self, request):
        return [self.create_step(Draw, request)]
def draw(shape):
    return shape
"""
SHAPES = """
import threading
from pydantic import BaseModel
class Circle(BaseModel):
    radius: int = 1
class Lock(BaseModel):
    lock: object = threading.Thread()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of a user: `jobs` imports `known`, and nobody imports `unknown`."""
    for name, text in (("jobs", JOBS), ("known", SHAPES), ("unknown", SHAPES)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with patch.dict(sys.modules):
        yield tmp_path


@pytest.mark.parametrize("way", ["start", "map"])
def test_a_start_with_a_value_whose_class_no_other_process_would_have_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """With its path, and before anything is saved: the job could only be found to be broken."""
    monkeypatch.setattr(asynchronous, "own_runtime_env", dict[str, Any])  # asks Ray
    jobs, known, unknown = map(import_module, ("jobs", "known", "unknown"))
    storage = MemoryStorage()
    cluster: Any = object()
    client = AsyncChoreography(storage, Connection("test", ""), JobsOptions(), cluster)

    async def start(job: Any, *values: Any) -> None:
        await (client.start(job, jobs.Request(value=[*values])) if way == "start" else client.map(job, values))

    job = jobs.DrawAll if way == "start" else jobs.draw
    place = {"start": r"request\.value\[1\]", "map": r"items\[1\]"}[way]
    for value, why in (
        (unknown.Circle(), "the class unknown:Circle is neither installed nor captured with '.raw.*': import it"),
        (known.Lock(), "the class known:Lock could not be captured: "),
    ):
        with pytest.raises((NotStorable, StartJobError), match=f"{place}: {why}"):
            asyncio.run(start(job, known.Circle(), value))
        assert asyncio.run(storage.list_jobs(JobFilter())) == []


def test_an_installed_job_is_refused_a_value_of_a_class_that_is_not(folder: Path) -> None:
    """Its code is imported, so that there is no copy that the class could come with."""
    encode = Encoder(load_code(describe_code(IndexStandardLibrary)[0]).why_missing).encode
    assert encode([IndexRequest(root="", out="", run=""), folder, CodeRef("a", "b")])
    with pytest.raises(NotStorable, match=r"\[1\].*known:Circle is neither installed nor captured with"):
        encode([1, import_module("known").Circle()])


def test_a_job_defined_inside_a_function_is_captured_too() -> None:
    """No module has such a class under its name, so it cannot be imported."""

    class Local(Job[IndexRequest, JobState]):
        def prepare_steps(self, request: Any) -> list[Any]:
            return []

    ref, copy = describe_code(Local)
    assert ref.digest
    assert copy is not None
    assert load_code(ref).resolve(f"{__name__}:{Local.__qualname__}") is Local
