"""Celery on Redis: acknowledged late, results kept, many messages fetched ahead, as its guide to optimizing asks for
short tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import version

from celery import Celery, group

from benchmarks.peers.protocol import answer, asked

URL = "BENCH_REDIS_URL"
SETTINGS = {"task_acks_late": True, "worker_prefetch_multiplier": 128, "task_ignore_result": False}
OPTIONS = ("--without-gossip", "--without-mingle", "--without-heartbeat")

app = Celery("noop", broker=os.environ.get(URL), backend=os.environ.get(URL))
app.conf.update(SETTINGS)


@app.task(name="body")
def body(n: int) -> int:
    """A step."""
    return n


def main() -> None:
    """A pool of processes, a task a step."""
    given = asked()
    os.environ[URL] = given.url
    app.conf.update(broker_url=given.url, result_backend=given.url)
    command = [sys.executable, "-m", "celery", "--app", "benchmarks.peers.celery_peer", "worker", *OPTIONS]
    command += ["--concurrency", str(given.slots), "--loglevel", "WARNING"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        group(body.s(n) for n in range(20)).apply_async().join_native(timeout=60)
        began = time.perf_counter()
        results = group(body.s(n) for n in range(given.steps)).apply_async().join_native(timeout=600)
        seconds = time.perf_counter() - began
        assert results == list(range(given.steps))
    finally:
        worker.terminate()
        worker.wait(30)
    told = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
    answer(seconds, celery=version("celery"), worker=f"prefork, {given.slots} processes, {' '.join(OPTIONS)}", set=told)


if __name__ == "__main__":
    main()
