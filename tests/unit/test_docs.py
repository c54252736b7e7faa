"""Do the pages of docs/ say what is so: what they take from the code, their links, their commands?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import pytest

from choreography_ray.core.transitions import JOB_TRANSITIONS
from choreography_ray.errors import ChoreographyError, StartReport
from choreography_ray.model import FindingKind, JobStatus, JobStepStatus, WaitReason
from harness import pages

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


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
