"""How much of the long tests a run performs: `--long-budget SECONDS` begins at another one each day."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

_BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long-budget",
        type=float,
        default=None,
        metavar="SECONDS",
        help="begin no test marked long after so many seconds; those skipped get their turn on another day",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long-budget") is None or not items:
        return
    first = datetime.now(UTC).toordinal() % len(items)
    items[:] = items[first:] + items[:first]


@pytest.fixture(autouse=True)
def _within_long_budget(request: pytest.FixtureRequest) -> None:
    budget = request.config.getoption("--long-budget")
    if budget is not None and "long" in request.keywords and time.monotonic() - _BEGAN > budget:
        pytest.skip(f"the budget of {budget:g} s for long tests is used up")
