"""Can a job's code be loaded where its actor would run? Asked before something that cannot be undone [S9.6]."""

from __future__ import annotations

import asyncio

from choreography_ray.actors.connection import Connection, load_stored_code
from choreography_ray.actors.ray_api import run_there
from choreography_ray.codec import decode
from choreography_ray.engine.clock import SystemClock
from choreography_ray.engine.writes import Writer
from choreography_ray.records import CodeRef, JobDocument


def check_code(connection: Connection, document: JobDocument) -> None:
    """Raise `UnknownJobType` when a process of the cluster cannot load the job's code. Blocks."""
    run_there(_load, connection, document.code, runtime_env=decode(document.runtime_env))


def _load(connection: Connection, ref: CodeRef) -> None:
    asyncio.run(_load_once(connection, ref))


async def _load_once(connection: Connection, ref: CodeRef) -> None:
    storage = connection.storage()
    writer = Writer(SystemClock())
    await writer.certain(storage.open)
    try:
        await load_stored_code(storage, writer, ref)
    finally:
        await storage.close()
