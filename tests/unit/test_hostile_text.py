"""What can text that somebody else wrote do to a terminal, to a reader of logs and errors, to a program, to a query?"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from choreography_ray import display, errors, reports
from choreography_ray.cli.output import escaped, say_error
from choreography_ray.client import JobHandle, StepHandle
from choreography_ray.client.blocking import Home
from choreography_ray.errors import ChoreographyError, InvalidId, StartJobError, StartJobReason
from choreography_ray.job import check_id
from choreography_ray.model import JobId, JobStatus, StepId, StepOutput
from choreography_ray.plain import clean
from tests.unit.test_display import HOSTILE, a_failure, a_hostile_step, a_job, rendered

COMMANDS = set("\x00\x07\x08\x0b\x1b\x7f\x85\x9b\x9d\u2028\u2029\u202a\u202e\u2066\u2069\u200e\ufeff\ud800")
"""Bell, escape, the one-character forms of CSI and OSC, line breaks of Unicode, turns of the direction, halves."""
WORST = HOSTILE + "".join(sorted(COMMANDS)) + "$where: sleep(1) {'$gt': ''} __proto__ \x1b]8;;http://evil\x1b\\link"


def test_one_line_of_plain_text_is_left() -> None:
    told = clean(WORST)
    assert not COMMANDS & set(told)
    assert "\n" not in told
    assert "[bold]loud[/bold] :smile: second" in told
    assert clean("plain ünïcode 日本 🙂") == "plain ünïcode 日本 🙂"


@pytest.mark.parametrize(
    "view",
    [
        lambda: display.job_view(a_job(job_id=WORST, type_name=WORST, labels={WORST: WORST}, error=WORST)),
        lambda: display.step_table([a_failure(WORST, WORST)]),
        lambda: reports.attempts_view(a_hostile_step()),
        lambda: reports.output_view(
            StepOutput(step_id=StepId(WORST), host=WORST, node=WORST, out=WORST, err=WORST, told=WORST)
        ),
    ],
)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_view_of_a_terminal_has_no_command_but_its_own_colours(view: Callable[[], Any], *, is_terminal: bool) -> None:
    text = rendered(view(), is_terminal=is_terminal)
    assert not (COMMANDS - {"\x1b"}) & set(text)
    assert set(text.split("\x1b")[1:]) == {part for part in text.split("\x1b")[1:] if part.startswith("[")}
    assert "\x1b[31mred" not in text
    assert "http://evil\x1b" not in text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_live_view_has_none_either(*, is_terminal: bool) -> None:
    stream = io.StringIO()
    console = display.console_for(stream)
    console._force_terminal = is_terminal
    with display.LiveProgress(console) as live:
        live.update(a_job(failed=1, job_id=WORST, error=WORST), [a_failure(WORST, WORST)])
        live.update(a_job(JobStatus.FAILED, failed=1, job_id=WORST, error=WORST))
    text = stream.getvalue()
    assert "second" in text
    assert not (COMMANDS - {"\x1b"}) & set(text)
    assert "\x1b[31mred" not in text
    assert "\x1b]" not in text


def test_the_message_of_an_error_is_one_line_of_plain_text() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ChoreographyError)]
    assert len(kinds) > 20
    assert not [kind for kind in kinds if kind.__str__ is not ChoreographyError.__str__], "all messages go through it"
    error = StartJobError(StartJobReason.COULD_NOT_PREPARE_JOB_STEPS, WORST, (WORST, WORST))
    assert "second" in str(error)
    assert not (COMMANDS | {"\n"}) & set(str(error))
    assert error.details[0] == WORST, "the fields are what they are"


def test_an_error_of_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(WORST)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert not COMMANDS & set(told)


def test_a_json_document_is_the_same_for_a_program_and_commands_no_terminal() -> None:
    value = {WORST.replace("\ud800", ""): [WORST.replace("\ud800", ""), "日本\n"]}
    document = escaped(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(document) == value
    assert not COMMANDS & set(document)
    assert "日本" in document
    assert escaped(json.dumps("\ud800", ensure_ascii=False)) == '"\\ud800"'


def test_handles_are_shown_as_text_and_a_log_line_stays_one(caplog: pytest.LogCaptureFixture) -> None:
    handle = JobHandle(JobId(WORST), Home("default", None, "nowhere"))
    for shown in (repr(handle), repr(StepHandle(handle, StepId(WORST)))):
        assert not (COMMANDS | {"\n"}) & set(shown)
    logging.getLogger("choreography_ray.test").warning("job %r", JobId(WORST))
    assert not (COMMANDS | {"\n"}) & set(caplog.messages[0])


@pytest.mark.parametrize("value", [{"$ne": ""}, {"$where": "1"}, ["a"], b"a", None, 1, "", "\ud800"])
def test_what_is_no_text_is_no_id(value: object) -> None:
    """So no part of a query can come in the place of an id."""
    with pytest.raises(InvalidId):
        check_id("job id", value)
