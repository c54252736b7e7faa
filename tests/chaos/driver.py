"""A driver that is told line by line what to do: a JSON list of a command and its arguments; it answers with a line."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import ray

from choreography_ray import Choreography, ChoreographyError, ClusterOptions, JobsOptions, StepStopError
from choreography_ray.actors.names import ray_namespace
from tests.chaos.cluster import ANSWER
from tests.chaos.jobs import ChaosJob, Load

LEASE = float(os.environ.get("CHAOS_LEASE", "30"))
CLUSTER = ClusterOptions(
    max_parallel_steps=int(os.environ.get("CHAOS_SLOTS", "6")), step_lease_timeout=timedelta(seconds=LEASE)
)
OPTIONS = JobsOptions(
    max_step_attempts=2,
    max_step_crashes=10_000,  # kills are no fault of the steps
    max_job_crashes=10_000,
    job_watchdog_interval=timedelta(seconds=5),
    step_stop_timeout=timedelta(seconds=2),
)


class Commands:
    """What a driver can be told."""

    def __init__(self) -> None:
        self._client = Choreography.connect(options=OPTIONS, cluster=CLUSTER)

    def ping(self) -> str:
        """It is connected."""
        return "pong"

    def start(self, load: dict[str, Any], job_id: str) -> str | None:
        """Start a job; its start error."""
        return self._client.start(ChaosJob, Load.model_validate(load), job_id=job_id).start_error

    def wait(self, job_id: str, timeout: float) -> str:
        """Wait for a job; its status."""
        return self._client.job(job_id).wait(timeout=timeout, progress=False).status

    def stop(self, job_id: str) -> None:
        """Stop a job."""
        self._client.job(job_id).stop()

    def stop_step(self, job_id: str, step_id: str, answer_timeout: float) -> str:
        """Stop one step; its status, or why its stop is not confirmed."""
        try:
            return self._client.job(job_id).step(step_id).stop(answer_timeout)
        except StepStopError as error:
            return error.reason

    def remove(self, job_id: str) -> None:
        """Remove a job."""
        self._client.job(job_id).remove()

    def status(self, job_id: str) -> str:
        """Where a job stands."""
        return self._client.job(job_id).status()

    def throttle(self) -> dict[str, Any] | None:
        """The throttle's table."""
        return self._client.throttle()

    def actors(self) -> list[str]:
        """The named actors of the namespace that are not dead."""
        rows = ray.util.list_named_actors(all_namespaces=True)
        return sorted(row["name"] for row in rows if row["namespace"] == ray_namespace("default"))

    def races(self, load: dict[str, Any], job_id: str, times: int) -> list[str]:
        """Start and remove a job of one id so many times; what happened to each try.

        Another driver does the same, and a job that it has started is in the way: the one that is refused tries again.
        """
        told: list[str] = []
        asked = Load.model_validate(load)
        while told.count("started") < times:
            try:
                job = self._client.start(ChaosJob, asked, job_id=job_id)
            except ChoreographyError as error:
                told.append(str(getattr(error, "reason", type(error).__name__)))
                time.sleep(0.05)
            else:
                told.append("started")
                job.remove()
        return told


def main() -> None:
    """Do what is told until nothing more comes."""
    commands = Commands()
    for line in sys.stdin:
        what, arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"value": getattr(commands, what)(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(ANSWER + json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
