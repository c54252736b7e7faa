"""The client: connect, start jobs, and find them again [S2.3]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel
from ray.exceptions import RayActorError, RayError, RuntimeEnvSetupError

from choreography_ray.access.starting import (
    checked_labels,
    concluded,
    new_document,
    require_admission,
    require_startable,
)
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.job import job_handle
from choreography_ray.actors.names import SUPERVISOR, THROTTLE, job_actor
from choreography_ray.actors.nodes import installed_version, node_records
from choreography_ray.actors.ray_api import find, here, own_runtime_env
from choreography_ray.actors.runtime_envs import lasting
from choreography_ray.actors.supervisor import supervisor_handle
from choreography_ray.actors.threads import ThreadedUserCode
from choreography_ray.actors.throttle import throttle_handle
from choreography_ray.client.cluster import RayCluster, embedded_url
from choreography_ray.client.handle import AsyncJobHandle
from choreography_ray.client.mapping import MapPlan, async_pages_of, save_code
from choreography_ray.code import describe_code, describe_made_code, load_code
from choreography_ray.codec import Encoder, encode
from choreography_ray.core.commands import ReportStart
from choreography_ray.core.ownership import is_elsewhere
from choreography_ray.core.starting import REMOVED
from choreography_ray.errors import (
    ChoreographyError,
    ClusterUnavailable,
    JobRemoved,
    StartJobError,
    StartJobReason,
)
from choreography_ray.job import Job, check_id
from choreography_ray.mapping import MapRequest, classes_for, title_of
from choreography_ray.model import (
    JobId,
    JobRecord,
    JobStatus,
    NodeRecord,
)
from choreography_ray.options import ClusterOptions, JobsOptions
from choreography_ray.progress import record_of
from choreography_ray.records import CodeRef, JobDocument, Owner
from choreography_ray.settings import Settings
from choreography_ray.storage.mongo import MongoStorage, database_name
from choreography_ray.storage.protocol import JobFilter, JobStorage

log = logging.getLogger(__name__)

TRequest = TypeVar("TRequest", bound=BaseModel)

POLL_SECONDS = 0.5
"""How often a start looks into the store while the job's actor cannot be asked."""
SUPERVISOR_SECONDS = 2.0
"""How long `connect` waits for a supervisor to be told: it looks by itself too, every few seconds."""
NODES_SECONDS = 90.0
"""How long a client waits for what every node has."""
DEFAULT_OPTIONS = JobsOptions()
DEFAULT_CLUSTER = ClusterOptions()


