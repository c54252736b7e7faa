"""What a full-text index is: words, the part that one group of files makes, the published file, and a search in it.

A word is `\\w+`, in lower case. Files are read as UTF-8; bytes that are none count as U+FFFD, which is no letter. A
part is a file of JSON lines, `[file, {word: count}]`; the published index is one SQLite file. Both come into being
under another name and are renamed when they are complete, so that a reader never sees half of one and a body that
is performed twice does no harm.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

INDEX_NAME = "index.sqlite"
SURVEY_NAME = "survey.json"
_WORD = re.compile(r"\w+")

_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL, words INTEGER NOT NULL);
CREATE TABLE occurrences (
    word TEXT, file INTEGER REFERENCES files, count INTEGER NOT NULL, PRIMARY KEY (word, file)
) WITHOUT ROWID;
"""


class NoIndex(Exception):
    """Nothing was published in this folder; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to be indexed: its path below the root, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    """Where a word occurs: (path, count), most first, of at most as many files as were asked for."""

    word: str
    total: int
    file_count: int
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """How large a published index is: files, words in all, distinct words, and its size in bytes."""

    files: int
    words: int
    distinct_words: int
    size: int


def source_files(root: Path) -> list[SourceFile]:
    """Every `.py` file below `root` by path; installed packages and compiled copies are left out."""
    found: list[SourceFile] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in {"site-packages", "dist-packages", "__pycache__"})
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(".py") and path.is_file():
                found.append(SourceFile(path.relative_to(root).as_posix(), path.stat().st_size))
    return found


def balanced_groups(files: Iterable[SourceFile], groups: int) -> list[list[SourceFile]]:
    """`files` in at most `groups` groups of much the same size in bytes; none is empty, and equal input gives equal
    groups: the largest file that is left goes to the group that is smallest so far.
    """
    made: list[list[SourceFile]] = [[] for _ in range(groups)]
    sizes = [0] * groups
    for file in sorted(files, key=lambda file: (-file.size, file.path)):
        smallest = sizes.index(min(sizes))
        made[smallest].append(file)
        sizes[smallest] += file.size + 1
    return [sorted(group, key=lambda file: file.path) for group in made if group]


def words_of(text: str) -> Counter[str]:
    """How often each word stands in `text`."""
    return Counter(word.lower() for word in _WORD.findall(text))


def write_part(root: Path, paths: Iterable[str], part: Path, before_each: Callable[[], None] = lambda: None) -> int:
    """Index the files into `part`; returns the number of words. `before_each` may raise to give up."""
    words = 0
    with _replacing(part) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
        for path in paths:
            before_each()
            counted = words_of((root / path).read_text(encoding="utf-8", errors="replace"))
            words += counted.total()
            lines.write(json.dumps([path, counted]) + "\n")
    return words


def write_survey(files: Iterable[SourceFile], survey: Path) -> None:
    """Write the list of files with their sizes in bytes."""
    with _replacing(survey) as unfinished:
        unfinished.write_text(json.dumps([[file.path, file.size] for file in files], indent=0), encoding="utf-8")


def read_survey(survey: Path) -> list[SourceFile]:
    """The files that `write_survey` wrote."""
    return [SourceFile(path, size) for path, size in json.loads(survey.read_text(encoding="utf-8"))]


def publish(parts: Sequence[Path], expected: Iterable[str], index: Path, run: str) -> IndexFacts:
    """Merge `parts` into `index`, in place of an earlier one.

    Publishing one `run` again changes nothing, even when its parts are gone. Raises `ValueError` when the parts do
    not hold exactly the `expected` files.
    """
    if published_run(index) == run:
        return facts_of(index)
    with _replacing(index) as unfinished, closing(sqlite3.connect(unfinished)) as database:
        # The file counts only once it is renamed: nothing in it has to survive a crash before that.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.executescript(_SCHEMA)
        paths: set[str] = set()
        rows: list[tuple[str, int, int]] = []
        for number, (path, counted) in enumerate(_read_parts(parts)):
            paths.add(path)
            database.execute("INSERT INTO files VALUES (?, ?, ?)", (number, path, sum(counted.values())))
            rows.extend((word, number, count) for word, count in counted.items())
        differing = paths.symmetric_difference(expected)
        if differing:
            raise ValueError(f"{len(differing)} files are surveyed or indexed, but not both, like {min(differing)}")
        # In the order of the key every page is filled once.
        database.executemany("INSERT INTO occurrences VALUES (?, ?, ?)", sorted(rows))
        database.execute("INSERT INTO about VALUES ('run', ?)", (run,))
        database.commit()
    return facts_of(index)


def published_run(index: Path) -> str | None:
    """The run that published `index`; None when there is none."""
    try:
        with _reading(index) as database:
            row = database.execute("SELECT value FROM about WHERE name = 'run'").fetchone()
    except NoIndex:
        return None
    return str(row[0]) if row else None


def facts_of(index: Path) -> IndexFacts:
    """How large `index` is. Raises `NoIndex`."""
    with _reading(index) as database:
        files, words = database.execute("SELECT count(*), coalesce(sum(words), 0) FROM files").fetchone()
        (distinct,) = database.execute("SELECT count(DISTINCT word) FROM occurrences").fetchone()
    return IndexFacts(files=files, words=words, distinct_words=distinct, size=index.stat().st_size)


def search(index: Path, text: str, limit: int = 20) -> list[Found]:
    """Where each word of `text` occurs, whatever its case. Raises `NoIndex`."""
    words = list(dict.fromkeys(words_of(text)))
    with _reading(index) as database:
        return [_find(database, word, limit) for word in words]


def _find(database: sqlite3.Connection, word: str, limit: int) -> Found:
    total, file_count = database.execute(
        "SELECT coalesce(sum(count), 0), count(*) FROM occurrences WHERE word = ?", (word,)
    ).fetchone()
    rows = database.execute(
        "SELECT path, count FROM occurrences JOIN files ON file = id WHERE word = ? ORDER BY count DESC, path LIMIT ?",
        (word, limit),
    ).fetchall()
    return Found(word, total, file_count, tuple((str(path), int(count)) for path, count in rows))


def _read_parts(parts: Sequence[Path]) -> Iterator[tuple[str, dict[str, int]]]:
    for part in parts:
        with part.open(encoding="utf-8") as lines:
            for line in lines:
                path, counted = json.loads(line)
                yield path, counted


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    """Gives a name beside `path` to write to, which takes its place when the block ends well and goes when not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: the body may be performed a second time while its first run has not ended yet.
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _reading(index: Path) -> Generator[sqlite3.Connection]:
    if not index.is_file():
        raise NoIndex(f"no index is published at {index}: run `choreography demo` first")
    try:
        with closing(sqlite3.connect(f"{index.resolve().as_uri()}?mode=ro", uri=True)) as database:
            yield database
    except sqlite3.DatabaseError as error:
        raise NoIndex(f"{index} is no index ({error}): run `choreography demo` to publish it again") from error
