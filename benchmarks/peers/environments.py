"""Where is the Python of a peer? In a virtual environment of its own, made from PyPI when it is first asked for.

`python -m benchmarks.peers.environments [NAME ...]` makes them ahead of time. They are kept in the user's cache folder
and used again as long as they are asked for the same packages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import say

PACKAGES = {
    "celery": ("celery[redis]==5.7.0",),
    "dbos": ("dbos==3.4.0",),
    "prefect": ("prefect==3.9.1",),
    "dagster": ("dagster==1.13.28",),
    "dask": ("distributed==2026.8.0",),
}
MADE = "packages.txt"
"""Written last: an environment without it is not whole."""


def folder() -> Path:
    """Where the environments are."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "choreography-ray" / "peers"


def python_of(name: str) -> Path:
    """The interpreter of a peer. Raises `CalledProcessError` when its environment cannot be made."""
    here = folder() / name
    wanted = "\n".join(PACKAGES[name])
    made = here / MADE
    if not made.exists() or made.read_text() != wanted:
        say(f"{name}: making an environment of {', '.join(PACKAGES[name])}")
        shutil.rmtree(here, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", here], check=True)
        subprocess.run([here / "bin" / "pip", "install", "-q", *PACKAGES[name]], check=True)
        made.write_text(wanted)
    return here / "bin" / "python"


def main() -> None:
    """Make those that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.environments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKAGES)}; all when none is named")
    for name in parser.parse_args().names or PACKAGES:
        print(python_of(name))


if __name__ == "__main__":
    main()
