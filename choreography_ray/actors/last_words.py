"""What is known of a process that has died: what Ray tells, and the end of what it printed as errors [S10]."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from choreography_ray.actors.gcs import RayTables
from choreography_ray.actors.ray_api import call_on_node, here, logs_directory
from choreography_ray.core.ownership import Death
from choreography_ray.records import Owner

log = logging.getLogger(__name__)

TAIL_BYTES = 2_048
"""How much of the end of a process's errors is kept."""
SEEN_SECONDS = 2.0
"""How long Ray may take to see that a process has ended."""
TAIL_SECONDS = 10.0
"""How long another node may take to tell the end of a file."""
_RAYS_OWN = (":job_id:", ":actor_name:", ":task_name:")
"""How lines begin that Ray adds to what a process prints."""


async def obituary(owner: Owner) -> Death:
    """How a job's process ended. Raises when Ray does not answer."""
    tables = RayTables()
    if not await tables.is_node_alive(owner.node):
        return Death(is_blameless=True, cause="its node was lost")
    exit_ = await tables.exit_of(owner.worker)
    for _ in range(int(SEEN_SECONDS / 0.1)):
        if exit_ is not None:
            break
        await asyncio.sleep(0.1)
        exit_ = await tables.exit_of(owner.worker)
    if exit_ is None:
        return Death(cause=await told_of("", owner.worker, owner.node))
    return Death(exit_.is_intended, await told_of(exit_.detail, owner.worker, owner.node))


async def told_of(detail: str, worker_id: str, node_id: str) -> str:
    """What Ray tells and the tail of the process's stderr, as far as it can be had."""
    tail = await stderr_tail(worker_id, node_id)
    return detail + (f"\n{tail}" if detail and tail else tail)


async def stderr_tail(worker_id: str, node_id: str) -> str:
    """The last lines that a process wrote as errors; empty when there are none, or its node does not tell."""
    if not worker_id:
        return ""
    try:
        if node_id == here().node_id:
            return await asyncio.to_thread(read_tail, worker_id)
        return await asyncio.to_thread(call_on_node, node_id, read_tail, worker_id, timeout=TAIL_SECONDS)
    except Exception as error:  # noqa: BLE001 - what a dead process printed is worth having, and no more
        log.info("what worker %s printed cannot be had: %s", worker_id, error)
        return ""


async def output_tails(worker_id: str, node_id: str, size: int) -> tuple[str, str]:
    """The last `size` bytes of what a process printed, and of its errors and logs. Raises when its node is silent."""
    if node_id == here().node_id:
        return await asyncio.to_thread(read_tails, worker_id, size)
    return await asyncio.to_thread(call_on_node, node_id, read_tails, worker_id, size, timeout=TAIL_SECONDS)


def read_tails(worker_id: str, size: int) -> tuple[str, str]:
    """The ends of both files of a worker of this node."""
    directory = logs_directory()
    told: list[str] = []
    for kind in ("out", "err"):
        found = [] if directory is None else sorted(directory.glob(f"worker-{worker_id}-*.{kind}"))
        told.append(_tail(found[-1], size) if found else "")
    return told[0], told[1]


def read_tail(worker_id: str) -> str:
    """The end of what a worker of this node wrote as errors."""
    directory = logs_directory()
    found = [] if directory is None else sorted(directory.glob(f"worker-{worker_id}-*.err"))
    return _tail(found[-1]) if found else ""


def _tail(path: Path, most: int = TAIL_BYTES) -> str:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - most))
        text = file.read().decode(errors="replace")
    lines = text.splitlines() if size <= most else text.splitlines()[1:]
    return "\n".join(line for line in lines if not line.startswith(_RAYS_OWN))
