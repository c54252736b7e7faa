"""How jobs and steps look to people: tables, a live bar in terminals and notebooks, plain lines everywhere else."""

from __future__ import annotations

from choreography_ray.display.cells import CellProgress, kernel_shell, publisher, register_views
from choreography_ray.display.live import SHOWN_FAILURES, SHOWN_STAGES, LiveView, Rate, shown_stages
from choreography_ray.display.notebook import job_html, jobs_html, step_html, steps_html, text_html
from choreography_ray.display.tables import (
    FittingTable,
    cell,
    console_for,
    job_table,
    job_view,
    stage_table,
    status_text,
    step_table,
    summary,
    table_of,
)
from choreography_ray.display.terminal import LiveProgress
from choreography_ray.display.words import (
    attempt_of,
    done_of,
    elapsed,
    failure_line,
    failure_text,
    format_duration,
    format_size,
    moment,
    troubles,
)
from choreography_ray.plain import clean

__all__ = [
    "SHOWN_FAILURES",
    "SHOWN_STAGES",
    "FittingTable",
    "LiveProgress",
    "LiveView",
    "Rate",
    "attempt_of",
    "cell",
    "clean",
    "console_for",
    "done_of",
    "elapsed",
    "failure_line",
    "failure_text",
    "format_duration",
    "format_size",
    "job_html",
    "job_table",
    "job_view",
    "jobs_html",
    "live_view",
    "moment",
    "register_views",
    "shown_stages",
    "stage_table",
    "status_text",
    "step_html",
    "step_table",
    "steps_html",
    "summary",
    "table_of",
    "text_html",
    "troubles",
]


def live_view() -> LiveView:
    """In a notebook's cell where there is one, else in the terminal, or as plain lines."""
    return CellProgress(publisher()) if kernel_shell() is not None else LiveProgress()
