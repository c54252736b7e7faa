"""The commands that start jobs and follow them to their end."""

from __future__ import annotations

import importlib
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

from choreography_ray import display
from choreography_ray.cli.arguments import JobArgument, JsonOption, examples
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.output import (
    BadInput,
    ExitCode,
    Interrupted,
    busy,
    describe_invalid,
    exit_code_of,
    show,
    show_json,
)
from choreography_ray.job import Job
from choreography_ray.model import JobRecord, JobStepStatus, StepRecord

if TYPE_CHECKING:
    from choreography_ray.client import JobHandle

SHOWN_FAILURES = 10
"""Failed steps that `run --wait`, `watch` and `show` name; `steps` lists all."""

FAILED = (JobStepStatus.COMPLETED_WITH_FAILURE, JobStepStatus.FAILED)
"""Statuses of steps that failed."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        "run",
        epilog=examples(
            """choreography run shop.jobs:RebuildIndex --request '{"index": "a"}' --wait""",
            "choreography run shop.jobs:RebuildIndex --request @request.json --job-id nightly --label team=search",
        ),
    )(run)
    app.command(
        "watch", epilog=examples("choreography watch nightly && ./publish", "choreography watch nightly --timeout 60")
    )(watch)


def run(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="MODULE:JOB", help="The job class, importable from here.")],
    request: Annotated[str, typer.Option(metavar="JSON|@FILE", help="The request, as JSON or from a file.")] = "{}",
    job_id: Annotated[str | None, typer.Option(help="Id of the job; made when not given.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label; may be repeated.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end, and exit by its status.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Start a job.

    Step bodies may be performed more than once: they must bear that.
    """
    job_class = load_job_class(job)
    made = make_request(job_class, request)
    labels = pairs(label or [])
    with Connection.of(context).open(with_ray=True) as choreography:
        with busy("starting the job"):
            handle = choreography.start(job_class, made, job_id=job_id, labels=labels)
        record = follow(handle, progress=not as_json) if wait else handle.record()
        if as_json:
            show_json(record)
        elif wait:
            _show_end(handle, record)
        else:
            show(f"started {display.clean(record.job_id)} ({display.clean(record.type_name)})")
            if handle.start_error:
                show(f"but: {display.clean(str(handle.start_error))}")
            show(f"follow it with: choreography watch {display.clean(record.job_id)}")
    return exit_code_of(record.status) if wait else ExitCode.OK


def watch(
    context: typer.Context,
    job_id: JobArgument,
    timeout: Annotated[float | None, typer.Option(min=0, help="Give up after so many seconds.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Follow a job, and exit by its status.

    Interrupting this does not stop the job. When no cluster is known here, one is started, and the job goes on.
    """
    connection = Connection.of(context)
    with connection.open(with_ray=False) as choreography:
        status = choreography.job(job_id).status()
    # Without a cluster nobody works on it, and nothing would ever happen: connecting brings interrupted jobs back.
    needs_ray = status.is_interruptible and connection.known_address in {None, "local"}
    with connection.open(with_ray=needs_ray) as choreography:
        handle = choreography.job(job_id)
        record = follow(handle, timeout, progress=not as_json)
        if as_json:
            show_json(record)
        else:
            _show_end(handle, record)
    return exit_code_of(record.status)


def follow(handle: JobHandle, timeout: float | None = None, *, progress: bool) -> JobRecord:
    """Wait for a job's end, at most `timeout` seconds, else `TimeoutError`. Ctrl-C raises `Interrupted`."""
    try:
        return handle.wait(timeout=None if timeout is None else timedelta(seconds=timeout), progress=progress)
    except KeyboardInterrupt as interrupt:
        job_id = shlex.quote(display.clean(handle.job_id))
        raise Interrupted(
            "interrupted; the job goes on as long as its cluster lasts:"
            f" choreography watch {job_id} follows it, choreography stop {job_id} stops it"
        ) from interrupt


def load_job_class(name: str) -> type[Job[Any, Any]]:
    """The job class `MODULE:JOB`, looked for in the current folder first. Raises `BadInput`."""
    module_name, separator, class_name = name.partition(":")
    if not (module_name and separator and class_name):
        raise BadInput(f"{name!r} is not of the form MODULE:JOB, as in shop.jobs:RebuildIndex")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise BadInput(f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    for part in class_name.split("."):
        if not hasattr(found, part):
            raise BadInput(f"module {module_name!r} has no {class_name!r}")
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Job)):
        raise BadInput(f"{name} is no job class: derive it from choreography_ray.Job")
    # pyright and mypy differ on what is left of the type parameters here.
    job_class: type[Job[Any, Any]] = found  # pyright: ignore[reportUnknownVariableType]
    if not job_class.is_concrete:
        raise BadInput(f"{name} is an abstract job class: it cannot be started")
    return job_class


def make_request(job_class: type[Job[Any, Any]], given: str) -> BaseModel:
    """The request from JSON, or from the file that `@NAME` names. Raises `BadInput`."""
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"the request cannot be read from {given[1:]!r}: {error}") from error
    try:
        return job_class.request_type.model_validate_json(text)
    except ValidationError as error:
        wanted = job_class.request_type.__name__
        raise BadInput(f"the request is no valid {wanted}: {describe_invalid(error)}") from error


def pairs(given: list[str]) -> dict[str, str]:
    """Labels as they were given. Raises `BadInput`."""
    pairs: dict[str, str] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise BadInput(f"label {text!r} is not of the form KEY=VALUE")
        pairs[key] = value
    return pairs


def _show_end(handle: JobHandle, record: JobRecord) -> None:
    show(display.summary(record))
    failures = first_failures(handle, record)
    if failures:
        show(display.step_table(failures))
        if record.progress.failed > len(failures):
            show(f"all {record.progress.failed} failures: choreography steps {display.clean(record.job_id)} --failed")


def first_failures(handle: JobHandle, record: JobRecord) -> list[StepRecord]:
    """The first failed steps in the order of the plan."""
    if not record.progress.failed:
        return []
    return handle.steps(FAILED, take=SHOWN_FAILURES)
