"""The calls of Ray that the actors and the client use, with types. Those that block say so."""

from __future__ import annotations

import importlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

T = TypeVar("T")
log = logging.getLogger(__name__)

# Ray's own annotations are partial: typed as unknown here, once, rather than at every call.
_ray: Any = importlib.import_module("ray")
_worker: Any = importlib.import_module("ray._private.worker")
_state: Any = importlib.import_module("ray._private.state")
_token: Any = importlib.import_module("ray._private.authentication.authentication_token_setup")
_raylet: Any = importlib.import_module("ray._raylet")
_resources_of: Any = importlib.import_module("ray._common.utils").resources_from_ray_options


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is, as Ray names it. `actor_id` is empty outside of an actor."""

    worker_id: str
    node_id: str
    actor_id: str
    has_runtime_env: bool
    gcs_address: str
    cluster_id: str
    """Of the GCS: a head that is restarted over what it remembers keeps it."""


def here() -> Place:
    """This process."""
    context = _ray.get_runtime_context()
    actor_id = context.get_actor_id()
    return Place(
        context.get_worker_id(),
        context.get_node_id(),
        actor_id or "",
        context.get_runtime_env_string() not in ("", "{}"),
        context.gcs_address,
        _worker.global_worker.gcs_client.cluster_id.hex(),
    )


def own_runtime_env() -> dict[str, Any]:
    """The runtime_env of this process, as Ray made it of what was given; empty when there is none."""
    env: dict[str, Any] = json.loads(_ray.get_runtime_context().get_runtime_env_string() or "{}")
    return env


def is_restarted() -> bool:
    """Whether Ray has restarted this actor. Asks the GCS, and blocks until it answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's remark on what its own property uses
        return bool(_ray.get_runtime_context().was_current_actor_reconstructed)


def is_connected() -> bool:
    """Whether this process belongs to a cluster."""
    return bool(_ray.is_initialized())


def join_or_start(address: str, **options: Any) -> None:
    """Make this process a driver. Blocks; on the main thread, or Ray complains."""
    _token.Config.initialize("")  # Ray read the environment when it was imported: RAY_AUTH_MODE may have come since
    if address != "local" and "://" not in address:
        _ask_once(address)
    _ray.init(address=address, **options)


def _ask_once(address: str) -> None:
    """Raise if the GCS does not let this process in: `ray.init` would ask it for 20 s, and print each answer."""
    try:
        _raylet.GcsClient(address=address)
    except _ray.exceptions.AuthenticationError:
        raise
    except Exception as error:  # noqa: BLE001 - it may come up while `ray.init` waits
        log.debug("the GCS at %s does not answer yet: %s", address, error)


def show_token() -> None:
    """Let this process show Ray's token to the cluster that it joins, if it has one and RAY_AUTH_MODE says nothing.

    `ray.init` does so itself, with a warning, for a cluster that it has found, but not for an address that it is told.
    """
    if os.environ.get("RAY_AUTH_MODE") is None and _token.AuthenticationTokenLoader.instance().has_token(
        ignore_auth_mode=True
    ):
        os.environ["RAY_AUTH_MODE"] = "token"


def leave() -> None:
    """Leave the cluster, and end it if this process started it. Blocks."""
    _ray.shutdown()


def create(actor_class: type, options: dict[str, Any], *arguments: Any) -> Any:
    """Make an actor; its handle. Blocks until the GCS has registered it. Raises what Ray makes of bad options."""
    return _ray.remote(actor_class).options(**options).remote(*arguments)


def find(name: str, namespace: str) -> Any:
    """The handle of a named actor that is not dead. Blocks. Raises `ValueError` when there is none."""
    return _ray.get_actor(name, namespace=namespace)


def end(handle: Any) -> None:
    """End an actor's process for good. Blocks."""
    _ray.kill(handle, no_restart=True)


def logs_directory() -> Path | None:
    """Where Ray writes what the processes of this node print; None when it cannot be found out."""
    node = _worker._global_node  # noqa: SLF001
    return None if node is None else Path(node.get_logs_dir_path())


def call_on_node(node_id: str, function: Callable[..., T], *arguments: Any, timeout: float) -> T:
    """Run a function in a process on that node; its value. Blocks. Raises what it or Ray raises."""
    on_that_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    remote = _ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=on_that_node)
    value: T = _ray.get(remote.remote(*arguments), timeout=timeout)
    return value


def actor_id_of(handle: Any) -> str:
    """The id of the actor that a handle leads to."""
    return str(handle._actor_id.hex())  # noqa: SLF001 - the only way that Ray has


def run_there(function: Callable[..., Any], *arguments: Any, runtime_env: dict[str, Any] | None = None) -> Any:
    """Run a function in a process of the cluster, with a runtime_env on top of this process's. Blocks.

    Raises what it raises.
    """
    options = {"num_cpus": 0, "max_retries": 3} | ({"runtime_env": runtime_env} if runtime_env else {})
    return _ray.get(_ray.remote(function).options(**options).remote(*arguments))


def live_nodes() -> dict[str, str]:
    """The nodes that Ray takes for alive: id to address. Blocks."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in _ray.nodes() if node["Alive"]}


def cluster_cpus() -> int:
    """CPUs of the nodes that are alive. Blocks."""
    return int(_ray.cluster_resources().get("CPU", 0))


def has_room(options: Mapping[str, Any]) -> bool:
    """Whether a node has free what an actor with these options takes, as far as the GCS has heard. Blocks.

    False also where more than resources decides: an actor without a process is taken to wait for them then.
    """
    strategy = options.get("scheduling_strategy") or "DEFAULT"
    if not isinstance(strategy, str) or options.get("label_selector") or options.get("placement_group"):
        return False
    wanted = {"CPU": 1, **_resources_of(options)}  # an actor of which nothing is said is placed where a CPU is free
    nodes = _state.available_resources_per_node().values()
    return any(all(free.get(name, 0) >= amount for name, amount in wanted.items()) for free in nodes)


OURS: dict[str, Any] = {"lifetime": "detached", "max_task_retries": 0}
"""Options of every actor of ours: it outlives its creator, and no call is repeated behind our back [S14.4]."""
SERVICE: dict[str, Any] = {**OURS, "get_if_exists": True, "max_restarts": -1, "num_cpus": 0, "max_concurrency": 10_000}
"""Options of actors that Ray brings back: job, throttle, store keeper."""
