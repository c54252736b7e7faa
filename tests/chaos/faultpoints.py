"""Faults inside the processes of a job under test: what does production code do when this very write is its last?

Production code has no seam for this. A job under test plants the faults itself: `plant` is called when its classes are
made in a job actor or a host, and wraps methods there, as the job's plan says. The plan is a file in a folder that
the environment names before the cluster starts, so that Ray hands it down to every process; for jobs without a plan,
and in drivers, nothing is changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel

from tests.support import is_alive

FOLDER = "FAULTPOINTS"
"""The environment variable that names the folder of all plans."""


class Point(StrEnum):
    """Where a job actor can be killed: the writes of a group of outcomes in their order [S6.5], and those of a mark."""

    DECISION = "DECISION"
    """The job document with a journal: what the hooks did, the counts and the decisions."""
    STEP_DOCUMENTS = "STEP_DOCUMENTS"
    FAILURES = "FAILURES"
    RESULTS = "RESULTS"
    STEP_DOCUMENTS_GO = "STEP_DOCUMENTS_GO"
    LEDGER = "LEDGER"
    ACKNOWLEDGEMENT = "ACKNOWLEDGEMENT"
    OUTCOMES_GO = "OUTCOMES_GO"
    MARK = "MARK"
    """The job document with the mark of a resume or a retry."""


class When(StrEnum):
    """On which side of the write."""

    BEFORE = "BEFORE"
    AFTER = "AFTER"


class Kill(BaseModel):
    """kill -9 of the job actor by itself, at its first write of this kind after it let `skip` pass."""

    point: Point
    when: When
    skip: int = 0


class Plan(BaseModel):
    """What happens to the processes of one job."""

    kills: list[Kill] = []
    """In this order, one for each incarnation."""
    lost_acknowledgements: int = 0
    """So many times the host does not hear that a delivery was recorded."""
    drops_reports: bool = False
    """No delivery ever arrives."""
    doubles_reports: bool = False
    """Each delivery arrives twice, at the same time."""
    renews_no_lease: bool = False
    """Hosts ask for no further lease once a body has begun."""
    looks_slowly: bool = False
    """What the job actor reads of a run's outcomes comes only when the host's process is gone."""


def folder_of(root: Path, job_id: str) -> Path:
    """Where a job's plan, marks and logs are."""
    return root / job_id


