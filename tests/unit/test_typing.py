"""What mypy knows about jobs and steps: good uses pass, and each bad one is an error where it stands."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
USES = ROOT / "tests" / "typing"

ERROR = re.compile(r"^[^:]*bad_uses\.py:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One run of mypy over copies of both files, beside a link to the package, so that nothing else is checked."""
    folder = tmp_path_factory.mktemp("typing")
    for name in ("good_uses.py", "bad_uses.py"):
        shutil.copy(USES / name, folder / name)
    config = folder / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = True\nplugins = pydantic.mypy\nmypy_path = {ROOT}:{folder}\nfollow_imports = silent\n"
    )
    files = [str(folder / "good_uses.py"), str(folder / "bad_uses.py")]
    out, err, _ = api.run(["--config-file", str(config), "--cache-dir", str(folder / "cache"), *files])
    assert not err
    return out


def test_good_uses_are_accepted_and_can_be_imported(report: str) -> None:
    """No error in the file of good uses, and its classes pass the checks at class creation."""
    assert "good_uses.py" not in report, report
    assert runpy.run_path(str(USES / "good_uses.py"))["Rebuild"].is_concrete


def test_every_bad_use_is_an_error_where_it_stands_and_nowhere_else(report: str) -> None:
    """The lines marked `# E: code` are exactly those with that error."""
    lines = (USES / "bad_uses.py").read_text().splitlines()
    marked = {
        (number, mark.group(1)) for number, line in enumerate(lines, 1) if (mark := re.search("# E: ([a-z-]+)$", line))
    }
    found = {(int(number), code) for number, code in ERROR.findall(report)}
    assert found == marked
