"""Do the pages of docs/ say what is so: what they take from the code, their links, their commands?"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from textwrap import dedent

import click
import pytest
import typer
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import cli as ray_cli

from choreography_ray.cli.app import app
from choreography_ray.core.transitions import JOB_TRANSITIONS
from choreography_ray.errors import ChoreographyError, StartReport
from choreography_ray.model import FindingKind, JobStatus, JobStepStatus, WaitReason
from harness import pages

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in [*PAGES, ROOT / "README.md"]}
MONGO = "CHOREOGRAPHY_MONGO_URL"
FOREIGN = {
    "cd",
    "export",
    "git",
    "helm",
    "kubectl",
    "pip",
    "pip-audit",
    "python",
    "python3",
    "sort",
    "touch",
    "ulimit",
    "zensical",
}
"""Commands that are not ours, and that the docs may tell people to type."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_takes_from_the_code_is_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == pages.renewed(text), "python -m harness.pages"


def test_every_table_of_the_code_is_on_some_page_and_would_be_found_stale() -> None:
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in pages.REGIONS:
        assert texts.count(f"<!-- from the code: {name} -->\n") == 1, name
    assert pages.renewed(texts.replace("PREPARING_JOB --> PREPARING_STEPS", "")) == texts


def test_the_diagram_of_jobs_has_exactly_the_arrows_of_the_table() -> None:
    lines = pages.REGIONS["states of jobs"]().splitlines()
    drawn = {tuple(line.split(" --> ")) for line in map(str.strip, lines) if " --> " in line and "[*]" not in line}
    assert drawn == {(a, b) for a, others in JOB_TRANSITIONS.items() for b in others if b != "REMOVING"}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Also dead links and anchors are warnings, and a page that the navigation does not have is looked for here."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Warning" not in built.stdout + built.stderr
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f" {page.name}\n" not in navigation] == []
    assert (tmp_path / "site/states/index.html").exists()


def section(page: str, title: str) -> str:
    """From a heading to the next of any level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/{page} has no section {title!r}"
    return found[1]


def rows(text: str) -> list[str]:
    """What the tables of a text have in their first column."""
    return re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE)


@pytest.mark.parametrize("error", pages.error_classes(), ids=lambda error: error.__name__)
def test_every_error_and_each_of_its_reasons_says_what_to_do(error: type[ChoreographyError]) -> None:
    text = section("errors.md", error.__name__)
    assert len(text.split()) > 5
    reasons = pages.reasons_of(error)
    if reasons is not None:
        told = [row for row in rows(text) if row in reasons.__members__]
        assert sorted(told) == sorted(reasons.__members__)


@pytest.mark.parametrize(
    ("page", "title", "names"),
    [
        ("errors.md", "StartJobError", StartReport),
        ("troubleshooting.md", "A job does not move", WaitReason),
        ("troubleshooting.md", "Verify found something", FindingKind),
        ("states.md", "Of a job", JobStatus),
        ("states.md", "Of a step", JobStepStatus),
    ],
)
def test_every_member_is_told(page: str, title: str, names: type[StrEnum]) -> None:
    assert set(names.__members__) <= set(rows(section(page, title)))


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if pages.script(text)])
def test_python_that_needs_no_cluster_runs(name: str, tmp_path: Path) -> None:
    """Of the others this defines the classes; tests/integration/test_readme.py runs them."""
    (tmp_path / "page.py").write_text(pages.script(TEXTS[name]), encoding="utf-8")
    assert runpy.run_path(str(tmp_path / "page.py"), run_name="page")


def test_the_tests_of_the_page_on_testing_pass_and_one_fails_as_the_page_says(tmp_path: Path) -> None:
    page = TEXTS["testing.md"]
    (failing,) = (each for each in pages.blocks(page) if each.title)
    (tmp_path / "test_import.py").write_text(pages.script(page), encoding="utf-8")
    (tmp_path / failing.title).write_text(failing.text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    command += ["--rootdir", tmp_path, tmp_path]
    ran = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    told = "".join(line.removeprefix("E") for line in ran.stdout.splitlines(keepends=True) if line.startswith("E "))
    (story,) = (each.text for each in pages.blocks(page) if each.language == "text")
    assert dedent(told) == f"AssertionError: {story}", ran.stdout + ran.stderr
    assert f"1 failed, {page.count('def test_') - 1} passed" in ran.stdout


@pytest.mark.parametrize(
    "command",
    [part.strip() for text in TEXTS.values() for line in pages.commands(text) for part in re.split("&&|[|;] ", line)],
)
def test_every_command_exists_with_these_options(command: str) -> None:
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    match Path(words[0]).name:
        case "choreography":
            parse_ours(words[1:])
        case "ray":
            parse_rays(words[1:])
        case _ if words[0].startswith(".ci/"):
            assert os.access(ROOT / words[0], os.X_OK)
        case name:
            assert name in FOREIGN or words[0].startswith("./")  # a program of the reader's own


def parse_ours(words: list[str]) -> None:
    """Raises for a command or an option that there is not."""
    command = typer.main.get_command(app)
    context = command.make_context("choreography", words)
    assert isinstance(command, typer.core.TyperGroup)
    if rest := [*context._protected_args, *context.args]:
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        found.make_context(name, rest, parent=context)


def parse_rays(words: list[str]) -> None:
    """As above."""
    group: click.Group = ray_cli
    context = group.make_context("ray", words[:1])
    name, found, _ = group.resolve_command(context, words[:1])
    rest = words[1:]
    if isinstance(found, click.Group):
        name, found, _ = found.resolve_command(context, rest[:1])
        rest = rest[1:]
    assert found is not None
    found.make_context(name, rest, parent=context)


def test_the_manifests_name_the_ray_that_is_locked_and_the_same_store_in_each_container() -> None:
    manifests = [yaml.safe_load(b.text) for b in pages.blocks(TEXTS["kubernetes.md"]) if b.language == "yaml"]
    assert [(each["apiVersion"], each["kind"]) for each in manifests] == [
        ("ray.io/v1", "RayCluster"),
        ("ray.io/v1", "RayJob"),
    ]
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert locked
    for manifest in manifests:
        cluster = manifest["spec"].get("rayClusterSpec", manifest["spec"])
        assert cluster["rayVersion"] == locked[1]
        groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
        containers = [each for group in groups for each in group["template"]["spec"]["containers"]]
        assert {container["image"] for container in containers} == {"registry.example/choreography:1"}
        assert [env["name"] for each in containers for env in each["env"]] == [MONGO] * len(containers)


def test_rays_launcher_takes_cluster_yaml_and_each_command_of_it() -> None:
    """What a node needs: this checkout, what is locked, and the environment of what runs there."""
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    validate_config(prepare_config(config))
    assert set(config["file_mounts"]) == {"~/choreography-ray", "~/choreography.env"}
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    for line in [*config["setup_commands"], *starts]:
        subprocess.run(["bash", "-nc", line], check=True)
    for line in starts:
        parse_rays(shlex.split(line.split("; ")[-1])[1:])
    assert all(". ~/choreography.env" in line for line in starts if "ray start" in line)
    assert any("requirements.lock" in line for line in config["setup_commands"])
