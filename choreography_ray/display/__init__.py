"""How jobs and steps look to people: tables, a live bar in terminals and notebooks, plain lines everywhere else."""

from __future__ import annotations

from choreography_ray.display.live import SHOWN_FAILURES, SHOWN_STAGES, Rate, shown_stages
from choreography_ray.display.notebook import plain_html, repr_html
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
    clean,
    done_of,
    elapsed,
    failure_line,
    failure_text,
    format_duration,
    format_size,
    moment,
    troubles,
)

__all__ = [
    "SHOWN_FAILURES",
    "SHOWN_STAGES",
    "FittingTable",
    "LiveProgress",
    "Rate",
    "cell",
    "clean",
    "console_for",
    "done_of",
    "elapsed",
    "failure_line",
    "failure_text",
    "format_duration",
    "format_size",
    "job_table",
    "job_view",
    "moment",
    "plain_html",
    "repr_html",
    "shown_stages",
    "stage_table",
    "status_text",
    "step_table",
    "summary",
    "table_of",
    "troubles",
]
