"""What is told of hosts that die while they are being ended, with Ray's answers made up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from choreography_ray.actors import hosts as module
from choreography_ray.actors.gcs import Fate
from choreography_ray.actors.hosts import RayHosts, _Host
from choreography_ray.core import events as e
from choreography_ray.model import HostId, JobId
from choreography_ray.options import JobsOptions

HOST = HostId("host")


def test_a_host_that_dies_while_its_end_waits_for_a_callback_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ended it broke off what was being asked about its death, and told nothing: the stop never was whole."""

    async def story() -> list[Any]:
        posted: list[Any] = []
        told, has_asked = asyncio.Event(), asyncio.Event()

        async def last_words(*_: object) -> str:
            has_asked.set()
            await told.wait()
            return "what it printed"

        async def dead() -> None:
            raise RayActorError

        async def in_callback() -> bool:
            return True

        async def fate(*_: object) -> Fate:
            return Fate.DEAD

        async def nothing(*_: object) -> None:
            return None

        async def gone(*_: object) -> Any:
            return SimpleNamespace(is_gone=True, worker_id="worker", node_id="node")

        monkeypatch.setattr(module, "told_of", last_words)
        monkeypatch.setattr(module, "end", lambda handle: None)
        machine = SimpleNamespace(
            document=SimpleNamespace(options=JobsOptions(), fence=1), would_be_last=lambda host: True
        )
        engine: Any = SimpleNamespace(machine=machine, post=posted.append)
        tables: Any = SimpleNamespace(fate=fate, exit_of=nothing, actor=gone)
        connection: Any = SimpleNamespace(ray_namespace="test")
        hosts = RayHosts(JobId("job"), connection, engine, tables, 30.0, 3.0)
        known = hosts._hosts[HOST] = _Host(worker_id="worker", node_id="node")
        known.handle = SimpleNamespace(
            watch=SimpleNamespace(remote=dead),
            is_in_callback=SimpleNamespace(remote=in_callback),
            _actor_id=SimpleNamespace(hex=lambda: "actor"),
        )
        known.created.set()
        hosts.kill(HOST, 0.3)
        known.watcher = hosts._spawn(hosts._watch(HOST, known))
        await asyncio.wait_for(has_asked.wait(), 5.0)
        await asyncio.wait(set(hosts._tasks), return_when=asyncio.FIRST_COMPLETED, timeout=5.0)  # the grace is over
        told.set()
        async with asyncio.timeout(5.0):
            while hosts._tasks:
                await asyncio.wait(set(hosts._tasks))
        return posted

    posted = asyncio.run(story())
    assert [type(event) for event in posted] == [e.HostDied]
