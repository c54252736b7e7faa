"""The test of the tests: faults planted in the core and engine, each of which a random story must find.

A fault breaks one rule of PROTOCOLS. If no story fails with it, the simulation has gone blind there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from choreography_ray.core import commands as c
from choreography_ray.core import decisions
from choreography_ray.core.inbox import Inbox
from choreography_ray.core.ledger import Ledger
from choreography_ray.core.placing import Placing
from choreography_ray.core.slots import JobSlots
from choreography_ray.core.stages import Stages
from choreography_ray.core.throttle import SlotTable
from choreography_ray.core.turn import Turn
from choreography_ray.core.work import WorkQueue
from choreography_ray.engine.confirmation import Confirmation
from choreography_ray.engine.host_engine import HostEngine
from choreography_ray.engine.job_engine import JobEngine
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.faults import Cut, Fault, Wire
from choreography_ray.testing.loop import run
from tests.simulation.chaos import Blow, Plan, Story, Strike, play
from tests.simulation.jobs import KeptPieces, Piece, SilentPieces

Plant = Callable[[pytest.MonkeyPatch], None]


def story(
    seed: int, pace: float = 1.0, slots: int = 4, job_class: type[SilentPieces] = KeptPieces, **how: Any
) -> Story:
    """Two jobs with shared and own hosts, two stages and retries; their hooks take their time, or not."""
    pieces = [
        *(Piece(key=f"a{i}", seconds=pace * i, shared=i % 3, fail_first=i == 1, checkpoints=i % 2) for i in range(6)),
        *(Piece(key=f"b{i}", stage=5, seconds=pace * i, shared=1) for i in range(4)),
    ]
    plan = Plan(job_class, tuple(pieces), attempts=2, window=2, hook_seconds=0.2 if seed % 2 else 0.0)
    return Story((plan, replace(plan, window=None, begins_at=0.5)), slots=slots, seed=seed, **how)


def retrying(at: float) -> Story:
    """One step that fails twice and runs again at once; its job actor is killed while it does."""
    plan = Plan(KeptPieces, (Piece(key="a", seconds=20.0, fail_first=2),), attempts=3, backoff=0.0)
    return Story((plan,), strikes=(Strike(at, Blow.KILL_JOB),))


def awoken(at: int, cut: Cut) -> Story:
    """A job actor is cut off at a write, and wakes up beside its successor, where hosts can still reach it."""
    pieces = (*(Piece(key=f"a{i}", seconds=40.0, shared=i % 2) for i in range(3)), Piece(key="b", stage=5))
    return Story(
        (Plan(KeptPieces, pieces),),
        job_faults=(Fault(at, cut, kills=False, isolates=True),),
        wire=Wire(stale=0.8),
        seed=at,
    )


CALM = [story(seed, pace=0.3) for seed in range(2)]
COPIES = [story(seed, pace=0.3, wire=Wire(copies=0.6, loss=0.1)) for seed in range(6)]
CUTS = [story(at, pace=0.3, slots=3, job_faults=(Fault(at, Cut.AFTER, kills=True),)) for at in range(14, 44)]
SILENT_CUTS = [
    story(at, pace=0.3, slots=3, job_class=SilentPieces, job_faults=(Fault(at, cut, kills=True),))
    for at in range(14, 44)
    for cut in (Cut.BEFORE, Cut.AFTER)
]
ISLANDS = [
    Story(
        (Plan(KeptPieces, tuple(Piece(key=f"a{i}", seconds=200.0, shared=i % 2) for i in range(3))),),
        (Strike(5.0, Blow.CUT_NODE, pick=0, seconds=120.0),),
        seed=seed,
    )
    for seed in range(2)
]
RETRIES = [retrying(at) for at in (10.0, 25.0, 45.0)]  # well before the host of the attempt renews its lease
AWOKEN = [awoken(at, cut) for at in range(6, 22) for cut in (Cut.BEFORE, Cut.AFTER)]


STEP_STOPS = [
    story(
        seed,
        pace=2.0,
        slots=3,
        strikes=(
            *(Strike(1.0 + 0.7 * n, Blow.STOP_STEP, pick=n * 7 + seed) for n in range(8)),
            *((Strike(4.0 + seed % 5, Blow.KILL_JOB),) if seed % 2 else (Strike(3.0, Blow.KILL_HOST),)),
        ),
    )
    for seed in range(6)
]


def is_caught(stories: list[Story]) -> bool:
    """Whether any of the stories fails."""
    logging.disable(logging.CRITICAL)
    try:
        for one in stories:
            try:
                run(play(one))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                return True
        return False
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "stories",
    [CALM, COPIES, CUTS, SILENT_CUTS, ISLANDS, RETRIES, AWOKEN, STEP_STOPS],
    ids=["calm", "copies", "cuts", "silent cuts", "islands", "retries", "awoken", "step stops"],
)
def test_without_a_fault_none_of_these_stories_fails(stories: list[Story]) -> None:
    for one in stories:
        run(play(one))


def counts_twice(patch: pytest.MonkeyPatch) -> None:
    """A copy of a report is taken for a new outcome."""

    def take(self: Inbox, document: Any) -> list[Any]:
        self.note(document)
        self.left(document.key.run).difference_update(o.ordinal for o in document.outcomes)
        return [o for o in document.outcomes if self._ledger.assignment(o.ordinal) is not None]

    patch.setattr(Inbox, "take", take)


def opens_the_barrier_early(patch: pytest.MonkeyPatch) -> None:
    """A stage is taken for over with one step left."""
    patch.setattr(Stages, "_is_over", lambda self, stage: stage is not None and self._job.ledger.open_steps(stage) <= 1)


def forgets_a_slot(patch: pytest.MonkeyPatch) -> None:
    """A run's slots are not given back when it is over."""
    patch.setattr(JobSlots, "release", lambda self, host, run: run.counter % 4 != 0 and bool(_release(self, host, run)))


