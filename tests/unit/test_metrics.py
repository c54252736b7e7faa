"""What is counted of a job, and do dashboard and docs name what is exported?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from choreography_ray.actors import metrics
from choreography_ray.engine.tally import MAX_MEASURED, Counted, Measured, Tally
from choreography_ray.model import HistoryEntry, JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, Counts, JobDocument

DASHBOARD = Path(__file__).parents[2] / "docs/grafana-dashboard.json"
EXPORTED = {
    *(f"ray_{metrics.PREFIX}{name}_total" for name in metrics.COUNTERS),
    *(f"ray_{metrics.PREFIX}{name}_{part}" for name in metrics.HISTOGRAMS for part in ("bucket", "sum", "count")),
    *(f"ray_{metrics.PREFIX}{name}" for name in metrics.GAUGES),
}
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bray_choreography_\w+", text))


def test_everything_that_is_counted_is_exported_and_shown() -> None:
    """By a metric, a panel of the dashboard, and a row of the docs; and neither shows what is not exported."""
    assert set(metrics.COUNTERS) == set(Counted)
    assert set(metrics.HISTOGRAMS) == set(Measured)
    board = json.loads(DASHBOARD.read_text())
    shown = names_in(" ".join(target["expr"] for panel in board["panels"] for target in panel["targets"]))
    asked = names_in(json.dumps(board["templating"]))
    assert shown | asked <= EXPORTED
    assert {name for name in EXPORTED if not name.endswith(("_sum", "_count"))} <= shown
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def document(*statuses: JobStatus, **counts: int) -> JobDocument:
    history = tuple(HistoryEntry(at=NOW + timedelta(seconds=n), status=status) for n, status in enumerate(statuses))
    made = JobDocument(JobId("job"), "Rebuild", CodeRef("m", "T"), None, None, JobsOptions(), NOW, NOW)
    return replace(made, history=history, counts=Counts(**counts))


def test_what_earlier_incarnations_counted_is_not_counted_again_and_what_is_taken_is_taken() -> None:
    preparing, running = JobStatus.PREPARING_JOB, JobStatus.RUNNING
    tally = Tally()
    tally.begin(document(preparing, succeeded=7))
    assert not tally.take(document(preparing, succeeded=7), store_errors=0)
    tally.count(Counted.RETRIES, 2)
    numbers = tally.take(document(preparing, running, succeeded=9, failed=1), store_errors=3)
    assert numbers.job_type == "Rebuild"
    assert numbers.counts == {
        (Counted.STEPS, "COMPLETED_SUCCESSFULLY"): 2,
        (Counted.STEPS, "COMPLETED_WITH_FAILURE"): 1,
        (Counted.JOBS, "RUNNING"): 1,
        (Counted.RETRIES, ""): 2,
        (Counted.STORE_ERRORS, ""): 3,
    }
    assert not tally.take(document(preparing, running, succeeded=9, failed=1), store_errors=3)


def test_steps_that_run_again_are_counted_each_time_that_they_fail() -> None:
    tally = Tally()
    tally.begin(document())
    seen = [tally.take(document(failed=n), 0).counts.get((Counted.STEPS, "COMPLETED_WITH_FAILURE")) for n in (3, 0, 2)]
    assert seen == [3, None, 2]


def test_measurements_that_nobody_takes_are_bounded() -> None:
    tally = Tally()
    for n in range(3 * MAX_MEASURED):
        tally.measure(Measured.STEP, n)
    numbers = tally.take(document(), 0)
    assert len(numbers.seconds[Measured.STEP]) == MAX_MEASURED
    assert not tally.take(document(), 0)
