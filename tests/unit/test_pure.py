"""Core and engine know neither Ray nor MongoDB."""

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
