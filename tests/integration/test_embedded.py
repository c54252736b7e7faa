"""The embedded store keeps what it acknowledged, has one owner for a directory, and dies with it [S15]."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

from choreography_ray.errors import EmbeddedStoreUnavailable, StorageUnavailable
from choreography_ray.model import JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument, KeptResult
from choreography_ray.storage import embedded
from choreography_ray.storage.embedded import EmbeddedStore, find_endpoint
from choreography_ray.storage.mongo import MongoStorage

NOW = datetime(2026, 3, 1, tzinfo=UTC)
JOB = JobId("job")
T = TypeVar("T")
DOCUMENT = JobDocument(JOB, "Index", CodeRef("app", "Index"), {"a": 1}, None, JobsOptions(), NOW, NOW)

OWNER = """
import sys, threading
from choreography_ray.storage.embedded import EmbeddedStore
store = EmbeddedStore(sys.argv[1])
thread = threading.Thread(target=store.start)  # it ends: the server must not end with it
thread.start()
thread.join()
print(store.start(), store.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A store in a directory of its own."""
    made = EmbeddedStore(tmp_path / "data dir")
    yield made
    made.stop()


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


async def once(url: str, use: Callable[[MongoStorage], Awaitable[T]]) -> T:
    """Use the database, and let it go."""
    storage = MongoStorage(url, "default")
    try:
        return await use(storage)
    finally:
        await storage.close()


def is_alive(pid: int) -> bool:
    """A process that runs: not gone, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_acknowledged_writes_are_there_after_kill_9_and_a_restart(store: EmbeddedStore) -> None:
    """Killed in the middle of writing; the server comes back where its clients look for it."""
    url = store.start()
    acknowledged: list[int] = []

    async def write_until_killed() -> None:
        storage = MongoStorage(url + "&serverSelectionTimeoutMS=200", "default")
        await storage.open()
        await storage.insert_job(DOCUMENT)
        for n in range(100_000):
            if n == 150:
                assert store.pid is not None
                os.kill(store.pid, signal.SIGKILL)
            try:
                await storage.save_results(JOB, [KeptResult(n, StepId(str(n)), n)])
            except StorageUnavailable:
                break
            acknowledged.append(n)
        await storage.close()

    asyncio.run(write_until_killed())
    assert len(acknowledged) >= 150
    wait_until(lambda: not store.is_owner)
    assert find_endpoint(store.directory) is None
    assert store.start() == url

    async def read() -> set[int]:
        storage = MongoStorage(url, "default")
        assert await storage.read_job(JOB) == DOCUMENT
        found = await storage.read_results(JOB, take=len(acknowledged) + 10)
        await storage.close()
        return {result.ordinal for result in found}

    assert set(acknowledged) <= asyncio.run(read())


def test_a_store_whose_disk_was_full_is_started_again_and_has_what_it_acknowledged_before(tmp_path: Path) -> None:
    """Its engine gives up for good, and it says so; with room on the disk `start` mends it."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    store = EmbeddedStore(folder)
    written = 0

    async def fill(storage: MongoStorage) -> None:
        nonlocal written
        await storage.open()
        while True:
            await storage.save_results(JOB, [KeptResult(written, StepId(str(written)), "x" * 100_000)])
            written += 1

    async def count(storage: MongoStorage) -> int:
        there, last = 0, -1
        while page := await storage.read_results(JOB, after=last):  # so many as fit one answer
            there, last = there + len(page), page[-1].ordinal
        return there

    try:
        url = store.start()
        (folder / "filler").write_bytes(bytes(shutil.disk_usage(folder).free - (4 << 20)))
        assert not store.is_broken
        with pytest.raises(StorageUnavailable):
            asyncio.run(once(url, fill))
        assert store.is_broken
        (folder / "filler").unlink()
        assert store.start() == url
        assert not store.is_broken
        # The last write before its engine gives up may be acknowledged and gone: seen once in some thirty runs.
        assert asyncio.run(once(url, count)) in (written - 1, written, written + 1)
    finally:
        store.stop()
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_whoever_comes_first_owns_the_directory_and_others_use_it(store: EmbeddedStore) -> None:
    """Ten at once: one server; when the owner stops, it is gone, and the next one finds the data."""
    stores = [store, *(EmbeddedStore(store.directory) for _ in range(9))]
    urls: list[str] = []
    threads = [threading.Thread(target=lambda one=one: urls.append(one.start())) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(urls) == 10
    assert len(set(urls)) == 1
    (owner,) = [one for one in stores if one.is_owner]
    assert find_endpoint(store.directory) == urls[0]
    for one in stores:
        if one is not owner:
            one.stop()
    assert find_endpoint(store.directory) == urls[0]
    assert asyncio.run(once(urls[0], lambda storage: storage.insert_job(DOCUMENT)))
    owner.stop()
    assert find_endpoint(store.directory) is None
    url = store.start()
    assert store.is_owner
    assert asyncio.run(once(url, lambda storage: storage.read_job(JOB))) == DOCUMENT


def test_the_server_outlives_the_thread_that_started_it_and_dies_with_its_process(tmp_path: Path) -> None:
    """Another process can own the directory at once after the owner was killed."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        url, pid = owner.stdout.readline().split()
        assert find_endpoint(tmp_path) == url
        here = EmbeddedStore(tmp_path)
        assert here.start() == url
        assert not here.is_owner
        owner.kill()
        wait_until(lambda: not is_alive(int(pid)))
        here.start()
        assert here.is_owner
        here.stop()
    finally:
        owner.kill()
        owner.communicate()


def test_a_stale_endpoint_is_replaced(store: EmbeddedStore) -> None:
    """Its process is gone, or is somebody else, or what is written there is no endpoint at all."""
    store.directory.mkdir()
    endpoint = store.directory / "endpoint.json"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for written in (
        json.dumps({"url": "mongodb://127.0.0.1:1/", "port": 1, "pid": gone.pid}),
        json.dumps({"url": "mongodb://127.0.0.1:1/", "port": 1, "pid": os.getpid()}),
        json.dumps({"url": 1}),
        "[]",
        "{",
        "",
    ):
        endpoint.write_text(written)
        assert find_endpoint(store.directory) is None
    url = store.start()
    assert find_endpoint(store.directory) == url


def test_a_missing_server_is_a_sentence_that_names_the_extra(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left locked."""
    monkeypatch.setattr(embedded, "_SERVER", "no-such-server")
    with pytest.raises(EmbeddedStoreUnavailable, match=r"choreography-ray\[embedded\]"):
        store.start()
    monkeypatch.undo()
    assert store.start()


def test_a_server_that_cannot_start_is_a_sentence_with_its_last_words(store: EmbeddedStore) -> None:
    """Here its data directory is a file."""
    store.directory.mkdir()
    (store.directory / "data").write_text("")
    with pytest.raises(EmbeddedStoreUnavailable, match="data"):
        store.start()
    assert not store.is_owner


@pytest.mark.parametrize("login", ["", "choreography:wrong@", "nobody:wrong@"])
def test_nobody_gets_in_without_the_password(store: EmbeddedStore, login: str) -> None:
    """Whoever else is on this machine can reach the port."""
    url = re.sub("//.*@", f"//{login}", store.start())
    with pytest.raises(StorageUnavailable, match="auth"):
        asyncio.run(once(url, lambda storage: storage.read_job(JOB)))


def test_the_password_and_the_data_can_be_read_by_their_user_only(tmp_path: Path) -> None:
    """Whatever the umask says, and also in a folder that was there before."""
    before = os.umask(0)
    store = EmbeddedStore(tmp_path / "open")
    try:
        store.directory.mkdir(mode=0o777)
        store.start()
        paths = [store.directory, *store.directory.rglob("*")]
        assert {"password", "endpoint.json", "store.log", "data"} <= {path.name for path in paths}
        assert not [path for path in paths if path.stat().st_mode & 0o077]
    finally:
        os.umask(before)
        store.stop()


def test_data_of_a_version_without_password_get_one(store: EmbeddedStore) -> None:
    """As they do when somebody deletes the file: what lets in is new, and all that was written is there."""
    first = store.start()
    asyncio.run(once(first, lambda storage: storage.insert_job(DOCUMENT)))
    store.stop()
    (store.directory / "password").unlink()
    second = store.start()
    assert asyncio.run(once(second, lambda storage: storage.read_job(JOB))) == DOCUMENT
    with pytest.raises(StorageUnavailable, match="auth"):
        asyncio.run(once(first, lambda storage: storage.read_job(JOB)))
