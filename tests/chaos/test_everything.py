"""Everything dies at once, or two do the same at once: is there one end, with the right counts?"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from tests.chaos import stories
from tests.chaos.cluster import ClusterUnderTest
from tests.chaos.endings import check_counts, check_nothing_left, records
from tests.chaos.marks import Witness
from tests.chaos.processes import await_true
from tests.chaos.stories import Running

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(1_500)]


def test_everything_dies_in_the_middle_of_a_large_job(cluster: ClusterUnderTest, witness: Witness) -> None:
    """kill -9 of cluster, store and driver in the middle of 50,000 steps on shared hosts; the next connect ends it."""
    driver = cluster.driver()
    load = cluster.load(witness, steps=50_000, stages=2, seconds=0.0, is_marked=False)
    assert driver.call("start", load=load.model_dump(), job_id="large") is None
    with cluster.reader() as reader:
        job = reader.job("large")
        await_true(lambda: job.progress().succeeded > 15_000, 120, "it is in the middle")
        driver.kill()
        cluster.store_process.kill()
        cluster.kill_head()
        cluster.store.start()
        before = job.progress()
        assert 0 < before.succeeded < 50_000
        cluster.start_head()
        cluster.add_node()
        driver = cluster.driver()
        driver.call("ping")
        job.wait(timeout=240, progress=False)
        counts = Counter(step.status for step in job.steps())
    assert counts == {"COMPLETED_SUCCESSFULLY": 50_000}
    check_counts(cluster, witness, load, "large")
    check_nothing_left(cluster, witness, driver, "large")


def test_one_id_is_started_and_removed_again_and_again_from_two_drivers(
    cluster: ClusterUnderTest, witness: Witness
) -> None:
    """Each start either starts the job or is told that the id is taken, and no call meets an actor that is gone [P1].

    200 times in all when CHAOS_FULL is set.
    """
    times = 100 if os.environ.get("CHAOS_FULL") else 15
    load = cluster.load(witness, steps=1, seconds=0.0, is_marked=False)
    drivers = [cluster.driver(), cluster.driver()]
    for driver in drivers:
        driver.call("ping")
    began = time.monotonic()
    for driver in drivers:
        driver.send("races", load=load.model_dump(), job_id="again", times=times)
    told = Counter[str]()
    for driver in drivers:
        told.update(driver.receive())
    print(f"{dict(told)} in {time.monotonic() - began:.0f} s")
    assert set(told) <= {"started", "ALREADY_STARTED"}, told
    assert told["started"] == 2 * times
    assert witness.count("plan") == 2 * times, "each start was planned once"
    assert list(records(cluster, "again")) == []
    await_true(lambda: "job/again" not in drivers[0].call("actors"), 30, "no actor of it is left")


def test_two_drivers_bring_one_job_back_at_once(cluster: ClusterUnderTest, witness: Witness) -> None:
    """Everything died; four drivers connect at one moment: the job is brought back once [P7]."""
    job = Running(cluster, witness, "back")
    job.driver.kill()
    cluster.kill_head()
    cluster.start_head()
    cluster.add_node()
    drivers = [cluster.driver() for _ in range(4)]
    for driver in drivers:
        driver.send("ping")
    for driver in drivers:
        assert driver.receive() == "pong"
    job.until(lambda m: m.event == "begin", stories.now())
    job.driver = drivers[0]
    job.finish()
    check_counts(cluster, witness, job.load, "back")
    check_nothing_left(cluster, witness, job.driver, "back")
