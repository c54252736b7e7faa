"""Do the files around the package say what is so: README, lock, CI, cluster.yaml, import rules?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_ci_runs_the_readme_test_command() -> None:
    """One line of the README matches what CI looks for, and it is a complete command for a fresh clone."""
    pattern = re.search(r"grep -E '(.+)' README.md", (ROOT / ".ci/run").read_text())
    assert pattern
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(pattern[1], readme, re.MULTILINE)
    assert "-r requirements.lock" in command


def test_the_lock_names_versions_and_hashes_and_no_place() -> None:
    """No option, index or machine: the installing machine decides where packages come from."""
    entries = [line for line in LOCK.splitlines() if line and not line.startswith(("#", " "))]
    assert len(entries) > 50
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==\S+ ", entry), entry
    assert LOCK.count("--hash=sha256:") >= len(entries)
    assert not re.search(r"://|^-|file:", LOCK, re.MULTILINE)


def test_everything_that_the_project_asks_for_is_locked() -> None:
    locked = set(re.findall(r"^([a-z0-9.-]+)==", LOCK, re.MULTILINE))
    extras = project()["optional-dependencies"]
    asked = [*project()["dependencies"], *extras["embedded"], *extras["notebook"], *extras["docs"], *extras["test"]]
    names = {re.split(r"[\[<>=!~;, ]", each)[0].lower().replace("_", "-") for each in asked}
    assert names <= locked


def test_core_and_engine_need_neither_ray_nor_pymongo() -> None:
    """They import where both are missing: what runs in production runs in a unit test."""
    script = (
        "import sys, pkgutil, importlib\n"
        "sys.modules.update(ray=None, pymongo=None)\n"
        "import choreography_ray.core, choreography_ray.engine\n"
        "names = [found.name for package in (choreography_ray.core, choreography_ray.engine)\n"
        "         for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.')]\n"
        "[importlib.import_module(name) for name in names]\n"
        "print(len(names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_no_machine_path_or_index_address_is_in_the_repository() -> None:
    """They mean nothing to a stranger."""
    telling = re.compile(
        "|".join(("/wor" + "k/", "/roo" + "t/", "pypi" + r"\.org", "python" + "hosted", "npmjs" + r"\.org"))
    )
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = [
        f"{name}: {match[0]}"
        for name in listed.stdout.splitlines()
        if not name.endswith(".lock") and (ROOT / name).is_file()
        if (match := telling.search((ROOT / name).read_text(encoding="utf-8", errors="replace")))
    ]
    assert found == []


@pytest.mark.parametrize("name", [".ci/run", ".ci/lock"])
def test_scripts_can_be_run(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)