_release = JobSlots.release


def grants_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """The throttle miscounts."""
    patch.setattr(SlotTable, "held", property(lambda self: sum(a.count for a in self._accounts.values()) - 1))


def skips_the_ledger(patch: pytest.MonkeyPatch) -> None:
    """Assignments are told and not saved."""
    carry_out = JobEngine._carry_out

    async def skipping(self: JobEngine, command: c.Command) -> None:
        if not isinstance(command, c.SaveLedger):
            await carry_out(self, command)

    patch.setattr(JobEngine, "_carry_out", skipping)


def tells_before_it_saves(patch: pytest.MonkeyPatch) -> None:
    """Messages leave before the writes that they rest on."""
    commands = Turn.commands
    patch.setattr(Turn, "commands", lambda self: [*self.messages, *commands(self)[: -len(self.messages) or None]])


def drops_the_journal(patch: pytest.MonkeyPatch) -> None:
    """The decision is not written with the counts."""
    save_job = MemoryStorage.save_job

    async def forgetting(self: MemoryStorage, document: Any, changed: Any) -> bool:
        return await save_job(self, replace(document, journal=()), changed)

    patch.setattr(MemoryStorage, "save_job", forgetting)


def drops_outcomes_too_early(patch: pytest.MonkeyPatch) -> None:
    """Outcome documents go while the decision about them is being carried out."""
    drop, commands = Inbox.drop, Turn.commands

    def hurried(self: Turn) -> list[c.Command]:
        ordered = commands(self)
        return sorted(ordered, key=lambda command: not isinstance(command, c.DeleteOutcomes))

    patch.setattr(Inbox, "drop", lambda self, journal: drop(self, ()))
    patch.setattr(Turn, "commands", hurried)


