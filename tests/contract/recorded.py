"""What stood in a database when version 0.1 was made, for the fixture `fixtures/0.1.json`.

Once 0.1 is released neither this file nor the fixture changes any more: databases like it exist then. Until that
`python -m tests.contract.recorded MONGO_URL` writes it anew from an empty database.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
from bson import json_util

from choreography_ray.model import HistoryEntry, HostId, JobId, JobStatus, StepHosting, StepId
from choreography_ray.options import ClusterOptions, JobsOptions
from choreography_ray.records import (
    CodeRef,
    Counts,
    Decision,
    FailedStep,
    Failure,
    Group,
    JobDocument,
    JournalEntry,
    KeptResult,
    LedgerSegment,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    Owner,
    PlannedStep,
    PlanRef,
    PlanSegment,
    PreparedSegment,
    Run,
    StageCounts,
    StepCode,
    StepDocument,
    StepKind,
)
from choreography_ray.storage.mongo import MongoStorage, database_name
from choreography_ray.storage.protocol import JobStorage

FIXTURE = Path(__file__).parent / "fixtures" / "0.1.json"
NOW = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)
FENCE = 2**40
RUN = Run(FENCE, 7)
HOST = HostId("shared/1 a%b")
JOB_ID = JobId("index/2026 $ü")


@dataclass(frozen=True)
class Recorded:
    """One job with everything beside it, and what belongs to the namespace."""

    job: JobDocument
    kinds: tuple[StepKind, ...]
    segments: tuple[PlanSegment, ...]
    prepared: tuple[PreparedSegment, ...]
    ledger: tuple[LedgerSegment, ...]
    outcomes: tuple[OutcomeDocument, ...]
    steps: tuple[StepDocument, ...]
    failures: tuple[FailedStep, ...]
    results: tuple[KeptResult, ...]
    code: tuple[str, bytes]
    options: ClusterOptions


def recorded() -> Recorded:
    """The records, as this version reads them."""
    failure = Failure("app.Broken", "ümlaut", 2, "Traceback ...", NOW, NOW + timedelta(seconds=1.5), "node", 42)
    ids = [StepId(f"s/{i}") for i in range(3)]
    key = OutcomeKey(HOST, RUN, 1)
    job = JobDocument(
        job_id=JOB_ID,
        type_name="Index",
        code=CodeRef("app.jobs", "Index", "d" * 64, "3.11", "signature"),
        request={"~": "app.jobs:Request", "paths": ["a", "b"], "limits": {"~": "dict", "items": [["a.b", 2**40]]}},
        state={"~": "app.jobs:State", "done": {"~": "set", "items": ["a"]}, "ratio": float("inf")},
        options=JobsOptions(max_step_attempts=3, job_watchdog_interval=None, step_retry_backoff=timedelta(0, 1, 5)),
        created_at=NOW,
        updated_at=NOW + timedelta(hours=1),
        status=JobStatus.STOPPED,
        fence=FENCE,
        save=12,
        labels={"team.name": "search", "$": ""},
        details="3 shards",
        history=(
            HistoryEntry(at=NOW, status=JobStatus.PREPARING_JOB),
            HistoryEntry(at=NOW, status=JobStatus.STOPPED, why="x"),
        ),
        plan=PlanRef(FENCE, 2, 3, 2),
        stage=-1,
        counts=Counts(1, 2, 3, 4),
        stage_counts=(StageCounts(-1, 2, 1, 1), StageCounts(10, 1, 0, 0, 1)),
        journal=(
            JournalEntry(Decision.RETRY, key, (1, 2), (2, 3), (NOW, NOW)),
            JournalEntry(Decision.STOPPED, ordinals=(2,), attempts=(1,), left=StepCode.AWAITING_RETRY),
            JournalEntry(Decision.UNREACHABLE, after_stage=-1),
        ),
        mark="RESUME",
        has_started_hook=True,
        is_stop_finalized=True,
        error="the last one",
        start_error="FAILED_STARTING_SOME_JOB_STEPS",
        start_details=("one", "two"),
        crashes=1,
        owner=Owner("cluster", "actor", "worker", "node", 9, FENCE),
        beats=3,
        actor_name="job-index",
        runtime_env={"pip": ["x"]},
        keep_results=True,
    )
    return Recorded(
        job=job,
        kinds=(
            StepKind(-1, "app.jobs:Work", StepHosting.SHARED_ACTORS, 2, {"num_cpus": 0.5}),
            StepKind(10, "app.jobs:Publish"),
        ),
        segments=(
            PlanSegment(0, (PlannedStep(ids[0], "first", 0, {"a": 1}), PlannedStep(ids[1], "", 0, None))),
            PlanSegment(1, (PlannedStep(ids[2], "", 1, ["x"]),)),
        ),
        prepared=(
            PreparedSegment(0, (ids[0], ids[1]), ({"n": 1}, None), plan=FENCE),
            PreparedSegment(1, (ids[2],), ([1, 2],), plan=FENCE),
        ),
        ledger=(
            LedgerSegment(0, FENCE, 4, b"\x01\x04", bytes(4), (Group(HOST, RUN, 2, (0, 1), (1, 3)),), plan=FENCE),
            LedgerSegment(1, FENCE, 0, b"\x00", b"\x01\x00", plan=FENCE),
        ),
        outcomes=(
            OutcomeDocument(
                JOB_ID,
                key,
                (
                    Outcome(0, 1, OutcomeKind.SUCCEEDED, {"value": 1}),
                    Outcome(1, 3, OutcomeKind.FAILED, [1], failure, {"n": 2}, 1, has_document=True),
                ),
                0.25,
            ),
            OutcomeDocument(JOB_ID, OutcomeKey(HOST, RUN, 2), (Outcome(2, 1, OutcomeKind.MOVED, crash=2),)),
        ),
        steps=(
            StepDocument(
                1,
                RUN,
                is_closed=True,
                attempt=3,
                due=NOW,
                crashes=1,
                stop=Run(FENCE, 6),
                base=1,
                state={"n": 2},
                attempts=(failure,),
            ),
            StepDocument(2, Run(FENCE, 8)),
        ),
        failures=(FailedStep(1, ids[1], 3, RUN, (failure, failure), {"partial": 1}, {"n": 2}),),
        results=(KeptResult(0, ids[0], {"~": "tuple", "items": [1, 2]}, -1),),
        code=("d" * 64, bytes(range(256))),
        options=ClusterOptions(max_parallel_steps=7, terminal_job_retention=None),
    )


async def save(storage: JobStorage, what: Recorded) -> None:
    """How the database came to be."""
    job_id = what.job.job_id
    assert await storage.insert_job(what.job)
    await storage.save_plan(job_id, FENCE, what.kinds)
    await storage.save_plan_segments(job_id, FENCE, what.segments)
    await storage.save_prepared(job_id, what.prepared)
    await storage.insert_ledger(job_id, what.ledger)
    for outcome in what.outcomes:
        await storage.insert_outcome(outcome)
    await storage.save_step_documents(job_id, what.steps)
    await storage.save_failures(job_id, what.failures)
    await storage.save_results(job_id, what.results)
    await storage.save_code(*what.code, {"module": "app.jobs"}, NOW)
    await storage.save_cluster_options(what.options)


def stored_documents() -> dict[str, list[dict[str, Any]]]:
    """The fixture: documents by collection."""
    read: dict[str, list[dict[str, Any]]] = json_util.loads(FIXTURE.read_text(encoding="utf-8"))
    return read


def main(url: str) -> None:
    """Write the fixture."""
    storage = MongoStorage(url, "recorded")

    async def fill() -> None:
        await storage.open()
        await save(storage, recorded())
        await storage.close()

    asyncio.run(fill())
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        database = client[database_name("recorded")]
        found = {name: list(database[name].find().sort("_id")) for name in sorted(database.list_collection_names())}
        client.drop_database(database)
    FIXTURE.write_text(
        json_util.dumps(found, json_options=json_util.CANONICAL_JSON_OPTIONS, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1])
