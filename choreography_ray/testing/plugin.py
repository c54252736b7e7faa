"""The pytest fixtures, found by pytest where choreography-ray is installed. Made when a test asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from choreography_ray.testing.virtual import VirtualCluster


@pytest.fixture
def virtual_cluster() -> Iterator[VirtualCluster]:
    """A `choreography_ray.testing.VirtualCluster` of the test's own, closed when the test is over."""
    from choreography_ray.testing import VirtualCluster

    with VirtualCluster() as cluster:
        yield cluster
