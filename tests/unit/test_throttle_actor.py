"""Does the throttle's actor look at Ray's list of actors as often as it must, and no more? Without Ray."""

from __future__ import annotations

import asyncio
import time

from choreography_ray.actors.gcs import ActorInfo
from choreography_ray.actors.names import job_actor
from choreography_ray.actors.throttle import ThrottleActor
from choreography_ray.core.slot_messages import Exchange, Granted
from choreography_ray.core.throttle import SlotTable
from choreography_ray.model import JobId

JOBS = [JobId(f"job-{n}") for n in range(50)]


class Tables:
    """A GCS that takes its time to list job actors."""

    def __init__(self) -> None:
        self.lists = 0
        self.listed = [self._row(job) for job in JOBS]

    def _row(self, job: JobId) -> ActorInfo:
        return ActorInfo(f"actor-{job}", job_actor(job), "ALIVE", f"worker-{job}", "node", 1, "", False)

    async def actors(self, namespace: str, *states: str) -> list[ActorInfo]:
        self.lists += 1
        told = list(self.listed)
        await asyncio.sleep(0)
        return told


class Connection:
    ray_namespace = "here"


def throttle(tables: Tables) -> ThrottleActor:
    """One that has begun, and has seen no list."""
    made = object.__new__(ThrottleActor)
    made._connection = Connection()  # type: ignore[assignment]
    made._tables = tables  # type: ignore[assignment]
    made._table = SlotTable(1, 100, 30.0, 3.0, time.monotonic(), is_first=True)
    made._waiting, made._workers = {}, {}
    made._ready, made._observing = asyncio.Event(), asyncio.Lock()
    made._ready.set()
    return made


def says(job: JobId) -> Exchange:
    return Exchange(job, f"actor-{job}", 1, 1, 1, (), 0, 1)


def test_very_many_new_jobs_are_known_by_one_list() -> None:
    """Each of them asks for it, as none is known; among ten thousand jobs a list takes a fifth of a second."""

    async def all_at_once() -> tuple[list[object], int]:
        tables = Tables()
        table = throttle(tables)
        return await asyncio.gather(*(table.exchange(says(job), f"worker-{job}") for job in JOBS)), tables.lists

    replies, lists = asyncio.run(all_at_once())
    assert replies == [Granted(1, 1, 1)] * len(JOBS)
    assert lists == 1


def test_a_job_that_is_not_on_a_list_that_was_asked_for_before_gets_its_own() -> None:
    async def one_later() -> tuple[object, int]:
        tables = Tables()
        late = tables.listed.pop()
        table = throttle(tables)
        first = asyncio.create_task(table.exchange(says(JOBS[0]), f"worker-{JOBS[0]}"))
        second = asyncio.create_task(table.exchange(says(JOBS[-1]), f"worker-{JOBS[-1]}"))
        await asyncio.sleep(0)
        tables.listed.append(late)
        await first
        return await second, tables.lists

    assert asyncio.run(one_later()) == (Granted(1, 1, 1), 2)
