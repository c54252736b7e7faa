"""What do people see of jobs and steps, in a terminal and outside of one, and what can hostile text do to it?"""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from choreography_ray import display, reports
from choreography_ray.display import words
from choreography_ray.model import (
    AttemptRecord,
    Explanation,
    Finding,
    FindingKind,
    HistoryEntry,
    JobId,
    JobRecord,
    JobStatus,
    JobStepStatus,
    Progress,
    StageProgress,
    StepId,
    StepRecord,
    Verification,
    Waiting,
    WaitReason,
)

BEGAN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold]loud[/bold] :smile:\nsecond\u202eline\ud800<script>"


def a_job(status: JobStatus = JobStatus.RUNNING, *, total: int = 10, **changes: Any) -> JobRecord:
    counts = {"succeeded": changes.pop("succeeded", 0), "failed": changes.pop("failed", 0)}
    stages = changes.pop("stages", {0: StageProgress(total=total, **counts)})
    return JobRecord(
        **{
            "job_id": JobId("nightly"),
            "type_name": "RebuildIndex",
            "status": status,
            "progress": Progress(total=total, **counts, stages=stages),
            "created_at": BEGAN,
            "updated_at": BEGAN + timedelta(seconds=90),
            "history": (HistoryEntry(at=BEGAN + timedelta(seconds=90), status=status),),
            **changes,
        }
    )


def a_failure(step_id: str, message: str = "no such shard") -> StepRecord:
    return StepRecord(
        step_id=StepId(step_id),
        ordinal=1,
        status=JobStepStatus.COMPLETED_WITH_FAILURE,
        failure=AttemptRecord(attempt=1, error_type="ValueError", message=message),
    )


def a_hostile_step() -> StepRecord:
    failure = AttemptRecord(attempt=1, error_type=HOSTILE, message=HOSTILE, traceback=HOSTILE, node=HOSTILE, pid=1)
    changes = {"name": HOSTILE, "host": HOSTILE, "failure": failure, "attempts": (failure,), "retry_due": BEGAN}
    return a_failure(HOSTILE).model_copy(update=changes)


def a_hostile_verification() -> Verification:
    kind, step_id = FindingKind.RESULT, StepId(HOSTILE)
    finding = Finding(kind=kind, stored=HOSTILE, expected=HOSTILE, step_id=step_id, ordinal=1)
    known = {"findings": (finding,), "errors": 1, "unchecked": (HOSTILE,)}
    return Verification(job_id=JobId(HOSTILE), status=JobStatus.RUNNING, **known)


def a_hostile_explanation() -> Explanation:
    waiting = Waiting(reason=WaitReason.HOOK, steps=1, told=HOSTILE, examples=(StepId(HOSTILE),))
    known = {"told": HOSTILE, "waiting": (waiting,), "trouble": HOSTILE}
    return Explanation(job_id=JobId(HOSTILE), status=JobStatus.RUNNING, **known)


def rendered(what: Any, *, is_terminal: bool = False) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160, markup=False, emoji=False, force_terminal=is_terminal, highlight=False).print(what)
    return stream.getvalue()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain_progress() -> tuple[display.LiveProgress, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return display.LiveProgress(display.console_for(stream), clock), stream, clock


@pytest.mark.parametrize(
    "view",
    [
        lambda job: display.job_table([job]),
        display.job_view,
        display.summary,
        lambda _: display.step_table([a_failure(HOSTILE, HOSTILE)]),
        lambda _: reports.attempts_view(a_hostile_step()),
        lambda _: reports.verification_view(a_hostile_verification()),
        lambda _: reports.explanation_view(a_hostile_explanation()),
    ],
)
def test_text_of_a_user_reaches_the_terminal_as_text(view: Any) -> None:
    """Ids, labels and messages hold escape sequences and markup: shown as they are, on one line, commanding nothing."""
    job = a_job(job_id=HOSTILE, type_name=HOSTILE, labels={HOSTILE: HOSTILE}, error=HOSTILE, details=HOSTILE)
    text = rendered(view(job))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "\ud800" not in text
    assert "[bold]loud[/bold] :smile: second" in " ".join(text.split())


def test_long_text_is_cut_and_a_short_one_is_not() -> None:
    assert display.clean("abc", 3) == "abc"
    assert display.clean("abcd", 3) == "ab…"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.44, "0.4 s"), (12, "12 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_durations_are_told_in_the_two_largest_units(seconds: float, told: str) -> None:
    assert display.format_duration(seconds) == told


def test_a_finished_job_took_from_its_creation_to_its_last_status() -> None:
    """Whatever touched the record later does not count."""
    job = a_job(JobStatus.COMPLETED_SUCCESSFULLY, updated_at=BEGAN + timedelta(days=1))
    assert display.elapsed(job) == timedelta(seconds=90)
    assert display.elapsed(a_job(), BEGAN + timedelta(seconds=5)) == timedelta(seconds=5)


def test_a_summary_names_the_counts_that_are_not_zero() -> None:
    told = display.summary(a_job(JobStatus.COMPLETED_WITH_FAILURES, succeeded=8, failed=2)).plain
    assert "8 of 10 steps succeeded, 2 failed, 1 min 30 s" in told
    assert "stopped" not in told


def test_outside_a_terminal_progress_is_plain_lines() -> None:
    """A line at the beginning, none for a change within the interval, one after it, and one for the end."""
    live, stream, clock = plain_progress()
    with live:
        for now, succeeded in ((0.0, 0), (1.0, 2), (6.0, 6)):
            clock.now = now
            live.update(a_job(succeeded=succeeded))
        live.update(a_job(JobStatus.COMPLETED_SUCCESSFULLY, succeeded=10))
        live.update(a_job(JobStatus.COMPLETED_SUCCESSFULLY, succeeded=10))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("RUNNING  0/10 steps (0 %)")
    assert lines[1] == "RUNNING  6/10 steps (60 %)  1/s  about 4.0 s left"
    assert lines[2].startswith("COMPLETED_SUCCESSFULLY  10/10 steps (100 %)")
    assert "\x1b" not in stream.getvalue()


def test_the_next_stage_is_told_at_once() -> None:
    live, stream, _ = plain_progress()
    stages = {0: StageProgress(total=5, succeeded=5), 10: StageProgress(total=5)}
    for stage in (0, 10):
        live.update(a_job(stage=stage, stages=stages))
    assert [line.split("  ")[1] for line in stream.getvalue().splitlines()] == ["stage 0", "stage 10"]


def test_each_failure_is_told_once_and_many_are_only_counted() -> None:
    live, stream, _ = plain_progress()
    failures = [a_failure(f"shard-{number}") for number in range(display.SHOWN_FAILURES + 5)]
    live.update(a_job(failed=2), failures[:2])
    live.update(a_job(failed=25), failures)
    lines = stream.getvalue().splitlines()
    assert sum("ValueError: no such shard" in line for line in lines) == display.SHOWN_FAILURES
    assert sum("shard-1 " in line for line in lines) == 1
    assert lines[-1] == "further failures are only counted"
    assert not live.wants_failures


def test_a_terminal_gets_a_bar_for_each_stage() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, width=100, force_terminal=True, markup=False, highlight=False)
    stages = {0: StageProgress(total=1, succeeded=1), 10: StageProgress(total=9, succeeded=2, failed=1)}
    with display.LiveProgress(console, clock) as live:
        live.update(a_job(succeeded=3, failed=1, stage=10, stages=stages))
    text = stream.getvalue()
    assert "stage 0" in text
    assert "stage 10" in text
    assert "3/9" in text
    assert "━" in text


