"""Every store that keeps the contract, and a way to write the tests as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pymongo
import pytest

from choreography_ray.storage.embedded import EmbeddedStore
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.storage.mongo import MongoStorage, database_name
from choreography_ray.storage.protocol import JobStorage


@pytest.fixture(scope="session")
def mongo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server: the one that CHOREOGRAPHY_TEST_MONGO_URL names, else an embedded one for this session."""
    given = os.environ.get("CHOREOGRAPHY_TEST_MONGO_URL")
    if given:
        yield given
        return
    store = EmbeddedStore(Path(tmp_path_factory.mktemp("store")))
    yield store.start()
    store.stop()


@pytest.fixture
def namespace(mongo_url: str) -> Iterator[str]:
    """A namespace whose database is gone afterwards."""
    name = f"test-{os.getpid()}"
    yield name
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database(database_name(name))


@pytest.fixture(params=["memory", "mongo"])
def storage(request: pytest.FixtureRequest) -> Iterator[JobStorage]:
    """An empty store of each kind; it is opened before the test and closed after it."""
    if request.param == "memory":
        yield MemoryStorage()
        return
    url: str = request.getfixturevalue("mongo_url")
    namespace = f"test-{uuid4().hex[:16]}"
    yield MongoStorage(url, namespace)
    with pymongo.MongoClient(url) as client:
        client.drop_database(database_name(namespace))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    opened: JobStorage | None = arguments.get("storage")

    async def run() -> None:
        if opened is None:
            await pyfuncitem.obj(**arguments)
            return
        await opened.open()
        try:
            await pyfuncitem.obj(**arguments)
        finally:
            await opened.close()

    asyncio.run(run())
    return True
