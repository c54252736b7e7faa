"""How an actor comes to be without its creator's runtime_env: a short-lived driver that has none creates it [S14.6].

An actor inherits the runtime_env of whoever creates it, and Ray lets nobody refuse the inheritance.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from choreography_ray.actors.ray_api import here, join_or_start, leave
from choreography_ray.errors import ClusterUnavailable

TIMEOUT_SECONDS = 60.0

T = TypeVar("T")


def create_cleanly(make: Callable[[T], Any], argument: T) -> Any:
    """What `make` makes or finds, made without a runtime_env. `make` is a function of a module. Blocks."""
    place = here()
    if place.has_runtime_env:
        # By standard input: a command line is readable by everybody, and the URL may hold a password.
        order = pickle.dumps((place.gcs_address, make, argument))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_JOB_CONFIG")}
        command = [sys.executable, "-m", __name__]
        done = subprocess.run(
            command, input=order, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
        if done.returncode != 0:
            told = done.stderr.decode(errors="replace").strip().splitlines()
            raise ClusterUnavailable(place.gcs_address, told[-1] if told else "a helper process failed")
    return make(argument)


def main() -> None:
    """What the short-lived driver does."""
    address, make, argument = pickle.loads(sys.stdin.buffer.read())
    join_or_start(address=address, log_to_driver=False, configure_logging=False)
    try:
        make(argument)
    finally:
        leave()


if __name__ == "__main__":
    main()
