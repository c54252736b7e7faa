"""What only MongoDB's client can do wrong: loops, forks, pickles, silence, and what is in the documents."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from datetime import UTC, datetime

import pymongo
import pytest

from choreography_ray.errors import StorageUnavailable
from choreography_ray.model import JobId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument, LedgerSegment
from choreography_ray.storage.mongo import MongoStorage, database_name

NOW = datetime(2026, 3, 1, tzinfo=UTC)
JOB = JobId("job")
DOCUMENT = JobDocument(JOB, "Index", CodeRef("app", "Index"), {"a": 1}, None, JobsOptions(), NOW, NOW)


def test_one_store_serves_several_loops(mongo_url: str, namespace: str) -> None:
    """One after the other, also when the first was not closed, and in a thread beside."""
    storage = MongoStorage(mongo_url, namespace)
    assert asyncio.run(storage.insert_job(DOCUMENT))

    async def beside() -> None:
        here, there = await asyncio.gather(
            storage.read_job(JOB), asyncio.to_thread(lambda: asyncio.run(storage.read_job(JOB)))
        )
        assert here == there == DOCUMENT
        await storage.close()
        assert await storage.read_job(JOB) == DOCUMENT
        await storage.close()

    asyncio.run(beside())


async def test_a_pickled_store_connects_anew(mongo_url: str, namespace: str) -> None:
    """Only url and namespace travel."""
    storage = MongoStorage(mongo_url, namespace)
    await storage.insert_job(DOCUMENT)
    pickled = pickle.dumps(storage)
    assert len(pickled) < 400
    copy: MongoStorage = pickle.loads(pickled)
    assert await copy.read_job(JOB) == DOCUMENT
    await copy.close()
    await storage.close()


def test_a_fork_gets_a_client_of_its_own(mongo_url: str, namespace: str) -> None:
    """The child of a process that has used the store uses it too, in a loop of its own."""
    storage = MongoStorage(mongo_url, namespace)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(storage.insert_job(DOCUMENT))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if asyncio.run(storage.read_job(JOB)) == DOCUMENT else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert loop.run_until_complete(storage.read_job(JOB)) == DOCUMENT
    loop.run_until_complete(storage.close())
    loop.close()


async def test_a_database_that_does_not_answer_is_a_typed_error_without_the_password() -> None:
    """Nobody listens there; the cause stays visible."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        url = f"mongodb://user:secret@127.0.0.1:{port}/?directConnection=true&serverSelectionTimeoutMS=100"
        storage = MongoStorage(url, "default")
        storage_calls = [storage.open(), storage.read_job(JOB), storage.insert_job(DOCUMENT)]
        for error in await asyncio.gather(*storage_calls, return_exceptions=True):
            assert isinstance(error, StorageUnavailable)
            assert isinstance(error.__cause__, pymongo.errors.PyMongoError)
            assert "secret" not in str(error)
            assert str(port) in str(error)
        await storage.close()


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "a b", "$x", "ü", "x" * 49, "a\0"])
def test_a_namespace_that_is_no_database_name_is_refused(name: str) -> None:
    """Before anything connects."""
    with pytest.raises(ValueError, match="namespace"):
        MongoStorage("mongodb://127.0.0.1", name)


async def test_records_of_other_versions_are_read_and_keep_what_we_do_not_know(mongo_url: str, namespace: str) -> None:
    """Missing fields have defaults; unknown ones survive a save [S12.1]."""
    storage = MongoStorage(mongo_url, namespace)
    await storage.open()
    await storage.insert_job(DOCUMENT)
    await storage.insert_ledger(JOB, [LedgerSegment(0, 0, 0, b"\0", b"\0\0")])
    with pymongo.MongoClient(mongo_url) as client:
        database = client[database_name(namespace)]
        missing = {"labels": "", "counts": "", "crashes": "", "keep_results": "", "history": "", "journal": ""}
        unknown = {"future": {"a": 1}, "options.values.future": 1, "code.future": "x"}
        database["jobs"].update_one({"_id": "job"}, {"$unset": missing, "$set": unknown})
        database["ledger"].update_one({"_id": "job/" + "0" * 16}, {"$unset": {"groups": ""}, "$set": {"future": 1}})
        assert await storage.read_job(JOB) == DOCUMENT
        assert await storage.read_ledger(JOB, 0) == [LedgerSegment(0, 0, 0, b"\0", b"\0\0")]
        assert await storage.raise_fence(JOB, 0, 1)
        stored = database["jobs"].find_one({"_id": "job"})
        assert stored is not None
        assert stored["future"] == {"a": 1}
        assert all(one["schema_version"] == 1 for name in ("jobs", "ledger") for one in database[name].find())
    await storage.close()
