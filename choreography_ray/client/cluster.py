"""How a driver gets a Ray cluster and a store: joined if there is one, else started [S15]."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

from ray._private.utils import read_ray_address

from choreography_ray.actors.ray_api import is_connected, join_or_start, leave, live_nodes, show_token
from choreography_ray.actors.store import keeper_handle
from choreography_ray.errors import ClusterUnavailable, EmbeddedStoreUnavailable
from choreography_ray.storage.embedded import EmbeddedStore

CONNECT_SECONDS = 5.0
_IN_PROCESS: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 128 * 1024 * 1024}
"""How an in-process cluster is started: results travel through the database, not through its object store."""


class RayCluster:
    """The cluster that this process uses. `is_ours`: this process started it, and it ends with `close`."""

    def __init__(self, address: str | None) -> None:
        self.is_ours = False
        if is_connected():
            return
        wanted = address or os.environ.get("RAY_ADDRESS") or None
        if wanted in (None, "auto"):
            wanted = _recorded_address()
            if wanted is not None:
                show_token()
        elif wanted != "local":
            _check_reachable(wanted)
        if wanted is None or wanted == "local":
            self._init("on this machine", address="local", **_IN_PROCESS)
            self.is_ours = True
        else:
            self._init(wanted, address=wanted)

    def _init(self, where: str, **options: Any) -> None:
        try:
            join_or_start(log_to_driver=False, configure_logging=False, **options)
        except Exception as error:
            raise ClusterUnavailable(where, _why(error)) from error

    def close(self) -> None:
        """Leave the cluster; end it if this process started it."""
        if self.is_ours and is_connected():
            leave()

    def hosts(self) -> set[str]:
        """The addresses of the machines in the cluster."""
        return set(live_nodes().values())


def _why(error: Exception) -> str:
    if any("InvalidAuthToken" in str(cause) for cause in (error, error.__cause__)):
        return (
            "its token is another, or this process shows none: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if need be"
        )
    return str(error).strip().splitlines()[0] if str(error) else repr(error)


def _recorded_address() -> str | None:
    """The cluster that `ray start` or `choreography up` left running: a bare `init` would start another beside it.

    Ray's own "auto" would also join clusters that live inside of other drivers, and die with them.
    """
    recorded = read_ray_address(None)
    if not recorded:
        return None
    try:
        _check_reachable(recorded)
    except ClusterUnavailable:
        return None  # it is gone, only its note is left
    return str(recorded)


def _check_reachable(address: str) -> None:
    """Ray itself tries for a minute and then aborts the process: find out first."""
    bare = address.split("://", 1)[-1]
    host, _, port = bare.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterUnavailable(address, "an address has the form HOST:PORT, or ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterUnavailable(address, f"nothing answers there ({error})") from error


async def embedded_url(cluster: RayCluster | None, directory: Path) -> tuple[str, EmbeddedStore | None]:
    """The URL of the embedded store: its keeper's on a cluster, else one that this process owns while it reads."""
    directory = await asyncio.to_thread(directory.absolute)
    if cluster is None:
        store = EmbeddedStore(directory)
        return await asyncio.to_thread(store.start), store
    if len(await asyncio.to_thread(cluster.hosts)) > 1:
        raise EmbeddedStoreUnavailable(
            "the cluster has more than one machine, and the others could not reach it: set CHOREOGRAPHY_MONGO_URL"
        )
    keeper = await asyncio.to_thread(keeper_handle, directory)
    try:
        url: str = await keeper.url.remote()
    except Exception as error:
        cause = getattr(error, "cause", None) or error
        raise EmbeddedStoreUnavailable(str(cause).strip().splitlines()[-1]) from error
    return url, None
