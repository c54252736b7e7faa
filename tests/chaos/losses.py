"""Acknowledgements and reports that are lost, and job actors killed around every write: is each step counted once?"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from choreography_ray import Choreography, JobHandle, JobStatus
from tests.chaos.deeds import BriskDeeds, Inside, LostDeeds, await_true, held, marks, order, overlaps
from tests.chaos.faultpoints import Kill, Plan, Point, When, fired, folder_of, lines, write_plan

EVERY_POINT = [
    Kill(point=point, when=when) for point in Point if point is not Point.MARK for when in (When.BEFORE, When.AFTER)
]
"""Between each write of a group of outcomes and the next."""


class Healed(NamedTuple):
    """What a run met: seconds from start to end, kills, lost acknowledgements, hooks told more than once."""

    seconds: float
    kills: int
    lost: int
    told_again: int


def mixed(steps: int) -> list[dict[str, Any]]:
    """Deeds of which one in ten succeeds at its second attempt, and another one never."""
    return [{"fail_first": {3: 1, 7: 9}.get(n % 10, 0)} for n in range(steps)]


def lose_and_kill(
    client: Choreography,
    root: Path,
    job_id: str,
    steps: int,
    kills: list[Kill],
    lost: int,
    *,
    doubles: bool = False,
    job_class: type[BriskDeeds] = BriskDeeds,
) -> Healed:
    """Every acknowledgement is lost so many times, and the job actor killed at these points [P13]; reports come twice
    where it `doubles` them [P7].

    Each step is counted once, the hook's effect on the state is exactly once, no body runs again, a recount is equal.
    """
    write_plan(root, job_id, Plan(kills=kills, lost_acknowledgements=lost, doubles_reports=doubles))
    folder = folder_of(root, job_id)
    began = time.monotonic()
    job = client.start(job_class, order(folder, mixed(steps)), job_id=job_id)
    record = job.wait(timeout=60 + 15 * len(kills) + steps / 10, progress=False)
    seconds = time.monotonic() - began
    assert record.status is JobStatus.COMPLETED_WITH_FAILURES
    failed = sum(deed["fail_first"] == 9 for deed in mixed(steps))
    assert (record.progress.succeeded, record.progress.failed) == (steps - failed, failed)
    Inside(client).check_ended(job)
    begun = Counter((mark["key"], mark["attempt"]) for mark in marks(folder, "begin"))
    assert max(begun.values()) == 1
    assert not overlaps(folder)
    struck = fired(root, job_id)
    assert [(kill["point"], kill["when"]) for kill in struck] == [(kill.point, kill.when) for kill in kills]
    await_true(lambda: held(client, job) == 0, 20, "the throttle holds nothing of the job")
    told = Counter(mark["key"] for mark in marks(folder, "told"))
    return Healed(seconds, len(struck), len(lines(folder / "lost")), sum(n - 1 for n in told.values()))


def lose_every_report(client: Choreography, root: Path, job_id: str, steps: int) -> float:
    """No report ever arrives: the watchdog settles what was persisted. The seconds that it takes."""
    write_plan(root, job_id, Plan(drops_reports=True))
    folder = folder_of(root, job_id)
    began = time.monotonic()
    job = client.start(LostDeeds, order(folder, [{} for _ in range(steps)]), job_id=job_id)
    record = job.wait(timeout=60 + steps / 5, progress=False)
    assert record.status is JobStatus.COMPLETED_SUCCESSFULLY
    assert record.progress.succeeded == steps
    Inside(client).check_ended(job)
    assert max(Counter(mark["key"] for mark in marks(folder, "begin")).values()) == 1
    return time.monotonic() - began


def kill_job_actor(job: JobHandle) -> None:
    """kill -9 of the job actor's process; returns when it is gone."""
    from tests.support import is_alive

    name = job.record().actor_name
    pid = actor_pid(name)
    os.kill(pid, signal.SIGKILL)
    await_true(lambda: not is_alive(pid), 10, "the job actor's process is gone")


def actor_pid(name: str) -> int:
    """The process of an actor that is alive."""
    import ray._private.state

    found: list[int] = []

    def is_there() -> bool:
        rows = ray._private.state.actors().values()
        found[:] = [row["Pid"] for row in rows if row["Name"] == name and row["State"] == "ALIVE" and row["Pid"]]
        return bool(found)

    await_true(is_there, 30, f"the actor {name} is alive", pause=0.1)
    return found[0]
