"""Which Ray cluster did `choreography up` start in this folder, and how is exactly that one ended?

Several Ray clusters may run on one machine, and `ray stop` ends them all. So `up` writes down what it started, and
`down` ends the processes of that session: its components, found by the session's folder in their command lines,
and whatever descends from its raylet (workers, and what they started). A process is told by its id and the moment
it began, so that an id which was given to somebody else meanwhile is never hit.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from choreography_ray.errors import ClusterUnavailable

RECORD_NAME = "cluster.json"
START_TIMEOUT = 120.0
"""Seconds that Ray may take to start."""
TERMINATION_TIMEOUT = 10.0
"""Seconds that processes have to end by themselves before they are killed."""

_COMPONENTS = ("gcs_server", "raylet", "monitor.py", "log_monitor.py", "dashboard.py", "ray.util.client.server")
_DASHBOARD_PORT = 8265
_PORT_TAKEN = "address already in use"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class ProcessKey(NamedTuple):
    """A process, told from any later one of the same id: `began` in clock ticks since the machine started."""

    pid: int
    began: int


class LocalCluster(BaseModel):
    """A cluster that `up` started: where it is reached, its session's folder, and its raylet and GCS.

    `auth_mode` is what drivers need as RAY_AUTH_MODE; None: nothing.
    """

    address: str
    session: str
    heads: tuple[ProcessKey, ...]
    dashboard: str | None = None
    auth_mode: str | None = None

    @property
    def is_running(self) -> bool:
        """True while its GCS and its raylet both live."""
        return all(_began(head.pid) == head.began for head in self.heads)

    def prepare_to_join(self) -> None:
        """Let this process in, unless its environment says otherwise: for an address that it is told Ray does not look
        for a token by itself.
        """
        if self.auth_mode:
            os.environ.setdefault("RAY_AUTH_MODE", self.auth_mode)


class _Process(NamedTuple):
    key: ProcessKey
    parent: int
    command: tuple[str, ...]


def recorded(directory: Path) -> LocalCluster | None:
    """What `up` wrote down in `directory`, whether it still runs or not; None when there is nothing readable."""
    try:
        return LocalCluster.model_validate_json((directory / RECORD_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def running(directory: Path) -> LocalCluster | None:
    """The cluster that `up` started in `directory`, if it runs."""
    cluster = recorded(directory)
    return cluster if cluster and cluster.is_running else None


def start(directory: Path, *, with_dashboard: bool = False, cpus: int | None = None) -> LocalCluster:
    """Start a Ray head that outlives this process and its terminal, and write it down in `directory`.

    Raises `ClusterUnavailable`; nothing of it runs then.
    """
    try:
        return _start(directory, with_dashboard, _DASHBOARD_PORT if with_dashboard else 0, cpus)
    except ClusterUnavailable as error:
        # Somebody else took a port between our look and Ray's: with other ports it may well start.
        if _PORT_TAKEN not in str(error):
            raise
        return _start(directory, with_dashboard, 0, cpus)


def _start(directory: Path, with_dashboard: bool, dashboard_port: int, cpus: int | None) -> LocalCluster:
    port, dashboard_port = _free_port(), _free_port(dashboard_port)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats"),
        # Ports of its own beside any other cluster; Ray itself chooses among the free ones for its workers.
        *(f"--port={port}", f"--ray-client-server-port={_free_port()}", f"--dashboard-port={dashboard_port}"),
        *("--dashboard-host=127.0.0.1", f"--include-dashboard={str(with_dashboard).lower()}"),
        *([] if cpus is None else [f"--num-cpus={cpus}"]),
    ]
    auth_mode = os.environ.get("RAY_AUTH_MODE")
    cluster: LocalCluster | None = None
    try:
        if auth_mode is None:
            # Ray listens on the machine's address; once there is a token it lets in only those who can read it.
            _run([sys.executable, "-m", "ray.scripts.scripts", "get-auth-token", "--generate"], umask=0o077)
        _run(command)
        found = _find(port)
        if found is None:
            raise ClusterUnavailable("on this machine", "Ray said that it started, but no GCS and raylet of it run")
        dashboard = f"http://127.0.0.1:{dashboard_port}" if with_dashboard else None
        cluster = found.model_copy(update={"dashboard": dashboard, "auth_mode": auth_mode or "token"})
        directory.mkdir(parents=True, exist_ok=True)
        (directory / RECORD_NAME).write_text(cluster.model_dump_json(indent=2), encoding="utf-8")
    except BaseException:
        if left := cluster or _find(port, is_whole=False):
            end(left)
        raise
    return cluster


def stop(directory: Path) -> int | None:
    """End the recorded cluster; returns how many processes ended, or None when there was nothing to end.

    Raises `ClusterUnavailable` when some would not end.
    """
    cluster = recorded(directory)
    if cluster is None:
        return None
    ended = end(cluster)
    (directory / RECORD_NAME).unlink(missing_ok=True)
    return ended or None


def end(cluster: LocalCluster) -> int:
    """End all processes of the cluster: the raylet first, so that its workers go in order, then all that is left."""
    members = _members(cluster)
    _signal(cluster.heads[:1], signal.SIGTERM)
    _await_end(cluster.heads[:1], TERMINATION_TIMEOUT)
    # Workers may have come up since, and those whose raylet is gone are nobody's children any more.
    members |= _members(cluster)
    _signal(members, signal.SIGTERM)
    # The GCS of a head without a raylet does not react; it keeps nothing that it could lose.
    _await_end(members, TERMINATION_TIMEOUT / 4)
    _signal(members, signal.SIGKILL)
    left = _await_end(members, TERMINATION_TIMEOUT)
    if left:
        raise ClusterUnavailable(cluster.address, f"processes {sorted(key.pid for key in left)} would not end")
    # Ray looks here for "the" cluster of the machine; what names a dead one makes every later connect wait.
    marker = Path(cluster.session).parent / "ray_current_cluster"
    with contextlib.suppress(OSError):
        if marker.read_text(encoding="utf-8").strip() == cluster.address:
            marker.unlink()
    return len(members)


def _run(command: list[str], umask: int = -1) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_TIMEOUT,
            start_new_session=True,
            umask=umask,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterUnavailable("on this machine", f"Ray did not start within {START_TIMEOUT:g} s") from error
    if done.returncode:
        lines = [line.strip() for line in _ANSI.sub("", done.stdout).splitlines() if line.strip()]
        raise ClusterUnavailable("on this machine", lines[-1] if lines else f"ray start ended with {done.returncode}")


def _find(port: int, *, is_whole: bool = True) -> LocalCluster | None:
    """The session whose GCS listens on `port`; with `is_whole` only if its raylet runs too."""
    processes = list(_processes())
    gcs = _first(
        processes, lambda process: _is(process, "gcs_server") and f"--gcs_server_port={port}" in process.command
    )
    if gcs is None:
        return None
    session = str(Path(_argument(gcs, "--log_dir")).parent)
    raylet = _first(processes, lambda process: _is(process, "raylet") and _names(process, session))
    if raylet is None:
        return None if is_whole else LocalCluster(address=f":{port}", session=session, heads=(gcs.key,))
    address = _argument(raylet, "--gcs-address")
    return LocalCluster(address=address, session=session, heads=(raylet.key, gcs.key))


def _members(cluster: LocalCluster) -> set[ProcessKey]:
    processes = list(_processes())
    members = {
        process.key
        for process in processes
        if any(_is(process, name) for name in _COMPONENTS)
        and (_names(process, cluster.session) or f"--address={cluster.address}" in process.command)
    }
    members |= {head for head in cluster.heads if _began(head.pid) == head.began}
    found = {key.pid for key in members}
    while grown := {process.key for process in processes if process.parent in found and process.key.pid not in found}:
        members |= grown
        found |= {key.pid for key in grown}
    return members


def _processes() -> Iterable[_Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent, began = _stat(int(entry.name))
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield _Process(ProcessKey(int(entry.name), began), parent, tuple(command))


def _stat(pid: int) -> tuple[int, int]:
    """Parent, and clock ticks from the machine's start to the process's. `ProcessLookupError` also for a zombie."""
    # The name in parentheses may hold anything, so count from its end: state is field 3, parent 4, start 22.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        raise ProcessLookupError(pid)
    return int(fields[1]), int(fields[19])


def _began(pid: int) -> int | None:
    try:
        return _stat(pid)[1]
    except (OSError, IndexError, ValueError):
        return None


def _is(process: _Process, component: str) -> bool:
    return any(part == component or part.endswith(f"/{component}") for part in process.command[:5])


def _names(process: _Process, session: str) -> bool:
    return any(session in part for part in process.command)


def _argument(process: _Process, name: str) -> str:
    return next((part.partition("=")[2] for part in process.command if part.startswith(f"{name}=")), "")


def _first(processes: Iterable[_Process], is_wanted: Callable[[_Process], bool]) -> _Process | None:
    return next(filter(is_wanted, processes), None)


def _signal(keys: Iterable[ProcessKey], number: signal.Signals) -> None:
    for key in keys:
        if _began(key.pid) == key.began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(key.pid, number)


def _await_end(keys: Iterable[ProcessKey], timeout: float) -> set[ProcessKey]:
    """Those of `keys` that still live when all have ended or `timeout` seconds are over."""
    until = time.monotonic() + timeout
    while (left := {key for key in keys if _began(key.pid) == key.began}) and time.monotonic() < until:
        # There is no event to wait for: they are not our children.
        time.sleep(0.05)
    return left


def _free_port(wanted: int = 0) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ClusterUnavailable("on this machine", "no port is free")
