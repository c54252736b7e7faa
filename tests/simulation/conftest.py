"""What stories share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_of_a_story_is_left_to_the_garbage_collector() -> Iterator[None]:
    """Coroutines of dead processes end here: CPython 3.11 breaks when one ends while it builds a syntax tree."""
    yield
    gc.collect()
