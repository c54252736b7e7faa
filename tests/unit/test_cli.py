"""What do the commands print and exit with? Against a client that answers from a table, without Ray and a store."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import BaseModel
from typer.main import get_command

from choreography_ray.cli import main
from choreography_ray.cli.app import app
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.output import ExitCode
from choreography_ray.code import PYTHON
from choreography_ray.errors import (
    ClusterUnavailable,
    JobNotFound,
    JobRemoved,
    RemoveStepError,
    RemoveStepReason,
    StartJobError,
    StartJobReason,
    StepNotFound,
    StepStopError,
    StepStopReason,
    StorageUnavailable,
)
from choreography_ray.model import (
    AttemptRecord,
    Explanation,
    Finding,
    FindingKind,
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    NodeRecord,
    Progress,
    StageProgress,
    StepId,
    StepOutput,
    StepRecord,
    Verification,
    Waiting,
    WaitReason,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

ROOT = Path(__file__).parents[2]
GROUP: Any = get_command(app)
COMMANDS = list(GROUP.commands)

JOBS_MODULE = """
from pydantic import BaseModel
from choreography_ray.job import Job, JobState

class Request(BaseModel):
    index: str
    shards: list[int] = []

class State(JobState):
    pass

class Rebuild(Job[Request, State]):
    def prepare_steps(self, request):
        return []

class NotAJob:
    pass
