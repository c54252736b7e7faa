"""What do people see of jobs in a notebook, and what can hostile text, a huge job or a broken cell do to it?"""

from __future__ import annotations

import sys
from datetime import timedelta
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from choreography_ray import display
from choreography_ray.client.listing import JobList, StepList
from choreography_ray.display.cells import CellProgress
from choreography_ray.display.notebook import PAGE_ROWS, VIEWS
from choreography_ray.display.timeline import SHOWN_SPANS, timeline_html
from choreography_ray.model import (
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    Span,
    SpanKind,
    StageProgress,
    StepId,
    StepOutput,
    StepRecord,
    Timeline,
)
from tests.unit.test_display import (
    BEGAN,
    HOSTILE,
    Clock,
    a_failure,
    a_hostile_explanation,
    a_hostile_step,
    a_hostile_verification,
    a_job,
)

PAGE = HOSTILE + "</pre></title></table><img src=x onerror=alert(1)>\"'&amp;"


class Tags(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def a_hostile_job(**changes: Any) -> JobRecord:
    texts = {"job_id": PAGE, "type_name": PAGE, "labels": {PAGE: PAGE}, "error": PAGE, "details": PAGE}
    return a_job(JobStatus.COMPLETED_WITH_FAILURES, failed=1, **texts, options={PAGE: PAGE}, **changes)


def a_span(began: float, seconds: float | None = 1.0, **changes: Any) -> Span:
    at = BEGAN + timedelta(seconds=began)
    known = {"kind": SpanKind.STEP, "what": "a", "node": "n1", "stage": 0}
    return Span(began_at=at, ended_at=None if seconds is None else at + timedelta(seconds=seconds), **known | changes)


def a_timeline(*spans: Span, status: JobStatus = JobStatus.COMPLETED_SUCCESSFULLY, **changes: Any) -> Timeline:
    history = a_job(status).history
    known = {"job_id": JobId("nightly"), "status": status, "created_at": BEGAN, "history": history, "spans": spans}
    return Timeline(**known | changes)


@pytest.mark.parametrize(
    "page",
    [
        display.job_html(a_hostile_job(), [a_hostile_step(), a_failure(PAGE, PAGE)]),
        display.jobs_html([a_hostile_job()]),
        display.steps_html([a_hostile_step(), a_failure(PAGE, PAGE)]),
        display.step_html(a_hostile_step()),
        display.text_html(PAGE),
        VIEWS[type(a_hostile_explanation())](a_hostile_explanation()),
        VIEWS[type(a_hostile_verification())](a_hostile_verification()),
        VIEWS[StepOutput](StepOutput(step_id=StepId(PAGE), host=PAGE, node=PAGE, out=PAGE, err=PAGE, told=PAGE)),
        timeline_html(a_timeline(a_span(0, what=PAGE, node=PAGE, told=PAGE), job_id=PAGE, unknown=(PAGE,))),
    ],
)
def test_text_of_a_user_is_no_markup_and_no_control_character(page: str) -> None:
    found = Tags(page)
    assert not found.open, "an element is not closed"
    assert not found.names & {"script", "img", "a", "iframe", "style", "bold"}
    assert not {name for name in found.attributes if name.startswith("on")}
    assert not {"src", "href", "onerror"} & found.attributes
    assert not set("\x1b\x07\u202e\ud800") & set(page)
    assert "<script>" in found.text


def test_the_page_of_a_job_tells_stages_failures_options_and_what_to_do_next() -> None:
    stages = {0: StageProgress(total=1, succeeded=1), 10: StageProgress(total=9, succeeded=2, failed=1)}
    job = a_job(
        JobStatus.COMPLETED_WITH_FAILURES, succeeded=3, failed=1, stages=stages, options={"max_step_attempts": "3"}
    )
    text = Tags(display.job_html(job, [a_failure("shard-7")])).text
    for told in (
        "stage 0",
        "3/9, 1 failed",
        "shard-7",
        "no such shard",
        "max_step_attempts",
        "job.steps()",
    ):
        assert told in text


def test_a_retry_of_failed_steps_is_proposed_where_it_is_possible() -> None:
    """Not to a job with stages, which would refuse it [S7.3]."""
    known = {"succeeded": 9, "failed": 1}
    assert "job.retry_failed_steps()" in display.job_html(a_job(JobStatus.COMPLETED_WITH_FAILURES, **known))
    stages = {0: StageProgress(total=1, succeeded=1), 10: StageProgress(total=9, succeeded=8, failed=1)}
    page = display.job_html(a_job(JobStatus.COMPLETED_WITH_FAILURES, **known, stages=stages))
    assert "job.retry_failed_steps()" not in page


@pytest.mark.parametrize("status", JobStatus)
def test_every_status_of_a_job_has_something_to_do_next(status: JobStatus) -> None:
    assert "job." in Tags(display.job_html(a_job(status))).text


def test_a_list_shows_a_page_and_how_to_see_the_next_one() -> None:
    """Of 100,000 steps no more than a page becomes HTML, and a slice is a list of the same kind."""
    steps = StepList(StepRecord(step_id=StepId(f"s{number}"), ordinal=number) for number in range(100_000))
    page = steps._repr_html_()
    assert page.count("<tr") == PAGE_ROWS + 1
    assert f"steps[{PAGE_ROWS}:{2 * PAGE_ROWS}]" in page
    assert "s150<" in steps[PAGE_ROWS : 2 * PAGE_ROWS]._repr_html_()
    assert isinstance(steps[0], StepRecord)
    assert "no steps" in StepList()._repr_html_()
    assert "nightly" in JobList([a_job()])._repr_html_()


def test_tracebacks_are_folded_under_their_attempt() -> None:
    step = a_hostile_step()
    failure = step.attempts[0].model_copy(update={"traceback": "line 1\n  line 2", "message": "no such shard"})
    page = display.step_html(step.model_copy(update={"failure": failure, "attempts": (failure,)}))
    assert "line 1\n  line 2</pre></details>" in page


def test_a_timeline_draws_each_host_and_tells_what_is_not_known() -> None:
    spans = [a_span(number, node=f"n{number % 2}") for number in range(4)]
    failed = a_span(1, kind=SpanKind.FAILED_ATTEMPT, told="ValueError")
    page = timeline_html(a_timeline(*spans, failed, unknown=("who paid",)))
    assert page.count("<title>") == 4 + 1 + 1, "a span each, and the job's status"
    for told in ("node n0", "node n1", "failed on n1", "ValueError", "not known: who paid"):
        assert told in page


def test_a_timeline_of_very_many_steps_shows_how_many_there_were_at_each_moment() -> None:
    """The size of the page does not depend on the number of steps."""
    pages = [timeline_html(a_timeline(*(a_span(n * 90 / many, 0.9) for n in range(many)))) for many in (1_000, 20_000)]
    assert all(len(page) < 40_000 for page in pages)
    assert "20000 in all, " in pages[1]
    few = timeline_html(a_timeline(*(a_span(n * 90 / SHOWN_SPANS, 0.5) for n in range(SHOWN_SPANS))))
    assert len(few) < 60_000


def test_what_goes_on_reaches_to_now() -> None:
    page = timeline_html(a_timeline(a_span(10, None), status=JobStatus.RUNNING), BEGAN + timedelta(seconds=100))
    assert "1 min 30 s so far" in page


def test_a_timeline_of_a_job_that_has_no_time_yet_is_drawn() -> None:
    assert "<svg" in timeline_html(a_timeline(status=JobStatus.RUNNING, history=()), BEGAN)


class Cell:
    """What a cell was told to show."""

    def __init__(self) -> None:
        self.pages: list[dict[str, str]] = []

    def publish(self, page: dict[str, str]) -> None:
        self.pages.append(page)


def test_a_cell_shows_the_same_thing_once_and_each_failure_as_it_comes() -> None:
    cell, clock = Cell(), Clock()
    with CellProgress(cell.publish, clock) as live:
        for now, succeeded in ((0.0, 0), (1.0, 0), (2.0, 4)):
            clock.now = now
            live.update(a_job(succeeded=succeeded))
        live.update(a_job(succeeded=4, failed=1), [a_failure("shard-1")])
        live.update(a_job(JobStatus.COMPLETED_WITH_FAILURES, succeeded=9, failed=1))
    assert [page["text/plain"] for page in cell.pages] == [
        "0/10 steps",
        "4/10 steps, 2/s, about 3.0 s left",
        "5/10 steps, 1 failed, 2.5/s, about 2.0 s left",
        "10/10 steps, 1 failed in 1 min 30 s",
    ]
    assert "no such shard" not in cell.pages[1]["text/html"]
    assert "shard-1 (attempt 1): ValueError: no such shard" in cell.pages[-1]["text/html"]


def test_a_cell_of_very_many_failures_stays_small() -> None:
    cell = Cell()
    live = CellProgress(cell.publish, Clock())
    live.update(a_job(total=900, failed=500), [a_failure(f"shard-{n}", "x" * 4_000) for n in range(500)])
    assert live.failures_told == display.SHOWN_FAILURES
    assert not live.wants_failures
    assert "further failures are only counted" in cell.pages[-1]["text/html"]
    assert len(cell.pages[-1]["text/html"]) < 20_000


def test_a_cell_that_is_interrupted_says_that_it_does_not_follow_any_more() -> None:
    cell = Cell()

    def wait_in_vain() -> None:
        with CellProgress(cell.publish, Clock()) as live:
            live.update(a_job())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_in_vain()
    assert "not followed any more" in cell.pages[-1]["text/html"]


def test_a_cell_that_cannot_be_written_ends_nobodys_wait() -> None:
    def broken(page: dict[str, str]) -> None:
        raise OSError("the kernel's socket is closed")

    with CellProgress(broken, Clock()) as live:
        live.update(a_job())


def test_outside_of_a_notebook_a_terminal_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython may be imported, and even run in a terminal: that is no cell."""
    shell: Any = None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert isinstance(display.live_view(), display.LiveProgress)
    shell = SimpleNamespace()
    assert isinstance(display.live_view(), display.LiveProgress)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setattr(display, "publisher", lambda: Cell().publish)
    assert isinstance(display.live_view(), CellProgress)


def test_a_status_of_a_step_is_written_out() -> None:
    """Colour alone tells nothing to many people."""
    step = StepRecord(step_id=StepId("a"), ordinal=0, status=JobStepStatus.AWAITING_RETRY, retry_due=BEGAN)
    assert "AWAITING_RETRY" in Tags(display.step_html(step)).text
