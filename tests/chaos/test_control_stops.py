"""Three hundred stops around the moments that matter, over both hostings [S9.1, S9.2, S6.4]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from choreography_ray import Choreography
from tests.chaos.faulty import faulty_client
from tests.chaos.stops import MOMENTS, stop_many_times

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(3600)]

SHARED = 8, 30
"""Jobs on warm actors, and stops of each."""
OWN = 4, 15
"""The same for jobs with an actor for each step."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where jobs have their witness."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def client(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster with a slot for each job."""
    with faulty_client(root, tmp_path_factory.mktemp("store"), slots=6) as connected:
        yield connected


def test_three_hundred_stops(client: Choreography, root: Path) -> None:
    """Each step is counted once, the first persisted outcome wins, `on_stopped` comes after the last outcome hook."""
    with ThreadPoolExecutor(4) as pool:
        runs = [
            pool.submit(stop_many_times, client, root, f"{hosting}-{n}", hosting, stops, seed=n)
            for hosting, (jobs, stops) in (("shared", SHARED), ("own", OWN))
            for n in range(jobs)
        ]
    seen = sum((run.result() for run in runs), Counter[str]())
    print(dict(seen))
    assert seen["stops"] == SHARED[0] * SHARED[1] + OWN[0] * OWN[1]
    assert all(seen[moment] for moment in MOMENTS)
    # Without these the run has not met what it was made for.
    assert seen["told stopped"]
    assert seen["won against the stop"]
