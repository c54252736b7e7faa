"""What may be believed of Ray's tables: whose word is it that a process lives or is dead [S10.2]?"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from choreography_ray.actors import gcs
from choreography_ray.actors.gcs import Fate, RayTables

HERE, GONE = "aa" * 28, "bb" * 28


def fate(monkeypatch: pytest.MonkeyPatch, row: dict[str, Any] | None, node_id: str) -> Fate:
    """What is told of a worker on a node when the table has this row and only one node lives."""
    data = None if row is None else gcs._gcs_pb2.WorkerTableData(**row).SerializeToString()
    accessor = SimpleNamespace(get_worker_info=lambda worker_id: data)
    state = SimpleNamespace(state=SimpleNamespace(_connect_and_get_accessor=lambda: accessor))
    monkeypatch.setattr(gcs, "_state", state)
    monkeypatch.setattr(gcs, "live_nodes", lambda: {HERE: "127.0.0.1"})
    tables = RayTables.__new__(RayTables)
    return asyncio.run(tables.fate("cc" * 28, node_id))


@pytest.mark.parametrize(
    ("row", "node_id", "told"),
    [
        ({"is_alive": True}, HERE, Fate.ALIVE),
        ({"is_alive": False}, HERE, Fate.DEAD),
        (None, HERE, Fate.UNKNOWN),
        # Nobody tells the table anything of a node that is gone: what it says is what was true before.
        ({"is_alive": True}, GONE, Fate.UNKNOWN),
        ({"is_alive": False}, GONE, Fate.UNKNOWN),
    ],
)
def test_the_worker_table_is_believed_only_of_nodes_that_live(
    monkeypatch: pytest.MonkeyPatch, row: dict[str, Any] | None, node_id: str, told: Fate
) -> None:
    """A worker of a dead node stands in the table as alive for ever; its steps would never begin elsewhere."""
    assert fate(monkeypatch, row, node_id) is told
