"""The keeper of the embedded store: an actor that lives as long as its cluster, and whose store dies with it [S15]."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from choreography_ray.actors.clean import create_cleanly
from choreography_ray.actors.logs import write_records
from choreography_ray.actors.names import STORE
from choreography_ray.actors.ray_api import SERVICE, create, find, here
from choreography_ray.errors import EmbeddedStoreUnavailable
from choreography_ray.storage.embedded import EmbeddedStore

log = logging.getLogger(__name__)

KEEPERS_NAMESPACE = "choreography-stores"
LOOK_SECONDS = 1.0


class StoreKeeper:
    """Starts the store of a data directory, and starts it again when it died or gave up. Its URL stays if it can."""

    def __init__(self, directory: str) -> None:
        write_records(service=STORE, directory=directory)
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
            try:
                self._url = await asyncio.to_thread(self._look)
            except EmbeddedStoreUnavailable as error:  # a disk that is full may have room later
                log.warning("the store in %s is tried again: %s", self._store.directory, error)

    def _look(self) -> str:
        return self._url if self._store.is_owner and not self._store.is_broken else self._store.start()


def keeper_handle(directory: Path) -> Any:
    """The keeper of a directory on this node, made by whoever needs it first. Blocks."""
    with contextlib.suppress(ValueError):
        return find(_name(str(directory)), KEEPERS_NAMESPACE)
    return create_cleanly(make_keeper, (str(directory), here().node_id))


def make_keeper(place: tuple[str, str]) -> Any:
    """Create the keeper of a directory on a node from this process, or find it. Blocks."""
    directory, node_id = place
    on_that_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    names = {"name": _name(directory), "namespace": KEEPERS_NAMESPACE}
    return create(StoreKeeper, {**SERVICE, **names, "scheduling_strategy": on_that_node}, directory)


def _name(directory: str) -> str:
    return f"{STORE}/{hashlib.blake2b(directory.encode(), digest_size=8).hexdigest()}"
