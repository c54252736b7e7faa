"""Do stages, the throttle and the active window hold what they promise, as seen from outside [S5]?"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest

from choreography_ray import Choreography, ClusterOptions, JobStatus
from tests.integration.jobs import HOSTINGS, Batch, NarrowPieces, Piece, Pieces, marks, peak

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

BOUND = 3


@pytest.fixture(scope="module")
def bounded(two_nodes: Choreography) -> Choreography:
    """Two nodes of two CPUs each, and fewer slots than CPUs: only the throttle can be what bounds."""
    with Choreography.connect(cluster=ClusterOptions(max_parallel_steps=BOUND)):
        pass
    return two_nodes


@pytest.fixture
def wide(two_nodes: Choreography) -> Iterator[Choreography]:
    """The same cluster with slots for all."""
    with Choreography.connect(cluster=ClusterOptions(max_parallel_steps=8)):
        yield two_nodes
    with Choreography.connect(cluster=ClusterOptions(max_parallel_steps=BOUND)):
        pass


@pytest.mark.parametrize("kind", HOSTINGS)
def test_no_step_begins_before_every_step_of_the_earlier_stage_ended(
    bounded: Choreography, tmp_path: Path, kind: str
) -> None:
    """Three stages of unequal steps, one of which fails: the next stage begins after the last end and its hook."""
    log = tmp_path / "marks"
    pieces = [
        Piece(log=str(log), key=f"{stage}-{n}", stage=stage, seconds=0.05 + 0.4 * (n == 1), fails=(stage, n) == (7, 0))
        for stage in (-1, 7, 20)
        for n in range(4)
    ]
    job = bounded.start(Pieces, Batch(kind=kind, pieces=pieces, go_on_after=[7]))
    record = job.wait(timeout=90, progress=False)

    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    assert (record.progress.total, record.progress.succeeded, record.progress.failed) == (12, 11, 1)
    seen = marks(log)
    for earlier, later in ((-1, 7), (7, 20)):
        ended = [m.at for m in seen if m.stage == earlier and m.event in {"end", "told"}]
        began = [m.at for m in seen if m.stage == later and m.event == "begin"]
        assert len(ended) == 8
        assert len(began) == 4
        assert max(ended) < min(began)


@pytest.mark.parametrize(("kind", "each"), [("OwnPiece", 7), ("SharedPiece", 15)])
def test_two_jobs_on_two_nodes_never_perform_more_bodies_than_there_are_slots(
    bounded: Choreography, tmp_path: Path, kind: str, each: int
) -> None:
    """Both nodes are used, all slots are used, the jobs are at work at the same time, and no slot is used twice."""
    log = tmp_path / "marks"

    def perform(job: str) -> tuple[JobStatus, int]:
        pieces = [Piece(log=str(log), key=f"{job}-{n}", meets=BOUND, seconds=0.4) for n in range(each)]
        record = bounded.start(Pieces, Batch(kind=kind, pieces=pieces)).wait(timeout=90, progress=False)
        return record.status, record.progress.succeeded

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(perform, "ab")) == [(JobStatus.COMPLETED_SUCCESSFULLY, each)] * 2

    seen = marks(log, "begin", "end")
    assert len(seen) == 2 * 2 * each
    assert peak(seen) == BOUND
    assert len({m.node for m in seen}) == 2
    first = {job: min(m.at for m in seen if m.key.startswith(job)) for job in "ab"}
    last = {job: max(m.at for m in seen if m.key.startswith(job)) for job in "ab"}
    assert max(first.values()) < min(last.values())


@pytest.mark.parametrize("kind", HOSTINGS)
def test_never_more_steps_are_active_than_the_window_allows(wide: Choreography, tmp_path: Path, kind: str) -> None:
    """Eight slots for eight steps, and a window of three: three bodies at once, and never a fourth."""
    log = tmp_path / "marks"
    pieces = [Piece(log=str(log), key=str(n), meets=3, seconds=0.3) for n in range(8)]
    record = wide.start(NarrowPieces, Batch(kind=kind, pieces=pieces)).wait(timeout=90, progress=False)

    assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert len(marks(log, "begin")) == 8
    assert peak(marks(log)) == 3


def test_every_node_tells_its_version_of_this_package(two_nodes: Choreography) -> None:
    """The one where the supervisor lives, and the other, which was asked [S14.6]."""
    nodes = two_nodes.nodes()
    assert len({node.node_id for node in nodes}) == 2
    assert {(node.version, node.problem) for node in nodes} == {(metadata.version("choreography-ray"), "")}
