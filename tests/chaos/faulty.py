"""Which cluster do the proofs of control and healing run on? One in this process, whose processes look for faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from choreography_ray import Choreography, ClusterOptions
from tests.chaos.faultpoints import FOLDER
from tests.integration.conftest import only_here


@contextmanager
def faulty_client(root: Path, store: Path, slots: int, lease: float = 15.0) -> Iterator[Choreography]:
    """A client of a cluster of its own. `root`: where jobs have their plans of faults; `lease` in seconds."""
    with only_here(store), pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(root))
        options = ClusterOptions(max_parallel_steps=slots, step_lease_timeout=timedelta(seconds=lease))
        with Choreography.connect(cluster=options) as client:
            yield client
