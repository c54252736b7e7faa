"""The commands that look at jobs and change nothing: list, show, steps, explain, verify."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from choreography_ray import display, reports
from choreography_ray.cli.arguments import JobArgument, JsonOption, examples
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.jobs import FAILED, SHOWN_FAILURES, first_failures, pairs
from choreography_ray.cli.output import BadInput, ExitCode, show, show_json
from choreography_ray.model import JobStatus, JobStepStatus


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        "list",
        epilog=examples(
            "choreography list --status RUNNING --label team=search",
            "choreography list --created-before 2026-11-30 --take 1000 --json",
        ),
    )(list_jobs)
    app.command("show", epilog=examples("choreography show nightly", "choreography show nightly shard-7"))(show_job)
    app.command(
        "steps", epilog=examples("choreography steps nightly --failed", "choreography steps nightly --status RUNNING")
    )(list_steps)
    app.command("explain", epilog=examples("choreography explain nightly"))(explain)
    app.command("logs", epilog=examples("choreography logs nightly shard-7 --bytes 4096"))(logs)
    app.command("verify", epilog=examples("choreography verify nightly"))(verify)


def _any_of(statuses: type[StrEnum]) -> str:
    return "One of " + ", ".join(statuses)


def list_jobs(
    context: typer.Context,
    job_type: Annotated[str | None, typer.Option("--type", help="Only jobs of this type.")] = None,
    status: Annotated[
        list[JobStatus] | None,
        typer.Option(metavar="STATUS", case_sensitive=False, help=f"{_any_of(JobStatus)}; may be repeated."),
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="All must match.")] = None,
    created_before: Annotated[
        datetime | None, typer.Option(metavar="WHEN", help="Local time, as 2026-11-30 or 2026-11-30T12:00:00.")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Leave out so many of the newest.")] = 0,
    take: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
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


def show_job(
    context: typer.Context,
    job_id: JobArgument,
    step_id: Annotated[str | None, typer.Argument(metavar="[STEP]", help="A step's id: show that step.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job, or one of its steps.

    Of a job its stages, history, failures and waiting retries; of a step each attempt.
    """
    with Connection.of(context).open(with_ray=False) as choreography:
        handle = choreography.job(job_id)
        if step_id is not None:
            step = handle.step(step_id).record()
            show_json(step) if as_json else show(reports.attempts_view(step))
            return
        record = handle.record()
        failures = [] if as_json else first_failures(handle, record)
        retries = () if as_json else handle.steps(JobStepStatus.AWAITING_RETRY, take=SHOWN_FAILURES)
    if as_json:
        show_json(record)
        return
    show(display.job_view(record))
    for title, steps in (("failed", failures), ("waiting for the next attempt", retries)):
        if steps:
            show(f"{title}:")
            show(display.step_table(steps))
    if record.progress.failed > len(failures):
        show(f"all {record.progress.failed} failures: choreography steps {display.clean(job_id)} --failed")


def list_steps(
    context: typer.Context,
    job_id: JobArgument,
    status: Annotated[
        JobStepStatus | None, typer.Option(metavar="STATUS", case_sensitive=False, help=_any_of(JobStepStatus) + ".")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only failed ones, with each attempt and traceback.")
    ] = False,
    take: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the steps of a job."""
    if failed and status is not None:
        raise BadInput("--failed and --status exclude each other")
    with Connection.of(context).open(with_ray=False) as choreography:
        steps = choreography.job(job_id).steps(FAILED if failed else status, take=take)
    if as_json:
        show_json(steps)
    elif failed:
        for step in steps:
            show(reports.attempts_view(step))
    else:
        show(display.step_table(steps))


def explain(context: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Tell for what the steps of a job wait, and why.

    Asks the job's actor, where a cluster is known here; else tells what is stored. Nothing is changed.
    """
    connection = Connection.of(context)
    needs_ray = connection.known_address not in {None, "local"}
    with connection.open(with_ray=needs_ray, resumes=False) as choreography:
        found = choreography.job(job_id).explain()
    if as_json:
        show_json(found)
    else:
        show(reports.explanation_view(found))


def logs(
    context: typer.Context,
    job_id: JobArgument,
    step_id: Annotated[str, typer.Argument(metavar="STEP", help="The step's id.")],
    size: Annotated[int, typer.Option("--bytes", min=1, help="How much of the end of each file.")] = 65_536,
    as_json: JsonOption = False,
) -> int:
    """Show what a step's process printed and logged.

    Ray keeps it in files of the node where the process ran, as long as the cluster lasts; the store has no copy.
    """
    connection = Connection.of(context)
    needs_ray = connection.known_address not in {None, "local"}
    with connection.open(with_ray=needs_ray, resumes=False) as choreography:
        found = choreography.job(job_id).output(step_id, size)
    if as_json:
        show_json(found)
    else:
        show(reports.output_view(found))
    return ExitCode.OK if found.host else ExitCode.ERROR


def verify(context: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> int:
    """Recount a job, and look for what is wrong.

    It looks for what is missing in the job's records, contradicts itself or is left over, also while it runs; of a
    job that was removed, for what is left of it. Nothing is changed. Exits with 1 when something is wrong; debris
    alone is not.
    """
    with Connection.of(context).open(with_ray=False) as choreography:
        found = choreography.job(job_id).verify()
    if as_json:
        show_json(found)
    else:
        show(reports.verification_view(found))
    return ExitCode.OK if found.is_ok else ExitCode.ERROR
