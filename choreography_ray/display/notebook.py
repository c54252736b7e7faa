"""How do jobs look in a notebook? As HTML in which all text of records is escaped."""

from __future__ import annotations

import html

from choreography_ray.display.words import clean, done_of, facts_of, troubles
from choreography_ray.model import JobRecord


def repr_html(record: JobRecord) -> str:
    """The record as HTML for a notebook: facts, and a bar per stage. All text is escaped."""
    rows = "".join(f"<tr><th>{_html(name)}</th><td>{_html(value)}</td></tr>" for name, value in facts_of(record))
    stages = sorted(record.progress.stages.items())
    bars = "".join(
        f"<tr><th>{_html(name)}</th><td><progress max={max(counts.total, 1)} value={done_of(counts)}></progress>"
        f" {done_of(counts)}/{counts.total}{_html(troubles(counts))}</td></tr>"
        for name, counts in ((f"stage {stage}", counts) for stage, counts in stages)
    )
    return f"<table>{rows}{bars}</table>"


def plain_html(text: str) -> str:
    """A line of text as HTML; nothing in it is markup."""
    return f"<pre>{_html(text)}</pre>"


def _html(text: str) -> str:
    return html.escape(clean(text))
