"""How does HTML for notebooks come about? As a tree that escapes itself: no text of a record can become markup.

Colours are such that light and dark themes can be read; styles are inline, as many viewers drop style sheets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, tostring

from choreography_ray.display.words import done_of
from choreography_ray.model import JobStatus, JobStepStatus, StageProgress
from choreography_ray.plain import clean

GREEN, RED, AMBER, VIOLET, BLUE, GREY = "#2f9e58", "#e0524d", "#c9860d", "#9167d8", "#2d8fcf", "#8a8f98"
LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"text-align:left;vertical-align:top;padding:3px 12px 3px 0;border-bottom:{LINE};background:none"
_SHORT_COLUMNS = frozenset({"began", "created", "due", "status", "steps", "took", "until", "when"})
_MONO = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;font-size:90%;margin:4px 0"

_COLOURS: dict[str, str] = {
    JobStatus.COMPLETED_SUCCESSFULLY: GREEN,
    JobStatus.COMPLETED_WITH_FAILURES: AMBER,
    JobStatus.FAILED: RED,
    JobStatus.STOPPED: VIOLET,
    JobStatus.REMOVING: VIOLET,
    JobStatus.RUNNING: BLUE,
    JobStepStatus.SCHEDULED: BLUE,
    JobStepStatus.COMPLETED_WITH_FAILURE: RED,
    JobStepStatus.AWAITING_RETRY: AMBER,
    JobStepStatus.UNREACHABLE: AMBER,
}

Content = Element | str


def tag(name: str, *content: Content, style: str = "", **attributes: str) -> Element:
    """An element. Texts in it are cleaned: they end up on one line, and never as markup."""
    element = Element(name, attributes | ({"style": style} if style else {}))
    last: Element | None = None
    for part in content:
        if isinstance(part, Element):
            element.append(part)
            last = part
        elif last is None:
            element.text = (element.text or "") + clean(part)
        else:
            last.tail = (last.tail or "") + clean(part)
    return element


def to_html(*parts: Content) -> str:
    """The page of a cell."""
    page = tag("div", *parts, style="line-height:1.45;max-width:100%;overflow-x:auto")
    return tostring(page, encoding="unicode", method="html")


def lines(text: str) -> Element:
    """Text of several lines, each cleaned."""
    element = tag("pre", style=f"{_MONO};background:rgba(128,128,128,.1);color:inherit;padding:6px 8px")
    element.text = "\n".join(clean(line) for line in text.rstrip().splitlines())
    return element


def folded(title: Content, *content: Content) -> Element:
    """What is shown when somebody asks for it."""
    return tag("details", tag("summary", title, style="cursor:pointer"), *content, style="margin:4px 0")


def muted(text: str) -> Element:
    """A remark."""
    return tag("div", text, style="opacity:.7;margin:4px 0")


def colour_of(status: JobStatus | JobStepStatus) -> str:
    """The colour that stands for a status, in texts and plots."""
    return _COLOURS.get(status, GREEN if status is JobStepStatus.COMPLETED_SUCCESSFULLY else GREY)


def status_mark(status: JobStatus | JobStepStatus) -> Element:
    """A status in its colour."""
    return tag("span", status.value, style=f"color:{colour_of(status)};font-weight:600")


def code(text: str) -> Element:
    """Something to type."""
    return tag("code", text, style="background:rgba(128,128,128,.15);color:inherit;padding:0 4px")


def table(columns: Sequence[str], rows: Iterable[Sequence[Content]]) -> Element:
    """A row for each; columns that would be empty throughout are left out."""
    given = list(rows)
    used = [i for i in range(len(columns)) if not given or any(_is_told(row[i]) for row in given)]
    styles = [f"{_CELL};white-space:nowrap" if name in _SHORT_COLUMNS else _CELL for name in columns]
    head = tag("tr", *(tag("th", columns[i], style=f"{_CELL};font-weight:600;opacity:.75") for i in used))
    body = [tag("tr", *(tag("td", row[i], style=styles[i]) for i in used), style="background:none") for row in given]
    style = "border-collapse:collapse;margin:4px 0;border:none"
    return tag("table", tag("thead", head), tag("tbody", *body), style=style)


def _is_told(content: Content) -> bool:
    return content != "" if isinstance(content, str) else bool(len(content) or content.text)


def grid(rows: Iterable[Sequence[Content]]) -> Element:
    """Names and what there is to say to each; rows that end with nothing are left out."""
    style = "text-align:left;vertical-align:middle;padding:1px 14px 1px 0;border:none;background:none"
    told = [
        tag("tr", *(tag("td", part, style=style) for part in row), style="background:none")
        for row in rows
        if _is_told(row[-1])
    ]
    return tag("table", tag("tbody", *told), style="border-collapse:collapse;border:none;margin:4px 0")


def bar(counts: StageProgress, width: int = 260) -> Element:
    """What became of the steps, as coloured shares of one bar of so many pixels."""
    shares = (
        ("succeeded", counts.succeeded, GREEN),
        ("failed", counts.failed, RED),
        ("stopped", counts.stopped, VIOLET),
        ("unreachable", counts.unreachable, AMBER),
    )
    share = 100 / max(counts.total, done_of(counts), 1)
    parts = [
        tag("div", title=f"{number} {name}", style=f"width:{number * share:.3f}%;min-width:2px;background:{colour}")
        for name, number, colour in shares
        if number
    ]
    frame = f"display:flex;width:{width}px;height:12px;margin:5px 0;border-radius:3px;overflow:hidden"
    return tag("div", *parts, style=f"{frame};background:rgba(128,128,128,.25)")
