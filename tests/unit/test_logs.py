"""What stands in the line that a log record leaves in Ray's files?"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from typing import Any

from choreography_ray.actors.logs import KeyValueFormatter


def line(message: str, *values: Any, about: dict[str, str] | None = None, **extra: Any) -> str:
    record = logging.LogRecord("choreography_ray.step.Work", logging.INFO, "f.py", 1, message, values, None)
    record.__dict__.update(extra)
    return KeyValueFormatter(**(about or {"job": "nightly"})).format(record)


def parsed(text: str) -> dict[str, str]:
    """As a program reads it."""
    pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', text)
    return {key: json.loads(value) if value.startswith('"') else value for key, value in pairs}


def test_a_record_names_job_step_and_attempt_in_one_line_that_programs_read() -> None:
    told = line("work %d", 3, about={"job": "nightly", "host": "h.1"}, job_id="nightly", step_id="a b", attempt=2)
    found = parsed(told)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+\.\d{3}\+00:00", found.pop("at"))
    assert found == {
        "level": "INFO",
        "job": "nightly",
        "host": "h.1",
        "step": "a b",
        "attempt": "2",
        "logger": "step.Work",
        "message": "work 3",
    }


def test_no_text_can_forge_a_line_or_a_field() -> None:
    hostile = 'x" job=other\nat=now level=ERROR \x1b[31m'
    told = line(hostile, step_id=hostile)
    assert "\n" not in told
    assert "\x1b" not in told
    found = parsed(told)
    assert found["message"] == found["step"] == hostile
    assert (found["job"], found["level"]) == ("nightly", "INFO")


def test_an_error_brings_its_traceback_along_and_no_password() -> None:
    try:
        raise ValueError("mongodb://me:secret@db:1 refused")
    except ValueError:
        told = line("failed at %s", "mongodb://me:secret@db:1", exc_info=sys.exc_info())
    assert "secret" not in told
    assert "\n" not in told
    assert "Traceback" in parsed(told)["error"]
    assert parsed(told)["message"] == "failed at mongodb://db:1"


def test_a_process_writes_each_record_once_whatever_else_the_users_code_configures() -> None:
    """Also when an actor's constructor runs twice."""
    script = (
        "import logging; from choreography_ray.actors.logs import write_records; "
        "write_records(job='a'); write_records(job='b'); logging.basicConfig(level=logging.DEBUG); "
        "logging.getLogger('choreography_ray.engine').info('once'); logging.getLogger('shop').warning('theirs')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stderr.splitlines()
    assert parsed(first)["job"] == "b"
    assert parsed(first)["message"] == "once"
    assert second == "WARNING:shop:theirs"
    assert done.stdout == ""
