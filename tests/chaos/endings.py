"""Did a job end as it must, whatever was killed meanwhile, and is nothing of it left?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pymongo

from choreography_ray import JobStatus
from tests.chaos.cluster import ClusterUnderTest, Driver
from tests.chaos.jobs import Load
from tests.chaos.marks import Witness
from tests.chaos.processes import await_true
from tests.support import is_alive

TOMBSTONES = "removed"
"""Where it is kept for a while that a job was removed, so that latecomers leave nothing."""


def check_counts(cluster: ClusterUnderTest, witness: Witness, load: Load, job_id: str) -> None:
    """Status, counts, ledger, the hook's state and the bodies' own marks tell the same, and what they should."""
    failures = load.failures
    with cluster.reader() as reader:
        job = reader.job(job_id)
        record, state = job.record(), job.state()
        expected = JobStatus.COMPLETED_WITH_FAILURES if failures else JobStatus.COMPLETED_SUCCESSFULLY
        assert record.status is expected, f"{record.status}: {record.error}"
        progress = record.progress
        assert (progress.total, progress.succeeded, progress.failed) == (load.steps, load.steps - failures, failures)
        assert (state.succeeded, state.failed) == (load.steps - failures, failures), "the hook's effect on the state"
        verification = job.verify()
        assert verification.is_ok, verification.findings
        assert not verification.unchecked, verification.unchecked
        if not load.is_marked:
            return
        steps = {step.step_id: step.status for step in job.steps()}
    numbers = [str(number) for number in range(load.steps)]
    assert sorted(state.seen) == sorted(numbers), "the hook's effect on the state, step by step"
    assert sorted(steps) == sorted(numbers)
    assert all(status.is_final for status in steps.values())
    ended = {m.step for m in witness.marks("end", job=job_id)}
    for number in range(load.steps):
        succeeded = steps[str(number)] == "COMPLETED_SUCCESSFULLY"
        assert succeeded is (not load.is_rotten(number)), f"step {number} is {steps[str(number)]}"
        assert (str(number) in ended) is succeeded, f"what the body of {number} did, and what was counted"
    witness.check(job_id)


def check_nothing_left(cluster: ClusterUnderTest, witness: Witness, driver: Driver, job_id: str) -> None:
    """No actor, no process, no slot; and once it is removed no record."""
    patience = cluster.lease * 1.1 + 15
    await_true(lambda: f"job/{job_id}" not in driver.call("actors"), patience, "the job's actor is gone")
    await_true(lambda: not any(f"{job_id}/" in name for name in driver.call("actors")), patience, "hosts are gone")
    await_true(lambda: not any(map(is_alive, witness.pids(job_id))), patience, "the job's processes are gone")
    await_true(lambda: _held(driver) == 0, patience, "no slot is held")
    driver.call("remove", job_id=job_id)
    await_true(lambda: list(records(cluster, job_id)) == [], 10, "no record is left")


def _held(driver: Driver) -> int:
    snapshot = driver.call("throttle")
    return -1 if snapshot is None else int(snapshot["held"])


def records(cluster: ClusterUnderTest, job_id: str) -> Iterator[tuple[str, Any]]:
    """Every document of the job, with its collection: read past the framework."""
    with contextlib.closing(pymongo.MongoClient(cluster.url)) as client:  # type: ignore[var-annotated]
        database = client["choreography_default"]
        for name in set(database.list_collection_names()) - {TOMBSTONES}:
            for document in database[name].find():
                if job_id in (document.get("job"), document["_id"]) or str(document["_id"]).startswith(f"{job_id}/"):
                    yield name, document["_id"]
