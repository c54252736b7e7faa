"""Servers that peers need, for one measurement: children of this process, on loopback, data in a temporary folder."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

START_SECONDS = 60.0
REDIS = {"appendonly": "yes", "appendfsync": "always", "save": ""}
POSTGRES = {"fsync": "on", "synchronous_commit": "on", "max_connections": "200"}
"""Durable as it comes; connections for many threads."""


class MissingServer(Exception):
    """A program that a peer needs is not on this machine."""

    def __init__(self, program: str, package: str) -> None:
        super().__init__(f"{program} is not installed (Debian: apt-get install {package})")


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The URL of a Redis that has each write on disk before it answers. Raises `MissingServer`."""
    program = _program("redis-server", "redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        chosen = [part for name, value in REDIS.items() for part in (f"--{name}", value)]
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, *chosen]
        with running(command, lambda: _answers(port), cwd=folder):
            yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL with an empty database. Raises `MissingServer`.

    It refuses to run as root, and then runs as the user that its package makes.
    """
    initdb, server = (_program(name, "postgresql") for name in ("initdb", "postgres"))
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        data = Path(folder, "data")
        initialize = [initdb, "--pgdata", str(data), "--auth", "trust", "--username", "bench", "--encoding", "UTF8"]
        subprocess.run(initialize, check=True, user=_only_as_root(user), cwd=folder, stdout=subprocess.DEVNULL)
        chosen = [part for name, value in POSTGRES.items() for part in ("-c", f"{name}={value}")]
        command = [server, "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", folder, *chosen]
        with running(command, lambda: _answers(port), cwd=folder, user=_only_as_root(user)):
            yield f"postgresql://bench@127.0.0.1:{port}/postgres"


@contextlib.contextmanager
def running(
    command: list[str],
    is_up: Callable[[], bool],
    cwd: str,
    user: str | None = None,
    environment: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A server within, once it is up; ended by SIGTERM, else SIGKILL. Raises `RuntimeError` with what it said."""
    log = Path(cwd, f"{Path(command[0]).name}.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=cwd, user=user, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not start: {log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingServer(name, package)
    return found


def _only_as_root(user: str) -> str | None:
    return user if os.geteuid() == 0 else None


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
