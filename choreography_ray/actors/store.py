"""The keeper of the embedded store: an actor that lives as long as its cluster, and whose store dies with it [S15]."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from choreography_ray.actors.names import STORE
from choreography_ray.actors.ray_api import SERVICE, create, here
from choreography_ray.storage.embedded import EmbeddedStore

KEEPERS_NAMESPACE = "choreography-stores"
LOOK_SECONDS = 1.0


class StoreKeeper:
    """Starts the store of a data directory, and starts it again when it died. Its URL stays the same if it can."""

    def __init__(self, directory: str) -> None:
        self._store = EmbeddedStore(Path(directory))
        self._url = self._store.start()
        self._life: asyncio.Task[None] | None = None

    async def url(self) -> str:
        """Where the store answers."""
        if self._life is None:
            self._life = asyncio.get_running_loop().create_task(self._keep())
        return self._url

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._store.is_owner:
                self._url = await asyncio.to_thread(self._store.start)


def keeper_handle(directory: Path) -> Any:
    """The keeper of a directory on this node, made by whoever needs it first. Blocks."""
    digest = hashlib.blake2b(str(directory).encode(), digest_size=8).hexdigest()
    on_this_node = NodeAffinitySchedulingStrategy(here().node_id, soft=False)
    options = {
        **SERVICE,
        "name": f"{STORE}/{digest}",
        "namespace": KEEPERS_NAMESPACE,
        "scheduling_strategy": on_this_node,
    }
    return create(StoreKeeper, options, str(directory))
