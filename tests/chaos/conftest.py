"""Which clusters do the chaos tests share? One for each kind of test, made new when a test may have ended it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import ClusterUnderTest
from tests.chaos.marks import Witness


@pytest.fixture(scope="session", autouse=True)
def _ended_in_order() -> None:
    """A run that is told to end still ends its clusters."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """A head and another node, of this test alone."""
    with ClusterUnderTest(tmp_path) as cluster:
        cluster.add_node()
        yield cluster


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """A head and another node that outlive what these tests do."""
    folder: Path = tmp_path_factory.mktemp("lasting")
    with ClusterUnderTest(folder) as cluster:
        cluster.add_node()
        yield cluster


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    """Where bodies and hooks tell what they do."""
    return Witness(tmp_path / "witness")
