"""Do the notebooks do what they say, each in a kernel of its own, on one cluster, in an empty folder?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from choreography_ray import Choreography, JobStatus
from tests.integration.conftest import SMALL, only_here

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the kernels, whose environment names a cluster and a store that last."""
    folder = tmp_path_factory.mktemp("notebooks")
    with only_here(folder / "store"), pytest.MonkeyPatch.context() as patch:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **SMALL})
        try:
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield folder
        finally:
            ray.shutdown()
            cluster.shutdown()


def shown_by(name: str, folder: Path) -> str:
    """What all cells of a notebook show, as text and as HTML."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join("\n".join([output.get("text", ""), *output.get("data", {}).values()]) for output in outputs)


def test_a_first_job(folder: Path) -> None:
    shown = shown_by("quickstart.ipynb", folder)
    assert re.search(r"\('the', \d+\)", shown)
    assert "COMPLETED_SUCCESSFULLY" in shown


def test_a_real_batch_and_another_process_finds_its_job(folder: Path) -> None:
    shown = shown_by("airports.ipynb", folder)
    assert re.search(r"\d{4} airports\n +\d{4} km  ", shown)
    assert "42/42" in shown.replace("<", " ")
    with Choreography.connect(use_ray=True) as choreography:
        (record,) = choreography.jobs(labels={"notebook": "airports"})
        job = choreography.job(record.job_id)
        assert job.wait(progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
        assert job.state().compared > 7_000
    ray.shutdown()


def test_failures_and_retries(folder: Path) -> None:
    shown = shown_by("failures.ipynb", folder)
    for told in ("7/7, 1 failed", "HTTP Error 404", "asks XKCD", "'XKCD': 1337", "counted on from 5"):
        assert told in shown
    assert "'LSZH': 1" in shown
    assert shown.count("': 2") == 6, "asked again, the one without an elevation too"


@pytest.mark.long
def test_scaling(folder: Path) -> None:
    shown = shown_by("scaling.ipynb", folder)
    assert "1000 durable steps" in shown
    for told in ("300/300", "'maximum': 100", "RESOURCES", "STOPPED"):
        assert told in shown


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_notebook_carries_what_a_machine_made(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
