"""Does the demo make a right index of the standard library on real Ray, twice, and answer from it?"""

from __future__ import annotations

import json
import re
import sysconfig
from pathlib import Path

import pytest

from tests.support import Ran, choreography, processes_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]

WORDS = ("asyncio", "import", "self", "return", "lambda", "None", "socket", "unittest", "__init__", "yield")


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ran]]:
    """A folder in which the demo ran twice."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, [choreography(folder, "demo"), choreography(folder, "demo", "--json")]


def counted_by_hand(word: str) -> dict[str, int]:
    """How often the word stands in each file, told by another rule: a search for it between non-letters."""
    root = Path(sysconfig.get_path("stdlib"))
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    counts: dict[str, int] = {}
    for path in root.rglob("*.py"):
        below = path.relative_to(root)
        if "site-packages" in below.parts or "dist-packages" in below.parts or not path.is_file():
            continue
        found = len(pattern.findall(path.read_bytes().decode("utf-8", errors="replace")))
        if found:
            counts[below.as_posix()] = found
    return counts


def test_the_demo_ends_with_its_summary(demonstrated: tuple[Path, list[Ran]]) -> None:
    """Plan, stages and progress, and at the end what was made and how to search it."""
    _, (first, _) = demonstrated
    assert first.code == 0, first.err
    assert "index a group of files" in first.out
    assert "stage 10" in first.err
    assert "COMPLETED_SUCCESSFULLY" in first.out
    assert "38 of 38 in 3 stages" in first.out
    assert "choreography demo --search" in first.out


def test_a_second_demo_is_a_job_of_its_own_that_replaces_the_index(demonstrated: tuple[Path, list[Ran]]) -> None:
    folder, (_, second) = demonstrated
    assert second.code == 0, second.err
    told = json.loads(second.out)
    assert told["files"] > 1000
    listed = json.loads(choreography(folder, "list", "--json").out)
    assert len({job["job_id"] for job in listed}) == 2
    assert {job["status"] for job in listed} == {"COMPLETED_SUCCESSFULLY"}
    assert {path.name for path in (folder / ".choreography/demo").iterdir() if path.is_file()} == {
        "index.sqlite",
        "survey.json",
    }
    assert list((folder / ".choreography/demo/parts").iterdir()) == []


@pytest.mark.parametrize("word", WORDS)
def test_counts_equal_an_independent_count(demonstrated: tuple[Path, list[Ran]], word: str) -> None:
    """Over the same files, in total and for each file."""
    folder, _ = demonstrated
    searched = choreography(folder, "demo", "--search", word, "--json", "--limit", "100000")
    assert searched.code == 0, searched.err
    (told,) = json.loads(searched.out).values()
    expected = counted_by_hand(word)
    assert dict(told["most"]) == expected
    assert told["total"] == sum(expected.values()) > 0
    assert told["files"] == len(expected)


def test_a_search_shows_files_most_first(demonstrated: tuple[Path, list[Ran]]) -> None:
    folder, _ = demonstrated
    searched = choreography(folder, "demo", "--search", "ASYNCIO", "--limit", "3")
    first, *rows, more = searched.out.splitlines()
    assert re.fullmatch(r"asyncio: [\d,]+ times in [\d,]+ files", first)
    counts = [int(row.split()[0]) for row in rows]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)
    assert "--limit" in more


def test_an_unknown_word_is_an_answer(demonstrated: tuple[Path, list[Ran]]) -> None:
    folder, _ = demonstrated
    searched = choreography(folder, "demo", "--search", "xyzzyplugh asyncio", "--limit", "1")
    assert searched.code == 0
    assert "xyzzyplugh: in no file" in searched.out
    assert "asyncio: " in searched.out


def test_nothing_of_the_demo_runs_when_it_has_ended(demonstrated: tuple[Path, list[Ran]]) -> None:
    """No Ray, no store: whatever named the demo's folder or worked in it is gone."""
    folder, _ = demonstrated
    assert processes_of(str(folder)) == []
