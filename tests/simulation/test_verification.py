"""A verification that looks on while jobs work, crash, stop and resume never takes what is under way for a fault."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from choreography_ray.engine.rest import RequestKind
from choreography_ray.engine.verification import verify_job
from choreography_ray.model import FindingKind, JobId, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import SEGMENT_STEPS, StepCode
from choreography_ray.testing.asking import ask, rest, retry
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.loop import run
from tests.simulation.chaos import play
from tests.simulation.jobs import KeptPieces, PassingPieces, Piece, SilentPieces, Work, batch
from tests.simulation.walks import draw_story
from tests.simulation.world import World


class Reader:
    """The store as somebody reads it from far away: between any two reads, and before each answer, things go on."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._world.store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(self._world.random.random() * 0.004)
            value = await method(*args, **kwargs)
            await asyncio.sleep(self._world.random.random() * 0.004)
            return value

        return call


async def look_on(world: World, told: Counter[str] | None = None) -> None:
    """Verify every job again and again; each error is a violation."""
    reader: Any = Reader(world)
    while True:
        for job_id, job in list(world.jobs.items()):
            verified = await verify_job(reader, job_id)
            is_woken = bool(job.zombies)
            world.violations += [
                f"{world.now:.3f}: {verified.status} {finding}"
                for finding in verified.findings
                if not (finding.is_debris or (is_woken and finding.kind is FindingKind.REMAINS))
            ]
            if told is not None:
                told["looks"] += 1
                told["at work"] += verified.status is JobStatus.RUNNING
                told["exact"] += verified.status is JobStatus.RUNNING and not verified.unchecked
        await asyncio.sleep(world.random.random() ** 3)


WAKES_TO_DIE = 1715
"""A process that was cut off wakes when its job is over, and is killed at its first write."""


@pytest.mark.parametrize("seed", [*range(20), WAKES_TO_DIE])
def test_nothing_is_found_while_anything_happens(seed: int) -> None:
    run(play(draw_story(seed), look_on))


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_nothing_is_found_while_anything_happens_for_long(block: int) -> None:
    for seed in range(1_000 + block * 25, 1_025 + block * 25):
        run(play(draw_story(seed), look_on))


PIECES = [
    *(Piece(key=f"a{i}", seconds=0.02, shared=1, fail_first=i % 3) for i in range(30)),
    *(Piece(key=f"b{i}", stage=1, seconds=0.3) for i in range(4)),
]


@pytest.mark.parametrize("kind", [KeptPieces, SilentPieces])
def test_most_looks_at_a_job_at_work_are_exact(kind: type[SilentPieces]) -> None:
    """Else it would find nothing because it dares to say nothing. The counts of one kind follow their ledger."""
    told: Counter[str] = Counter()

    async def story() -> None:
        world = World(slots=3)
        Work.world = world
        options = JobsOptions(max_step_attempts=2)
        world.spawn(look_on(world, told))
        job = await world.start(kind, batch(PIECES, [0]), options=options)
        await job.ended
        assert not world.violations, world.violations[:3]

    run(story())
    assert told["at work"] >= 10
    assert told["exact"] > told["at work"] / 2, told


@pytest.mark.parametrize("cut", list(Cut))
def test_nothing_is_found_around_a_retry_of_failed_steps_and_a_removal(cut: Cut) -> None:
    """Under marks, between the writes of a retry, and while records are deleted; over a crash at every third write."""

    async def story(fault: Fault | None) -> int:
        world = World(job_faults=[fault] if fault else [])
        Work.world = world
        world.spawn(look_on(world))
        pieces = [replaced.model_copy(update={"stage": 0}) for replaced in PIECES[:12]]
        job = await world.start(KeptPieces, batch(pieces), options=JobsOptions())
        if await rest(job) is JobStatus.COMPLETED_WITH_FAILURES:
            await ask(job, retry())
            await rest(job)
        await ask(job, RequestKind.STOP)
        await ask(job, RequestKind.REMOVE)
        await asyncio.sleep(1.0)
        assert not world.violations, world.violations[:3]
        verified = await verify_job(world.store, JobId("job"))
        assert (verified.status, verified.findings) == (None, ())
        return world.job_writes[0]

    writes = run(story(None))
    assert writes > 30
    for at in range(list(Cut).index(cut), writes, 3):
        run(story(Fault(at, cut, kills=True)))


# Planted faults: each kind of wrong that a verification is there for, made by hand in a store that was right.


