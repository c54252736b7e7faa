"""Do the README's own job and the notebook do what they say?"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support import choreography, clean_environment, run_python

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def test_the_job_of_the_readme_runs_as_a_script_and_from_the_command_line(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shards.py").write_text(code, encoding="utf-8")
    as_script = run_python(tmp_path, "shards.py")
    assert as_script.code == 0, as_script.err
    assert as_script.out.splitlines()[-1] == "COMPLETED_SUCCESSFULLY [1, 2, 3]"
    ran = choreography(tmp_path, "run", "shards:RebuildIndex", "--request", '{"shards": ["a", "bb"]}', "--wait")
    assert ran.code == 0, ran.err
    assert "2 of 2 steps succeeded" in ran.out


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of its own and an empty folder; its classes live in cells only."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    notebook = nbformat.read(ROOT / "notebooks/quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("COMPLETED_SUCCESSFULLY" in str(each) for each in shown), texts
    assert any("('the'," in str(each) or "('the'," in str(each.get("text/plain")) for each in shown)
