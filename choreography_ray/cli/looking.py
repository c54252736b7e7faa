"""The commands that look at jobs and change nothing: list, show, steps, verify."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from choreography_ray import display
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.jobs import JobArgument, JsonOption, first_failures, pairs
from choreography_ray.cli.output import ExitCode, show, show_json
from choreography_ray.model import JobStatus, JobStepStatus


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("list", epilog="\b\nExample: choreography list --status RUNNING --label team=search")(list_jobs)
    app.command("show", epilog="\b\nExample: choreography show nightly-2026-11-30")(show_job)
    app.command("steps", epilog="\b\nExample: choreography steps nightly --status COMPLETED_WITH_FAILURE")(list_steps)
    app.command("verify", epilog="Exits with 1 when something is wrong; debris alone is not.")(verify)


def list_jobs(
    context: typer.Context,
    job_type: Annotated[str | None, typer.Option("--type", help="Only jobs of this type.")] = None,
    status: Annotated[list[JobStatus] | None, typer.Option(case_sensitive=False, help="May be repeated.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="All must match.")] = None,
    created_before: Annotated[datetime | None, typer.Option(help="Local time.")] = None,
    skip: Annotated[int, typer.Option(min=0)] = 0,
    take: Annotated[int, typer.Option(min=1)] = 100,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    with Connection.of(context).open(with_ray=False) as choreography:
        records = choreography.jobs(
            type=job_type,
            statuses=tuple(status or ()),
            labels=pairs(label or []),
            created_before=created_before.astimezone() if created_before else None,
            skip=skip,
            take=take,
        )
    if as_json:
        show_json(records)
    elif records:
        show(display.job_table(records))
    else:
        show("no jobs")


def show_job(context: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Show a job: stages, history, failures."""
    with Connection.of(context).open(with_ray=False) as choreography:
        handle = choreography.job(job_id)
        record = handle.record()
        failures = [] if as_json else first_failures(handle, record)
    if as_json:
        show_json(record)
        return
    show(display.job_view(record))
    if failures:
        show(display.step_table(failures))


def list_steps(
    context: typer.Context,
    job_id: JobArgument,
    status: Annotated[JobStepStatus | None, typer.Option(case_sensitive=False, help="Only these.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the steps of a job."""
    with Connection.of(context).open(with_ray=False) as choreography:
        steps = choreography.job(job_id).steps(status=status)
    if as_json:
        show_json(steps)
    else:
        show(display.step_table(steps))


def verify(context: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> int:
    """Recount a job from its ledger, and look for what is missing or contradicts itself.

    Also while it runs. Of a job that was removed, it looks for what is left of it. Nothing is changed.
    """
    with Connection.of(context).open(with_ray=False) as choreography:
        found = choreography.job(job_id).verify()
    if as_json:
        show_json(found)
    else:
        show(display.verification_view(found))
    return ExitCode.OK if found.is_ok else ExitCode.ERROR