def ignores_the_run(patch: pytest.MonkeyPatch) -> None:
    """A decision is repeated although the ledger shows another run."""

    def still_shown(ledger: Ledger, entry: Any, run: Any) -> Any:
        for i, ordinal in enumerate(entry.ordinals):
            if ledger.assignment(ordinal) is not None:
                yield ordinal, entry.dues[i] if entry.dues else None

    patch.setattr(decisions, "_still_shown", still_shown)


def hands_an_outcome_to_hooks_twice(patch: pytest.MonkeyPatch) -> None:
    """What was decided stays in the inbox."""
    patch.setattr(Inbox, "put", lambda self, item: None)


def ignores_the_window(patch: pytest.MonkeyPatch) -> None:
    """More steps are active than the job allows."""
    patch.setattr(Placing, "_room", property(lambda self: len(self._job.ledger)))


def performs_a_run_twice(patch: pytest.MonkeyPatch) -> None:
    """A host that is told a group again begins it again."""
    accept = HostEngine.accept

    def accepting(self: HostEngine, work: Any) -> bool:
        self._last_run = type(work.run)(0, 0)
        return accept(self, work)

    patch.setattr(HostEngine, "accept", accepting)


def writes_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """The store lets a job actor write that was replaced."""
    save_job, save_ledger = MemoryStorage.save_job, MemoryStorage.save_ledger

    async def job(self: MemoryStorage, document: Any, changed: Any) -> bool:
        there = self._documents[document.job_id]
        return await save_job(self, replace(document, fence=there.fence, save=there.save + 1), changed)

    async def ledger(self: MemoryStorage, job_id: Any, segments: Any) -> bool:
        kept = self._job(job_id).ledger
        mine = [replace(s, fence=kept[s.index].fence, save=kept[s.index].save + 1) for s in segments]
        return await save_ledger(self, job_id, mine)

    patch.setattr(MemoryStorage, "save_job", job)
    patch.setattr(MemoryStorage, "save_ledger", ledger)


def leases_without_being_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A job actor that was cut off keeps its hosts alive, and gives new ones work."""
    patch.setattr(Confirmation, "left", lambda self: self._lease)
    patch.setattr(Confirmation, "keep_asking", lambda self, question, interval: None)


def gives_a_place_to_what_is_to_stop(patch: pytest.MonkeyPatch) -> None:
    """A step whose stop is being decided stays in the queue."""
    withdraw = WorkQueue.withdraw

    def copying(self: WorkQueue, ordinal: int) -> int | None:
        later, singles = list(self._later), deque(self._singles)
        attempt = withdraw(self, ordinal)
        self._later, self._singles = later, singles
        self._withdrawn.discard(ordinal)
        return attempt

    patch.setattr(WorkQueue, "withdraw", copying)


def runs_for_ever_beside_stopped_steps(patch: pytest.MonkeyPatch) -> None:
    """The job does not come to rest when only steps that were stopped are left of its stage."""
    patch.setattr(Stages, "_is_stopped", lambda self, stage: False)


@pytest.mark.parametrize(
    ("plant", "stories"),
    [
        (counts_twice, COPIES),
        (opens_the_barrier_early, CALM),
        (forgets_a_slot, CALM),
        (grants_one_too_many, CALM),
        (skips_the_ledger, CALM),
        (tells_before_it_saves, CALM),
        (drops_the_journal, CUTS),
        (drops_outcomes_too_early, CUTS),
        (drops_outcomes_too_early, SILENT_CUTS),
        (ignores_the_run, RETRIES),
        (hands_an_outcome_to_hooks_twice, CALM),
        (ignores_the_window, CALM),
        (performs_a_run_twice, COPIES),
        (writes_without_a_fence, AWOKEN),
        (leases_without_being_confirmed, ISLANDS),
        (gives_a_place_to_what_is_to_stop, STEP_STOPS),
        (runs_for_ever_beside_stopped_steps, STEP_STOPS),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_planted_fault_is_found(plant: Plant, stories: list[Story], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert is_caught(stories), f"no story found the fault: {plant.__doc__}"