async def finished(job_class: type, pieces: list[Piece], **options: Any) -> World:
    world = World()
    Work.world = world
    job = await world.start(job_class, batch(pieces), options=JobsOptions(**options))
    await job.ended
    assert (await verify_job(world.store, JobId("job"))).findings == ()
    return world


MIXED = [Piece(key=f"s{i}", shared=1, fail_first=i % 2) for i in range(6)]
JOB = JobId("job")


def lose(name: str, place: Any) -> Any:
    def plant(world: World) -> None:
        kept = getattr(world.store._job(JOB), name)
        del kept[place if place in kept else (world.store._documents[JOB].plan.fence, place)]

    return plant


def change_ledger(code: StepCode, ordinal: int) -> Any:
    def plant(world: World) -> None:
        ledger = world.store._job(JOB).ledger
        ((place, segment),) = ledger.items()
        codes = bytearray(segment.codes)
        codes[ordinal] = code
        ledger[place] = replace(segment, codes=bytes(codes))

    return plant


def change_job(**fields: Any) -> Any:
    def plant(world: World) -> None:
        world.store._documents[JOB] = replace(world.store._documents[JOB], **fields)

    return plant


def rename(name: str, ordinal: int) -> Any:
    def plant(world: World) -> None:
        kept = getattr(world.store._job(JOB), name)
        kept[ordinal] = replace(kept[ordinal], step_id="other")

    return plant


@pytest.mark.parametrize(
    ("plant", "kind", "ordinal"),
    [
        (lose("failures", 1), FindingKind.FAILED_STEP, 1),
        (lose("results", 2), FindingKind.RESULT, 2),
        (rename("results", 2), FindingKind.RESULT, 2),
        (rename("failures", 3), FindingKind.FAILED_STEP, 3),
        (lose("ledger", 0), FindingKind.LEDGER, None),
        (change_ledger(StepCode.COMPLETED_WITH_FAILURE, 0), FindingKind.COUNTS, None),
        (change_ledger(StepCode.SCHEDULED, 4), FindingKind.LEDGER, 4),
        (change_ledger(StepCode.PREPARED, 4), FindingKind.STATUS, None),
        (change_job(mark="resume"), FindingKind.STATUS, None),
        (change_job(status=JobStatus.COMPLETED_SUCCESSFULLY), FindingKind.STATUS, None),
    ],
)
def test_a_planted_fault_is_found(plant: Any, kind: FindingKind, ordinal: int | None) -> None:
    async def story() -> None:
        world = await finished(KeptPieces, MIXED)
        plant(world)
        verified = await verify_job(world.store, JOB)
        assert not verified.is_ok
        assert any((f.kind, f.ordinal) == (kind, ordinal) for f in verified.findings), verified.findings

    run(story())


def test_a_segment_that_is_not_prepared_is_found_and_a_job_that_is_being_cleared_is_no_fault() -> None:
    """Clearing begins with what was prepared: when all of that is gone, the job's actor died while it cleared."""

    async def story() -> None:
        world = await finished(KeptPieces, [Piece(key=str(i), shared=1) for i in range(SEGMENT_STEPS + 1)])
        prepared = world.store._job(JOB).prepared
        del prepared[next(place for place in prepared if place[1] == 1)]
        verified = await verify_job(world.store, JOB)
        assert [f.kind for f in verified.findings] == [FindingKind.PREPARED]
        prepared.clear()
        verified = await verify_job(world.store, JOB)
        assert (verified.findings, len(verified.unchecked)) == ((), 1)

    run(story())


def test_what_remains_of_a_cleared_and_of_a_removed_job_is_found() -> None:
    """Only the summary, and kept results, are left of a cleared job; of a removed one nothing."""

    async def story() -> None:
        world = await finished(PassingPieces, MIXED)
        kept = world.store._job(JOB)
        lost = kept.results.pop(0)
        verified = await verify_job(world.store, JOB)
        assert [f.kind for f in verified.findings] == [FindingKind.REMAINS]
        kept.results[0] = lost
        world.store._documents.pop(JOB)
        verified = await verify_job(world.store, JOB)
        assert (verified.status, verified.is_ok) == (None, False)
        assert "3 records of its results" in verified.findings[0].stored

    run(story())


def test_findings_are_bounded_and_counted() -> None:
    async def story() -> None:
        world = await finished(KeptPieces, [Piece(key=str(i), shared=1) for i in range(1_200)])
        world.store._job(JOB).results.clear()
        verified = await verify_job(world.store, JOB)
        assert verified.errors == 1_200
        assert len(verified.findings) == 1_000

    run(story())
