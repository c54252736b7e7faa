"""What a command leaves behind: text or JSON on standard output, one line on standard error, and an exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from pydantic import BaseModel, ValidationError
from rich.console import RenderableType

from choreography_ray.display import clean, console_for
from choreography_ray.model import JobStatus


class ExitCode(IntEnum):
    """Part of the command line's interface: scripts rely on these numbers."""

    OK = 0
    ERROR = 1
    BAD_INPUT = 2
    COMPLETED_WITH_FAILURES = 3
    FAILED = 4
    STOPPED = 5
    REMOVED = 6
    INTERRUPTED = 130


_CODES = {
    JobStatus.COMPLETED_WITH_FAILURES: ExitCode.COMPLETED_WITH_FAILURES,
    JobStatus.FAILED: ExitCode.FAILED,
    JobStatus.STOPPED: ExitCode.STOPPED,
    JobStatus.REMOVING: ExitCode.REMOVED,
}


class BadInput(Exception):
    """What was asked cannot be done as it was said; the message is a sentence."""


class Interrupted(Exception):
    """Ctrl-C while a command waited for a job, which goes on; the message tells how to follow it."""


def exit_code_of(status: JobStatus) -> ExitCode:
    """The exit code of a command that waited for a job which now has this status."""
    return _CODES.get(status, ExitCode.OK)


@contextmanager
def busy(doing: str) -> Generator[None]:
    """Tell a person at a terminal, on standard error, what is being waited for; it is wiped out afterwards."""
    if not sys.stderr.isatty():
        yield
        return
    with console_for(sys.stderr).status(f"{doing} ..."):
        yield


def show(what: RenderableType) -> None:
    """Print something made by `display`."""
    console_for().print(what, soft_wrap=not sys.stdout.isatty())


def show_json(what: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
    """Print one JSON document, for programs."""
    match what:
        case BaseModel():
            value: Any = what.model_dump(mode="json")
        case dict():
            value = what
        case _:
            value = [each.model_dump(mode="json") for each in what]
    sys.stdout.write(escaped(json.dumps(value, indent=2, ensure_ascii=False, default=str)) + "\n")


def escaped(document: str) -> str:
    """The same JSON document with what a terminal might obey, or cannot be encoded, written as escapes."""
    return _UNUSUAL.sub(lambda found: found[0] if clean(found[0]) == found[0] else json.dumps(found[0])[1:-1], document)


_UNUSUAL = re.compile(r"[^\n -~]")


def say_error(text: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"choreography: {clean(text)}\n")


def describe_invalid(error: ValidationError) -> str:
    """A validation error as one line: each field with what is wrong with it."""
    return "; ".join(_describe_fields(error))


def _describe_fields(error: ValidationError) -> Iterable[str]:
    for found in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in found["loc"])
        yield f"{place}: {found['msg']}" if place else str(found["msg"])
