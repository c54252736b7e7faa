"""How is the storage contract kept by MongoDB?

One database per choreography namespace. Every document of a job is addressed by an `_id` that tells its place, so
that single documents need no index; lists are found through one index on (job, place). Guards are conditions of
single-document updates: nothing needs a transaction. Writes are acknowledged by a majority and its journals, reads
are from the primary and tell only what a majority has.

Whether a guarded write that did not match was applied before is asked by a write, not by a read: a read may see
what a failover takes back, and would call it durable.

All of pymongo is in this one file, which is why it is long.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import pymongo
from pymongo import AsyncMongoClient, DeleteOne, ReplaceOne, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WTimeoutError,
)
from pymongo.uri_parser import split_options

from choreography_ray.codec import encode
from choreography_ray.errors import ChoreographyError, StorageUnavailable, TooLarge, UnreadableRecord
from choreography_ray.model import HostId, JobId, JobStatus, StepId
from choreography_ray.options import ClusterOptions
from choreography_ray.records import (
    SCHEMA_VERSION,
    Beside,
    FailedStep,
    JobBrief,
    JobDocument,
    KeptResult,
    LedgerSegment,
    OutcomeDocument,
    OutcomeKey,
    Owner,
    PlanSegment,
    PreparedSegment,
    RemovedJob,
    Run,
    StepDocument,
    StepKind,
)
from choreography_ray.storage import documents as docs
from choreography_ray.storage.documents import Document
from choreography_ray.storage.packing import address, at, order_of, stored_run
from choreography_ray.storage.protocol import JobFilter
from choreography_ray.storage.sizes import MAX_DOCUMENT_BYTES, PART_BYTES, payload_size

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Operation = UpdateOne | ReplaceOne[Document] | DeleteOne

_GUARANTEES: dict[str, Any] = {
    "w": "majority",
    "journal": True,
    "readConcernLevel": "majority",
    "readPreference": "primary",
}
"""What the guarantees rest on: it wins over what the URL says."""
_DEFAULTS = {"serverSelectionTimeoutMS": 5_000, "connectTimeoutMS": 5_000, "socketTimeoutMS": 20_000}
"""Milliseconds; what the URL says wins."""
_DUPLICATE = 11000
_TOO_LARGE = frozenset({10334, 17280, 17419, 17420})
_NO_ANSWER = frozenset(
    {1, 6, 7, 13, 18, 50, 64, 89, 91, 133, 134, 189, 262, 317, 358, 9001, 10058, 10107, 11600, 11602, 13435, 13436}
)
"""The server is broken inside, not primary, shutting down, lost others, ran out of time, or does not let us in."""
_BY_PLACE = {
    "prepared": "plan",
    "plan": "plan",
    "ledger": "plan",
    "outcomes": "run.0",
    "steps": "run.0",
    "failures": "run.0",
    "results": "fence",
}
"""The collections of what belongs to a job, in the order of clearing, and where each says under which fence it was
written. Without its plan no job may look prepared."""


def database_name(namespace: str) -> str:
    """The database of a namespace. Raises ValueError for a name that MongoDB would not take or tell apart."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,48}", namespace):
        raise ValueError(f"the namespace {namespace!r} is not made of 1 to 48 letters, digits, '-' and '_'")
    return f"choreography_{namespace}"


def _translated(error: PyMongoError, where: str) -> ChoreographyError | PyMongoError:
    """What an error of pymongo means to a caller; itself where it can only be a fault of ours."""
    details = error.details or {} if isinstance(error, OperationFailure) else {}
    codes = {failed.get("code") for failed in details.get("writeErrors", ())}
    if isinstance(error, OperationFailure):
        codes.add(error.code)
    if isinstance(error, DocumentTooLarge) or codes & _TOO_LARGE:
        told = re.search(r"(\d{8,})", str(error))
        size = int(told[1]) if told else MAX_DOCUMENT_BYTES + 1
        return TooLarge("a document", max(size, MAX_DOCUMENT_BYTES + 1), MAX_DOCUMENT_BYTES)
    lost = (ConfigurationError, ConnectionFailure, ExecutionTimeout, WTimeoutError, WriteConcernError)
    if isinstance(error, lost) or codes & _NO_ANSWER or details.get("writeConcernErrors"):
        # What pymongo adds about timeouts, its view of the topology and the whole reply is no part of a clear line.
        why = re.split(r" \(configured timeouts|, Timeout:|, full error:", str(error), maxsplit=1)[0]
        return StorageUnavailable(where, f"{type(error).__name__}: {why[:300]}")
    return error


