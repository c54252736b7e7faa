"""The hosts of a job as Ray actors: created, told, watched, ended, and known to be dead only when they are [S10.2]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayActorError, RayError

from choreography_ray.actors.connection import Connection
from choreography_ray.actors.gcs import ActorInfo, Fate, RayTables
from choreography_ray.actors.host import HostActor
from choreography_ray.actors.last_words import told_of
from choreography_ray.actors.names import host_actor
from choreography_ray.actors.ray_api import OURS, create, end, find, has_room
from choreography_ray.codec import decode
from choreography_ray.core import events as e
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.engine.ports import Work
from choreography_ray.model import HostId, JobId
from choreography_ray.records import Failure, Group, Run, StepKind

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""How often the tables are asked about a host of which something must be found out."""
WAITING_SECONDS = 1.0
"""A host that has no process after so long waits for its resources."""
MAX_TEXT = 4_096
"""Characters that are kept of what Ray tells of a failure."""
ANSWER_SECONDS = 5.0
"""How long a live host may take to answer before the tables are asked about it."""


@dataclass(slots=True)
class _Host:
    """What this incarnation knows of one host's actor."""

    handle: Any = None
    worker_id: str = ""
    node_id: str = ""
    came_up: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] | None = None
    is_ended: bool = False
    is_withdrawn: bool = False
    is_killed: bool = False
    is_given_up: bool = False
    """Ray takes it for dead, it is not adopted, or to be ended: it gets no lease, as nothing else may reach it."""
    answered_at: float = -math.inf
    """When this incarnation last renewed its lease: nobody may take it for dead by silence before that has run out."""
    was_seen_dead: bool = False
    """Its process ended on a node that lives: only then may its steps be to blame [S10]."""
    created: asyncio.Event = field(default_factory=asyncio.Event)


