"""What is left of a removed job: in the store, in Ray, among the processes, in the throttle [S9.6, S14.5]?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pymongo
import pytest

from choreography_ray import Choreography, JobHandle, JobNotFound, JobStatus, StartJobError
from choreography_ray.actors.names import job_actor
from choreography_ray.model import JobId
from choreography_ray.storage.mongo import database_name
from tests.chaos.deeds import Deeds, Inside, await_true, held, live_actors, marks, order
from tests.support import is_alive


def check_nothing_left(client: Choreography, job: JobHandle, folder: Path) -> None:
    """No record in any collection names the job, and no actor, process or slot of it is there."""
    job_id = str(job.job_id)
    with pytest.raises(JobNotFound):
        job.record()
    assert records_of(client, job_id) == []
    names = (job_actor(JobId(job_id)), f"{job_id}/")
    await_true(lambda: not any(map(live_actors, names)), 20, f"no actor of {job_id} is left", pause=0.2)
    pids = {mark["pid"] for mark in marks(folder)}
    await_true(lambda: not any(map(is_alive, pids)), 10, f"no process of {job_id} is left")
    await_true(lambda: held(client, job) == 0, 10, f"no slot of {job_id} is held", pause=0.2)


def records_of(client: Choreography, job_id: str) -> list[str]:
    """Every document of the namespace in which the job's id is found, by collection.

    But for the note that it was removed, which stays until all that may still land of it has been swept.
    """
    connection = Inside(client).connection
    with pymongo.MongoClient(connection.mongo_url) as store:
        database = store[database_name(connection.namespace)]
        return [
            f"{name}: {str(document)[:200]}"
            for name in database.list_collection_names()
            for document in database[name].find()
            if name != "removed"
            and job_id in str({key: value for key, value in document.items() if not isinstance(value, bytes)})
        ]


def preparing(client: Choreography, folder: Path, job_id: str) -> JobHandle:
    """A job whose plan is not made yet."""
    request = order(folder, [{}], gate=str(folder / "never"))
    job = client.start(BackgroundDeeds, request, job_id=job_id)
    await_true(lambda: marks(folder, "preparing"), 30, "it is preparing")
    assert job.status() is JobStatus.PREPARING_JOB
    return job


def running(client: Choreography, folder: Path, job_id: str) -> JobHandle:
    """A job with two bodies at work."""
    job = client.start(Deeds, order(folder, [{"seconds": 60.0}] * 2 + [{}] * 2, "own"), job_id=job_id)
    await_true(lambda: len(marks(folder, "begin")) >= 2, 60, "bodies are at work")
    return job


def stopped(client: Choreography, folder: Path, job_id: str) -> JobHandle:
    """A job that was stopped in the middle."""
    job = client.start(Deeds, order(folder, [{}, {"seconds": 60.0}]), job_id=job_id)
    await_true(lambda: marks(folder, "told"), 60, "a step has ended")
    job.drain(timeout=30)
    assert job.status() is JobStatus.STOPPED
    return job


def completed(client: Choreography, folder: Path, job_id: str) -> JobHandle:
    """A job that ended, with a failed step, and is kept with its results."""
    job = client.start(Deeds, order(folder, [{}, {"fail_first": 9}]), job_id=job_id)
    assert job.wait(timeout=60, progress=False).status is JobStatus.COMPLETED_WITH_FAILURES
    return job


def failed(client: Choreography, folder: Path, job_id: str) -> JobHandle:
    """A job with a plan that names a step twice."""
    with pytest.raises(StartJobError):
        client.start(Deeds, order(folder, [{"key": "twice"}] * 2), job_id=job_id)
    job = client.job(job_id)
    assert job.status() is JobStatus.FAILED
    return job


class BackgroundDeeds(Deeds):
    """Its start returns at once."""

    start_steps_in_background = True


SITUATIONS: dict[str, Callable[[Choreography, Path, str], JobHandle]] = {
    make.__name__: make for make in (preparing, running, stopped, completed, failed)
}


def remove_in(client: Choreography, root: Path, situation: str, job_id: str) -> None:
    """Bring a job there, remove it, and look for what is left."""
    folder = root / job_id
    job = SITUATIONS[situation](client, folder, job_id)
    assert records_of(client, job_id)  # so that the look would see them
    job.remove(timeout=60)
    check_nothing_left(client, job, folder)
