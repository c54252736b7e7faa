"""Prefect on a server of its own over PostgreSQL: one flow, its tasks mapped over threads, results persisted."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from importlib.metadata import version

from benchmarks.peers.protocol import answer, asked
from benchmarks.peers.servers import free_port, running

THREADS = 16
SETTINGS = {
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
}


def flow_seconds(steps: int) -> float:
    """How long a flow takes. Prefect reads its settings when it is imported."""
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    @task(persist_result=True)
    def body(n: int) -> int:
        return n

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=THREADS), persist_result=True)
    def work(count: int) -> list[int]:
        return list(body.map(range(count)).result())

    work(5)
    began = time.perf_counter()
    results = work(steps)
    seconds = time.perf_counter() - began
    assert results == list(range(steps))
    return seconds


def main() -> None:
    """A task a step."""
    given = asked()
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    os.environ.update(SETTINGS, PREFECT_HOME=str(given.folder), PREFECT_API_URL=api)
    database = given.url.replace("postgresql://", "postgresql+asyncpg://")
    environment = os.environ | {"PREFECT_API_DATABASE_CONNECTION_URL": database}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--no-ui"]

    def is_up() -> bool:
        try:
            with urllib.request.urlopen(f"{api}/health", timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    with running(command, is_up, cwd=str(given.folder), environment=environment):
        seconds = flow_seconds(given.steps)
    told = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
    answer(seconds, prefect=version("prefect"), runner=f"ThreadPoolTaskRunner, {THREADS} threads", set=told)


if __name__ == "__main__":
    main()
