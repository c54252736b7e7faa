"""One process dies or hangs while a job works: does the job go on, and end as if nothing had been [S10]?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import stories
from tests.chaos.cluster import SUPERVISOR, ClusterUnderTest
from tests.chaos.endings import check_counts, check_nothing_left
from tests.chaos.marks import Witness
from tests.chaos.stories import Running

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(300)]


ONE = [
    stories.driver_dies,
    stories.host_dies,
    stories.job_actor_dies,
    stories.job_actor_pauses,
    stories.throttle_dies,
    stories.supervisor_dies,
]


@pytest.mark.parametrize("happens", ONE, ids=[each.__name__ for each in ONE])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "own"])
def test_one_process_dies_or_hangs(
    lasting: ClusterUnderTest, witness: Witness, happens: Callable[[Running], float], is_shared: bool
) -> None:
    """Driver, host, job actor, throttle and supervisor: the counts are those of an undisturbed run."""
    job_id = f"{happens.__name__}-{'shared' if is_shared else 'own'}"
    job = Running(lasting, witness, job_id, is_shared=is_shared, steps=120 if is_shared else 30)
    if happens is stories.supervisor_dies and not lasting.processes(SUPERVISOR):
        pytest.skip("this version has no supervisor")
    happens(job)
    job.finish()
    check_counts(lasting, witness, job.load, job_id)
    check_nothing_left(lasting, witness, job.driver, job_id)


def test_steps_at_work_outlive_their_job_actor(tmp_path: Path, witness: Witness) -> None:
    """kill -9 of the job actor while 20 steps work: they go on, are adopted, each is counted once, none failed [P2]."""
    with ClusterUnderTest(tmp_path, slots=20, lease=30.0) as cluster:
        cluster.add_node()
        job = Running(cluster, witness, "p2", steps=20, stages=1, seconds=12.0, flaky=0, rotten=0)
        before = job.workers()
        assert len(before) == 20
        stories.job_actor_dies(job)
        job.finish()
        check_counts(cluster, witness, job.load, "p2")
        ends = {m.pid: m.step for m in witness.marks("end", job="p2")}
        assert ends == before, "every body ended in the process in which it had begun"
        assert witness.count("begin", job="p2") == 20, "none was performed again"
        check_nothing_left(cluster, witness, job.driver, "p2")
