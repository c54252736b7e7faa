"""How far back does a step go when its process is killed, again and again [S6.3]?"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel

from choreography_ray import (
    BlockingStepContext,
    Choreography,
    Job,
    JobsOptions,
    JobState,
    JobStatus,
    JobStep,
    JobStepState,
    StepDetails,
)
from tests.chaos.deeds import await_true
from tests.chaos.faultpoints import append, lines
from tests.chaos.faulty import faulty_client

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(1800)]

BATCHES = 10_000
KILLS = 10
FLUSH_SECONDS = 0.5


class Long(BaseModel):
    """A step of many batches."""

    log: str


class LongState(JobStepState):
    """How far it is."""

    log: str = ""
    position: int = 0


class LongStep(JobStep[Long, int, LongState]):
    """Reports each batch in a callback, with a debounced checkpoint, and tells the witness when that has returned."""

    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Long) -> None:
        self.state.log = request.log

    def perform_step(self, state: LongState, context: BlockingStepContext) -> int:
        log = Path(state.log)
        append(log, what="begin", position=state.position)
        append(log.with_suffix(".begins"), position=state.position)
        for position in range(state.position + 1, BATCHES + 1):
            context.invoke_on_actor(self._commit(context, position))
            append(log, what="reported", position=position)
        return BATCHES

    def _commit(self, context: BlockingStepContext, position: int) -> Callable[[], None]:
        def commit() -> None:
            self.state.position = position
            context.write_checkpoint_debounced()

        return commit


class CarefulStep(LongStep):
    """Each batch is durable."""

    checkpoint_after_every_batch = True


class LongJob(Job[Long, JobState]):
    """One such step; durable every hundred batches."""

    keep_after_completed = True
    step_class: type[LongStep] = LongStep
    options = JobsOptions(max_step_crashes=KILLS + 1, step_checkpoint_flush_interval=timedelta(0))

    def prepare_steps(self, request: Long) -> Iterator[StepDetails]:
        yield self.create_step(self.step_class, request)


class TimedJob(LongJob):
    """Durable by the timer only."""

    options = JobsOptions(
        max_step_crashes=KILLS + 1,
        step_checkpoint_batch_interval=1_000_000,
        step_checkpoint_flush_interval=timedelta(seconds=FLUSH_SECONDS),
    )


class CarefulJob(LongJob):
    """Durable with every batch."""

    step_class = CarefulStep


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster with a slot for each job."""
    folder = tmp_path_factory.mktemp("store")
    with faulty_client(folder, folder, slots=4) as connected:
        yield connected


def perform_and_kill(client: Choreography, job_class: type[LongJob], log: Path, seed: int) -> list[dict[str, Any]]:
    """Run the job; at ten random places its step's process is killed. The witness's lines."""
    random = Random(seed)
    job = client.start(job_class, Long(log=str(log)))
    for position in sorted(random.sample(range(BATCHES // 20, BATCHES - BATCHES // 20), KILLS)):
        await_true(lambda position=position: _reached(log) >= position, 300, f"batch {position}", pause=0.005)
        begins = lines(log.with_suffix(".begins"))
        os.kill(begins[-1]["pid"], signal.SIGKILL)
        await_true(lambda old=begins: len(lines(log.with_suffix(".begins"))) > len(old), 120, "it runs again")
    assert job.wait(timeout=300, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
    return lines(log)


def _reached(log: Path) -> int:
    """The last batch that the witness knows, read from the end of its file."""
    if not log.exists():
        return 0
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        tail = file.read().decode().splitlines()
    found = [line for line in tail[:-1] if line.startswith('{"what": "reported"')]
    return int(found[-1].split('"position": ')[1].split(",")[0]) if found else 0


def steps_back(seen: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """For each run after the first: how many reported batches it does again, and how old the first of them was when
    the last was reported, in seconds.
    """
    found: list[tuple[int, float]] = []
    reported: list[dict[str, Any]] = []
    for line in seen:
        if line["what"] == "reported":
            reported.append(line)
        elif reported:
            last = reported[-1]
            lost = [each for each in reported if each["position"] > line["position"]]
            found.append((last["position"] - line["position"], last["at"] - lost[0]["at"] if lost else 0.0))
            reported = [each for each in reported if each["position"] <= line["position"]]
    return found


def test_a_step_never_goes_back_further_than_its_checkpoints_allow(client: Choreography, tmp_path: Path) -> None:
    """Ten thousand batches, ten kills: less than a hundred batches lost each time, or what the timer allows, or none
    where every batch is a checkpoint.
    """
    jobs = {LongJob: 1, TimedJob: 2, CarefulJob: 3}
    with ThreadPoolExecutor() as pool:
        runs = {
            job: pool.submit(perform_and_kill, client, job, tmp_path / job.__name__, seed) for job, seed in jobs.items()
        }
    back = {job: steps_back(run.result()) for job, run in runs.items()}
    for job, found in back.items():
        print(job.__name__, "batches back:", [batches for batches, _ in found])
        assert len(found) == KILLS
    # One more than was told may be durable: the process died before it could tell the witness.
    assert all(-1 <= batches < 100 for batches, _ in back[LongJob])
    assert any(batches for batches, _ in back[LongJob])
    # The timer, and what the write itself takes on a busy machine.
    assert all(seconds < FLUSH_SECONDS + 1.0 for _, seconds in back[TimedJob])
    assert all(batches <= 0 for batches, _ in back[CarefulJob])
