"""What happens to a running job when one thing dies? Each story does it to a cluster, and returns the seconds until
work went on; tests then look whether the job ended as it must, and `tests.chaos.measure` makes a table of them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.cluster import HOST, JOB, SUPERVISOR, THROTTLE, ClusterUnderTest, Driver
from tests.chaos.jobs import Load
from tests.chaos.marks import Mark, Witness
from tests.chaos.processes import Process, await_true
from tests.support import is_alive

PATIENCE = 150.0


class Running:
    """A job that is at work on a cluster, with as many bodies as there are slots."""

    def __init__(self, cluster: ClusterUnderTest, witness: Witness, job_id: str, **fields: Any) -> None:
        self.cluster = cluster
        self.witness = witness
        self.job_id = job_id
        asked: dict[str, Any] = {"steps": 120, "seconds": 0.5, "stages": 2, "flaky": 11, "rotten": 29} | fields
        self.load: Load = cluster.load(witness, **asked)
        self.driver: Driver = cluster.driver()
        self.driver.call("start", load=self.load.model_dump(), job_id=job_id)
        await_true(lambda: len(self.at_work()) >= min(cluster.slots, self.load.steps), 60, "every slot is used")

    def at_work(self) -> list[Mark]:
        """Bodies that have begun and not ended, in processes that live."""
        open_bodies: dict[tuple[str, int], Mark] = {}
        for m in self.witness.marks("begin", "end", "fail", job=self.job_id):
            if m.event == "begin":
                open_bodies[m.step, m.pid] = m
            else:
                open_bodies.pop((m.step, m.pid), None)
        return [m for m in open_bodies.values() if is_alive(m.pid)]

    def until(self, is_it: Callable[[Mark], bool], since: float, count: int = 1) -> float:
        """Seconds from `since` until so many marks of which `is_it` holds."""

        def found() -> list[Mark]:
            return [m for m in self.witness.marks(job=self.job_id) if m.at > since and is_it(m)]

        await_true(lambda: len(found()) >= count, PATIENCE, "work goes on")
        return found()[count - 1].at - since

    def until_resumed(self, steps: set[str], since: float) -> float:
        """Seconds until each of these steps has begun again, or has ended after all."""

        def resumed() -> dict[str, float]:
            seen: dict[str, float] = {}
            for m in self.witness.marks("begin", "told", job=self.job_id):
                if m.at > since and m.step in steps:
                    seen.setdefault(m.step, m.at)
            return seen

        await_true(lambda: len(resumed()) == len(steps), PATIENCE, f"{sorted(steps)} go on")
        return max(resumed().values(), default=since) - since

    def workers(self) -> dict[int, str]:
        """Which step each host's process is at work on."""
        return {m.pid: m.step for m in self.at_work()}

    def finish(self) -> None:
        """Wait for the end."""
        with self.cluster.reader() as reader:
            reader.job(self.job_id).wait(timeout=PATIENCE, progress=False)


