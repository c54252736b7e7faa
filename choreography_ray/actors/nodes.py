"""Does every node of the cluster have this package, and in this version [S14.6]?

The supervisor asks each node once, in the background, as a process has to start there for it. Its own node it knows, so
that on a cluster of one nothing is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from importlib import metadata

from ray.exceptions import RayError, RayTaskError

from choreography_ray.model import NodeRecord

log = logging.getLogger(__name__)

Found = tuple[str, str, str]
"""A node's address, the version that it has, and what is wrong if it has none. Plain, as it goes between versions."""

ASKED_AT_ONCE = 2
"""Nodes that are asked at the same time: each starts a process there."""


def installed_version() -> str:
    """The version of choreography-ray in this process; empty where it runs without being installed."""
    try:
        return metadata.version("choreography-ray")
    except metadata.PackageNotFoundError:
        return ""


class Nodes:
    """What the nodes have, as far as they were asked. One that did not answer is asked again with the next look."""

    def __init__(self, here: str, live: Callable[[], Mapping[str, str]], ask: Callable[[str], str]) -> None:
        """`here` is this process's node; `live` tells addresses by node, `ask` the version on a node. Both block."""
        self._here = here
        self._live = live
        self._ask = ask
        self.found: dict[str, Found] = {}
        self._places = asyncio.Semaphore(ASKED_AT_ONCE)
        self._looking = asyncio.Lock()

    async def look(self) -> dict[str, Found]:
        """Ask the nodes that are new, and forget those that are gone."""
        async with self._looking:
            live = await asyncio.to_thread(self._live)
            self.found = {node: found for node, found in self.found.items() if node in live}
            new = [node for node in live if node not in self.found]
            await asyncio.gather(*(self._look_at(node, live[node]) for node in new))
        return self.found

    async def _look_at(self, node: str, address: str) -> None:
        if node == self._here:
            self.found[node] = (address, installed_version(), "")
            return
        async with self._places:
            try:
                self.found[node] = (address, await asyncio.to_thread(self._ask, node), "")
            except RayTaskError as error:
                # A function that cannot be imported there: what ends its traceback says why.
                self.found[node] = (address, "", str(error).strip().splitlines()[-1])
            except RayError as error:  # it is busy, or gone by now: nothing is known of it
                log.info("node %s at %s does not say what it has: %s", node, address, error)


def node_records(found: Mapping[str, Found], mine: str) -> list[NodeRecord]:
    """What there is to tell of the nodes to a process that has the version `mine`."""
    return [
        NodeRecord(node_id=node, address=address, version=version, problem=_problem(address, version, why, mine))
        for node, (address, version, why) in sorted(found.items(), key=lambda item: (item[1][0], item[0]))
    ]


def _problem(address: str, version: str, why: str, mine: str) -> str:
    if why:
        return f"the node at {address} cannot perform steps: {why}"
    if version != mine:
        return f"the node at {address} has choreography-ray {version or 'uninstalled'}, this process {mine}: use one"
    return ""
