"""Any value, on MongoDB and in memory, through a job that crashes, stops and goes on: equal or refused [S12.3]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from choreography_ray.storage.mongo import MongoStorage
from choreography_ray.testing.loop import run
from tests.contract.twin import TwinStorage
from tests.simulation.test_any_payload import JOB, deliveries, play


@pytest.fixture(scope="module")
def twin(mongo_url: str) -> Iterator[TwinStorage]:
    with TwinStorage(MongoStorage(mongo_url, "twin")) as made:
        yield made


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink, play it in memory
)
@given(**deliveries)
def test_any_value_comes_back_from_both_stores_alike(twin: TwinStorage, **delivery: Any) -> None:
    """As request, state, checkpoint, result and job state; each answer of the two stores is the same."""
    run(twin.forget(JOB))
    play(twin, **delivery)
