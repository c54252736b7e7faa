"""Throttle, supervisor and store keeper serve everybody, so they carry nobody's runtime_env; jobs do [S13, S14.6]."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import run_python

pytestmark = pytest.mark.ray

SCRIPT = """
import ray
import ray._private.state
from choreography_ray import Choreography
from choreography_ray.actors.ray_api import own_runtime_env

ray.init(address="local", include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"MARKED": "yes"}})
with Choreography.connect() as choreography:
    assert choreography.throttle()["is_granting"]
    actors = {}
    while len(actors) < 3:
        actors = {a["Name"]: a["Pid"] for a in ray._private.state.actors().values() if a["State"] == "ALIVE"}
    for name, pid in sorted(actors.items()):
        environment = open(f"/proc/{pid}/environ").read().split("\\0")
        print(name.partition("/")[0], "MARKED=yes" in environment)
    print("driver", own_runtime_env() == {"env_vars": {"MARKED": "yes"}})
"""


def test_services_do_not_inherit_the_runtime_env_of_the_driver_that_needed_them_first(tmp_path: Path) -> None:
    ran = run_python(tmp_path, "-c", SCRIPT)
    assert ran.code == 0, ran.err
    assert ran.out.split() == ["store", "False", "supervisor", "False", "throttle", "False", "driver", "True"]
