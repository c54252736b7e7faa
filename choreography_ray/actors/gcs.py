"""What Ray's own tables say, read in one place. The worker table proves a death, an actor's state does not [S10.2]."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from choreography_ray.actors.ray_api import cluster_cpus, live_nodes

# Private parts of Ray, pinned by the lock and used nowhere else: they have no types.
_gcs_pb2: Any = importlib.import_module("ray.core.generated.gcs_pb2")
_common_pb2: Any = importlib.import_module("ray.core.generated.common_pb2")
_raylet: Any = importlib.import_module("ray._raylet")
_state: Any = importlib.import_module("ray._private.state")
_worker: Any = importlib.import_module("ray._private.worker")

TIMEOUT = 5.0
_EXITS: dict[int, str] = {number: name for name, number in _common_pb2.WorkerExitType.items()}
_INTENDED: int = _common_pb2.INTENDED_SYSTEM_EXIT


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One row of the actor table. `worker_id` is empty for an actor that never had a process."""

    actor_id: str
    name: str
    state: str
    worker_id: str
    node_id: str
    pid: int
    cause: str
    has_failed_to_start: bool
    """Its constructor raised, or its runtime_env could not be made, or nothing can ever place it."""
    began: float = 0.0
    ended: float = 0.0
    """When its process was ready, and when it ended, in seconds since 1970; zero while it was not, or is not over."""

    @property
    def is_gone(self) -> bool:
        """Ray will not start it (again)."""
        return self.state == "DEAD"


class Fate(Enum):
    """What is known of a process."""

    ALIVE = auto()
    DEAD = auto()
    """Ray saw it end, and its node is alive."""
    UNKNOWN = auto()
    """Its node is gone, or nothing is known: it may wake up."""


def _row(data: Any) -> ActorInfo:
    state: str = _gcs_pb2.ActorTableData.ActorState.Name(data.state)
    address = data.address
    worker = address.worker_id.hex() if any(address.worker_id) and address.worker_id != b"\xff" * 28 else ""
    kind = data.death_cause.WhichOneof("context")
    return ActorInfo(
        data.actor_id.hex(),
        data.name,
        state,
        worker,
        address.node_id.hex(),
        data.pid,
        _cause(data.death_cause),
        kind in _START_FAILURES,
        data.start_time / 1000,
        data.end_time / 1000,
    )


_START_FAILURES = (
    "creation_task_failure_context",
    "runtime_env_failed_context",
    "actor_unschedulable_context",
)


def _cause(cause: Any) -> str:
    kind = cause.WhichOneof("context")
    if kind is None:
        return ""
    context = getattr(cause, kind)
    for field in ("formatted_exception_string", "error_message"):
        if text := getattr(context, field, ""):
            return str(text)
    return str(kind).replace("_", " ")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker's process ended, as Ray tells it."""

    is_intended: bool
    """Ray ended it because it was told to, by `ray.kill` or to drain its node."""
    detail: str


class RayTables:
    """Reads the GCS of the cluster that this process belongs to. Calls raise when the GCS does not answer."""

    def __init__(self) -> None:
        self._client = _worker.global_worker.gcs_client

    async def actor(self, actor_id: str) -> ActorInfo | None:
        """One actor, whatever its state."""
        rows = await self._client.async_get_all_actor_info(
            actor_id=_raylet.ActorID(bytes.fromhex(actor_id)), timeout=TIMEOUT
        )
        return next((_row(data) for data in rows.values()), None)

    async def actors(self, namespace: str, *states: str) -> list[ActorInfo]:
        """The named actors of a Ray namespace in these states, or in any."""
        found: list[ActorInfo] = []
        for state in states or (None,):
            rows = await self._client.async_get_all_actor_info(actor_state_name=state, timeout=TIMEOUT)
            found += [_row(data) for data in rows.values() if data.name and data.ray_namespace == namespace]
        return found

    async def fate(self, worker_id: str, node_id: str) -> Fate:
        """What became of a worker's process."""
        return await asyncio.to_thread(self._fate, worker_id, node_id)

    def _fate(self, worker_id: str, node_id: str) -> Fate:
        accessor = _state.state._connect_and_get_accessor()  # noqa: SLF001
        data = accessor.get_worker_info(_raylet.WorkerID(bytes.fromhex(worker_id)))
        if data is None:
            return Fate.UNKNOWN
        # Of a node that is gone nobody tells the table anything: its workers stand there as alive for ever.
        if node_id not in live_nodes():
            return Fate.UNKNOWN
        return Fate.ALIVE if _gcs_pb2.WorkerTableData.FromString(data).is_alive else Fate.DEAD

    async def exit_of(self, worker_id: str) -> Exit | None:
        """How a worker's process ended; None while Ray has not seen it end, or has forgotten it."""
        return await asyncio.to_thread(self._exit_of, worker_id)

    def _exit_of(self, worker_id: str) -> Exit | None:
        accessor = _state.state._connect_and_get_accessor()  # noqa: SLF001
        data = accessor.get_worker_info(_raylet.WorkerID(bytes.fromhex(worker_id)))
        if data is None or (row := _gcs_pb2.WorkerTableData.FromString(data)).is_alive:
            return None
        # What follows the first sentences lists what may have been, at length.
        detail = row.exit_detail.partition(" Some common causes include")[0]
        return Exit(row.exit_type == _INTENDED, f"{_EXITS.get(row.exit_type, '')}: {detail}".strip(": "))

    async def is_node_alive(self, node_id: str) -> bool:
        """Whether Ray takes the node for alive."""
        return await asyncio.to_thread(lambda: node_id in live_nodes())

    async def cluster_cpus(self) -> int:
        """CPUs of the nodes that are alive."""
        return await asyncio.to_thread(cluster_cpus)
