"""What is typed, and what is stored, may be anything: it is refused with an error of ours, never with a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typer.main import get_command

from choreography_ray.cli import main
from choreography_ray.cli.app import app
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.output import ExitCode
from choreography_ray.codec import decode, encode, import_type
from choreography_ray.codec.forms import DECODERS, TAG
from choreography_ray.errors import ClusterUnavailable, UnknownJobType

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CODES = {code.value for code in ExitCode}

# The command line.

GROUP: Any = get_command(app)
OPTIONS = sorted({name for command in GROUP.commands.values() for one in command.params for name in one.opts})
MODULE = """
from pydantic import BaseModel
from choreography_ray.job import Job, JobState

class Request(BaseModel):
    index: str
    shards: list[int] = []

class Rebuild(Job[Request, JobState]):
    def prepare_steps(self, request):
        return []
"""
HARMLESS = sorted(set(GROUP.commands) - {"up", "down", "demo", "doctor"})
"""Commands that do nothing beside what they ask of a client."""

PLACES = ["@", "@/", "@/dev/null", "a:b", ":", "..:x", ".:x", "a..b:c", "job_here:Rebuild", "=", "-", "--"]
typed = st.text(max_size=40) | st.sampled_from(["\x00", "\x1b[2J", "\ud800", *PLACES])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("index", "shards", "~", "")), inner),
    max_leaves=6,
)
requests = st.one_of(typed, json_values.map(json.dumps), st.binary(max_size=30).map(lambda b: b.decode("latin-1")))


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A folder with a job, and no cluster."""

    def nothing(self: Connection, **_: Any) -> Any:
        raise ClusterUnavailable("nowhere", "there is none")

    (tmp_path / "job_here.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "job_here", raising=False)
    monkeypatch.setattr(Connection, "open", nothing)
    yield
    sys.modules.pop("job_here", None)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An exit code of ours, and one line unless it is help that was asked for."""
    code = main([each.replace("--debug", "") for each in arguments])
    _, err = capsys.readouterr()
    assert code in CODES
    assert "Traceback" not in err
    assert code == ExitCode.OK or (err.endswith("\n") and len(err.splitlines()) == 1), err
    assert not any(ord(each) < 32 and each != "\n" for each in err), err


@FEW
@given(st.sampled_from(HARMLESS), st.lists(typed | st.sampled_from(OPTIONS), max_size=5))
def test_any_command_line_is_an_exit_code_and_a_line(
    nowhere: None, capsys: pytest.CaptureFixture[str], command: str, rest: list[str]
) -> None:
    refused([command, *rest], capsys)


@FEW
@given(requests, typed, typed)
def test_any_request_id_and_label_is_an_exit_code_and_a_line(
    nowhere: None, capsys: pytest.CaptureFixture[str], request: str, job_id: str, label: str
) -> None:
    line = ["run", "job_here:Rebuild", f"--request={request}", f"--job-id={job_id}", f"--label={label}"]
    refused(line, capsys)


@FEW
@given(st.binary(max_size=60))
def test_any_file_with_a_request_is_an_exit_code_and_a_line(
    nowhere: None, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    Path("request.json").write_bytes(content)
    refused(["run", "job_here:Rebuild", "--request", "@request.json"], capsys)


# The codec.

T = TypeVar("T")


class Model(BaseModel):
    """One that is stored."""

    a: int = 0
    b: Any = None


class Box(BaseModel, Generic[T]):
    """One with a parameter."""

    item: T


KNOWN: dict[str, type] = {"app:Model": Model, "app:Box": Box, "builtins:int": int}


def resolve(name: str) -> type:
    if name not in KNOWN:
        raise UnknownJobType(name, "there is none")
    return KNOWN[name]


REAL = [encode(Model(a=1, b=[(1, 2), {3: b"x"}, 2**70, float("nan"), 1 + 2j])), encode({1: {(1, 2), (3, 4)}})]
KEYS = sorted({TAG, "~s", "~p", "~x", "~a", "value", "items", "a", "b", "item"})
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.sampled_from([*DECODERS, *KNOWN, *REAL]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    | st.builds(
        lambda tag, rest: {**rest, TAG: tag},
        st.sampled_from([*DECODERS, *KNOWN]) | inner,
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    ),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(payloads)
def test_any_document_decodes_or_is_unknown(payload: Any) -> None:
    try:
        decode(payload, resolve)
    except UnknownJobType:
        pass


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=20).filter(lambda text: text.partition(":")[0] not in sys.stdlib_module_names))
def test_any_name_of_a_class_is_found_or_unknown(name: str) -> None:
    try:
        import_type(name)
    except UnknownJobType:
        pass


@pytest.mark.parametrize(
    "name", [".:x", "..a:b", "os:", ":", "", "os.path:join", "\x00:a", "a.:b", "\ud800:a", "os:\ud800"]
)
def test_a_name_that_is_no_class_is_unknown(name: str) -> None:
    with pytest.raises(UnknownJobType):
        import_type(name)
