"""Which clusters do the tests on real Ray share? Each is made once for a module, with a store of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from choreography_ray import Choreography

SMALL = {"object_store_memory": 100 * 1024 * 1024, "include_dashboard": False}


@contextmanager
def only_here(directory: Path) -> Iterator[None]:
    """An environment that says nothing of another Ray or store on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("CHOREOGRAPHY_", "RAY_")):
                patch.delenv(name)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_ADDRESS", "local")
        patch.setenv("CHOREOGRAPHY_DATA_DIRECTORY", str(directory))
        yield


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster in this process, with an embedded store."""
    with only_here(tmp_path_factory.mktemp("store")), Choreography.connect() as client:
        assert ray.is_initialized()
        yield client


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster of two nodes with two CPUs each."""
    with only_here(tmp_path_factory.mktemp("store")):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **SMALL})
        try:
            cluster.add_node(num_cpus=2, object_store_memory=SMALL["object_store_memory"])
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            with Choreography.connect() as client:
                yield client
        finally:
            ray.shutdown()
            cluster.shutdown()
