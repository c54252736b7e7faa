"""How is a cluster under test run, so that each of its processes can be killed?

`ray start` makes head and nodes, with ports and a temporary folder of their own; the store is a process of its own, and
so are drivers. The test itself belongs to no cluster: it could not survive what it does to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import pytest

from choreography_ray import Choreography
from choreography_ray.storage import embedded
from choreography_ray.storage.embedded import EmbeddedStore
from harness.proxy import Proxy
from tests.chaos.jobs import Load
from tests.chaos.marks import Witness
from tests.chaos.processes import Process, Recipe, await_true, descendants, running

STORE_MEMORY = 80 * 1024 * 1024
JOB, HOST, THROTTLE, SUPERVISOR = "JobActor", "HostActor", "ThrottleActor", "SupervisorActor"
ANSWER = "answer: "
"""Before each answer of a driver: Ray prints lines of its own, too."""
TOO_SLOW = "timed out during startup"
"""What `ray start` says after 30 s, which a busy machine may need."""
SERVICES = (JOB, HOST, THROTTLE, SUPERVISOR)


class Memory(StrEnum):
    """Where a GCS keeps its tables beyond its process."""

    NONE = "none"
    ROCKSDB = "rocksdb"
    REDIS = "redis"


class Driver:
    """A driver in a process of its own, told what to do line by line; see `tests.chaos.driver`."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.driver"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=Path(__file__).parents[2],
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def send(self, what: str, **arguments: Any) -> None:
        """Tell it to do something; `receive` the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """What it answered. Raises `RuntimeError` with what it raised, or when it is gone."""
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith(ANSWER):
            if not line:
                raise RuntimeError(f"the driver is gone: {self._process.poll()}")
        answer = json.loads(line.removeprefix(ANSWER))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def call(self, what: str, **arguments: Any) -> Any:
        """Tell it and wait for the answer."""
        self.send(what, **arguments)
        return self.receive()

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()


class ClusterUnderTest:
    """A Ray cluster of several nodes on this machine, with a store; nothing of it is left after `close`."""

    def __init__(
        self,
        folder: Path,
        *,
        slots: int = 4,
        lease: float = 15.0,
        memory: Memory = Memory.NONE,
        proxied: bool = False,
        is_quick: bool = True,
        can_fail: bool = False,
    ) -> None:
        self.folder = folder
        self.slots = slots
        self.lease = lease
        self.log = folder / "processes.log"
        self.store = EmbeddedStore(folder / "store")
        with pytest.MonkeyPatch.context() as patch:
            if can_fail:  # it takes `configureFailPoint`; the store rewrites its settings whenever it starts
                patch.setattr(embedded, "_CONFIG", embedded._CONFIG + "\n[server]\nenable_test_commands = true\n")
            self.store_url = self.store.start()
        self.proxy = Proxy(_port_of(self.store_url)) if proxied else None
        self.url = (
            self.store_url
            if self.proxy is None
            else self.store_url.replace(f":{_port_of(self.store_url)}/", f":{self.proxy.port}/")
        )
        # Ray makes sockets below it, whose paths must be short.
        self.temporary = Path(tempfile.mkdtemp(prefix="cr", dir="/tmp"))
        self._memory = memory
        self._redis: tuple[int, subprocess.Popen[bytes]] | None = None
        self._is_quick = is_quick
        self._port = _free_port()
        self.address = ""
        self.gcs: Process | None = None
        self.raylets: list[Process] = []
        self._mine: dict[int, Process] = {}
        self._drivers: list[Driver] = []

    def __enter__(self) -> Self:
        try:
            self.start_head()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Ray.

    @property
    def environment(self) -> dict[str, str]:
        """What processes of this cluster and its drivers are told."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CHOREOGRAPHY_", "RAY_"))}
        told = {
            **kept,
            "RAY_AUTH_MODE": "disabled",
            "RAY_ADDRESS": self.address,
            "CHOREOGRAPHY_MONGO_URL": self.url,
            "CHAOS_SLOTS": str(self.slots),
            "CHAOS_LEASE": str(self.lease),
            "RAY_enable_metrics_collection": "false",
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            # Not 15: what the machine does besides would starve them, and no time would tell anything.
            "RAY_worker_niceness": "0",
        }
        if self._is_quick:
            # The death of a node is known after about 3 s instead of 15 s, as all here is shorter.
            told |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "1000"}
            told |= {"RAY_health_check_failure_threshold": "3", "RAY_health_check_initial_delay_ms": "1000"}
        if self._memory is Memory.ROCKSDB:
            told |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.folder / "gcs")}
        if self._redis is not None:
            told |= {"RAY_REDIS_ADDRESS": f"127.0.0.1:{self._redis[0]}"}
        return told

    def start_head(self) -> None:
        """GCS and the first node."""
        (self.folder / "gcs").mkdir(exist_ok=True)
        if self._memory is Memory.REDIS and self._redis is None:
            self._start_redis()
        before = running()
        self._ray_start(
            "--head",
            f"--port={self._port}",
            "--node-ip-address=127.0.0.1",
            f"--temp-dir={self.temporary}",
            f"--ray-client-server-port={_free_port()}",
            "--include-dashboard=false",
        )
        self.address = f"127.0.0.1:{self._port}"
        found = self._new_since(before)
        self.gcs = next(each for each in found if "gcs_server" in each.command[0])
        self.raylets = [next(each for each in found if each.command[0].endswith("/raylet"))]

    def _start_redis(self) -> None:
        """As somebody would run it for a GCS: each change is on disk before it is acknowledged."""
        port = _free_port()
        told = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.folder / "gcs")]
        told += ["--appendonly", "yes", "--appendfsync", "always"]
        with self.log.open("ab") as out:
            self._redis = port, subprocess.Popen(["redis-server", *told], stdout=out, stderr=subprocess.STDOUT)
        await_true(lambda: _answers(port), 30, "redis listens")

    def add_node(self) -> Process:
        """One more node; its raylet."""
        before = running()
        self._ray_start(f"--address={self.address}", "--node-ip-address=127.0.0.1")
        raylet = next(each for each in self._new_since(before) if each.command[0].endswith("/raylet"))
        self.raylets.append(raylet)
        return raylet

    def _ray_start(self, *arguments: str) -> None:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", "--num-cpus=2"),
            *(f"--object-store-memory={STORE_MEMORY}", "--min-worker-port=0", "--max-worker-port=0"),
            *("--dashboard-agent-listen-port=0", "--node-manager-port=0", "--object-manager-port=0"),
            *arguments,
        ]
        environment = {key: value for key, value in self.environment.items() if key != "RAY_ADDRESS"}
        before = running()
        for _ in range(3):
            done = subprocess.run(
                command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
            )
            if TOO_SLOW not in done.stderr:
                break
            for each in self._new_since(before):
                each.kill()
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def _new_since(self, before: dict[int, Process]) -> list[Process]:
        """Processes of this session that were not there before; remembered, so that they are ended."""
        found = [each for pid, each in running().items() if before.get(pid) != each and self._is_of_this(each)]
        found = [each for each in found if (was := before.get(each.pid)) is None or was.began != each.began]
        self._mine |= {each.pid: each for each in found}
        return found

    def _is_of_this(self, process: Process) -> bool:
        """Whether it was told of this session's folder or GCS, by whichever of the machine's addresses."""
        gcs = f":{self._port}"
        return str(self.temporary) in process.title or any(part.endswith(gcs) for part in process.command)

    def processes(self, *kinds: str, raylet: Process | None = None) -> list[Process]:
        """The live workers of this cluster, of one node or of all, whose actors are of these kinds."""
        among = running()
        raylets = [raylet] if raylet is not None else self.raylets
        below = descendants([each.pid for each in raylets], among)
        self._mine |= {each.pid: each for each in below}
        return [each for each in below if not kinds or each.title.startswith(tuple(f"ray::{kind}" for kind in kinds))]

    def kill_node(self, raylet: Process) -> None:
        """Everything of a node at once, as when its power fails."""
        below = self.processes(raylet=raylet)
        for each in (raylet, *below):
            each.kill()
        for each in (raylet, *below):
            each.await_end()
        self.raylets = [each for each in self.raylets if each != raylet]

    def pause_node(self, raylet: Process) -> list[Process]:
        """Stop everything of a node, as when its machine hangs; the processes, to be sent SIGCONT."""
        everything = [raylet, *self.processes(raylet=raylet)]
        for each in everything:
            each.send(signal.SIGSTOP)
        return everything

    def kill_head(self) -> None:
        """GCS, first node and all other nodes at once, with all that Ray runs beside them: the cluster is gone."""
        self.processes()
        killed = self._kill_everything()
        for each in killed:
            each.await_end()
        self.raylets = []

    def restart_gcs(self) -> Recipe:
        """Kill the GCS; what starts it again."""
        assert self.gcs is not None
        recipe = Recipe.of(self.gcs)
        self.gcs.kill()
        self.gcs.await_end()
        return recipe

    def start_gcs(self, recipe: Recipe) -> None:
        """The second half of `restart_gcs`."""
        process = recipe.start(self.log)
        found = running()[process.pid]
        self.gcs = found
        self._mine[found.pid] = found
        await_true(lambda: _answers(self._port), 30, "the GCS listens again")

    # The store.

    @property
    def store_process(self) -> Process:
        """The store's process."""
        pid = self.store.pid
        assert pid is not None
        return running()[pid]

    def kill_store(self, away: float) -> None:
        """Kill the store; it is back after `away` seconds, with its data."""
        self.store_process.kill()
        time.sleep(away)
        assert self.store.start() == self.store_url

    # Drivers and readers.

    def driver(self, *, is_direct: bool = False) -> Driver:
        """A new driver; it is ended with the cluster. `is_direct`: it reaches the store past what lies before it."""
        direct = {"CHOREOGRAPHY_MONGO_URL": self.store_url} if is_direct else {}
        driver = Driver(self.environment | direct, self.log)
        self._drivers.append(driver)
        return driver

    @contextlib.contextmanager
    def reader(self) -> Iterator[Choreography]:
        """A client that only reads, past whatever lies before the store."""
        with Choreography.connect(mongo_url=self.store_url, use_ray=False) as reader:
            yield reader

    def load(self, witness: Witness, **fields: Any) -> Load:
        """A load for this cluster."""
        return Load(folder=str(witness.folder), slots=self.slots, **fields)

    # The end.

    def _kill_everything(self) -> list[Process]:
        """Each process of the Ray cluster; what was killed."""
        killed: list[Process] = []
        for _ in range(3):  # what one starts while it is ended
            among = running()
            mine = [each for pid, each in self._mine.items() if pid in among and among[pid].began == each.began]
            mine += [each for each in among.values() if self._is_of_this(each)]
            mine += descendants([each.pid for each in mine], among)
            for each in mine:
                each.kill()
            killed += mine
            time.sleep(0.1)
        return killed

    def close(self) -> None:
        """End every process of it."""
        for driver in self._drivers:
            driver.kill()
        with contextlib.suppress(Exception):
            self.processes()
        self._kill_everything()
        if self.proxy is not None:
            self.proxy.close()
        if self._redis is not None:
            self._redis[1].kill()
            self._redis[1].wait()
        self.store.stop()
        marker = self.temporary / "ray_current_cluster"
        marker.unlink(missing_ok=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
