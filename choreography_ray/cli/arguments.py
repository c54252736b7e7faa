"""What do many commands have in common? The arguments that they share, and the form of their examples."""

from __future__ import annotations

from typing import Annotated

import typer

from choreography_ray.cli.completion import job_ids

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=job_ids)]


def examples(*lines: str) -> str:
    """The end of a command's help: command lines that work as they stand, not folded."""
    return "\b\n" + "\n".join(("Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)))
