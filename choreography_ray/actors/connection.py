"""What an actor must know to reach the state: small, and nothing that lives in its creator [S14.1]."""

from __future__ import annotations

import asyncio
import gc
import sys
from dataclasses import dataclass, field
from typing import Any

import ray.cloudpickle

from choreography_ray.actors.names import ray_namespace
from choreography_ray.code import LoadedCode, load_code
from choreography_ray.engine.writes import Writer
from choreography_ray.records import CodeRef
from choreography_ray.storage.mongo import MongoStorage
from choreography_ray.storage.protocol import JobStorage

_cloudpickle: Any = ray.cloudpickle  # has no types


@dataclass(frozen=True, slots=True)
class Connection:
    """Which namespace, and where its state is kept. The URL may hold a password: it is in no `repr`."""

    namespace: str
    mongo_url: str = field(repr=False)

    @property
    def ray_namespace(self) -> str:
        """Where the actors are."""
        return ray_namespace(self.namespace)

    def storage(self) -> JobStorage:
        """A store of its own for the calling process."""
        return MongoStorage(self.mongo_url, self.namespace)


async def load_stored_code(storage: JobStorage, writer: Writer, ref: CodeRef) -> LoadedCode:
    """A job's code, by import or from the copy in the store. Raises `UnknownJobType`."""
    captured = None
    if ref.digest:
        captured = await writer.certain(lambda: storage.read_code(ref.digest))
    # It runs what stands at the top of the user's modules, for as long as that takes: not on the actor's loop [S14.3].
    loaded = await asyncio.to_thread(load_code, ref, captured, is_alone=True)
    for name in loaded.modules:
        # Ray has a cloudpickle of its own. A task that a body starts finds these modules nowhere.
        _cloudpickle.register_pickle_by_value(sys.modules[name])
    return loaded


async def settle_in(storage: JobStorage, writer: Writer, ref: CodeRef) -> LoadedCode:
    """As `load_stored_code`, for a process that does nothing else from now on than to run this code."""
    loaded = await load_stored_code(storage, writer, ref)
    gc.freeze()  # to search what is loaded for garbage took a quarter of what handling the values of a short step takes
    return loaded