def _answering(
    method: Callable[Concatenate[MongoStorage, _P], Awaitable[_R]],
) -> Callable[Concatenate[MongoStorage, _P], CoroutineType[Any, Any, _R]]:
    """Errors of pymongo become ours at the edge of each method."""

    @functools.wraps(method)
    async def answer(self: MongoStorage, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return await method(self, *args, **kwargs)
        except PyMongoError as error:
            translated = _translated(error, self.where)
            if translated is error:
                raise
            raise translated from error

    return answer  # type: ignore[return-value]  # mypy takes every coroutine function's for a mere Coroutine


class MongoStorage:
    """A `JobStorage` in the database `choreography_<namespace>` of a MongoDB.

    Made without connecting, and light to pickle: only url and namespace travel. Each event loop, and each process
    after a fork, gets a client of its own when it first uses the store.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self._database_name = database_name(namespace)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncMongoClient[Document]] = WeakKeyDictionary()
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url, "namespace": self.namespace}

    def __setstate__(self, state: dict[str, str]) -> None:
        MongoStorage.__init__(self, state["url"], state["namespace"])

    @property
    def where(self) -> str:
        """The hosts, which is all that errors tell of the URL: user, password and options may hold secrets."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{re.split('[/?]', rest)[0].rpartition('@')[2]}"

    def _database(self) -> AsyncDatabase[Document]:
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():  # forked: the parent's sockets are not ours to use or to close
            self._clients = WeakKeyDictionary()
            self._pid = os.getpid()
        client = self._clients.get(loop)
        if client is None:
            chosen = {name: value for name, value in _DEFAULTS.items() if f"{name}=".lower() not in self.url.lower()}
            options: dict[str, Any] = {"tz_aware": True, "appname": "choreography-ray", **chosen, **_GUARANTEES}
            try:
                # The client only warns of an option that it cannot read, and does without it: think of `tls=ture`.
                split_options(self.url.partition("?")[2] or "w=1", warn=False)
                client = self._clients[loop] = AsyncMongoClient[Document](self.url, **options)
            except (ConfigurationError, OSError, TypeError, ValueError) as error:  # OSError: of a file that it names
                raise ValueError(f"what is given is no URL of a MongoDB that can be used: {error}") from None
        return client[self._database_name]

    def _in(self, collection: str) -> AsyncCollection[Document]:
        return self._database()[collection]

    @_answering
    async def open(self) -> None:
        database = self._database()
        by_place = [("job", pymongo.ASCENDING), ("n", pymongo.ASCENDING)]
        newest_first = [("created_at", pymongo.DESCENDING), ("_id", pymongo.ASCENDING)]
        try:
            await database.command("ping")
            await asyncio.gather(
                *(database[name].create_index(by_place) for name in _BY_PLACE),
                database["jobs"].create_index(newest_first),
                database["jobs"].create_index([("status", pymongo.ASCENDING), *newest_first]),
                database["jobs"].create_index("owner.cluster"),
            )
        except BaseException:
            # Who could not open will not close; the client's own tasks would outlive its loop and complain.
            await self.close()
            raise

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None and self._pid == os.getpid():
            await client.close()

    # ---- jobs

    @_answering
    async def insert_job(self, document: JobDocument) -> bool:
        while True:
            try:
                await self._in("jobs").insert_one(docs.job_document(document))
                return True
            except DuplicateKeyError:
                there = await self.read_job(document.job_id)
            if there is not None:
                return there.created_at == document.created_at and there.save == 0 and there.fence >= document.fence
            await asyncio.sleep(_UNTIL_VISIBLE)

    @_answering
    async def read_job(self, job_id: JobId) -> JobDocument | None:
        stored = await self._in("jobs").find_one({"_id": address(job_id)})
        return None if stored is None else docs.as_job(stored)

    @_answering
    async def list_jobs(self, wanted: JobFilter, skip: int = 0, take: int = 100) -> list[JobDocument]:
        if take <= 0:
            return []
        query: Document = {}
        if wanted.type_name is not None:
            query["type_name"] = wanted.type_name
        if wanted.statuses:
            query["status"] = {"$in": [status.value for status in wanted.statuses]}
        if wanted.labels:
            query["labels"] = {"$all": [docs.label(name, value) for name, value in wanted.labels.items()]}
        if wanted.created_before is not None:
            query["created_at"] = {"$lt": at(wanted.created_before)}
        order = [("created_at", pymongo.DESCENDING), ("_id", pymongo.ASCENDING)]
        found = self._in("jobs").find(query).sort(order).skip(skip).limit(take)
        return list(_readable([stored async for stored in found], docs.as_job))

    @_answering
    async def raise_fence(
        self, job_id: JobId, expected: int, fence: int, owner: Owner | None = None, crashes: int | None = None
    ) -> bool:
        guard = {"_id": address(job_id), "fence": {"$in": [expected, fence]}}
        written = {"fence": fence, **docs.claim_fields(owner, crashes)}
        return (await self._in("jobs").update_one(guard, {"$set": written})).matched_count == 1

    @_answering
    async def beat(self, job_id: JobId, fence: int) -> bool:
        guard = {"_id": address(job_id), "fence": fence}
        return (await self._in("jobs").update_one(guard, {"$inc": {"beats": 1}})).matched_count == 1

    @_answering
    async def save_job(self, document: JobDocument, changed: Collection[str]) -> bool:
        names = {*changed, "save", "updated_at"} - {"job_id", "fence"}
        guard: Document = {"_id": address(document.job_id), "fence": document.fence, "save": document.save - 1}
        jobs = self._in("jobs")
        if (await jobs.update_one(guard, {"$set": docs.job_fields(document, sorted(names))})).matched_count:
            return True
        applied = guard | {"save": document.save}
        return (await jobs.update_one(applied, {"$set": {"save": document.save}})).matched_count == 1

    @_answering
    async def delete_job(self, document: JobDocument) -> None:
        await self._replace("removed", [docs.removed_document(document)])
        guard = {"_id": address(document.job_id), "fence": document.fence, "created_at": at(document.created_at)}
        await self._in("jobs").delete_one(guard)

    @_answering
    async def clear_job(self, job_id: JobId, fence: int, *, keep_results: bool, keep_failures: bool = False) -> None:
        kept = {"results": keep_results, "failures": keep_failures}
        for name, written_under in _BY_PLACE.items():
            if not kept.get(name):  # what bears no fence is of an older version, and of this job
                await self._in(name).delete_many({"job": job_id, written_under: {"$not": {"$gt": fence}}})

    @_answering
    async def unfinished_jobs(self, after: JobBrief | None = None, take: int = 100) -> list[JobBrief]:
        unfinished = [status.value for status in JobStatus if status.is_interruptible] + [JobStatus.REMOVING.value]
        stopped = {"status": JobStatus.STOPPED.value, "is_stop_finalized": False}
        final = [status.value for status in JobStatus if status.is_final]
        # By their owners, of which the index knows few: jobs that came to rest have none.
        owned = {"owner.cluster": {"$gt": ""}, "status": {"$in": final}}
        return await self._briefs({"$or": [{"status": {"$in": unfinished}}, stopped, owned]}, after, take)

    @_answering
    async def ended_jobs(self, before: datetime, after: JobBrief | None = None, take: int = 100) -> list[JobBrief]:
        final = [status.value for status in JobStatus if status.is_final]
        # Created before it was last saved: said too, as it is what the index knows.
        query = {"status": {"$in": final}, "created_at": {"$lt": at(before)}, "updated_at": {"$lt": at(before)}}
        return await self._briefs(query, after, take)

    async def _briefs(self, query: Document, after: JobBrief | None, take: int) -> list[JobBrief]:
        if after is not None:
            moment, place = at(after.created_at), address(after.job_id)
            later: list[Document] = [{"created_at": {"$gt": moment}}, {"created_at": moment, "_id": {"$gt": place}}]
            query = {"$and": [query, {"$or": later}]}
        order = [("created_at", pymongo.ASCENDING), ("_id", pymongo.ASCENDING)]
        found = self._in("jobs").find(query, docs.BRIEF).sort(order).limit(take)
        return list(_readable([stored async for stored in found], docs.as_brief))

    @_answering
    async def removed_jobs(self, before: datetime, take: int = 100) -> list[RemovedJob]:
        found = self._in("removed").find({"at": {"$lt": at(before)}}).limit(take)
        return [RemovedJob(JobId(stored["job"]), int(stored["fence"])) async for stored in found]

    @_answering
    async def forget_removed(self, removed: Sequence[RemovedJob]) -> None:
        if removed:
            await self._in("removed").delete_many({"_id": {"$in": [address(*one) for one in removed]}})

    # ---- plan

    @_answering
    async def save_plan(self, job_id: JobId, fence: int, kinds: Sequence[StepKind]) -> None:
        await self._replace("plan", docs.plan_documents(job_id, fence, kinds, _batch()))

    @_answering
    async def read_plan(self, job_id: JobId, fence: int) -> tuple[StepKind, ...]:
        return docs.as_plan(await self._parts("plan", job_id, "kinds", fence))

    @_answering
    async def save_plan_segments(self, job_id: JobId, fence: int, segments: Sequence[PlanSegment]) -> None:
        batch = _batch()
        written = [part for segment in segments for part in docs.plan_segment_documents(job_id, fence, segment, batch)]
        await self._replace("plan", written)

    @_answering
    async def read_plan_segment(self, job_id: JobId, fence: int, index: int) -> PlanSegment | None:
        stored = await self._parts("plan", job_id, "plan", fence, index)
        return docs.as_plan_segment(stored) if stored else None

    @_answering
    async def save_prepared(self, job_id: JobId, segments: Sequence[PreparedSegment]) -> None:
        batch = _batch()
        await self._replace(
            "prepared", [part for segment in segments for part in docs.prepared_documents(job_id, segment, batch)]
        )

    @_answering
    async def find_planned(self, job_id: JobId, fence: int, step_id: StepId) -> list[int]:
        """Those of other plans, which an interrupted start left, may be among them."""
        query = {"job": job_id, "step_ids": step_id}
        found = self._in("plan").find(query, {"_id": 0, "n": 1})
        return sorted({int(stored["n"]) async for stored in found})

    @_answering
    async def read_prepared(self, job_id: JobId, plan: int, index: int) -> PreparedSegment | None:
        stored = await self._parts("prepared", job_id, "prepared", plan, index)
        return docs.as_prepared(stored) if stored else None

    @_answering
    async def prepared_segments(self, job_id: JobId, plan: int) -> set[int]:
        fields = {"_id": 0, "n": 1, "part": 1, "parts": 1, "batch": 1}
        found = [stored async for stored in self._in("prepared").find({"job": job_id, "plan": plan}, fields)]
        first = {part["n"]: part for part in found if part["part"] == 0}
        whole = dict.fromkeys(first, 0)
        for part in found:
            if part["n"] in first and part["batch"] == first[part["n"]]["batch"]:
                whole[part["n"]] += 1
        return {int(index) for index, count in whole.items() if count == first[index]["parts"]}

    # ---- ledger

    @_answering
    async def insert_ledger(self, job_id: JobId, segments: Sequence[LedgerSegment]) -> None:
        await self._insert("ledger", [docs.ledger_document(job_id, segment) for segment in segments])

    @_answering
    async def fence_ledger(self, job_id: JobId, fence: int) -> None:
        await self._in("ledger").update_many({"job": job_id, "fence": {"$lt": fence}}, {"$set": {"fence": fence}})

    @_answering
    async def read_ledger(
        self, job_id: JobId, plan: int, begin: int = 0, end: int | None = None
    ) -> list[LedgerSegment]:
        query: Document = {"job": job_id, "plan": plan}
        if begin or end is not None:
            query["n"] = {"$gte": begin, "$lt": _LAST_ORDINAL if end is None else end}
        found = [docs.as_ledger(stored) async for stored in self._in("ledger").find(query)]
        return sorted(found, key=lambda segment: segment.index)

    @_answering
    async def save_ledger(self, job_id: JobId, segments: Sequence[LedgerSegment]) -> bool:
        if not segments:
            return True
        guards: list[Document] = [
            {"_id": address(job_id, segment.plan, segment.index), "fence": segment.fence, "save": segment.save - 1}
            for segment in segments
        ]
        writes = [
            UpdateOne(guard, {"$set": docs.ledger_fields(segment)})
            for guard, segment in zip(guards, segments, strict=True)
        ]
        if await self._matched("ledger", writes) == len(segments):
            return True
        applied = [
            UpdateOne(guard | {"save": guard["save"] + 1}, {"$set": {"save": guard["save"] + 1}}) for guard in guards
        ]
        return await self._matched("ledger", applied) == len(segments)

    # ---- outcomes

    @_answering
    async def insert_outcome(self, document: OutcomeDocument) -> OutcomeDocument | None:
        stored = docs.outcome_document(document)
        while True:
            try:
                await self._in("outcomes").insert_one(stored)
                return None
            except DuplicateKeyError:
                there = await self._in("outcomes").find_one({"_id": stored["_id"]})
            if there is not None:
                return docs.as_outcomes(there)
            await asyncio.sleep(_UNTIL_VISIBLE)  # deleted since, or not yet with a majority

    @_answering
    async def read_outcomes(
        self, job_id: JobId, host: HostId | None = None, run: Run | None = None
    ) -> list[OutcomeDocument]:
        query: Document = {"job": job_id}
        if host is not None:
            query["host"] = host
        if run is not None:
            query["run"] = stored_run(run)
        found = [docs.as_outcomes(stored) async for stored in self._in("outcomes").find(query)]
        return sorted(found, key=lambda document: document.key)

    @_answering
    async def read_outcome_keys(self, job_id: JobId) -> list[OutcomeKey]:
        found = self._in("outcomes").find({"job": job_id}, {"host": 1, "run": 1, "n": 1})
        return sorted([docs.as_outcome_key(stored) async for stored in found])

    @_answering
    async def delete_outcomes(self, job_id: JobId, keys: Sequence[OutcomeKey]) -> None:
        if keys:
            ids = [docs.outcome_address(job_id, key) for key in keys]
            await self._in("outcomes").delete_many({"_id": {"$in": ids}})

    # ---- what single steps have of their own

    @_answering
    async def save_step_documents(self, job_id: JobId, documents: Sequence[StepDocument]) -> list[int]:
        """An update that may also insert finds a greater document in its way as a duplicate key."""
        pending: dict[int, Document] = {document.ordinal: docs.step_update(job_id, document) for document in documents}
        refused: list[int] = []
        while pending:
            attempted: list[tuple[int, Document]] = list(pending.items())
            writes = [
                UpdateOne(
                    {"_id": docs.step_address(job_id, ordinal), "order": {"$lte": update["$set"]["order"]}},
                    update,
                    upsert=True,
                )
                for ordinal, update in attempted
            ]
            pending = dict(attempted[place] for place in await self._duplicates("steps", writes))
            if not pending:
                break
            query = {"_id": {"$in": [docs.step_address(job_id, ordinal) for ordinal in pending]}}
            async for there in self._in("steps").find(query, {"n": 1, "order": 1}):
                if there["order"] > pending[there["n"]]["$set"]["order"]:
                    refused.append(int(there["n"]))
                    del pending[there["n"]]
            if pending:  # somebody else inserted at the same moment
                await asyncio.sleep(_UNTIL_VISIBLE)
        return sorted(refused)

    @_answering
    async def read_step_documents(self, job_id: JobId, ordinals: Sequence[int] | None = None) -> list[StepDocument]:
        return [docs.as_step(stored) for stored in await self._by_place("steps", job_id, ordinals)]

    @_answering
    async def first_due(self, job_id: JobId) -> datetime | None:
        query = {"job": job_id, "is_closed": True, "due": {"$ne": None}}
        found = await self._in("steps").find(query, {"_id": 0, "due": 1}).sort("due", 1).limit(1).to_list()
        return datetime.fromisoformat(found[0]["due"]) if found else None

    @_answering
    async def delete_step_documents(self, job_id: JobId, closed: Sequence[tuple[int, Run]]) -> None:
        deletes = [
            DeleteOne({"_id": docs.step_address(job_id, ordinal), "order": {"$lte": order_of(run, is_closed=True)}})
            for ordinal, run in closed
        ]
        await self._matched("steps", deletes)

    @_answering
    async def save_failures(self, job_id: JobId, failures: Sequence[FailedStep]) -> None:
        written = [docs.failed_step_document(job_id, failed) for failed in failures]
        await self._replace_older("failures", written, [failed.run.fence for failed in failures])

    @_answering
    async def read_failures(
        self, job_id: JobId, ordinals: Sequence[int] | None = None, skip: int = 0, take: int = 100
    ) -> list[FailedStep]:
        if ordinals is not None:
            return [docs.as_failed_step(stored) for stored in await self._by_place("failures", job_id, ordinals)]
        if take <= 0:
            return []
        order = [("job", pymongo.ASCENDING), ("n", pymongo.ASCENDING)]
        found = self._in("failures").find({"job": job_id}).sort(order).skip(skip).limit(take)
        return [docs.as_failed_step(stored) async for stored in found]

    @_answering
    async def delete_failures(self, job_id: JobId, failures: Sequence[tuple[int, Run]]) -> None:
        deletes = [DeleteOne({"_id": address(job_id, ordinal), "run": stored_run(run)}) for ordinal, run in failures]
        await self._matched("failures", deletes)

    @_answering
    async def save_results(self, job_id: JobId, results: Sequence[KeptResult]) -> None:
        written = [docs.result_document(job_id, result) for result in results]
        await self._replace_older("results", written, [result.fence for result in results])

    @_answering
    async def delete_results(self, job_id: JobId, results: Sequence[tuple[int, int]]) -> None:
        deletes = [DeleteOne({"_id": address(job_id, ordinal), "fence": fence}) for ordinal, fence in results]
        await self._matched("results", deletes)

    @_answering
    async def read_results(
        self,
        job_id: JobId,
        after: int = -1,
        take: int = 100,
        *,
        stage: int | None = None,
        before_stage: int | None = None,
    ) -> list[KeptResult]:
        """Looks into windows that grow: not every store ends a sorted query at its limit, and results are dense."""
        found: list[KeptResult] = []
        below, width, size = after, 2 * take, 0
        while len(found) < take and below < _LAST_ORDINAL:
            until = min(below + width, _LAST_ORDINAL) if width < 64 * take else _LAST_ORDINAL
            query: Document = {"job": job_id, "n": {"$gt": below, "$lte": until}}
            if stage is not None:
                query["stage"] = stage
            elif before_stage is not None:
                query["stage"] = {"$lt": before_stage}
            order = [("job", pymongo.ASCENDING), ("n", pymongo.ASCENDING)]
            async for stored in self._in("results").find(query).sort(order).limit(take - len(found)):
                found.append(docs.as_result(stored))
                size += payload_size(found[-1].value)
                if size > PART_BYTES:
                    return found
            below, width = until, 4 * width
        return found

    @_answering
    async def read_beside(self, job_id: JobId, begin: int, end: int) -> Beside:
        query = {"job": job_id, "n": {"$gte": begin, "$lt": end}}

        async def heads(collection: str, *left_out: str) -> list[Document]:
            found = self._in(collection).find(query, dict.fromkeys(left_out, 0))
            return sorted([stored async for stored in found], key=lambda stored: stored["n"])

        documents, failures, results = await asyncio.gather(
            heads("steps", "state", "attempts"),
            heads("failures", "state", "attempts", "value"),
            heads("results", "value"),
        )
        return Beside(
            tuple(map(docs.as_step, documents)),
            tuple(map(docs.as_failed_step, failures)),
            tuple(map(docs.as_result, results)),
        )

    @_answering
    async def count_records(self, job_id: JobId) -> dict[str, int]:
        counts = await asyncio.gather(*(self._in(name).count_documents({"job": job_id}) for name in _BY_PLACE))
        return {name: count for name, count in zip(_BY_PLACE, counts, strict=True) if count}

    # ---- the namespace

    @_answering
    async def save_code(self, digest: str, captured: bytes, about: dict[str, Any], now: datetime) -> None:
        """Two captures of the same code differ in their bytes: the parts of a copy are told from those of another by
        what they hold, and one copy, whole by then, is named by a document of its own.

        Head and parts that are found get the new date before anything rests on them: from then on none is deleted.
        """
        dated = {"$set": {"saved_at": at(now)}}
        there = await self._in("code").find_one_and_update({"_id": address(digest)}, dated)
        if there is not None:
            found = {"digest": digest, "copy": there["copy"], "part": {"$exists": True}}
            if (await self._in("code").update_many(found, dated)).matched_count == there["parts"]:
                return
        copy = hashlib.sha256(captured).hexdigest()
        cut = [captured[begin : begin + PART_BYTES] for begin in range(0, len(captured), PART_BYTES)]
        head = {"digest": digest, "copy": copy, "schema_version": SCHEMA_VERSION, **dated["$set"]}
        parts = [head | {"_id": address(digest, copy, part), "part": part, "data": d} for part, d in enumerate(cut)]
        await self._replace("code", parts)
        await self._replace("code", [head | {"_id": address(digest), "parts": len(cut), "about": encode(about)}])

    @_answering
    async def read_code(self, digest: str) -> bytes | None:
        head = await self._in("code").find_one({"_id": address(digest)})
        if head is None:
            return None
        addresses = [address(digest, head["copy"], part) for part in range(head["parts"])]
        found = {part["part"]: part["data"] async for part in self._in("code").find({"_id": {"$in": addresses}})}
        return b"".join(found[part] for part in sorted(found)) if len(found) == len(addresses) else None

    @_answering
    async def delete_unused_code(self, before: datetime) -> None:
        used = await self._in("jobs").distinct("code.digest")
        old = {"$not": {"$gte": at(before)}}  # copies of an older version have no date
        await self._in("code").delete_many({"digest": {"$nin": used}, "saved_at": old})

    @_answering
    async def read_cluster_options(self) -> ClusterOptions:
        stored = await self._in("namespace").find_one({"_id": "cluster_options"}) or {}
        values = stored.get("values", {})
        return ClusterOptions.model_validate(
            {name: value for name, value in values.items() if name in ClusterOptions.model_fields}
        )

    @_answering
    async def save_cluster_options(self, changed: ClusterOptions) -> ClusterOptions:
        values = changed.model_dump(mode="json", include=changed.model_fields_set)
        if values:
            update = {"$set": {f"values.{name}": value for name, value in values.items()}}
            await self._upsert("namespace", "cluster_options", update)
        return await self.read_cluster_options()

    @_answering
    async def next_number(self, name: str) -> int:
        stored = await self._upsert("namespace", address("number", name), {"$inc": {"number": 1}})
        return int(stored["number"])

    # ---- shared by the above

    async def _upsert(self, collection: str, key: str, update: Document) -> Document:
        while True:
            try:
                stored: Document | None = await self._in(collection).find_one_and_update(
                    {"_id": key}, update, upsert=True, return_document=pymongo.ReturnDocument.AFTER
                )
            except DuplicateKeyError:  # two that inserted at the same moment
                continue
            if stored is not None:
                return stored

    async def _parts(self, collection: str, *places: str | int) -> list[Document]:
        """All parts of a list in order; none when it is not there, or not whole."""
        first = await self._in(collection).find_one({"_id": address(*places, 0)})
        if first is None or first["parts"] == 1:
            return [] if first is None else [first]
        more = {"$in": [address(*places, part) for part in range(1, first["parts"])]}
        found = [first, *[stored async for stored in self._in(collection).find({"_id": more, "batch": first["batch"]})]]
        return sorted(found, key=lambda part: part["part"]) if len(found) == first["parts"] else []

    async def _by_place(self, collection: str, job_id: JobId, places: Iterable[int] | None) -> list[Document]:
        if places is None:
            query: Document = {"job": job_id}
        else:
            query = {"_id": {"$in": [address(job_id, place) for place in places]}}
        return sorted([stored async for stored in self._in(collection).find(query)], key=lambda stored: stored["n"])

    async def _insert(self, collection: str, documents: Sequence[Document]) -> list[Document]:
        """Insert what is not there; returns what was in the way of its like."""
        if not documents:
            return []
        try:
            await self._in(collection).insert_many(documents, ordered=False)
        except BulkWriteError as error:
            return [documents[place] for place in _only_duplicates(error)]
        return []

    async def _replace(self, collection: str, documents: Sequence[Document]) -> None:
        """Inserting is several times faster than replacing, and what is there is nearly always nothing."""
        there = await self._insert(collection, documents)
        while there:
            writes = [ReplaceOne({"_id": stored["_id"]}, stored, upsert=True) for stored in there]
            there = [there[place] for place in await self._duplicates(collection, writes)]

    async def _replace_older(self, collection: str, documents: Sequence[Document], fences: Sequence[int]) -> None:
        """As `_replace`, but nothing that was written under a later fence: whoever wakes up late spoils nothing."""
        fence_of = {document["_id"]: fence for document, fence in zip(documents, fences, strict=True)}
        where = _BY_PLACE[collection]
        writes = [
            ReplaceOne({"_id": (key := stored["_id"]), where: {"$lte": fence_of[key]}}, stored, upsert=True)
            for stored in await self._insert(collection, documents)
        ]
        if writes:
            await self._duplicates(collection, writes)  # those are later

    async def _matched(self, collection: str, writes: Sequence[_Operation]) -> int:
        if not writes:
            return 0
        return (await self._in(collection).bulk_write(writes, ordered=False)).matched_count

    async def _duplicates(self, collection: str, writes: Sequence[_Operation]) -> list[int]:
        """Apply the writes; returns the places of those that found another document under their `_id`."""
        try:
            await self._in(collection).bulk_write(writes, ordered=False)
        except BulkWriteError as error:
            return _only_duplicates(error)
        return []


_UNTIL_VISIBLE = 0.005
"""Seconds until one looks again for what a majority has not confirmed yet."""
_LAST_ORDINAL = 2**31 - 1


def _readable(found: Iterable[Document], read: Callable[[Document], _R]) -> Iterator[_R]:
    """The records that this version can read; of each other one a sentence is logged."""
    for stored in found:
        try:
            yield read(stored)
        except UnreadableRecord as error:
            log.warning("a job is left out of a list: %s", error)


def _batch() -> str:
    return uuid4().hex


def _only_duplicates(error: BulkWriteError) -> list[int]:
    """The places of duplicate keys; raises the error when it tells of anything else."""
    failed = error.details.get("writeErrors", ())
    if error.details.get("writeConcernErrors") or any(one["code"] != _DUPLICATE for one in failed):
        raise error
    return [one["index"] for one in failed]
