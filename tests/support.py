"""What tests of several folders share: the command line as a person calls it, and a look at what still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ray.util import list_named_actors


def actor_names(namespace: str) -> list[str]:
    """The actors of a Ray namespace that are not dead."""
    return [row["name"] for row in list_named_actors(all_namespaces=True) if row["namespace"] == namespace]


class Ran(NamedTuple):
    """What a command left: exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def clean_environment(*, own_ray: bool = True) -> dict[str, str]:
    """This process's environment without what says where Ray and the store are.

    With `own_ray` each process starts a Ray of its own, and leaves alone whatever else runs on the machine.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CHOREOGRAPHY_", "RAY_"))}
    return {**kept, "RAY_ADDRESS": "local"} if own_ray else kept


def run_python(folder: Path, *arguments: str, own_ray: bool = True, timeout: float = 120) -> Ran:
    """Python in `folder`, with a store of that folder."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean_environment(own_ray=own_ray),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def choreography(folder: Path, *arguments: str, own_ray: bool = True, timeout: float = 300) -> Ran:
    """The command line in `folder`, with a store of that folder."""
    return run_python(folder, "-m", "choreography_ray.cli", *arguments, own_ray=own_ray, timeout=timeout)


def is_alive(pid: int) -> bool:
    """False also for a process that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def processes_of(text: str) -> list[str]:
    """Command lines of the other live processes that name `text`, or whose working folder is `text`."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            works_in = str((entry / "cwd").readlink())
        except OSError:
            continue
        if (text in command or works_in == text) and is_alive(int(entry.name)):
            found.append(command)
    return found
