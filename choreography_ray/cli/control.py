"""The commands that change what a job does: stop, drain, resume, retry, remove."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Annotated

import typer

from choreography_ray import display
from choreography_ray.cli.arguments import JobArgument, JsonOption, examples
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.output import BadInput, ExitCode, busy, show, show_json
from choreography_ray.model import DrainResult, JobStepStatus, ResumeResult


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("stop", epilog=examples("choreography stop nightly", "choreography stop nightly --step shard-7"))(stop)
    app.command("drain", epilog=examples("choreography drain nightly --timeout 600 && ./deploy"))(drain)
    app.command("resume", epilog=examples("choreography resume nightly && choreography watch nightly"))(resume)
    app.command("retry", epilog=examples("choreography retry nightly && choreography watch nightly"))(retry)
    app.command("remove", epilog=examples("choreography remove nightly", "choreography remove nightly --yes --force"))(
        remove
    )


def _told(job_id: str, result: str, words: str, as_json: bool) -> None:
    if as_json:
        show_json({"job_id": job_id, "result": result})
    else:
        show(f"{display.clean(job_id)}: {words}")


def _confirm(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("nobody is there to confirm it; --yes goes on without the question")
    if not typer.confirm(question):
        raise BadInput("nothing was done")


StepOption = Annotated[str | None, typer.Option("--step", metavar="ID", help="Only this step of the job.")]


def stop(context: typer.Context, job_id: JobArgument, step: StepOption = None, as_json: JsonOption = False) -> None:
    """Stop a job, and keep it: resume goes on.

    Answers as soon as the stop is recorded; the steps are told, and ended when they do not end by themselves. With
    --step only that one is stopped, and the answer comes when it is accounted.
    """
    if step is not None:
        _stop_step(context, job_id, step, as_json)
        return
    with Connection.of(context).open(with_ray=True, resumes=False) as choreography, busy("stopping"):
        choreography.job(job_id).stop()
    _told(job_id, "STOPPED", "stopped; resume it with: choreography resume " + display.clean(job_id), as_json)


def _stop_step(context: typer.Context, job_id: str, step_id: str, as_json: bool) -> None:
    with Connection.of(context).open(with_ray=True, resumes=False) as choreography, busy("stopping the step"):
        status = choreography.job(job_id).step(step_id).stop()
    words = {
        JobStepStatus.STOPPED: "stopped; it runs again when the job is resumed",
        JobStepStatus.PREPARED: "has not begun, and will not before its job is resumed",
        JobStepStatus.COMPLETED_WITH_FAILURE: "failed: no further attempt is made",
    }
    if as_json:
        show_json({"job_id": job_id, "step_id": step_id, "result": status})
    else:
        told = words.get(status, f"had ended before it was stopped: {status}")
        show(f"{display.clean(job_id)}: step {display.clean(step_id)} {told}")


def drain(
    context: typer.Context,
    job_id: JobArgument,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait; 0 looks once.")] = 60.0,
    as_json: JsonOption = False,
) -> int:
    """Stop a job and wait until no code of its steps runs."""
    with Connection.of(context).open(with_ray=True, resumes=False) as choreography, busy("stopping"):
        result = choreography.job(job_id).drain(timedelta(seconds=timeout))
    words = {
        DrainResult.DRAINED: "drained: nothing of it runs",
        DrainResult.TIMED_OUT: f"still stopping after {timeout:g} s: call again",
        DrainResult.COMPLETED: "had nothing left to run: it is completed",
    }
    _told(job_id, result, words[result], as_json)
    return ExitCode.ERROR if result is DrainResult.TIMED_OUT else ExitCode.OK


def resume(context: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Go on with a stopped job."""
    with Connection.of(context).open(with_ray=True, resumes=False) as choreography, busy("resuming"):
        result = choreography.job(job_id).resume()
    words = {
        ResumeResult.RESUMED: "resumed",
        ResumeResult.ALREADY_RUNNING: "is running already",
        ResumeResult.COMPLETED: "is completed: there is nothing to resume",
    }
    _told(job_id, result, words[result], as_json)


def retry(context: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Run the failed steps of a job that completed with failures again."""
    with Connection.of(context).open(with_ray=True, resumes=False) as choreography, busy("asking the job"):
        count = choreography.job(job_id).retry_failed_steps()
    if as_json:
        show_json({"job_id": job_id, "steps": count})
    else:
        show(f"{display.clean(job_id)}: {count} failed steps run again")


def remove(
    context: typer.Context,
    job_id: JobArgument,
    step: Annotated[
        str | None, typer.Option("--step", metavar="ID", help="Only what is left of this step of a job that is gone.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for its steps to end.")] = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Without hooks, also when its code cannot be loaded.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End a job's steps and delete every record of it. This cannot be undone."""
    if step is not None:
        with Connection.of(context).open(with_ray=False) as choreography:
            choreography.job(job_id).step(step).remove()
        _told(job_id, "REMOVED", f"what was left of step {display.clean(step)} is removed", as_json)
        return
    if not yes:
        _confirm(f"Delete everything that is stored of {display.clean(job_id)}?")
    with Connection.of(context).open(with_ray=True, resumes=False) as choreography, busy("ending its steps"):
        choreography.job(job_id).remove(timedelta(seconds=timeout), force=force)
    _told(job_id, "REMOVED", "removed", as_json)
