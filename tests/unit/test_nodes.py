"""Which nodes have this package, and in which version: each is asked once, and what is wrong is a sentence [S14.6]."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayTaskError

from choreography_ray.actors.connection import Connection
from choreography_ray.actors.nodes import ASKED_AT_ONCE, Nodes, installed_version, node_records
from choreography_ray.client import AsyncChoreography, asynchronous
from choreography_ray.options import JobsOptions
from choreography_ray.storage.memory import MemoryStorage

MINE = installed_version()


def not_importable() -> RayTaskError:
    """As Ray tells it of a function whose module a worker cannot import."""
    told = "ray::installed_version()\nTraceback ...\nModuleNotFoundError: No module named 'choreography_ray'"
    return RayTaskError("installed_version", told, RuntimeError("failed to import"))


class Cluster:
    """Nodes by id: what they answer, or what asking them raises."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.at_once = self.peak = 0
        self.lock = threading.Lock()

    def live(self) -> dict[str, str]:
        return {node: f"address of {node}" for node in self.answers}

    def ask(self, node: str) -> str:
        with self.lock:
            self.asked.append(node)
            self.at_once += 1
            self.peak = max(self.peak, self.at_once)
        try:
            answer = self.answers[node]
            if isinstance(answer, Exception):
                raise answer
            return str(answer)
        finally:
            with self.lock:
                self.at_once -= 1


def test_a_cluster_of_one_node_is_asked_nothing() -> None:
    cluster = Cluster(head="")
    found = asyncio.run(Nodes("head", cluster.live, cluster.ask).look())
    assert found == {"head": ("address of head", MINE, "")}
    assert cluster.asked == []


def test_each_node_is_asked_once_and_one_that_did_not_answer_again() -> None:
    """Nodes that are gone are forgotten."""
    cluster = Cluster(head="", busy=GetTimeoutError("busy"), **{f"n{i}": MINE for i in range(6)})

    async def story() -> None:
        nodes = Nodes("head", cluster.live, cluster.ask)
        assert "busy" not in await nodes.look()
        cluster.answers["busy"] = MINE
        del cluster.answers["n0"]
        found = await nodes.look()
        assert found.keys() == cluster.answers.keys()
        assert sorted(cluster.asked) == sorted(["busy", "busy", *(f"n{i}" for i in range(6))])
        assert cluster.peak <= ASKED_AT_ONCE

    asyncio.run(story())


def test_what_is_wrong_with_a_node_is_a_sentence() -> None:
    cluster = Cluster(head="", bare=not_importable(), old="0.0.1", same=MINE)
    found = asyncio.run(Nodes("head", cluster.live, cluster.ask).look())
    problems = {node.node_id: node.problem for node in node_records(found, MINE)}
    assert problems == {
        "head": "",
        "same": "",
        "bare": "the node at address of bare cannot perform steps: "
        "ModuleNotFoundError: No module named 'choreography_ray'",
        "old": f"the node at address of old has choreography-ray 0.0.1, this process {MINE}: use one",
    }


@pytest.mark.parametrize("mine", ["9.9", ""])
def test_a_driver_of_another_version_than_its_cluster_is_told_so(mine: str) -> None:
    (node,) = node_records({"head": ("10.0.0.1", "1.0", "")}, mine)
    assert node.problem.startswith("the node at 10.0.0.1 has choreography-ray 1.0, this process ")


def test_a_connect_warns_of_each_bad_node_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it is known, which is after `connect` has returned; what is not known by then ends with the connection."""
    looked: list[bool] = []
    known = asyncio.Event()

    async def look() -> None:
        looked.append(True)

    async def nodes() -> dict[str, Any]:
        await known.wait()
        return {"a": ("10.0.0.1", MINE, ""), "b": ("10.0.0.2", "0.0.1", ""), "c": ("10.0.0.3", "", "no module")}

    supervisor = SimpleNamespace(look=SimpleNamespace(remote=look), nodes=SimpleNamespace(remote=nodes))
    monkeypatch.setattr(asynchronous, "find", lambda *_: supervisor)

    async def story(*, is_known: bool) -> None:
        client = AsyncChoreography(MemoryStorage(), Connection("n", "mongodb://m"), JobsOptions(), None)
        await client._supervise()
        assert looked
        if is_known:
            known.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await client.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story(is_known=False))
    assert not caplog.messages
    known.clear()
    asyncio.run(story(is_known=True))
    assert caplog.messages == [
        f"the node at 10.0.0.2 has choreography-ray 0.0.1, this process {MINE}: use one",
        "the node at 10.0.0.3 cannot perform steps: no module",
    ]
