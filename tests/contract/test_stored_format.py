"""Databases outlive versions: what 0.1 wrote is read, and what a newer version adds is kept [S12.1]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pymongo
import pytest

from choreography_ray.errors import UnreadableRecord
from choreography_ray.model import JobId, JobStatus
from choreography_ray.options import ClusterOptions
from choreography_ray.records import JobDocument, Run
from choreography_ray.storage.mongo import MongoStorage, database_name
from choreography_ray.storage.protocol import JobFilter
from tests.contract.recorded import FENCE, JOB_ID, NOW, recorded, stored_documents

Database = Any


@pytest.fixture
def database(mongo_url: str, namespace: str) -> Iterator[Database]:
    """The database of the fixture."""
    with pymongo.MongoClient(mongo_url, tz_aware=True) as client:
        made = client[database_name(namespace)]
        for collection, documents in stored_documents().items():
            if documents:
                made[collection].insert_many(documents)
        yield made
        client.drop_database(made)


async def read_all(storage: MongoStorage) -> Any:
    """Everything as `Recorded`."""
    job = await storage.read_job(JOB_ID)
    assert job is not None
    assert job.plan is not None
    segments = [await storage.read_plan_segment(JOB_ID, FENCE, i) for i in range(job.plan.segments)]
    prepared = [await storage.read_prepared(JOB_ID, FENCE, i) for i in range(job.plan.segments)]
    expected = recorded()
    return replace(
        expected,
        job=job,
        kinds=await storage.read_plan(JOB_ID, FENCE),
        segments=tuple(segment for segment in segments if segment),
        prepared=tuple(segment for segment in prepared if segment),
        ledger=tuple(await storage.read_ledger(JOB_ID, FENCE)),
        outcomes=tuple(await storage.read_outcomes(JOB_ID)),
        steps=tuple(await storage.read_step_documents(JOB_ID)),
        failures=tuple(await storage.read_failures(JOB_ID)),
        results=tuple(await storage.read_results(JOB_ID)),
        code=(expected.code[0], await storage.read_code(expected.code[0]) or b""),
        options=await storage.read_cluster_options(),
    )


async def test_what_0_1_wrote_is_read_as_it_was(database: Database, mongo_url: str, namespace: str) -> None:
    """Every record with every field: ids with odd characters, all packed columns, payloads, moments."""
    storage = MongoStorage(mongo_url, namespace)
    await storage.open()
    assert await read_all(storage) == recorded()
    assert await storage.prepared_segments(JOB_ID, FENCE) == {0, 1}
    await storage.close()


async def test_a_job_in_a_status_of_a_newer_version_is_left_out_of_lists_and_told_by_name(
    database: Database, mongo_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are listed; whoever asks for that one is told why. A history may tell of statuses of any version."""
    newer = database["jobs"].find_one()
    change = {"_id": "newer", "job": "newer", "status": "PAUSED", "schema_version": 7}
    database["jobs"].insert_one(newer | change)
    database["jobs"].update_one({"_id": newer["_id"]}, {"$set": {"history.0.status": "QUEUED"}})
    storage = MongoStorage(mongo_url, namespace)
    await storage.open()
    (found,) = await storage.list_jobs(JobFilter())
    assert found.job_id == JOB_ID
    assert found.history[0].status == "QUEUED"
    told = "the record of job 'newer' (schema 7) cannot be read by this version: 'PAUSED' is not a valid JobStatus"
    assert told in caplog.text
    with pytest.raises(UnreadableRecord) as caught:
        await storage.read_job(JobId("newer"))
    assert str(caught.value).startswith(told)
    later = replace(found, save=found.save + 1, history=(*found.history, found.history[-1]))
    assert await storage.save_job(later, {"history"})
    assert database["jobs"].find_one({"_id": newer["_id"]})["history"][0]["status"] == "QUEUED"
    await storage.close()


def with_unknown(value: Any) -> Any:
    """The same document with a field more in each part that is a record of ours; payloads are the user's."""
    if isinstance(value, list):
        return [with_unknown(item) for item in value]
    if not isinstance(value, dict) or "~" in value:
        return value
    opaque = {"request", "requests", "state", "states", "value", "runtime_env", "ray_options", "about"}
    return {k: v if k in opaque else with_unknown(v) for k, v in value.items()} | {"future": {"a": [1]}}


def without_unknown(job: JobDocument) -> JobDocument:
    """History entries carry what they do not know along; nothing else does."""
    known = tuple(entry.model_copy(update={"future": None}) for entry in job.history)
    assert all((entry.model_extra or {}).get("future", 0) is None for entry in known)
    return replace(job, history=tuple(type(e)(at=e.at, status=e.status, why=e.why) for e in job.history))


async def test_what_a_newer_version_adds_is_ignored_and_kept(
    database: Database, mongo_url: str, namespace: str
) -> None:
    """In every record and every part of one; writes of this version leave it where it is."""
    for collection, documents in stored_documents().items():
        for document in documents:
            more = with_unknown(document) | {"schema_version": 2}
            if collection == "outcomes":  # a map by place, not a record
                more["more"].pop("future")
            database[collection].replace_one({"_id": document["_id"]}, more)
    storage = MongoStorage(mongo_url, namespace)
    await storage.open()
    expected = recorded()
    found = await read_all(storage)
    assert replace(found, job=without_unknown(found.job)) == expected

    later = replace(found.job, save=13, state={"new": 1}, updated_at=NOW + timedelta(days=1))
    history = (*later.history, later.history[0].model_copy(update={"status": JobStatus.RUNNING}))
    assert await storage.save_job(replace(later, history=history), {"state", "history"})
    segment = replace(expected.ledger[0], save=5, codes=b"\x03\x04", groups=())
    assert await storage.save_ledger(JOB_ID, [segment])
    assert await storage.save_step_documents(JOB_ID, [replace(expected.steps[1], run=Run(FENCE, 9))]) == []
    await storage.save_cluster_options(ClusterOptions(max_parallel_steps=8))
    await storage.close()

    def stored(collection: str, **query: Any) -> dict[str, Any]:
        found: dict[str, Any] = database[collection].find_one(query)
        return found

    job = stored("jobs")
    assert (job["state"], job["future"], job["code"]["future"]) == ({"new": 1}, {"a": [1]}, {"a": [1]})
    assert job["options"]["values"]["future"] == {"a": [1]}
    assert job["history"][0]["future"] == {"a": [1]}
    assert (stored("ledger", n=0)["save"], stored("ledger", n=0)["future"]) == (5, {"a": [1]})
    assert stored("steps", n=2)["future"] == {"a": [1]}
    options = stored("namespace", _id="cluster_options")["values"]
    assert (options["max_parallel_steps"], options["future"]) == (8, {"a": [1]})