class RayHosts:
    """`HostsPort` over Ray. Everything blocking runs on threads, as this is the job actor's loop."""

    def __init__(
        self, job_id: JobId, connection: Connection, engine: JobEngine, tables: RayTables, lease: float, margin: float
    ) -> None:
        self._job_id = job_id
        self._connection = connection
        self._engine = engine
        self._tables = tables
        self._patience = lease + margin
        self._placement = engine.machine.document.options.placement_timeout.total_seconds()
        self._hosts: dict[HostId, _Host] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._since = asyncio.get_running_loop().time()

    # The port.

    def create(self, host: HostId, kind: StepKind) -> None:
        """See `engine.ports.HostsPort`."""
        known = self._hosts[host] = _Host()
        known.watcher = self._spawn(self._create(host, known, kind))

    def tell(self, work: Work) -> None:
        """See `engine.ports.HostsPort`."""
        known = self._hosts.get(work.host)
        if known is not None:
            self._spawn(self._tell(known, lambda handle: handle.tell.remote(work)))

    def end(self, host: HostId) -> None:
        """See `engine.ports.HostsPort`."""
        known = self._hosts.pop(host, None)
        if known is not None:
            known.is_ended = True
            self._spawn(self._kill(known))

    def stop(self, host: HostId, run: Run, ordinals: tuple[int, ...] = ()) -> None:
        """See `engine.ports.HostsPort`."""
        known = self._hosts.get(host)
        if known is not None:
            fence = self._engine.machine.document.fence
            self._spawn(self._tell(known, lambda handle: handle.stop.remote(run, fence, ordinals)))

    def kill(self, host: HostId, grace: float) -> None:
        """See `engine.ports.HostsPort`."""
        known = self._hosts.get(host)
        if known is not None:
            known.is_killed = True
            known.is_given_up = not grace  # until its grace is over it keeps its lease
            self._spawn(self._kill_for_certain(host, known, grace))

    def inspect(self, groups: Sequence[Group]) -> None:
        """See `engine.ports.HostsPort`."""
        for group in groups:
            known = self._hosts[group.host] = _Host()
            known.created.set()
            known.watcher = self._spawn(self._inspect(group, known))

    def asked(self, host: HostId, worker_id: str, node_id: str) -> bool:
        """The host's process asked for its lease: now it is known which one it is. False: it may have none any more."""
        known = self._hosts.get(host)
        if known is None:
            return True
        if known.is_given_up:
            return False
        known.worker_id, known.node_id = worker_id, node_id
        known.answered_at = asyncio.get_running_loop().time()
        known.came_up.set()
        return True

    async def close(self) -> None:
        """Wait until every host that was to be ended has been told so to Ray."""
        for known in self._hosts.values():
            if known.watcher is not None:
                known.watcher.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Creating, and what may come of it.

    async def _create(self, host: HostId, known: _Host, kind: StepKind) -> None:
        try:
            options: dict[str, Any] = decode(kind.ray_options) or {}
            known.handle = await asyncio.to_thread(self._make, host, options)
        except Exception as error:  # noqa: BLE001 - options that Ray refuses are the start's failure [S4.4]
            known.created.set()
            self._post_failed(host, type(error).__name__, str(error))
            return
        known.created.set()
        if known.is_killed:
            return
        if known.is_ended:
            await self._kill(known)
            return
        if await self._await_start(host, known, options):
            await self._watch(host, known)

    def _make(self, host: HostId, options: dict[str, Any]) -> Any:
        ours = {
            **OURS,
            "name": host_actor(self._job_id, host),
            "namespace": self._connection.ray_namespace,
            "max_restarts": 0,
        }
        options = {"scheduling_strategy": "SPREAD", **options, **ours}
        code = self._engine.machine.document.code
        return create(HostActor, options, self._job_id, host, self._connection, code)

    async def _await_start(self, host: HostId, known: _Host, options: dict[str, Any]) -> bool:
        """Until the host has asked for its lease: True. False: it never will, and that was told."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        waits_since: float | None = None
        while not known.came_up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await known.came_up.wait()
                    return True
            info = await self._info(known)
            if info is None:
                continue
            if info.is_gone:
                await self._start_failed(host, known, info)
                return False
            if info.worker_id or known.is_withdrawn or loop.time() < began + WAITING_SECONDS:
                continue
            # Where there is room for it its runtime_env is being made or its process begins: either may take its time.
            if await self._is_there_room(options):
                waits_since = None
            elif waits_since is None:
                waits_since = loop.time()
                self._engine.post(e.HostWaited(host))
            elif loop.time() >= waits_since + self._placement:
                known.is_withdrawn = True
                await self._kill(known)
        return True

    async def _is_there_room(self, options: dict[str, Any]) -> bool:
        try:
            return await asyncio.to_thread(has_room, options)
        except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
            log.info("the GCS did not answer: %s", error)
            return True

    async def _info(self, known: _Host) -> ActorInfo | None:
        try:
            return await self._tables.actor(known.handle._actor_id.hex())  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing
            log.info("the GCS did not answer: %s", error)
            return None

    async def _start_failed(self, host: HostId, known: _Host, info: ActorInfo) -> None:
        if info.has_failed_to_start:
            self._post_failed(host, "HostStartFailed", info.cause)
            return
        # Killed while it came up, by us or by somebody else: its process must be known to be gone.
        known.worker_id, known.node_id = info.worker_id, info.node_id
        if known.worker_id:
            await self._is_confirmed_dead(known, asyncio.get_running_loop().time())
        self._hosts.pop(host, None)
        if known.is_withdrawn:
            self._engine.post(e.HostWithdrawn(host))
        else:
            hint = info.cause or "the process ended before it asked for work"
            is_charged = known.was_seen_dead or not known.worker_id
            await self._post_died(host, known, hint, is_charged=is_charged)

    def _post_failed(self, host: HostId, error_type: str, told: str) -> None:
        # Ray tells a whole traceback: the sentence that ends it says what is wrong.
        message = next(reversed(told.strip().splitlines()), "")
        failure = Failure(error_type, message[-MAX_TEXT:], traceback=told[-MAX_TEXT:])
        self._hosts.pop(host, None)
        self._engine.post(e.HostFailedToStart(host, failure))

    # A live host.

    async def _watch(self, host: HostId, known: _Host) -> None:
        """Until the host's death is confirmed. A call that fails is only a hint: unavailable is not dead."""
        while True:
            hint = ""
            try:
                await known.handle.watch.remote()
            except RayActorError as error:
                hint = str(error)
                # Its node may hang, or be cut off from the GCS alone: no call reaches it, but its own would go on.
                known.is_given_up = known.is_given_up or _is_dead(error)
            except RayError as error:
                log.info("host %r: %s", host, error)
                await asyncio.sleep(POLL_SECONDS)
                continue
            if known.is_ended:
                return
            if await self._is_confirmed_dead(known, asyncio.get_running_loop().time()):
                self._hosts.pop(host, None)
                await self._post_died(host, known, hint, is_charged=known.was_seen_dead)
                return

    async def _post_died(self, host: HostId, known: _Host, hint: str, *, is_charged: bool) -> None:
        is_last = is_charged and self._engine.machine.would_be_last(host)
        failure = await self._obituary(known, hint) if is_last else Failure("HostDied", hint[:MAX_TEXT])
        self._engine.post(e.HostDied(host, is_charged=is_charged, failure=failure))

    async def _obituary(self, known: _Host, hint: str) -> Failure:
        """What is told of a step that will not be tried again: what Ray knows, and what its process printed [S10]."""
        try:
            seen = await self._tables.exit_of(known.worker_id) if known.worker_id else None
        except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing
            log.info("the GCS did not answer: %s", error)
            seen = None
        told = await told_of(seen.detail if seen else hint, known.worker_id, known.node_id)
        return Failure("HostDied", told[:MAX_TEXT], node=known.node_id)

    async def _is_confirmed_dead(self, known: _Host, since: float) -> bool:
        """Ask the worker table until it says dead, or lease and margin have passed; False: the process lives."""
        loop = asyncio.get_running_loop()
        while loop.time() < max(since, known.answered_at) + self._patience:
            try:
                fate = await self._tables.fate(known.worker_id, known.node_id)
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing
                log.info("the GCS did not answer: %s", error)
                fate = Fate.UNKNOWN
            if fate is Fate.DEAD:
                known.was_seen_dead = True
                return True
            await asyncio.sleep(POLL_SECONDS / 10 if fate is Fate.ALIVE else POLL_SECONDS)
            if fate is Fate.ALIVE and loop.time() > since + ANSWER_SECONDS:
                return False
        return True

    async def _tell(self, known: _Host, call: Callable[[Any], Awaitable[Any]]) -> None:
        while not known.is_ended:
            try:
                await call(known.handle)
            except RayActorError as error:
                if _is_dead(error):
                    return  # the watcher tells
                await asyncio.sleep(POLL_SECONDS)
            except RayError:
                await asyncio.sleep(POLL_SECONDS)
            else:
                return

    async def _kill_for_certain(self, host: HostId, known: _Host, grace: float) -> None:
        """End a process from outside, and tell once its death is confirmed. The watcher keeps out of it."""
        loop = asyncio.get_running_loop()
        await known.created.wait()
        await self._until_callbacks_end(known, grace)
        if self._hosts.get(host) is not known:
            return  # its watcher has found it dead, and tells
        known.is_given_up = True
        while known.handle is not None:
            await self._kill(known)
            info = await self._info(known)
            if info is not None and info.is_gone:
                known.worker_id, known.node_id = info.worker_id, info.node_id
                if not known.worker_id or await self._is_confirmed_dead(known, loop.time()):
                    break
            await asyncio.sleep(POLL_SECONDS / 5)
        if self._hosts.pop(host, None) is not None:
            failure = Failure("HostEnded", "the host's process was ended from outside")
            self._engine.post(e.HostDied(host, is_charged=False, failure=failure))

    async def _until_callbacks_end(self, known: _Host, grace: float) -> None:
        """A host that does not say at once that a callback runs gets no grace."""
        until = asyncio.get_running_loop().time() + grace
        with contextlib.suppress(RayError, TimeoutError):
            while known.handle is not None and (left := until - asyncio.get_running_loop().time()) > 0:
                async with asyncio.timeout(min(left, POLL_SECONDS)):
                    if not await known.handle.is_in_callback.remote():
                        return
                await asyncio.sleep(min(left, POLL_SECONDS / 5))

    async def _kill(self, known: _Host) -> None:
        if known.watcher is not None and known.watcher is not asyncio.current_task():
            known.watcher.cancel()
        if known.handle is not None:
            with contextlib.suppress(ValueError, RayError):
                await asyncio.to_thread(end, known.handle)

    # After recovery.

    async def _inspect(self, group: Group, known: _Host) -> None:
        """Adopt the host if it has begun the run, else end it and wait until that is confirmed [S10.1]."""
        host = group.host
        name = host_actor(self._job_id, host)
        fence = self._engine.machine.document.fence
        with contextlib.suppress(ValueError):
            known.handle = await asyncio.to_thread(find, name, self._connection.ray_namespace)
        info = await self._found(name)
        if info is not None:
            known.worker_id, known.node_id = info.worker_id, info.node_id
        if known.handle is not None and await self._has_begun(known, group, fence):
            self._engine.post(e.HostCameUp(host))
            await self._watch(host, known)
            return
        known.is_given_up = True
        await self._kill(known)
        await self._until_gone(known, info)
        self._hosts.pop(host, None)
        failure = Failure("HostDied", info.cause if info else "the host was gone when the job came back")
        self._engine.post(e.HostDied(host, is_charged=False, failure=failure))

    async def _found(self, name: str) -> ActorInfo | None:
        while True:
            try:
                rows = await self._tables.actors(self._connection.ray_namespace)
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
                log.info("the GCS did not answer: %s", error)
                await asyncio.sleep(POLL_SECONDS)
                continue
            return next((row for row in rows if row.name == name), None)

    async def _has_begun(self, known: _Host, group: Group, fence: int) -> bool:
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    begun: bool = await known.handle.has_begun.remote(group.run, fence)
                    return begun
            except RayActorError as error:
                if _is_dead(error):
                    return False
            except (RayError, TimeoutError):
                pass
            info = await self._info(known)
            if info is not None and info.is_gone:
                return False
            await asyncio.sleep(POLL_SECONDS)

    async def _until_gone(self, known: _Host, info: ActorInfo | None) -> None:
        if info is not None and not info.worker_id and (await self._info_by_id(info)) is None:
            return
        if known.worker_id:
            while not await self._is_confirmed_dead(known, self._since):
                await self._kill(known)
            return
        # This cluster knows no process of that name: it may be one of a cluster that is cut off.
        left = self._since + self._patience - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, left))

    async def _info_by_id(self, info: ActorInfo) -> ActorInfo | None:
        """The actor if it may still get a process, None if Ray has withdrawn it."""
        while True:
            try:
                now = await self._tables.actor(info.actor_id)
            except Exception as error:  # noqa: BLE001 - a GCS that does not answer says nothing: ask again
                log.info("the GCS did not answer: %s", error)
            else:
                if now is None or (now.is_gone and not now.worker_id):
                    return None
                if now.worker_id:
                    return now
            await asyncio.sleep(POLL_SECONDS)


def _is_dead(error: RayActorError) -> bool:
    return type(error).__name__ == "ActorDiedError"
