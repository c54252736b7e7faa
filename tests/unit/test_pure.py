"""What do modules load? Core and engine neither Ray nor MongoDB, a host nothing that only a job's actor runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "pymongo", "motor"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import choreography_ray.core, choreography_ray.engine
for package in (choreography_ray.core, choreography_ray.engine):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
import choreography_ray.storage.memory
print(sorted(name for name in sys.modules if name.partition(".")[0] in {"ray", "pymongo"}))
"""


def test_core_and_engine_import_where_ray_and_pymongo_cannot() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_host_loads_nothing_that_only_the_jobs_actor_runs() -> None:
    """Ray loads the class of each actor that is looked up: that took a tenth of a second of each host's start."""
    program = "import sys, choreography_ray.actors.host, choreography_ray.actors.job; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "choreography_ray.engine.host_engine" in loaded
    own = {
        "actors.job_life",
        "actors.hosts",
        "actors.throttle",
        "engine.incarnation",
        "core.job_machine",
        "core.ledger",
    }
    assert not loaded & {f"choreography_ray.{name}" for name in own}
