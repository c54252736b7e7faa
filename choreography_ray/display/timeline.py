"""How does a job's timeline look? As a plot of bounded size: its hosts one by one, or how many there were of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from xml.etree.ElementTree import Element

from choreography_ray.display.html import RED, Content, colour_of, muted, status_mark, tag, to_html
from choreography_ray.display.words import format_duration, moment
from choreography_ray.model import HistoryEntry, Span, SpanKind, Timeline
from choreography_ray.plain import clean

SHOWN_SPANS = 150
"""Spans that are drawn one by one; of more it is drawn how many there were at each moment."""
BINS = 120
"""Moments for which it is drawn how many spans there were."""
SHOWN_NODES = 12
SHOWN_LANES = 60
"""Rows of single spans at most, and nodes that have rows of their own: what is beyond them is counted, not drawn."""

_WIDTH, _LEFT, _ROW, _DENSE = 860.0, 170.0, 13.0, 46.0
_STAGES = ("#2d8fcf", "#2f9e58", "#b8860b", "#9167d8", "#1a9c9c", "#c2628f")
_HOST = "#8a8f98"
_TICKS = 6


@dataclass
class _Drawing:
    """Marks, and how far down they reach."""

    begin: datetime
    seconds: float
    colours: Mapping[int, str]
    marks: list[Element] = field(default_factory=list[Element])
    height: float = 6.0

    def x(self, at: datetime) -> float:
        """Where a moment is."""
        share = (at - self.begin).total_seconds() / self.seconds
        return _LEFT + (_WIDTH - _LEFT - 10) * min(1.0, max(0.0, share))

    def text(self, x: float, y: float, what: str, anchor: str = "start", opacity: float = 1.0) -> None:
        """A short text."""
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "opacity": f"{opacity:g}"}
        self.marks.append(tag("text", clean(what, 40), **place))

    def box(self, begin: float, end: float, top: float, height: float, colour: str, told: str = "") -> None:
        """A bar, never too thin to be seen; `told` shows when a pointer rests on it."""
        place = {"x": begin, "y": top, "width": max(1.5, end - begin), "height": height}
        attributes = {name: f"{number:.1f}" for name, number in place.items()}
        title = [tag("title", clean(told, 300))] if told else []
        self.marks.append(tag("rect", *title, fill=colour, rx="1.5", **attributes))


def timeline_html(timeline: Timeline, now: datetime | None = None) -> str:
    """The plot, with what it shows and what is not known."""
    now = now or datetime.now(UTC)
    since = f" since {moment(timeline.created_at)}"
    head = tag("div", tag("b", timeline.job_id), " ", status_mark(timeline.status), since)
    parts: list[Content] = [head, _plot(timeline, now), _legend(timeline)]
    parts += [muted(f"not known: {what}") for what in timeline.unknown]
    return to_html(*parts)


def _plot(timeline: Timeline, now: datetime) -> Element:
    end = _end_of(timeline, now)
    seconds = max(0.001, (end - timeline.created_at).total_seconds())
    drawing = _Drawing(timeline.created_at, seconds, _colours(timeline.spans))
    _draw_statuses(drawing, timeline, end)
    if len(timeline.spans) <= SHOWN_SPANS:
        _draw_spans(drawing, timeline.spans, end)
    else:
        _draw_density(drawing, timeline.spans, end)
    _draw_axis(drawing)
    box = f"0 0 {_WIDTH:.0f} {drawing.height:.0f}"
    style = f"width:100%;max-width:{_WIDTH:.0f}px;height:auto;font:11px sans-serif;color:inherit"
    return tag("svg", *drawing.marks, style=style, viewBox=box, fill="currentColor", role="img")


def _end_of(timeline: Timeline, now: datetime) -> datetime:
    if timeline.status.is_interruptible:
        return now
    known = [entry.at for entry in timeline.history] + [span.ended_at for span in timeline.spans if span.ended_at]
    return max(known, default=now)


def _draw_statuses(drawing: _Drawing, timeline: Timeline, end: datetime) -> None:
    drawing.text(0, drawing.height + 10, "job")
    for entry, until in pairwise((*timeline.history, HistoryEntry(at=end, status=timeline.status))):
        told = f"{entry.status} from {moment(entry.at)}, {format_duration(until.at - entry.at)} {entry.why}"
        drawing.box(drawing.x(entry.at), drawing.x(until.at), drawing.height, _ROW, colour_of(entry.status), told)
    drawing.height += _ROW + 6


def _draw_spans(drawing: _Drawing, spans: Sequence[Span], end: datetime) -> None:
    """A row for as many spans as follow each other on a node; failed attempts have rows of their own."""
    groups: dict[str, list[Span]] = {}
    for span in spans:
        groups.setdefault(_group_of(span), []).append(span)
    lanes_left = SHOWN_LANES
    for name, members in list(groups.items())[:SHOWN_NODES]:
        drawing.text(0, drawing.height + 10, name)
        lanes: list[datetime] = []
        hidden = 0
        for span in members:
            until = span.ended_at or end
            lane = next((i for i, free in enumerate(lanes) if free <= span.began_at), len(lanes))
            if lane == len(lanes):
                if not lanes_left:
                    hidden += 1
                    continue
                lanes_left -= 1
                lanes.append(until)
            lanes[lane] = until
            top = drawing.height + lane * (_ROW + 1)
            colour = _colour(span, drawing.colours)
            drawing.box(drawing.x(span.began_at), drawing.x(until), top, _ROW, colour, _told(span, until))
        drawing.height += max(1, len(lanes)) * (_ROW + 1) + 5
        if hidden:
            drawing.text(_LEFT, drawing.height + 6, f"and {hidden} more at the same time", opacity=0.7)
            drawing.height += _ROW
    if len(groups) > SHOWN_NODES:
        drawing.text(0, drawing.height + 10, f"and {len(groups) - SHOWN_NODES} more nodes", opacity=0.7)
        drawing.height += _ROW + 5


def _group_of(span: Span) -> str:
    what = "failed on" if span.kind is SpanKind.FAILED_ATTEMPT else "node"
    return f"{what} {span.node[:12] or 'unknown'}"


def _told(span: Span, until: datetime) -> str:
    took = format_duration(until - span.began_at)
    return f"{span.what}: from {moment(span.began_at)}, {took}{'' if span.ended_at else ' so far'}. {span.told}"


def _draw_density(drawing: _Drawing, spans: Sequence[Span], end: datetime) -> None:
    """Of each stage, how many spans there were at each moment; the same for warm actors and failed attempts."""
    groups: dict[str, list[Span]] = {}
    for span in spans:
        groups.setdefault(_name_of(span), []).append(span)
    for name, members in list(groups.items())[:SHOWN_NODES]:
        counts = _counts(drawing, members, end)
        most = max(counts)
        drawing.text(0, drawing.height + 12, name)
        drawing.text(0, drawing.height + 26, f"{len(members)} in all, {most} at once", opacity=0.7)
        width, colour = (_WIDTH - _LEFT - 10) / BINS, _colour(members[0], drawing.colours)
        for i, count in enumerate(counts):
            if count:
                height = _DENSE * count / most
                top = drawing.height + _DENSE - height
                begin = _LEFT + i * width
                drawing.box(begin, begin + width, top, height, colour, f"{count} at once")
        drawing.height += _DENSE + 6
    if len(groups) > SHOWN_NODES:
        drawing.text(0, drawing.height + 10, f"and {len(groups) - SHOWN_NODES} more stages", opacity=0.7)
        drawing.height += _ROW + 5


def _counts(drawing: _Drawing, spans: Iterable[Span], end: datetime) -> list[int]:
    """How many of the spans touch each bin."""
    changes = [0] * (BINS + 1)
    for span in spans:
        first = int(BINS * (span.began_at - drawing.begin).total_seconds() / drawing.seconds)
        last = int(BINS * ((span.ended_at or end) - drawing.begin).total_seconds() / drawing.seconds)
        first = min(BINS - 1, max(0, first))
        changes[first] += 1
        changes[min(BINS - 1, max(first, last)) + 1] -= 1
    counts: list[int] = []
    for change in changes[:BINS]:
        counts.append((counts[-1] if counts else 0) + change)
    return counts


def _draw_axis(drawing: _Drawing) -> None:
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        x = _LEFT + (_WIDTH - _LEFT - 10) * share
        line = {"x1": x, "x2": x, "y1": 2.0, "y2": drawing.height}
        places = {name: f"{number:.1f}" for name, number in line.items()}
        drawing.marks.append(tag("line", stroke="currentColor", opacity="0.15", **places))
        anchor = "end" if tick == _TICKS else "middle"
        drawing.text(x, drawing.height + 12, format_duration(drawing.seconds * share) if tick else "0", anchor, 0.7)
    drawing.height += 18


def _name_of(span: Span) -> str:
    if span.kind is SpanKind.FAILED_ATTEMPT:
        return "failed attempts"
    if span.kind is SpanKind.HOST:
        return "warm actors"
    return "own actors" if span.stage is None else f"stage {span.stage}"


def _colours(spans: Sequence[Span]) -> dict[int, str]:
    """A colour for each stage."""
    stages = sorted({span.stage for span in spans if span.stage is not None})
    return {stage: _STAGES[i % len(_STAGES)] for i, stage in enumerate(stages)}


def _colour(span: Span, colours: Mapping[int, str]) -> str:
    if span.kind is SpanKind.FAILED_ATTEMPT:
        return RED
    return _HOST if span.kind is SpanKind.HOST or span.stage is None else colours[span.stage]


def _legend(timeline: Timeline) -> Element:
    colours, names = _colours(timeline.spans), dict[str, str]()
    for span in timeline.spans:
        names.setdefault(_name_of(span), _colour(span, colours))
    marks: list[Content] = []
    for name, colour in list(names.items())[:SHOWN_NODES]:
        square = f"display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 0;background:{colour}"
        marks.append(tag("span", tag("span", style=square), name, style="margin-right:16px;white-space:nowrap"))
    return tag("div", *marks, style="font-size:90%;margin:2px 0")
