"""The entry point: parses, runs a command, and turns whatever went wrong into one line and an exit code."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import ValidationError
from typer.exceptions import TyperException

from choreography_ray.cli import cluster, control, demo, jobs, looking
from choreography_ray.cli.arguments import examples
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.output import BadInput, ExitCode, Interrupted, describe_invalid, say_error, show
from choreography_ray.errors import (
    ChoreographyError,
    InvalidJobType,
    JobNotFound,
    JobRemoved,
    StepNotFound,
    UnknownJobType,
)

_BAD_INPUT = (BadInput, InvalidJobType, UnknownJobType, JobNotFound, StepNotFound)

app = typer.Typer(
    name="choreography",
    help="Durable batch jobs on Ray.",
    epilog=examples(
        "choreography demo",
        "choreography up",
        "choreography run shop.jobs:RebuildIndex --request @request.json --job-id nightly --wait",
        "choreography --namespace staging list --status RUNNING",
    )
    + "\n\nExit codes: 0 ok; 1 error; 2 bad usage or input; of a job that was waited for: 3 completed with"
    " failures, 4 failed, 5 stopped, 6 removed; 130 interrupted.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (demo, jobs, looking, control, cluster):
    module.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        show(f"choreography-ray {importlib.metadata.version('choreography-ray')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    mongo_url: Annotated[
        str | None,
        typer.Option(help="Where the state is kept, else CHOREOGRAPHY_MONGO_URL, else a store in .choreography/."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="The choreography namespace, else CHOREOGRAPHY_NAMESPACE, else 'default'.")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster, else RAY_ADDRESS, else the one of `choreography up`, else a new one."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Durable batch jobs on Ray."""
    logging.basicConfig(level=logging.WARNING, format="choreography: %(message)s")
    if not debug:
        # Ray's remarks on its own start are no answer to any command; its errors come as exceptions. It sets the level
        # of its root logger itself, but not of this one.
        logging.getLogger("ray._private").setLevel(logging.ERROR)
    context.obj = Connection(mongo_url=mongo_url, namespace=namespace, ray_address=ray_address, is_debugging=debug)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; default: that of this process); returns the exit code."""
    given = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    try:
        code = int(app(args=given, prog_name="choreography", standalone_mode=False) or ExitCode.OK)
    except BrokenPipeError:
        # Whoever read our output has enough of it. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.ERROR
    except Exception as error:
        if "--debug" in given:
            raise
        text, code = _describe(error)
        say_error(text)
        return code
    if code == ExitCode.INTERRUPTED:  # typer's word for Ctrl-C
        say_error("interrupted; jobs that were started go on as long as their cluster lasts")
    return code


def _describe(error: Exception) -> tuple[str, ExitCode]:
    match error:
        case TyperException():
            return f"{error.format_message()} (see --help)", ExitCode.BAD_INPUT
        case ValidationError():
            return describe_invalid(error), ExitCode.BAD_INPUT
        case Interrupted():
            return str(error), ExitCode.INTERRUPTED
        case JobRemoved():
            return str(error), ExitCode.REMOVED
        case _ if isinstance(error, _BAD_INPUT):
            return str(error), ExitCode.BAD_INPUT
        case ChoreographyError() | TimeoutError():
            return str(error) or type(error).__name__, ExitCode.ERROR
        case _:
            return f"{type(error).__name__}: {error} (--debug shows where)", ExitCode.ERROR