def test_of_very_many_stages_those_around_the_reached_one_have_bars() -> None:
    """The others are one line, and no step is lost in the sum."""
    stages = {number: StageProgress(total=2, succeeded=1) for number in range(100)}
    shown = display.shown_stages(a_job(stage=50, stages=stages))
    assert len(shown) == display.SHOWN_STAGES + 1
    assert 50 in {stage for stage, _ in shown}
    assert sum(counts.total for _, counts in shown) == 200
    assert sum(counts.succeeded for _, counts in shown) == 100


def test_a_terminal_is_restored_when_the_waiting_is_interrupted() -> None:
    """The cursor, hidden while the bar is drawn, is shown again."""
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True)

    def wait_in_vain() -> None:
        with display.LiveProgress(console, Clock()) as live:
            live.update(a_job())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_in_vain()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_no_number_of_attempts_is_told_of_a_step_that_succeeded() -> None:
    """It may have taken several, and leaves nothing that would tell."""
    failed = a_failure("a").model_copy(update={"attempt": 7})
    succeeded = failed.model_copy(update={"status": JobStepStatus.COMPLETED_SUCCESSFULLY, "failure": None})
    for view in (lambda step: display.step_table([step]), reports.attempts_view):
        for step, is_told in ((failed, True), (succeeded, False)):
            stream = io.StringIO()
            Console(file=stream, width=200).print(view(step))
            assert ("7" in stream.getvalue(), "attempt" in stream.getvalue()) == (is_told, is_told)
    assert [">7<" in display.step_html(step) for step in (failed, succeeded)] == [True, False]


@pytest.mark.parametrize("width", [40, 60, 100, 300])
def test_tables_lose_nothing_at_any_width(width: int) -> None:
    """Long texts are folded, and where columns would be squeezed each row is a list: what was told is all there."""
    stream = io.StringIO()
    step_id, message = "shard-" + "0123456789" * 6, "the index of this shard was locked by somebody else"
    step = a_failure(step_id, message).model_copy(
        update={"name": "a name", "step_type": "shop.jobs:Rebuild", "host": "nightly/shared-12.3", "retry_due": BEGAN}
    )
    Console(file=stream, width=width, markup=False, emoji=False).print(display.step_table([step]))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown = "".join(character for line in lines for character in line if not character.isspace())
    for number in range(6):
        assert shown.count(str(number)) >= 6, "a part of the id is missing"
    for word in message.split():
        assert word in shown, "a word of the message is missing"
    if width == 40:
        assert all(f"{name} " in stream.getvalue() for name in ("step", "status", "due", "failure"))


def test_ids_are_never_cut_in_a_table() -> None:
    """Somebody will copy them."""
    long_id = "x" * 300
    assert rendered(display.job_table([a_job(job_id=long_id)])).count("x") >= 300


def test_how_full_a_job_is_stands_with_its_facts_and_from_80_percent_on_that_it_is_near() -> None:
    half = a_job(document_bytes=8 * 2**20, max_document_bytes=16 * 2**20)
    assert ("request and state", "8.0 MiB of 16.0 MiB (50%)") in words.facts_of(half)
    near = a_job(document_bytes=13 * 2**20, max_document_bytes=16 * 2**20)
    assert ("request and state", "13.0 MiB of 16.0 MiB (81%, near the limit)") in words.facts_of(near)