class AsyncChoreography:
    """A connection to one choreography namespace. Made by `connect`; an async context manager."""

    def __init__(
        self,
        storage: JobStorage,
        connection: Connection,
        options: JobsOptions,
        cluster: RayCluster | None,
        owned_store: Any = None,
    ) -> None:
        self._storage = storage
        self._connection = connection
        self._options = options
        self._cluster = cluster
        self._owned_store = owned_store
        self._user = ThreadedUserCode()
        self._warning: asyncio.Task[None] | None = None
        """Looks whether steps can run on every node, as that may take a while [S14.6]."""

    @classmethod
    async def connect(
        cls,
        ray_address: str | None = None,
        mongo_url: str | None = None,
        namespace: str | None = None,
        options: JobsOptions = DEFAULT_OPTIONS,
        cluster: ClusterOptions = DEFAULT_CLUSTER,
        *,
        use_ray: bool = True,
        resumes: bool = True,
    ) -> Self:
        """Connect to Ray and MongoDB: from the arguments, else the environment, else local and embedded [S15].

        A cluster that runs on this machine is joined; else one is started that ends with this process. Interrupted
        jobs of the namespace go on, unless `resumes` is false. `use_ray=False` reads only, without any cluster.
        Raises `ClusterUnavailable`, `StorageUnavailable`, `EmbeddedStoreUnavailable`.
        """
        settings = connect_settings(mongo_url, namespace)
        await check_store(settings)  # before a cluster is started for nothing
        ray_cluster = RayCluster(ray_address) if use_ray else None
        return await cls.on_cluster(settings, ray_cluster, options, cluster, resumes=resumes)

    @classmethod
    async def on_cluster(
        cls,
        settings: Settings,
        ray_cluster: RayCluster | None,
        options: JobsOptions,
        cluster: ClusterOptions,
        *,
        resumes: bool = True,
    ) -> Self:
        """The second half of `connect`, once this process belongs to a cluster. Leaves the cluster when it fails."""
        store = None
        try:
            url = settings.mongo_url
            if url is None:
                url, store = await embedded_url(ray_cluster, Path(settings.data_directory))
            connection = Connection(settings.namespace, url)
            storage = connection.storage()
            await storage.open()
            client = cls(storage, connection, options, ray_cluster, store)
            if cluster.model_fields_set:
                await client._save_cluster_options(cluster)
            if ray_cluster is not None:
                await client._prepare_cluster(cluster)
                if resumes:
                    await client._supervise()
        except BaseException:
            if ray_cluster is not None:
                ray_cluster.close()
            if store is not None:
                store.stop()
            raise
        return client

    async def _prepare_cluster(self, cluster: ClusterOptions) -> None:
        throttle = await asyncio.to_thread(throttle_handle, self._connection)
        if "max_parallel_steps" in cluster.model_fields_set:
            await throttle.set_maximum.remote(cluster.max_parallel_steps)

    async def _save_cluster_options(self, changed: ClusterOptions) -> None:
        """Explicit values hold for the namespace from now on; what they replace is logged [S15]."""
        before = await self._storage.read_cluster_options()
        await self._storage.save_cluster_options(changed)
        for name in sorted(changed.model_fields_set):
            if (was := getattr(before, name)) != (now := getattr(changed, name)):
                log.warning("%s of namespace %r: %s, was %s", name, self._connection.namespace, now, was)

    async def _supervise(self) -> None:
        """Have the namespace's supervisor look after its jobs now [S10.4], and after the nodes while work goes on."""
        try:
            supervisor = await asyncio.to_thread(find, SUPERVISOR, self._connection.ray_namespace)
            async with asyncio.timeout(SUPERVISOR_SECONDS):
                await supervisor.look.remote()
        except ValueError:
            supervisor = await asyncio.to_thread(supervisor_handle, self._connection)  # it looks when it comes up
        except (TimeoutError, RayError) as error:
            log.info("the supervisor was not told to look: %s", error)
            return
        self._warning = asyncio.get_running_loop().create_task(_warn_of_nodes(supervisor))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> list[JobId]:
        """Disconnect. On a cluster that `connect` started, running jobs are suspended: their ids are returned, and the
        next connect resumes them [S4.6].
        """
        if self._warning is not None:
            self._warning.cancel()
            await asyncio.wait({self._warning})
        suspended: list[JobId] = []
        if self._cluster is not None and self._cluster.is_ours:
            with contextlib.suppress(ChoreographyError):
                working = [status for status in JobStatus if status.is_interruptible]
                suspended = [d.job_id for d in await self._storage.list_jobs(JobFilter(statuses=working))]
            if suspended:
                log.warning(
                    "%d running jobs are suspended with this process's cluster; the next connect resumes them: %s",
                    len(suspended),
                    ", ".join(map(repr, suspended[:5])),
                )
                await self._let_go(suspended)
        await self._storage.close()
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.close)
        if self._owned_store is not None:
            await asyncio.to_thread(self._owned_store.stop)
        return suspended

    async def _let_go(self, suspended: Collection[JobId]) -> None:
        """Whoever ends a job actor for good raises its fence first [S10.1]; the next cluster need not wait for it."""
        with contextlib.suppress(ChoreographyError):
            for job_id in suspended:
                document = await self._storage.read_job(job_id)
                if document is not None and not is_elsewhere(document, here().cluster_id):
                    fence = await self._storage.next_number("fence")
                    await self._storage.raise_fence(job_id, document.fence, fence, Owner())

    # Jobs.

    async def start(
        self,
        job_class: type[Job[TRequest, Any]],
        request: TRequest,
        *,
        job_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncJobHandle:
        """Start a job. Returns once its first steps run or wait for a place; the driver may then exit [S4.6].

        Raises `StartJobError` when this call did not start it, `InvalidJobType` or `InvalidId` for what cannot be a
        job, `NotStorable` or `TooLarge` for a request that does not survive storage.
        """
        if self._cluster is None:
            raise ClusterUnavailable("", "this client was connected for reading only")
        require_startable(job_class, request)
        ref, captured = await asyncio.to_thread(describe_code, job_class)
        encoder = await _encoder_for(ref)
        document = self._document(job_class, ref, encoder, request, job_id, labels)
        await require_admission(job_class, request, document, self._user)
        await save_code(self._storage, ref, captured)
        if not await self._storage.insert_job(document):
            handle = self._handle(document.job_id)
            raise StartJobError(StartJobReason.ALREADY_STARTED, document.job_id, job=handle)
        return await self._begin(document)

    async def map(
        self, fn: Callable[[Any], Any], items: Iterable[Any] | AsyncIterable[Any], name: str | None = None
    ) -> AsyncJobHandle:
        """Call `fn` with each item, durably: a job with a step per item on warm hosts, whose results are kept [S2.3].

        `fn` is any callable, also `async def`, a lambda or a closure: it is captured with what it uses. `items` may be
        any iterable of storable values, a generator of millions included: it is taken and saved page by page.
        Step ids are the places of the items, from "0"; `name` is the job's label, else the function's name.

        Raises as `start` does, `InvalidJobType` for a function that cannot be captured or called with one item, and
        what the iterable raises; nothing is left of a map that was not started.
        """
        plan = await self.open_map(fn, name)
        try:
            async for page in async_pages_of(items):
                await plan.add(page)
            return await self.start_map(plan)
        finally:
            await plan.give_up()

    async def open_map(self, fn: Callable[[Any], Any], name: str | None = None) -> MapPlan:
        """For the faces of this client: a map whose items are to be added. See `map`."""
        if self._cluster is None:
            raise ClusterUnavailable("", "this client was connected for reading only")
        job_class, step_class = classes_for(fn)
        title = title_of(fn)
        job_class.type_name = check_id("name", name) if name is not None else title
        ref, captured = await asyncio.to_thread(describe_made_code, job_class, step_class, fn)
        request = MapRequest(function=title)
        encoder = await _encoder_for(ref)
        document = self._document(job_class, ref, encoder, request, None, None)
        await require_admission(job_class, request, document, self._user)
        return MapPlan(self._storage, document, step_class, captured, encoder)

    async def start_map(self, plan: MapPlan) -> AsyncJobHandle:
        """Start a map that has all its items."""
        return await self._begin(await plan.finish())

    async def _begin(self, document: JobDocument) -> AsyncJobHandle:
        """Let the actor of a job live whose record is there, and report what becomes of its start."""
        handle = self._handle(document.job_id)
        if document.is_background:
            await asyncio.to_thread(self._actor, document)
            return handle
        return concluded(handle, await self._started(document))

    def _actor(self, document: JobDocument) -> Any:
        return job_handle(document.job_id, self._connection, document.runtime_env)

    def _document(
        self,
        job_class: type[Job[Any, Any]],
        code: CodeRef,
        encoder: Encoder,
        request: BaseModel,
        job_id: str | None,
        labels: Mapping[str, str] | None,
    ) -> JobDocument:
        document = new_document(job_class, code, encoder, request, self._options, datetime.now(UTC), job_id, labels)
        runtime_env = encode(lasting(own_runtime_env()), "runtime_env")
        return replace(document, actor_name=job_actor(document.job_id), runtime_env=runtime_env)

    async def _started(self, begun: JobDocument) -> ReportStart:
        """The start's answer, from the actor, or from the store when the job is further than its actor.

        The actor that is found by the name may be one that ends, of an earlier job of this id. Its answer is told by
        that nobody has taken the new job over; it is looked up again until it is the new job's [P1].
        """
        job_id = begun.job_id
        while True:
            report: ReportStart | None = None
            try:
                actor = await asyncio.to_thread(self._actor, begun)
                report = await actor.started.remote()
            except RuntimeEnvSetupError as error:
                await self._take_back(begun)
                why = f"the runtime_env of its driver cannot be made: {str(error).strip().splitlines()[-1]}"
                raise StartJobError(StartJobReason.UNKNOWN, job_id, (why,)) from error
            except (RayActorError, ChoreographyError) as error:
                log.info("job %r: %s", job_id, error)
            document = await self._storage.read_job(job_id)
            if document is None:
                raise JobRemoved(job_id)
            if report is not None and document.fence:
                if report.error != REMOVED:
                    return report
                if document.status is JobStatus.REMOVING:
                    raise JobRemoved(job_id)
            if document.status.is_final or document.status is JobStatus.STOPPED:
                return ReportStart(document.start_error, document.start_details)
            await asyncio.sleep(POLL_SECONDS)
            actor = await asyncio.to_thread(self._actor, begun)  # the one before may have ended for good

    async def _take_back(self, begun: JobDocument) -> None:
        """Leave nothing of a job whose actor never came up; one that somebody has taken over stays."""
        # The record first: whoever took the job over needs its plan, and after it is gone nobody can.
        await self._storage.delete_job(begun)
        there = await self._storage.read_job(begun.job_id)
        if begun.plan is not None and (there is None or there.created_at != begun.created_at):
            await self._storage.clear_job(begun.job_id, begun.plan.fence, keep_results=False)

    def _handle(self, job_id: JobId) -> AsyncJobHandle:
        return AsyncJobHandle(self._storage, self._connection, job_id)

    def job(self, job_id: str) -> AsyncJobHandle:
        """A handle of a job by its id; whether there is one shows when it is read."""
        return self._handle(JobId(check_id("job id", job_id)))

    async def jobs(
        self,
        type: str | None = None,  # noqa: A002 - the word of the API [S2.3]
        statuses: Collection[JobStatus] = (),
        labels: Mapping[str, str] | None = None,
        created_before: datetime | None = None,
        skip: int = 0,
        take: int = 100,
    ) -> list[JobRecord]:
        """Jobs that match, newest first. Raises `InvalidId` for a type that is no text."""
        kind = None if type is None else check_id("job type", type)
        wanted = JobFilter(kind, tuple(statuses), checked_labels(labels or {}), created_before)
        return [record_of(document) for document in await self._storage.list_jobs(wanted, skip, take)]

    async def nodes(self) -> list[NodeRecord]:
        """The nodes of the cluster, with the version of this package that each has; those that are new are asked now.

        Raises `ClusterUnavailable` when nobody can tell, or without a cluster.
        """
        if self._cluster is None:
            raise ClusterUnavailable("", "this client was connected for reading only")
        try:
            supervisor = await asyncio.to_thread(supervisor_handle, self._connection)
            async with asyncio.timeout(NODES_SECONDS):
                found = await supervisor.nodes.remote()
        except (TimeoutError, RayError) as error:
            raise ClusterUnavailable("", f"the supervisor does not say which nodes there are ({error})") from error
        return node_records(found, installed_version())

    async def throttle(self) -> dict[str, Any] | None:
        """What the throttle knows, for people; None when there is none."""
        if self._cluster is None:
            return None
        try:
            handle = await asyncio.to_thread(find, THROTTLE, self._connection.ray_namespace)
            snapshot: dict[str, Any] = await handle.snapshot.remote()
        except (ValueError, RayError):
            return None
        return snapshot


async def _warn_of_nodes(supervisor: Any) -> None:
    """Whatever is wrong is no more than a warning: on other nodes steps run. On no thread, which none could cancel."""
    try:
        found = await supervisor.nodes.remote()
    except RayError as error:
        log.info("nothing is known of the nodes: %s", error)
        return
    for node in node_records(found, installed_version()):
        if node.problem:
            log.warning("%s", node.problem)


async def _encoder_for(ref: CodeRef) -> Encoder:
    """For what a job with this code is started with: its processes have what the code brings or is installed."""
    return Encoder((await asyncio.to_thread(load_code, ref)).why_missing)


def connect_settings(mongo_url: str | None, namespace: str | None) -> Settings:
    """What the environment says, with the arguments on top. Raises ValueError for what cannot be a namespace."""
    given = {"mongo_url": mongo_url, "namespace": namespace}
    settings = Settings().model_copy(update={name: value for name, value in given.items() if value is not None})
    database_name(settings.namespace)  # now, before anything is started for it
    return settings


async def check_store(settings: Settings) -> None:
    """Raise `StorageUnavailable` when the database does not answer. The embedded one may not run yet: not asked."""
    if settings.mongo_url is not None:
        storage = MongoStorage(settings.mongo_url, settings.namespace)
        try:
            await storage.open()
        finally:
            await storage.close()
