"""The commands on real Ray and a real store, from `up` to `down`, and what is left of bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import choreography, processes_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]

JOBS = """
from pydantic import BaseModel
from choreography_ray import Job, JobState, JobStep, JobStepState

class Piece(BaseModel):
    number: int
    fails: bool

class PieceState(JobStepState):
    piece: Piece = Piece(number=0, fails=False)

class Work(JobStep[Piece, int, PieceState]):
    ray_options = {"num_cpus": 0}

    def initialize_state(self, request):
        self.state.piece = request

    def perform_step(self, state, context):
        if state.piece.fails:
            raise ValueError("no [bold]luck\\x1b[31m")
        return state.piece.number

class Request(BaseModel):
    pieces: int = 4
    failing: int = 0

class State(JobState):
    total: int = 0

class Add(Job[Request, State]):
    def prepare_steps(self, request):
        for number in range(request.pieces):
            yield self.create_step(Work, Piece(number=number, fails=number < request.failing))

class NoStepClass(Job[Request, State]):
    def prepare_steps(self, request):
        yield self.create_step(str, request)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with jobs in a module, whose cluster is up."""
    made = tmp_path_factory.mktemp("commands")
    (made / "sums.py").write_text(JOBS)
    up = choreography(made, "up", own_ray=False)
    assert up.code == 0, up.err
    yield made
    down = choreography(made, "down", own_ray=False)
    assert down.code == 0, down.err
    assert processes_of(str(made)) == []


def test_a_job_outlives_the_command_that_started_it(folder: Path) -> None:
    """Started without waiting, then watched by another process to its end, then read by a third."""
    started = choreography(folder, "run", "sums:Add", "--job-id", "a/b $1", "--label", "team=x", own_ray=False)
    assert started.code == 0, started.err
    watched = choreography(folder, "watch", "a/b $1", "--timeout", "120", own_ray=False)
    assert watched.code == 0, watched.err
    assert "4 of 4 steps succeeded" in watched.out
    (job,) = json.loads(choreography(folder, "list", "--label", "team=x", "--json", own_ray=False).out)
    assert (job["job_id"], job["status"]) == ("a/b $1", "COMPLETED_SUCCESSFULLY")


def test_failures_are_told_and_exit_with_3(folder: Path) -> None:
    """What a body put into its message reaches the terminal as text."""
    request = ("--request", '{"pieces": 5, "failing": 2}')
    ran = choreography(folder, "run", "sums:Add", *request, "--job-id", "failing", "--wait", own_ray=False)
    assert ran.code == 3, ran.err
    assert ran.out.count("ValueError: no [bold]luck") == 2
    assert ran.err.count("ValueError: no [bold]luck") == 2, "each failure is told once while it runs"
    assert "\x1b" not in ran.out + ran.err
    status = ("--status", "COMPLETED_WITH_FAILURE")
    steps = json.loads(choreography(folder, "steps", "failing", *status, "--json", own_ray=False).out)
    assert [step["ordinal"] for step in steps] == [0, 1]
    shown = choreography(folder, "show", "failing", own_ray=False)
    assert shown.code == 0
    assert "COMPLETED_WITH_FAILURES" in shown.out


def test_a_used_id_is_refused(folder: Path) -> None:
    for code in (0, 1):
        ran = choreography(folder, "run", "sums:Add", "--job-id", "once", "--wait", own_ray=False)
        assert ran.code == code
    assert "ALREADY_STARTED" in ran.err
    assert ran.err.count("\n") == 1


def test_doctor_finds_all_well(folder: Path) -> None:
    told = choreography(folder, "doctor", "--json", own_ray=False)
    assert told.code == 0, told.out + told.err
    assert {check["name"] for check in json.loads(told.out)} >= {"Python", "store", "Ray cluster", "throttle"}


def test_a_class_that_is_no_step_is_one_line(folder: Path) -> None:
    ran = choreography(folder, "run", "sums:NoStepClass", own_ray=False)
    assert ran.code == 1
    assert "create_step needs a subclass of JobStep" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "told", "code"),
    [
        (["--ray-address", "127.0.0.1:1"], "127.0.0.1:1 cannot be used", 1),
        (["--ray-address", "gibberish"], "HOST:PORT", 1),
        (["--mongo-url", "mongodb://127.0.0.1:1"], "cannot be used", 1),
        (["--mongo-url", "postgres://127.0.0.1"], "is no URL of a MongoDB", 2),
        (["--namespace", "a b/$"], "namespace", 2),
    ],
)
def test_what_cannot_be_reached_is_one_line_and_leaves_nothing(
    tmp_path: Path, options: list[str], told: str, code: int
) -> None:
    """No traceback, no process, no file beside the module that was imported."""
    (tmp_path / "sums.py").write_text(JOBS)
    ran = choreography(tmp_path, *options, "run", "sums:Add")
    assert told in ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.out == ""
    assert ran.code == code
    assert {path.name for path in tmp_path.iterdir()} <= {"sums.py", "__pycache__"}
    assert processes_of(str(tmp_path)) == []
