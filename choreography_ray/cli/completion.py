"""Which job ids does the shell offer on Tab? Those of the latest jobs, from a store that answers."""

from __future__ import annotations

import asyncio

import typer

from choreography_ray.cli.connection import Connection
from choreography_ray.display import clean

OFFERED = 200
"""Of so many of the latest jobs."""
PATIENCE = 2.0
"""Seconds that a store has to answer: whoever pressed Tab waits."""


def job_ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids that begin with what was typed, newest first, each with its type and status. Nothing is started, written or
    reported for it: where no store answers, nothing is offered.
    """
    options = context.find_root().params
    connection = Connection(mongo_url=options.get("mongo_url"), namespace=options.get("namespace"))
    try:
        return asyncio.run(asyncio.wait_for(_ids(connection, incomplete), PATIENCE))
    except Exception:  # noqa: BLE001 - a message would get into the line that is being typed
        return []


async def _ids(connection: Connection, incomplete: str) -> list[tuple[str, str]]:
    # Neither is needed by `--help`, and the client would cost a second: it imports Ray.
    from choreography_ray.storage.embedded import find_endpoint
    from choreography_ray.storage.mongo import MongoStorage
    from choreography_ray.storage.protocol import JobFilter

    url = connection.known_mongo_url or find_endpoint(connection.directory)
    if url is None:
        return []
    storage = MongoStorage(url, connection.known_namespace)
    try:
        jobs = await storage.list_jobs(JobFilter(), take=OFFERED)
    finally:
        await storage.close()
    return [
        (job.job_id, clean(f"{job.type_name} {job.status}"))
        for job in jobs
        if job.job_id.startswith(incomplete) and clean(job.job_id) == job.job_id
    ]