def now() -> float:
    """The marks' clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def one(found: list[Process]) -> Process:
    """The only one of these."""
    assert len(found) == 1, found
    return found[0]


def driver_dies(job: Running) -> float:
    """kill -9 of the driver: until the next body begins."""
    job.driver.kill()
    since = now()
    seconds = job.until(lambda m: m.event == "begin", since)
    job.driver = job.cluster.driver()
    job.driver.call("ping")
    return seconds


def host_dies(job: Running) -> float:
    """kill -9 of a host at work: until its step begins again."""
    pid, step = next(iter(job.workers().items()))
    host = next(each for each in job.cluster.processes(HOST) if each.pid == pid)
    since = now()
    host.kill()
    return job.until_resumed({step}, since)


def job_actor_dies(job: Running) -> float:
    """kill -9 of the job actor: until the next outcome is recorded."""
    actor = one(job.cluster.processes(JOB))
    since = now()
    actor.kill()
    actor.await_end()
    dead = now()
    return job.until(lambda m: m.event == "told" and m.at > dead, since)


def job_actor_pauses(job: Running, seconds: float = 8.0) -> float:
    """SIGSTOP of the job actor for a while: from SIGCONT until the next outcome is recorded."""
    actor = one(job.cluster.processes(JOB))
    with actor.paused():
        time.sleep(seconds)
    return job.until(lambda m: m.event == "told", now())


def throttle_dies(job: Running) -> float:
    """kill -9 of the throttle: until a host that it has granted a slot begins, seen at a job that starts then."""
    throttle = one(job.cluster.processes(THROTTLE))
    since = now()
    throttle.kill()
    load = job.cluster.load(job.witness, steps=6, seconds=0.1)
    other = f"{job.job_id}-other"
    job.driver.send("start", load=load.model_dump(), job_id=other)
    await_true(lambda: job.witness.marks("begin", job=other), PATIENCE, "a slot is granted")
    seconds = job.witness.marks("begin", job=other)[0].at - since
    job.driver.receive()
    assert job.driver.call("wait", job_id=other, timeout=60) == "COMPLETED_SUCCESSFULLY"
    return seconds


def supervisor_dies(job: Running) -> float:
    """kill -9 of the supervisor: until its next process is there."""
    supervisor = one(job.cluster.processes(SUPERVISOR))
    since = now()
    supervisor.kill()
    supervisor.await_end()
    await_true(lambda: job.cluster.processes(SUPERVISOR), 60, "the supervisor is back")
    return now() - since


def steps_on(job: Running, node: Process) -> set[str]:
    """The steps that a node is at work on, once it is."""
    steps: set[str] = set()

    def are_there() -> bool:
        here = {each.pid for each in job.cluster.processes(HOST, raylet=node)}
        steps.update(step for pid, step in job.workers().items() if pid in here)
        return bool(steps)

    await_true(are_there, 20, "somebody works on this node")
    return steps


def node_dies(job: Running) -> float:
    """kill -9 of every process of a node: until the steps that it worked on have begun again."""
    node = job.cluster.raylets[-1]
    steps = steps_on(job, node)
    since = now()
    job.cluster.kill_node(node)
    return job.until_resumed(steps, since)


def raylet_dies(job: Running) -> float:
    """kill -9 of a raylet alone: until the steps that its node worked on have ended or begun again."""
    node = job.cluster.raylets[-1]
    steps = steps_on(job, node)
    since = now()
    node.kill()
    node.await_end()
    job.cluster.raylets.remove(node)
    return job.until_resumed(steps, since)


def node_hangs(job: Running, seconds: float) -> float:
    """SIGSTOP of every process of a node, then SIGCONT: until its steps go on."""
    node = job.cluster.raylets[-1]
    steps = steps_on(job, node)
    since = now()
    stopped = job.cluster.pause_node(node)
    time.sleep(seconds)
    for each in stopped:
        each.send(signal.SIGCONT)
    return job.until_resumed(steps, since)


def raylet_hangs(job: Running, seconds: float = 20.0) -> float:
    """SIGSTOP of a raylet alone until its node is declared dead, then SIGCONT: until the next body begins."""
    node = job.cluster.raylets[-1]
    with node.paused():
        time.sleep(seconds)
    return job.until(lambda m: m.event == "begin", now())


def head_restarts(job: Running) -> float:
    """GCS and every node die at once, a new head starts and somebody connects: until a body begins again."""
    job.driver.kill()
    job.cluster.kill_head()
    since = now()  # a body may have begun until then
    job.cluster.start_head()
    job.cluster.add_node()
    job.driver = job.cluster.driver()
    job.driver.call("ping")
    return job.until(lambda m: m.event == "begin", since)


def head_restarts_by_itself(job: Running) -> float:
    """The same with a GCS that remembers its actors, and nobody connects."""
    job.driver.kill()
    job.cluster.kill_head()
    since = now()  # a body may have begun until then
    job.cluster.start_head()
    job.cluster.add_node()
    seconds = job.until(lambda m: m.event == "begin", since)
    job.driver = job.cluster.driver()
    return seconds


def gcs_restarts(job: Running, away: float = 5.0) -> float:
    """kill -9 of a GCS that remembers its actors, back after a while; nodes live on: until the next host begins."""
    recipe = job.cluster.restart_gcs()
    since = now()
    time.sleep(away)
    job.cluster.start_gcs(recipe)
    return job.until(lambda m: m.event == "told" and m.at > since + away, since)


def store_dies(job: Running, away: float) -> float:
    """kill -9 of the store, back after a while: from then until the next outcome is recorded."""
    job.cluster.kill_store(away)
    return job.until(lambda m: m.event == "told", now())


def store_hangs(job: Running, seconds: float) -> float:
    """SIGSTOP of the store for a while: from SIGCONT until the next outcome is recorded."""
    with job.cluster.store_process.paused():
        time.sleep(seconds)
    return job.until(lambda m: m.event == "told", now())
