"""DBOS queues on PostgreSQL: processes that take from one queue, many workflows each at once, no global bound."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from dbos import DBOS, DBOSClient

from benchmarks.peers.protocol import answer, asked

QUEUE = "steps"
AT_ONCE = 100
POLL_SECONDS = 0.05
ENQUEUERS = 16


@DBOS.workflow(name="body")
def body(n: int) -> int:
    """A step."""
    return n


def serve(url: str, name: str) -> None:
    """A process that performs what is in the queue, until it is ended."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "executor_id": name,
            "application_version": "1",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=POLL_SECONDS)
    print("up", flush=True)
    sys.stdin.read()


def enqueued(client: DBOSClient, steps: int) -> None:
    """Enqueue so many, from some threads, and wait for each result."""
    options = {"queue_name": QUEUE, "workflow_name": "body", "app_version": "1"}
    with ThreadPoolExecutor(ENQUEUERS) as threads:
        handles = list(threads.map(lambda n: client.enqueue(options, n), range(steps)))
    results = [handle.get_result() for handle in handles]
    assert results == list(range(steps))


def main() -> None:
    """A workflow a step."""
    given = asked()
    url = given.url.replace("postgresql://", "postgresql+psycopg://")
    program = "import sys; from benchmarks.peers.dbos_peer import serve; serve(*sys.argv[1:])"
    workers = []
    try:
        for n in range(given.slots):
            command = [sys.executable, "-c", program, url, f"worker-{n}"]
            workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert workers[-1].stdout is not None
            workers[-1].stdout.readline()
        client = DBOSClient(system_database_url=url)
        enqueued(client, 20)
        began = time.perf_counter()
        enqueued(client, given.steps)
        seconds = time.perf_counter() - began
        client.destroy()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    queue = f"worker_concurrency={AT_ONCE}, polling_interval_sec={POLL_SECONDS}, no global bound"
    answer(
        seconds, dbos=version("dbos"), workers=f"{given.slots} processes", queue=queue, enqueued=f"{ENQUEUERS} threads"
    )


if __name__ == "__main__":
    main()
