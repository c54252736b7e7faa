"""Is the index right, whole and replaceable, whatever runs twice or dies in between?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from choreography_ray.demo import index

RUN = "run-1"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three files to index, and four things that are none of ours."""
    root = tmp_path / "tree"
    for name, text in {
        "a.py": "import os\nIMPORT = os.path  # Import, importer",
        "pack/b.py": "größe = 1; GRÖSSE = größe",
        "pack/c.py": "",
        "site-packages/d.py": "import never",
        "pack/__pycache__/e.py": "import never",
        "pack/f.txt": "import never",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "folder.py").mkdir()
    return root


def published(tree: Path, out: Path, run: str = RUN) -> Path:
    files = [file.path for file in index.source_files(tree)]
    parts = [out / "parts" / "0.jsonl", out / "parts" / "1.jsonl"]
    index.write_part(tree, files[:1], parts[0])
    index.write_part(tree, files[1:], parts[1])
    index.publish(parts, files, out / index.INDEX_NAME, run)
    return out / index.INDEX_NAME


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_every_python_file_of_the_tree_is_surveyed_and_nothing_else(tree: Path, tmp_path: Path) -> None:
    files = index.source_files(tree)
    assert [file.path for file in files] == ["a.py", "pack/b.py", "pack/c.py"]
    index.write_survey(files, tmp_path / "out" / "survey.json")
    assert index.read_survey(tmp_path / "out" / "survey.json") == files


def test_groups_hold_every_file_once_and_weigh_the_same() -> None:
    files = [index.SourceFile(f"{number}.py", number * 37 % 1000) for number in range(500)]
    groups = index.balanced_groups(files, 7)
    assert sorted(file.path for group in groups for file in group) == sorted(file.path for file in files)
    sizes = [sum(file.size for file in group) for group in groups]
    assert max(sizes) - min(sizes) < 1000
    assert groups == index.balanced_groups(reversed(files), 7)


def test_no_group_is_empty() -> None:
    assert len(index.balanced_groups([index.SourceFile("a.py", 0), index.SourceFile("b.py", 0)], 5)) == 2
    assert index.balanced_groups([], 5) == []


def test_whole_words_are_found_whatever_their_case(tree: Path, tmp_path: Path) -> None:
    """`importer` is another word, and `größe` is one."""
    found = index.search(published(tree, tmp_path / "out"), "Import GRÖSSE größe")
    assert [(each.word, each.total, each.file_count) for each in found] == [
        ("import", 3, 1),
        ("grösse", 1, 1),
        ("größe", 2, 1),
    ]
    assert found[0].files == (("a.py", 3),)


def test_files_come_most_first_and_no_more_than_asked_for(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(5):
        (root / f"{number}.py").write_text("word " * (number + 1))
    (found,) = index.search(published(root, tmp_path / "out"), "word", limit=2)
    assert (found.total, found.file_count) == (15, 5)
    assert found.files == (("4.py", 5), ("3.py", 4))


def test_an_unknown_word_is_found_in_no_file(tree: Path, tmp_path: Path) -> None:
    (found,) = index.search(published(tree, tmp_path / "out"), "nowhere")
    assert (found.total, found.file_count, found.files) == (0, 0, ())


def test_bytes_that_are_no_text_do_not_stop_the_index(tmp_path: Path) -> None:
    """They separate words, like any character that is no letter."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "latin.py").write_bytes(b"before\xffafter")
    found = index.search(published(root, tmp_path / "out"), "before after")
    assert [each.total for each in found] == [1, 1]


def test_publishing_a_run_again_changes_nothing_even_without_its_parts(tree: Path, tmp_path: Path) -> None:
    """A body that had published and died before it could say so is performed again: the parts are gone by then."""
    path = published(tree, tmp_path / "out")
    before = path.read_bytes()
    facts = index.publish([], ["whatever"], path, RUN)
    assert path.read_bytes() == before
    assert facts.files == 3


def test_a_second_run_takes_the_place_of_the_first(tree: Path, tmp_path: Path) -> None:
    published(tree, tmp_path / "out")
    (tree / "new.py").write_text("import new")
    path = published(tree, tmp_path / "out", run="run-2")
    assert index.published_run(path) == "run-2"
    assert index.search(path, "import")[0].total == 4
    assert names_in(tmp_path / "out") == {index.INDEX_NAME, "parts"}


def test_a_missing_part_is_an_error_and_the_published_index_stays(tree: Path, tmp_path: Path) -> None:
    path = published(tree, tmp_path / "out")
    with pytest.raises(ValueError, match="2 files are surveyed or indexed, but not both"):
        index.publish([tmp_path / "out/parts/0.jsonl"], ["a.py", "pack/b.py", "pack/c.py"], path, "run-2")
    assert index.published_run(path) == RUN
    assert names_in(tmp_path / "out") == {index.INDEX_NAME, "parts"}


def test_a_body_that_is_stopped_leaves_no_part(tree: Path, tmp_path: Path) -> None:
    """Not even half of one under another name."""
    calls: list[int] = []

    def stop_at_the_second() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise InterruptedError

    part = tmp_path / "parts" / "0.jsonl"
    with pytest.raises(InterruptedError):
        index.write_part(tree, ["a.py", "pack/b.py"], part, stop_at_the_second)
    assert names_in(part.parent) == set()


def test_a_part_lists_each_file_with_its_words(tree: Path, tmp_path: Path) -> None:
    part = tmp_path / "0.jsonl"
    assert index.write_part(tree, ["pack/b.py", "pack/c.py"], part) == 4
    lines = [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines()]
    assert lines == [["pack/b.py", {"größe": 2, "1": 1, "grösse": 1}], ["pack/c.py", {}]]


@pytest.mark.parametrize("content", [None, b"no database at all", b""])
def test_without_an_index_a_search_says_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / index.INDEX_NAME
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(index.NoIndex, match="choreography demo"):
        index.search(path, "asyncio")