"""


def a_job(job_id: str = "nightly", status: JobStatus = JobStatus.RUNNING, failed: int = 0) -> JobRecord:
    counts = {"total": 10, "succeeded": 3, "failed": failed}
    return JobRecord(
        job_id=JobId(job_id),
        type_name="Rebuild",
        status=status,
        progress=Progress(**counts, stages={0: StageProgress(**counts)}),
        created_at=NOW,
        updated_at=NOW,
    )


class FakeHandle:
    def __init__(self, record: JobRecord, client: FakeClient) -> None:
        self.job_id = record.job_id
        self._record = record
        self._client = client
        self.start_error: Any = None

    def record(self) -> JobRecord:
        return self._record

    def wait(self, timeout: timedelta | None = None, progress: bool = True) -> JobRecord:
        self._client.told.append(("wait", timeout, progress))
        if self._client.wait_raises:
            raise self._client.wait_raises
        return self._record

    def status(self) -> JobStatus:
        return self._record.status

    def verify(self) -> Verification:
        return self._client.verified

    def step(self, step_id: str) -> FakeStep:
        return FakeStep(self._record.job_id, step_id, self._client)

    def output(self, step_id: str, size: int) -> StepOutput:
        self._client.told.append(("output", step_id, size))
        return self._client.output

    def explain(self) -> Explanation:
        return self._client.explained

    def steps(self, status: Any = None, take: int | None = None) -> list[StepRecord]:
        wanted = (status,) if isinstance(status, JobStepStatus) else status
        return [step for step in self._client.plan if wanted is None or step.status in wanted][:take]


class FakeStep:
    def __init__(self, job_id: str, step_id: str, client: FakeClient) -> None:
        self._job_id, self._step_id, self._client = job_id, step_id, client

    def record(self) -> StepRecord:
        found = next((step for step in self._client.plan if step.step_id == self._step_id), None)
        if found is None:
            raise StepNotFound(self._job_id, self._step_id)
        return found

    def stop(self) -> JobStepStatus:
        self._client.told.append(("stop", self._job_id, self._step_id))
        if isinstance(self._client.stopped, Exception):
            raise self._client.stopped
        return self._client.stopped

    def remove(self) -> None:
        self._client.told.append(("remove", self._job_id, self._step_id))
        raise RemoveStepError(RemoveStepReason.JOB_IS_STORED, self._job_id, self._step_id)


class FakeClient:
    """Answers from `records`; keeps what it was told; counts how often it was left open."""

    def __init__(self) -> None:
        self.records = {"nightly": a_job()}
        self.plan: list[StepRecord] = []
        self.told: list[tuple[Any, ...]] = []
        self.opened: list[bool] = []
        self.start_raises: Exception | None = None
        self.wait_raises: BaseException | None = None
        self.stopped: JobStepStatus | Exception = JobStepStatus.STOPPED
        self.is_open = False
        self.is_granting = True
        self.node_records = [NodeRecord(node_id="n", address="10.0.0.1", version="1")]
        self.verified = Verification(job_id=JobId("nightly"), status=JobStatus.RUNNING)
        self.output = StepOutput(step_id=StepId("s"), told="the step is PREPARED: no process has performed it")
        self.explained = Explanation(job_id=JobId("nightly"), status=JobStatus.RUNNING, told="its actor is at work")

    def __enter__(self) -> Self:
        self.is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False

    def start(self, job_class: type, request: BaseModel, *, job_id: str | None, labels: dict[str, str]) -> FakeHandle:
        self.told.append((job_class.__name__, request.model_dump(), job_id, labels))
        if self.start_raises:
            raise self.start_raises
        return FakeHandle(self.records["nightly"], self)

    def job(self, job_id: str) -> FakeHandle:
        if job_id not in self.records:
            raise JobNotFound(job_id)
        return FakeHandle(self.records[job_id], self)

    def jobs(self, **wanted: Any) -> list[JobRecord]:
        self.told.append(("jobs", wanted))
        return list(self.records.values())[wanted.get("skip", 0) :][: wanted["take"]]

    def nodes(self) -> list[NodeRecord]:
        return self.node_records

    def throttle(self) -> dict[str, Any] | None:
        return {"maximum": 2, "held": 1, "is_granting": self.is_granting, "jobs": {"job/nightly": {"wanted": 3}}}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeClient]:
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "CHOREOGRAPHY_MONGO_URL", "CHOREOGRAPHY_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    made = FakeClient()

    def open_fake(self: Connection, *, with_ray: bool, resumes: bool = True) -> FakeClient:
        made.opened.append(with_ray)
        return made

    monkeypatch.setattr(Connection, "open", open_fake)
    yield made
    assert not made.is_open, "the command left its connection open"


@pytest.fixture
def jobs_here(client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    (tmp_path / "shop_jobs.py").write_text(JOBS_MODULE)
    (tmp_path / "broken_jobs.py").write_text("import no_such_package_at_all")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop_jobs", raising=False)
    return client


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on standard error: exactly one line, and nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def test_a_job_starts_with_request_id_and_labels(jobs_here: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [
            "run",
            "shop_jobs:Rebuild",
            "--request",
            '{"index": "a"}',
            "--job-id",
            "n",
            "--label",
            "team=x",
            "--label",
            "k=",
        ]
    )
    assert code == 0
    assert jobs_here.told == [("Rebuild", {"index": "a", "shards": []}, "n", {"team": "x", "k": ""})]
    assert "choreography watch nightly" in capsys.readouterr().out


def test_a_request_may_come_from_a_file(jobs_here: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text('{"index": "über", "shards": [1]}', encoding="utf-8")
    assert main(["run", "shop_jobs:Rebuild", "--request", "@request.json"]) == 0
    assert jobs_here.told[0][1] == {"index": "über", "shards": [1]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "no_such_module:Rebuild"], "module 'no_such_module' cannot be imported"),
        (["run", "broken_jobs:Rebuild"], "no_such_package_at_all"),
        (["run", "shop_jobs:Missing"], "has no 'Missing'"),
        (["run", "shop_jobs:NotAJob"], "is no job class"),
        (["run", "shop_jobs:Request"], "is no job class"),
        (["run", "shop_jobs"], "MODULE:JOB"),
        (["run", "shop_jobs:Rebuild"], "index: Field required"),
        (["run", "shop_jobs:Rebuild", "--request", '{"index": 1, "shards": ["x"]}'], "shards.0"),
        (["run", "shop_jobs:Rebuild", "--request", "{"], "no valid Request"),
        (["run", "shop_jobs:Rebuild", "--request", "@missing.json"], "missing.json"),
        (["run", "shop_jobs:Rebuild", "--request", '{"index": "a"}', "--label", "x"], "KEY=VALUE"),
        (["run"], "MODULE:JOB"),
        (["list", "--status", "SLEEPING"], "SLEEPING"),
        (["list", "--take", "many"], "--take"),
        (["show", "unknown"], "no job 'unknown'"),
        (["steps", "unknown"], "no job 'unknown'"),
        (["watch", "unknown"], "no job 'unknown'"),
        (["explain", "unknown"], "no job 'unknown'"),
        (["show", "nightly", "unknown"], "no step 'unknown'"),
        (["steps", "nightly", "--failed", "--status", "STOPPED"], "exclude each other"),
        (["demo", "--search", "asyncio"], "no index is published"),
        (["no-such-command"], "no-such-command"),
        (["list", "--no-such-option"], "--no-such-option"),
    ],
)
def test_bad_input_is_one_clear_line(
    jobs_here: FakeClient, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """It names what is wrong, exits with 2, starts nothing and leaves nothing behind."""
    before = {path for path in Path.cwd().rglob("*") if "__pycache__" not in path.parts}
    assert main(arguments) == ExitCode.BAD_INPUT
    assert told in one_line(capsys)
    assert jobs_here.told == []
    assert {path for path in Path.cwd().rglob("*") if "__pycache__" not in path.parts} == before


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageUnavailable("mongodb://127.0.0.1:1", "refused\nmore"), "cannot be used: refused more"),
        (ClusterUnavailable("10.0.0.1:6379", "no answer"), "10.0.0.1:6379"),
        (StartJobError(StartJobReason.ALREADY_STARTED, "n"), "ALREADY_STARTED"),
        (RuntimeError("odd"), "RuntimeError: odd"),
    ],
)
def test_an_error_is_one_line_and_exits_with_1(
    jobs_here: FakeClient, capsys: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    jobs_here.start_raises = error
    assert main(["run", "shop_jobs:Rebuild", "--request", '{"index": "a"}']) == ExitCode.ERROR
    assert told in one_line(capsys)


def test_debug_shows_the_traceback(jobs_here: FakeClient) -> None:
    jobs_here.start_raises = RuntimeError("odd")
    with pytest.raises(RuntimeError, match="odd"):
        main(["--debug", "run", "shop_jobs:Rebuild", "--request", '{"index": "a"}'])


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (JobStatus.COMPLETED_SUCCESSFULLY, 0),
        (JobStatus.COMPLETED_WITH_FAILURES, 3),
        (JobStatus.FAILED, 4),
        (JobStatus.STOPPED, 5),
        (JobStatus.REMOVING, 6),
    ],
)
@pytest.mark.parametrize(
    "arguments", [["watch", "nightly"], ["run", "shop_jobs:Rebuild", "--request", '{"index": "a"}', "--wait"]]
)
def test_waiting_exits_by_the_status(
    jobs_here: FakeClient, capsys: pytest.CaptureFixture[str], arguments: list[str], status: JobStatus, code: int
) -> None:
    jobs_here.records["nightly"] = a_job(status=status)
    assert main(arguments) == code
    assert status.value in capsys.readouterr().out


def test_a_job_removed_while_somebody_watches_exits_with_6(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.wait_raises = JobRemoved("nightly")
    assert main(["watch", "nightly"]) == ExitCode.REMOVED
    assert "was removed" in one_line(capsys)


@pytest.mark.parametrize(
    ("status", "address", "needs_ray"),
    [
        (JobStatus.RUNNING, None, True),
        (JobStatus.RUNNING, "10.0.0.1:1", False),
        (JobStatus.COMPLETED_SUCCESSFULLY, None, False),
    ],
)
def test_a_watch_brings_an_interrupted_job_back(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, status: JobStatus, address: str | None, needs_ray: bool
) -> None:
    """Where no cluster is known nobody works on the job, and a reader would wait for ever."""
    opened: list[bool] = []

    def open_with(_: Connection, *, with_ray: bool) -> FakeClient:
        opened.append(with_ray)
        return client

    monkeypatch.setattr(Connection, "open", open_with)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    client.records["nightly"] = a_job(status=status)
    assert main(["watch", "nightly"]) == 0
    assert opened == [False, needs_ray]


def test_a_watch_that_times_out_is_an_error(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.wait_raises = TimeoutError("job 'nightly' is still RUNNING")
    assert main(["watch", "nightly", "--timeout", "1.5"]) == ExitCode.ERROR
    assert client.told == [("wait", timedelta(seconds=1.5), True)]
    assert "still RUNNING" in one_line(capsys)


def test_interrupting_a_watch_says_that_the_job_goes_on(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.wait_raises = KeyboardInterrupt()
    client.records["a b"] = a_job("a b")
    assert main(["watch", "a b"]) == ExitCode.INTERRUPTED
    told = one_line(capsys)
    assert "the job goes on" in told
    assert "choreography watch 'a b'" in told


def test_nothing_is_removed_that_nobody_confirms(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal there is nobody to ask: the answer says what to do, and nothing is connected to."""
    for more in ([], ["--json"]):
        assert main(["remove", "nightly", *more]) == ExitCode.BAD_INPUT
        out, err = capsys.readouterr()
        assert "--yes" in err
        assert out == ""


