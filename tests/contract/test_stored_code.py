"""Captured copies outlive versions: what 0.1 captured is loaded, and its job goes on [S13].

The fixture is what `tests/unit/captured/script.py` wrote about its job; until 0.1 is released
`python -m tests.contract.test_stored_code` writes it anew. From then on it stays, and so does the reading of it.
"""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from bson import json_util

from choreography_ray import code
from choreography_ray.code import PYTHON, load_code
from choreography_ray.codec import decode
from choreography_ray.errors import UnknownJobType
from choreography_ray.records import CodeRef

FIXTURE = Path(__file__).parent / "fixtures" / "code-0.1.json"
SCRIPT = Path(__file__).parents[1] / "unit" / "captured" / "script.py"


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The job's reference to its code, the copy, and payloads that name types of it."""
    monkeypatch.delenv("CHOREOGRAPHY_SIGNING_KEY", raising=False)
    monkeypatch.setattr(code, "_loaded", {})  # another test may have loaded the same version from a copy of today
    read: dict[str, Any] = json_util.loads(FIXTURE.read_text(encoding="utf-8"))
    return read


def test_what_0_1_captured_is_loaded_and_performed(stored: dict[str, Any]) -> None:
    """Only on the Python that captured it; any other says so in a sentence, and loads nothing."""
    ref, copy = CodeRef(**stored["ref"]), base64.b64decode(stored["copy"])
    if ref.python != PYTHON:
        with pytest.raises(UnknownJobType, match=f"captured with Python {ref.python}, and this is Python {PYTHON}"):
            load_code(ref, copy)
        return
    loaded = load_code(ref, copy)
    assert loaded.missing.keys() == {"shapes:Talker"}, "it has a socket"
    assert {"shapes", "hard", "lazy"} <= loaded.modules.keys()
    request = decode(stored["request"], loaded.resolve)
    assert type(request) is loaded.job_class.request_type
    assert [type(item).__name__ for item in request.page.items] == ["Sub", "Base"]
    assert decode(stored["state"], loaded.resolve).done[0].b == "x"
    first = next(iter(loaded.job_class().prepare_steps(request)))
    step: Any = first.step_class()
    step.initialize_state(first.request)
    assert step.perform_step(step.state, None) == 12


def main() -> None:
    """Write the fixture."""
    with tempfile.TemporaryDirectory() as folder:
        written = shutil.copytree(SCRIPT.parent, Path(folder) / "app")  # a copy of code names its files
        out = Path(folder) / "captured.bin"
        subprocess.run([sys.executable, str(written / SCRIPT.name), str(out)], cwd=folder, check=True)
        ref, copy, request, state = pickle.loads(out.read_bytes())
    stored = {"ref": asdict(ref), "copy": base64.b64encode(copy).decode(), "request": request, "state": state}
    told = json_util.dumps(stored, json_options=json_util.CANONICAL_JSON_OPTIONS, indent=1)
    FIXTURE.write_text(json.dumps(json.loads(told), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
