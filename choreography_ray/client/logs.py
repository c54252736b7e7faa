"""Where is what a step printed? In files of the node where its host ran, for as long as Ray keeps them [S16]."""

from __future__ import annotations

import logging

from choreography_ray.actors.gcs import ActorInfo, RayTables
from choreography_ray.actors.last_words import output_tails
from choreography_ray.actors.names import host_actor
from choreography_ray.actors.ray_api import is_connected
from choreography_ray.model import HostId, JobId, JobStepStatus, StepOutput, StepRecord

log = logging.getLogger(__name__)


async def output_of(job_id: JobId, step: StepRecord, namespace: str, size: int) -> StepOutput:
    """The last `size` bytes of what the process that performs, or last performed, a step printed and logged.

    Where it cannot be had, `told` says why, and nothing is raised.
    """
    if not is_connected():
        return StepOutput(step_id=step.step_id, told="what a step printed is in files of its cluster: name the cluster")
    try:
        rows = await RayTables().actors(namespace)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the cluster is what there is to tell
        return StepOutput(step_id=step.step_id, told=f"the cluster did not say where the step ran: {error}")
    row = _host_of(job_id, step, rows)
    if row is None or not row.worker_id:
        return StepOutput(step_id=step.step_id, told=_why_not(step))
    known = StepOutput(step_id=step.step_id, host=row.name, node=row.node_id, pid=row.pid)
    try:
        out, err = await output_tails(row.worker_id, row.node_id, size)
    except Exception as error:  # noqa: BLE001 - the node may be gone, and its files with it
        log.info("the output of worker %s cannot be had: %s", row.worker_id, error)
        told = f"node {row.node_id[:12]} did not give the files of its process: {error}"
        return known.model_copy(update={"told": told})
    told = "" if out or err else "its process printed nothing, or Ray has deleted what it printed"
    if "/shared-" in row.name:
        told = (
            told
            or "its process performs many steps: what others of them printed is here too; log lines name their step"
        )
    return known.model_copy(update={"out": out, "err": err, "told": told})


def _host_of(job_id: JobId, step: StepRecord, rows: list[ActorInfo]) -> ActorInfo | None:
    """The actor that has the step; else the last of its own; else the process of its last failure."""
    if step.host is not None:
        return next((row for row in rows if row.name == step.host), None)
    own = host_actor(job_id, HostId(f"step{step.ordinal}-"))
    named = [row for row in rows if row.name.startswith(own)]
    if named:
        return max(named, key=lambda row: [int(number) for number in row.name.removeprefix(own).split(".")])
    failure, of_job = step.failure, host_actor(job_id, HostId(""))
    if failure is None or not failure.pid:
        return None
    place = (failure.pid, failure.node)
    return next((row for row in rows if (row.pid, row.node_id) == place and row.name.startswith(of_job)), None)


def _why_not(step: StepRecord) -> str:
    if step.status in (JobStepStatus.PREPARED, JobStepStatus.UNREACHABLE):
        return f"the step is {step.status}: as far as is known, no process has performed it"
    if step.status is JobStepStatus.COMPLETED_SUCCESSFULLY:
        return "the step succeeded, and which of the job's warm actors performed it is not kept"
    return "the cluster knows no process that performed the step: it may be one of a cluster that is gone"