def test_failures_are_named_after_waiting(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    """Some of many, and where the others are found."""
    client.records["nightly"] = a_job(status=JobStatus.COMPLETED_WITH_FAILURES, failed=30)
    failure = AttemptRecord(attempt=1, error_type="ValueError", message="no shard")
    client.plan = [
        StepRecord(step_id=StepId(f"s{n}"), ordinal=n, status=JobStepStatus.COMPLETED_WITH_FAILURE, failure=failure)
        for n in range(30)
    ]
    assert main(["watch", "nightly"]) == 3
    out = capsys.readouterr().out
    assert out.count("ValueError: no shard") == 10
    assert "all 30 failures: choreography steps nightly --failed" in out


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (["list", "--json"], lambda value: value[0]["job_id"]),
        (["show", "nightly", "--json"], lambda value: value["job_id"]),
        (["watch", "nightly", "--json"], lambda value: value["job_id"]),
        (["run", "shop_jobs:Rebuild", "--request", '{"index": "a"}', "--json"], lambda value: value["job_id"]),
    ],
)
def test_programs_get_json_and_nothing_else(
    jobs_here: FakeClient, capsys: pytest.CaptureFixture[str], arguments: list[str], read: Any
) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert read(json.loads(out)) == "nightly"
    assert err == ""
    assert ("wait", None, True) not in jobs_here.told, "a live bar would get into the JSON"


