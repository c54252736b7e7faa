"""Which tests does a run perform, and in which of its processes?

The default run has two: one performs all tests on real Ray, which wait more than they compute. Of the long and of the
chaos tests `--long-budget` and `--chaos-budget SECONDS` begin at another one each day.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from math import gcd

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_BEGAN = time.monotonic()
BUDGETED = ("long", "chaos")
"""Markers of tests that the default run leaves out, and of which others may perform a share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    for marker in BUDGETED:
        parser.addoption(
            f"--{marker}-budget",
            type=float,
            default=None,
            metavar="SECONDS",
            help=f"begin no test marked {marker} after so many seconds; those skipped get their turn on another day",
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not items or all(config.getoption(f"--{marker}-budget") is None for marker in BUDGETED):
        return
    # A step that shares no divisor with their number: neighbours, which are alike, do not have their turn together.
    stride = next(n for n in range(len(items) * 5 // 8 + 1, 2 * len(items) + 2) if gcd(n, len(items)) == 1)
    first = datetime.now(UTC).toordinal() * stride
    items[:] = [items[(first + n * stride) % len(items)] for n in range(len(items))]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Before any fixture: no cluster is started for a test that is skipped.
    for marker in BUDGETED:
        budget = item.config.getoption(f"--{marker}-budget")
        if budget is not None and marker in item.keywords and time.monotonic() - _BEGAN > budget:
            pytest.skip(f"the budget of {budget:g} s for {marker} tests is used up")


class OneProcessForRay(LoadScopeScheduling):
    """Tests on real Ray go to one process: never two clusters at once, and each made once for its module."""

    def _split_scope(self, nodeid: str) -> str:
        return "integration" if nodeid.startswith("tests/integration/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Not by the mark `xdist_group`: pytest 9.2 takes no notice of what pytest-xdist 3.8 makes of it."""
    return OneProcessForRay(config, log)
