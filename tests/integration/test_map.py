"""A map runs on real Ray from both faces of the client, with functions that no module has."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from choreography_ray import Choreography, JobStatus, StartJobError
from choreography_ray.model import StepId
from tests.support import run_python

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


class Point(BaseModel):
    x: int
    tags: set[str] = set()


def points(count: int) -> Iterator[Point]:
    for x in range(count):
        yield Point(x=x, tags={f"t{x}"})


def test_a_closure_is_mapped_over_a_generator_of_models(local: Choreography) -> None:
    """Results of their class in the order of the items; a call that raises is a failed step, run again on demand."""
    offset = {"by": 7}

    def moved(point: Point) -> Point:
        if point.x == 5:
            raise ValueError("no fifth")
        return Point(x=point.x + offset["by"], tags=point.tags)

    job = local.map(moved, points(600), name="move")
    record = job.wait(timeout=120, progress=False)
    assert (record.status, record.type_name) == (JobStatus.COMPLETED_WITH_FAILURES, "move")
    assert (record.progress.succeeded, record.progress.failed) == (599, 1)
    expected = [(StepId(str(x)), Point(x=x + 7, tags={f"t{x}"})) for x in range(600) if x != 5]
    assert list(job.results()) == expected
    (failed,) = [step for step in job.steps() if step.failure]
    assert (failed.step_id, failed.failure and failed.failure.message) == ("5", "no fifth")
    assert job.retry_failed_steps() == 1


def test_an_async_function_is_mapped_over_an_async_iterable(local: Choreography) -> None:
    """The other face of the client."""

    async def numbers() -> AsyncIterator[int]:
        for number in range(20):
            yield number

    async def half(number: int) -> float:
        return number / 2

    async def use() -> list[Any]:
        job = await local._client.map(half, numbers())
        await job.wait(timeout=120, progress=False)
        return [value async for _, value in job.results()]

    assert local._loop.run(use()) == [number / 2 for number in range(20)]


def test_what_cannot_be_mapped_leaves_no_job(local: Choreography) -> None:
    """Refused by the place of the item, or with what the iterable raised."""
    before = len(local.jobs())
    with pytest.raises(StartJobError, match=r"items\[2\]: a builtins\.object cannot be stored"):
        local.map(repr, [1, 2, object()])
    with pytest.raises(ZeroDivisionError):
        local.map(repr, (1 // (3 - x) for x in range(5)))
    assert len(local.jobs()) == before


def test_the_example_of_the_page_on_map_runs(tmp_path: Path) -> None:
    """As a script, with a Ray and a store of its own."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/map.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "squares.py").write_text(code, encoding="utf-8")
    ran = run_python(tmp_path, "squares.py")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == "332833500"