def test_steps_can_be_narrowed_by_status(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.plan = [
        StepRecord(step_id=StepId("a"), ordinal=0, status=JobStepStatus.PREPARED),
        StepRecord(step_id=StepId("b"), ordinal=1, status=JobStepStatus.STOPPED),
    ]
    assert main(["steps", "nightly", "--status", "stopped", "--json"]) == 0
    assert [step["step_id"] for step in json.loads(capsys.readouterr().out)] == ["b"]


def test_a_verification_exits_by_what_it_found(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    """Debris is told and is no error; an error is; both name the step, what is stored and what should be."""
    assert main(["verify", "nightly"]) == 0
    assert "ok" in capsys.readouterr().out
    debris = Finding(kind=FindingKind.STEP_DOCUMENT, ordinal=3, stored="a document", expected="none", is_debris=True)
    client.verified = client.verified.model_copy(update={"findings": (debris,), "debris": 1})
    assert main(["verify", "nightly"]) == 0
    assert "1 pieces of debris" in capsys.readouterr().out
    wrong = Finding(kind=FindingKind.RESULT, step_id=StepId("s[b]\x1b[31m"), ordinal=7, stored="none", expected="one")
    update = {"findings": (wrong, debris), "errors": 1, "unchecked": ("counts: they moved",)}
    client.verified = client.verified.model_copy(update=update)
    assert main(["verify", "nightly"]) == ExitCode.ERROR
    out = capsys.readouterr().out
    for told in ("RESULT", "s[b][31m", "7", "1 errors", "counts: they moved"):
        assert told in out
    assert "\x1b" not in out
    assert main(["verify", "nightly", "--json"]) == ExitCode.ERROR
    read = json.loads(capsys.readouterr().out)
    assert (read["errors"], read["findings"][0]["expected"]) == (1, "one")


HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold]loud[/bold]\u202e"


def a_failed_step(step_id: str = "s", attempts: int = 3, **changes: Any) -> StepRecord:
    tried = tuple(
        AttemptRecord(
            attempt=number,
            began_at=NOW + timedelta(seconds=10 * number),
            ended_at=NOW + timedelta(seconds=10 * number + 4),
            error_type="shop.Broken",
            message=f"no shard {number} {HOSTILE}",
            traceback=f"Traceback:\n  in perform_step\n{HOSTILE} of attempt {number}",
            node="0123456789abcdef" * 3,
            pid=4000 + number,
        )
        for number in range(1, attempts + 1)
    )
    known = {"status": JobStepStatus.COMPLETED_WITH_FAILURE, "attempt": attempts, "failure": tried[-1]}
    return StepRecord(**{"step_id": StepId(step_id), "ordinal": 7, "attempts": tried, **known, **changes})


def test_a_failed_step_is_told_with_every_attempt_and_the_last_traceback(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `steps --failed` and `show JOB STEP`: number, time, node, process and error of each; nothing of it commands
    the terminal. The others are left out.
    """
    client.plan = [
        a_failed_step(),
        a_failed_step("cold", status=JobStepStatus.FAILED),
        StepRecord(step_id=StepId("fine"), ordinal=1, status=JobStepStatus.COMPLETED_SUCCESSFULLY),
    ]
    assert main(["steps", "nightly", "--failed"]) == 0
    out = capsys.readouterr().out
    assert "fine" not in out
    assert out.count("of attempt 3") == 2
    for number in (1, 2, 3):
        assert out.count(f"no shard {number}") == 2
        assert out.count(f"{4000 + number}") == 2
    assert out.count("4.0 s") == 6
    assert "01234567" in out
    assert "  in perform_step" in out, "the traceback keeps its lines"
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert "[bold]loud[/bold]" in out
    assert main(["show", "nightly", "cold"]) == 0
    assert capsys.readouterr().out.count("of attempt 3") == 1
    assert main(["show", "nightly", "s", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert [attempt["pid"] for attempt in read["attempts"]] == [4001, 4002, 4003]
    assert read["attempts"][0]["node"] == "0123456789abcdef" * 3
    assert read["failure"]["traceback"].endswith("of attempt 3")
    assert HOSTILE in read["failure"]["message"], "programs get what is stored"


def test_show_names_failures_and_waiting_retries(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    """Some of each, a retry with the moment when it is due, and where all are found."""
    client.records["nightly"] = a_job(failed=30)
    due = NOW + timedelta(hours=1)
    client.plan = [a_failed_step(f"f{n}") for n in range(30)]
    client.plan += [
        a_failed_step(f"r{n}", status=JobStepStatus.AWAITING_RETRY, attempt=4, retry_due=due) for n in range(12)
    ]
    assert main(["show", "nightly"]) == 0
    out = capsys.readouterr().out
    assert out.count("COMPLETED_WITH_FAILURE ") == 10
    assert out.count("AWAITING_RETRY") == 10
    assert out.count(due.astimezone().strftime("%Y-%m-%d %H:%M:%S")) == 10
    assert "all 30 failures: choreography steps nightly --failed" in out


def test_logs_shows_what_a_step_printed_or_says_why_not(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines stay lines and command nothing; where there is nothing to show, a sentence and exit code 1."""
    assert main(["logs", "nightly", "s"]) == ExitCode.ERROR
    assert "no process has performed it" in capsys.readouterr().out
    known = {"host": "nightly/step7-1.1", "node": "abcdef" * 6, "pid": 77}
    client.output = client.output.model_copy(update={"out": f"one\n{HOSTILE}", "err": "oh\nno", "told": "", **known})
    assert main(["logs", "nightly", "s", "--bytes", "100"]) == 0
    out = capsys.readouterr().out
    assert "nightly/step7-1.1" in out
    assert "one\n" in out
    assert "oh\nno" in out
    assert "\x1b" not in out
    assert client.told[-1] == ("output", "s", 100)


def test_explain_tells_reasons_numbers_and_examples(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job's actor is asked only where a cluster is known: none is started for a question."""
    waiting = Waiting(
        reason=WaitReason.SLOT, steps=999_997, told="no slot is free", examples=(StepId(HOSTILE),), due=NOW
    )
    update = {"running": 3, "waiting": (waiting,), "trouble": "refused\x1b"}
    client.explained = client.explained.model_copy(update=update)
    assert main(["explain", "nightly"]) == 0
    out = capsys.readouterr().out
    for told in ("its actor is at work", "3 steps run", "999997", "SLOT", "no slot is free", "refused", "[bold]loud"):
        assert told in out
    assert "\x1b" not in out
    assert len(out.splitlines()) < 12
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:1")
    assert main(["explain", "nightly", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waiting"][0]["reason"] == "SLOT"
    assert client.opened == [False, True]


def test_list_passes_its_conditions_on(client: FakeClient) -> None:
    arguments: Sequence[str] = (
        *("list", "--type", "Rebuild", "--status", "running", "--status", "FAILED", "--label", "a=b"),
        *("--created-before", "2026-11-30T12:00:00", "--skip", "2", "--take", "5"),
    )
    assert main(arguments) == 0
    ((_, wanted),) = client.told
    assert wanted["type"] == "Rebuild"
    assert wanted["statuses"] == (JobStatus.RUNNING, JobStatus.FAILED)
    assert wanted["labels"] == {"a": "b"}
    assert wanted["created_before"].tzinfo is not None
    assert (wanted["skip"], wanted["take"]) == (2, 5)


def test_doctor_tells_what_is_not_ok_and_what_to_do(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    assert "not ok" not in capsys.readouterr().out

    def refuse(self: Connection, *, with_ray: bool) -> FakeClient:
        raise StorageUnavailable("mongodb://db:1", "refused")

    monkeypatch.setattr(Connection, "open", refuse)
    assert main(["--mongo-url", "mongodb://db:1", "--ray-address", "10.0.0.1:1", "doctor", "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert not checks["store"]["is_ok"]
    assert "--mongo-url" in checks["store"]["advice"]
    assert "--ray-address" in checks["Ray cluster"]["advice"]


def test_doctor_tells_in_words_who_holds_slots(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:1")
    for client.is_granting in (True, False):
        assert main(["doctor", "--json"]) == 0
        told = {check["name"]: check["told"] for check in json.loads(capsys.readouterr().out)}["throttle"]
        assert "1 of 2 slots are held, 3 more wanted, 1 jobs at work" in told
        assert ("grants none" in told) is not client.is_granting


def test_doctor_tells_of_nodes_with_another_version(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:1")
    assert main(["doctor"]) == 0
    assert "1 nodes, each with this version" in " ".join(capsys.readouterr().out.split())
    client.node_records.append(NodeRecord(node_id="o", address="10.0.0.2", problem="the node at 10.0.0.2 has none"))
    assert main(["doctor", "--json"]) == 1
    check = {check["name"]: check for check in json.loads(capsys.readouterr().out)}["Ray cluster"]
    assert (check["is_ok"], check["told"]) == (False, "the node at 10.0.0.2 has none")


def test_doctor_tells_of_jobs_that_need_another_python(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    """Their captured code runs on its own minor version only [S13]; also of the second page."""
    client.records = {str(n): a_job().model_copy(update={"job_id": JobId(str(n)), "python": PYTHON}) for n in range(99)}
    assert main(["doctor", "--json"]) == 0
    for n in range(99, 107):
        client.records[str(n)] = a_job().model_copy(update={"job_id": JobId(str(n)), "python": "2.7"})
    assert main(["doctor", "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out.partition("\n]\n")[2])}
    told = f"107 unfinished jobs have captured code, 8 of another Python than {PYTHON}: 99 (2.7), 100 (2.7), "
    assert checks["captured code"]["told"] == told + "101 (2.7), 102 (2.7), 103 (2.7) and 3 more"
    assert "that Python" in checks["captured code"]["advice"]


def test_the_cluster_is_taken_from_option_environment_and_folder_in_this_order(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Connection().known_address is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:1")
    assert Connection().known_address == "10.0.0.2:1"
    assert Connection(ray_address="10.0.0.1:1").known_address == "10.0.0.1:1"


def test_down_without_up_is_no_error(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 0
    assert "no cluster" in capsys.readouterr().out


def test_a_single_step_is_stopped_by_its_id(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    """The job as a whole is left alone, and what is printed says where the step stands."""
    assert main(["stop", "nightly", "--step", "shard-7"]) == ExitCode.OK
    assert client.told == [("stop", "nightly", "shard-7")]
    assert capsys.readouterr().out == "nightly: step shard-7 stopped; it runs again when the job is resumed\n"
    client.stopped = JobStepStatus.COMPLETED_SUCCESSFULLY
    assert main(["stop", "nightly", "--step", "shard-7"]) == ExitCode.OK
    assert "had ended before it was stopped: COMPLETED_SUCCESSFULLY" in capsys.readouterr().out
    client.stopped = StepStopError(StepStopReason.STOP_TIMED_OUT, "nightly", "shard-7")
    assert main(["stop", "nightly", "--step", "shard-7"]) == ExitCode.ERROR
    assert "step 'shard-7' of job 'nightly' was not stopped: STOP_TIMED_OUT" in capsys.readouterr().err


def test_what_is_left_of_a_step_is_kept_while_its_job_is_stored(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remove", "nightly", "--step", "shard-7"]) == ExitCode.ERROR
    assert client.told == [("remove", "nightly", "shard-7")]
    assert "was not removed: JOB_IS_STORED" in capsys.readouterr().err


def test_every_command_has_help_without_importing_ray() -> None:
    """Help is quick and works where Ray does not."""
    script = (
        "import sys; sys.modules.update(ray=None, pymongo=None); from choreography_ray.cli import main; "
        f"sys.exit(max(main([command, '--help']) for command in {COMMANDS}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: choreography") == len(COMMANDS)


def parse(line: str) -> None:
    """Parse one command line as the shell would hand it over, and run nothing. Raises for what is no option of it."""
    for part in re.split(r" && | \| ", line):
        words = [word for word in shlex.split(part, comments=True) if not word.startswith("2>")]
        if Path(words[0]).name == "choreography":
            root = GROUP.make_context("choreography", words[1:])
            name, command, rest = GROUP.resolve_command(root, [*root._protected_args, *root.args])
            command.make_context(name, rest, parent=root)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_examples_that_work(command: str) -> None:
    made = GROUP.commands[command]
    assert any("--json" in parameter.opts for parameter in made.params)
    lines = [line.strip() for line in (made.epilog or "").splitlines() if line.startswith("  ")]
    assert lines
    assert all(f"choreography {command}" in line for line in lines)
    for line in lines:
        parse(line)


@pytest.mark.parametrize("page", ["README.md", "docs/command-line.md"])
def test_command_lines_of_the_docs_can_be_given(page: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "choreography " in line]
    assert lines
    for line in lines:
        parse(line)


def test_the_docs_name_every_command_and_exit_code() -> None:
    told = (ROOT / "docs/command-line.md").read_text()
    assert [name for name in COMMANDS if f"`{name}" not in told] == []
    table = dict(re.findall(r"^\| (\d+) \| `(\w+)`", told, re.MULTILINE))
    assert table == {str(code.value): code.name for code in ExitCode}


def test_tab_offers_ids_of_the_latest_jobs_from_a_store_that_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what the job is; where no store answers nothing is offered, told or left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHOREOGRAPHY_MONGO_URL", raising=False)
    monkeypatch.setenv("_CHOREOGRAPHY_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "choreography stop ni")
    asked: list[tuple[str, str]] = []

    class Store:
        def __init__(self, url: str, namespace: str) -> None:
            asked.append((url, namespace))

        async def list_jobs(self, wanted: object, take: int) -> list[JobRecord]:
            return [a_job("nightly-2"), a_job("nightly-1", JobStatus.STOPPED), a_job("other"), a_job("ni\x1b[31m")]

        async def close(self) -> None:
            asked.append(("closed", ""))

    def offered() -> str:
        with pytest.raises(SystemExit):
            main([])
        out, err = capsys.readouterr()
        assert err == ""
        return out

    assert "nightly" not in offered()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("choreography_ray.storage.mongo.MongoStorage", Store)
    assert "nightly" not in offered()
    assert asked == []
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "choreography --mongo-url mongodb://db:1 --namespace team stop ni")
    told = offered()
    assert told.index("nightly-2") < told.index("nightly-1")
    assert "Rebuild STOPPED" in told
    assert "other" not in told
    assert "31m" not in told
    assert asked == [("mongodb://db:1", "team"), ("closed", "")]


def test_a_reader_that_closes_the_pipe_gets_no_traceback() -> None:
    """As in `choreography --help | head -1`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from choreography_ray.cli import main; sys.exit(main(['--help']))"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