def write_plan(root: Path, job_id: str, plan: Plan) -> None:
    """Before the job starts."""
    folder = folder_of(root, job_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan").write_text(plan.model_dump_json())


def append(path: Path, **fields: Any) -> None:
    """Add a line, whole or not at all. `at` is in seconds of a clock that all processes of a machine share."""
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    line = json.dumps({**fields, "at": at, "pid": os.getpid()}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[dict[str, Any]]:
    """What was appended, in its order."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def fired(root: Path, job_id: str) -> list[dict[str, Any]]:
    """The kills that have happened."""
    return lines(folder_of(root, job_id) / "kills")


_PLANTED = "_faults_are_planted"


def plant() -> None:
    """Wrap what is to fail, once in a process. In a driver, or without the environment variable, nothing is done."""
    from choreography_ray.storage.mongo import MongoStorage

    root = os.environ.get(FOLDER)
    if not root or hasattr(MongoStorage, _PLANTED) or ray.get_runtime_context().get_actor_id() is None:
        return
    setattr(MongoStorage, _PLANTED, True)
    me = ray.get_runtime_context().get_actor_name() or ""
    faults = Faults(Path(root))
    faults.log_insertions()
    if me.startswith("job/"):
        faults.plant_in_job_actor()
    else:
        faults.plant_in_host()


class Faults:
    """The faults of one process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._plans: dict[str, Plan] = {}
        self._kill: dict[str, Kill | None] = {}
        self._seen: dict[str, int] = {}

    def plan(self, job_id: str) -> Plan:
        """A job's plan; an empty one if it has none."""
        if job_id not in self._plans:
            path = folder_of(self._root, job_id) / "plan"
            self._plans[job_id] = Plan.model_validate_json(path.read_text()) if path.exists() else Plan()
        return self._plans[job_id]

    def log_insertions(self) -> None:
        """Tell of each outcome document who was first."""
        from choreography_ray.storage.mongo import MongoStorage

        insert: Any = MongoStorage.insert_outcome

        async def insert_outcome(store: Any, document: Any) -> Any:
            there = await insert(store, document)
            folder = folder_of(self._root, document.job_id)
            if folder.exists():
                key = document.key
                outcomes = [[o.ordinal, o.attempt, str(o.kind)] for o in document.outcomes]
                won = there is None or there == document
                run = [key.run.fence, key.run.counter]
                append(folder / "persisted", host=key.host, run=run, n=key.n, won=won, outcomes=outcomes)
            return there

        MongoStorage.insert_outcome = insert_outcome  # type: ignore[assignment, method-assign]

    # The job actor.

    def plant_in_job_actor(self) -> None:
        """Kills around writes, and a slow look at a run's outcomes."""
        from choreography_ray.engine.job_engine import JobEngine
        from choreography_ray.storage.mongo import MongoStorage

        for method, point in _STORE_POINTS.items():
            setattr(MongoStorage, method, self._killing(getattr(MongoStorage, method), point))
        save: Any = MongoStorage.save_job

        async def save_job(store: Any, document: Any, changed: Any) -> Any:
            point = None
            if "journal" in changed and document.journal:
                point = Point.DECISION
            elif "mark" in changed and document.mark:
                point = Point.MARK
            self._strike(document.job_id, point, When.BEFORE)
            value = await save(store, document, changed)
            self._strike(document.job_id, point, When.AFTER)
            return value

        MongoStorage.save_job = save_job  # type: ignore[assignment, method-assign]
        acknowledge: Any = JobEngine._answer_receipts

        def answer_receipts(engine: Any, receipts: Any, answer: Any) -> None:
            point = Point.ACKNOWLEDGEMENT if answer is None and receipts else None
            self._strike(engine._job_id, point, When.BEFORE)
            acknowledge(engine, receipts, answer)
            self._strike(engine._job_id, point, When.AFTER)

        JobEngine._answer_receipts = answer_receipts  # type: ignore[method-assign]
        self._look_slowly()

    def _killing(self, method: Any, point: Point) -> Any:
        async def write(store: Any, job_id: str, items: Any) -> Any:
            self._strike(job_id, point if items else None, When.BEFORE)
            value = await method(store, job_id, items)
            self._strike(job_id, point if items else None, When.AFTER)
            return value

        return write

    def _strike(self, job_id: str, point: Point | None, when: When) -> None:
        if point is None:
            return
        if job_id not in self._kill:
            done = len(fired(self._root, job_id))
            self._kill[job_id] = next(iter(self.plan(job_id).kills[done:]), None)
        kill = self._kill[job_id]
        if kill is None or (kill.point, kill.when) != (point, when):
            return
        seen = self._seen[job_id] = self._seen.get(job_id, 0) + 1
        if seen > kill.skip:
            append(folder_of(self._root, job_id) / "kills", point=point, when=when)
            os.kill(os.getpid(), signal.SIGKILL)

    def _look_slowly(self) -> None:
        from choreography_ray.storage.mongo import MongoStorage

        read: Any = MongoStorage.read_outcomes

        async def read_outcomes(store: Any, job_id: str, host: Any = None, run: Any = None) -> Any:
            if host is not None and self.plan(job_id).looks_slowly:
                folder = folder_of(self._root, job_id)
                pids = {line["pid"] for line in lines(folder / "marks") if line["what"] == "begin"}
                append(folder / "looks", what="begin")
                while any(is_alive(pid) for pid in pids):
                    await asyncio.sleep(0.05)
                append(folder / "looks", what="end")
            return await read(store, job_id, host, run)

        MongoStorage.read_outcomes = read_outcomes  # type: ignore[assignment, method-assign]

    # A host.

    def plant_in_host(self) -> None:
        """Lost calls to the job actor."""
        from choreography_ray.actors.host import RayJob

        deliver: Any = RayJob.deliver
        ask: Any = RayJob.ask
        told: dict[Any, int] = {}

        async def deliver_badly(job: Any, document: Any) -> None:
            plan = self.plan(document.job_id)
            if plan.drops_reports:
                raise ConnectionError("the report is lost")
            await asyncio.gather(*(deliver(job, document) for _ in range(1 + plan.doubles_reports)))
            told[document.key] = told.get(document.key, 0) + 1
            if told[document.key] <= plan.lost_acknowledgements:
                append(folder_of(self._root, document.job_id) / "lost", steps=len(document.outcomes))
                raise ConnectionError("the acknowledgement is lost")

        async def ask_badly(job: Any, host: Any, is_first: bool) -> Any:
            if self.plan(job._job_id).renews_no_lease:
                raise ConnectionError("the job actor does not answer")
            return await ask(job, host, is_first)

        RayJob.deliver = deliver_badly  # type: ignore[method-assign]
        RayJob.ask = ask_badly  # type: ignore[method-assign]


_STORE_POINTS = {
    "save_step_documents": Point.STEP_DOCUMENTS,
    "save_failures": Point.FAILURES,
    "save_results": Point.RESULTS,
    "delete_step_documents": Point.STEP_DOCUMENTS_GO,
    "save_ledger": Point.LEDGER,
    "delete_outcomes": Point.OUTCOMES_GO,
}
