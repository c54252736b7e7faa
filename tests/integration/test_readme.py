"""Do the README's own job, the code of the docs, and the tutorial do what they say?"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from choreography_ray.cli import local_cluster
from harness import pages
from tests.integration.conftest import only_here
from tests.integration.jobs import await_true
from tests.support import choreography, clean_environment, processes_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = {
    page.stem: text
    for page in sorted((ROOT / "docs").glob("*.md"))
    if "__main__" in pages.script(text := page.read_text(encoding="utf-8"))
}
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster that what runs in the environment joins."""
    folder = tmp_path_factory.mktemp("lasting")
    with only_here(folder / "store"), pytest.MonkeyPatch.context() as patch:
        cluster = local_cluster.start(folder, cpus=2)
        patch.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield
        finally:
            local_cluster.end(cluster)


def run(folder: Path, *command: str, code: int = 0, timeout: float = 120) -> str:
    """What a command in this environment prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("lasting")
def test_the_job_of_the_readme_runs_as_a_script_and_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shards.py").write_text(pages.script(README), encoding="utf-8")
    assert run(tmp_path, sys.executable, "shards.py").splitlines()[-1] == "COMPLETED_SUCCESSFULLY [1, 2, 3]"
    request = ("--request", '{"shards": ["a", "bb"]}')
    command = (sys.executable, "-m", "choreography_ray.cli", "run", "shards:RebuildIndex", *request, "--wait")
    assert "2 of 2 steps succeeded" in run(tmp_path, *command)


@pytest.mark.usefixtures("lasting")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_code_of_a_page_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(pages.script(SCRIPTS[name]), encoding="utf-8")
    told = "".join(each.text for each in pages.blocks(SCRIPTS[name]) if each.language == "text")
    assert told
    assert run(tmp_path, sys.executable, "page.py") == told


@pytest.mark.long
def test_the_tutorial(tmp_path: Path) -> None:
    """Its commands in their order, with shorter ranges and a shorter lease; who waits for the job is killed."""
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    for block in pages.blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text.replace("400_000", "60_000"), encoding="utf-8")
    told = re.search(r"Both say (\d+), which is how many primes there are below ([\d,]+)", page)
    assert told
    assert int(told[1]) == primes_below(12 * 400_000) == primes_below(int(told[2].replace(",", "")))

    bin_folder = Path(sys.executable).parent
    environment = {**clean_environment(own_ray=False), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    printed: dict[str, str] = {}
    with only_here(tmp_path / ".choreography"):
        try:
            for line in pages.commands(page):
                if "--wait" in line:
                    shorten_leases(tmp_path)
                    kill_in_the_middle(line, tmp_path, environment)
                    continue
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", line],
                    cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False,
                )  # fmt: skip
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                printed[line] = done.stdout
        finally:
            choreography(tmp_path, "down", own_ray=False)

    assert "RUNNING" in printed["choreography show primes"]
    begins = [line.split() for line in printed["sort -V begins.txt"].splitlines()]
    assert len(begins) == 13
    (again,) = [int(at) for step, _, _, at in begins if int(at) != 60_000 * int(step.removeprefix("range-"))]
    assert again % 5_000 == 0
    assert "again" in printed["choreography list"]
    counted = primes_below(12 * 60_000)
    assert printed["python look.py"].splitlines() == [
        f"{name} COMPLETED_SUCCESSFULLY {counted}" for name in ("primes", "again")
    ]
    assert processes_of(str(tmp_path)) == []


def shorten_leases(folder: Path) -> None:
    """So that the second cluster need not wait for half a minute."""
    cluster = local_cluster.running(folder / ".choreography")
    assert cluster is not None
    store = "from choreography_ray import *; from datetime import timedelta; "
    lease = "Choreography.connect(use_ray=False, cluster=ClusterOptions(step_lease_timeout=timedelta(seconds=6)))"
    run(folder, sys.executable, "-c", store + lease)


def kill_in_the_middle(line: str, folder: Path, environment: dict[str, str]) -> None:
    """Run it, and kill it once its job is at work."""
    waiting = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=folder, env=environment, stdout=subprocess.PIPE)
    try:
        await_true((folder / "begins.txt").exists, 60, "a body is at work")
        assert waiting.poll() is None
    finally:
        waiting.send_signal(signal.SIGKILL)
        waiting.communicate()


def primes_below(end: int) -> int:
    """By another way than the tutorial's."""
    is_prime = bytearray([1]) * end
    is_prime[:2] = b"\0\0"
    for number in range(2, int(end**0.5) + 1):
        if is_prime[number]:
            is_prime[number * number :: number] = bytes(len(range(number * number, end, number)))
    return sum(is_prime)
