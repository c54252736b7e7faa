"""Does each thing that must hold tell when it does not? For every one of them a fault that breaks it is planted.

The faults of `test_planted_faults` break rules; any sign of them will do. Here the sign itself is asked for.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core import ledger as ledgers
from choreography_ray.core import situation
from choreography_ray.core.decisions import CODE_OF
from choreography_ray.core.ledger import Ledger
from choreography_ray.core.situation import Situation
from choreography_ray.core.step_stops import StepStops
from choreography_ray.core.stopping import Stopping
from choreography_ray.core.throttle import SlotTable
from choreography_ray.core.turn import Turn
from choreography_ray.engine.plans import Plans
from choreography_ray.model import JobStatus, JobStepStatus
from choreography_ray.records import Counts, Decision, StepCode
from choreography_ray.storage.memory import MemoryStorage
from choreography_ray.testing.hosts import SimHost
from choreography_ray.testing.loop import run
from tests.simulation import invariants, test_planted_faults, world
from tests.simulation.chaos import Blow, Plan, Story, Strike, play
from tests.simulation.jobs import KeptPieces, PassingPieces, Piece, SilentPieces, Work
from tests.simulation.test_planted_faults import AWOKEN, CALM, COPIES, RETRIES, STEP_STOPS, story

Plant = Callable[[pytest.MonkeyPatch], None]

SILENT = [story(seed, pace=0.3, job_class=SilentPieces) for seed in range(2)]
STOPPED = [story(seed, pace=4.0, strikes=(Strike(3.0 + seed, Blow.STOP),)) for seed in range(4)]
STUBBORN = [
    Story((Plan(KeptPieces, (Piece(key="a", seconds=30.0, stubborn=True),)),), strikes=(Strike(5.0, Blow.STOP),))
]
FAILING = [Story((Plan(KeptPieces, (Piece(key="a", fail_first=9), Piece(key="b", seconds=1.0)), attempts=2),))]
ROOMY = [story(1, pace=0.3, slots=40)]
PASSING = [Story((Plan(PassingPieces, (Piece(key="a"), Piece(key="b"))),))]
KILLED = [
    Story(
        (Plan(KeptPieces, (Piece(key="a", seconds=40.0, checkpoints=4),)),),
        strikes=(Strike(25.0, Blow.KILL_HOST),),
    )
]


def told_of(stories: list[Story]) -> Iterator[str]:
    """What the witnesses of each story have to say."""
    logging.disable(logging.CRITICAL)
    try:
        for one in stories:
            try:
                run(play(one))
            except Exception as error:
                yield f"{type(error).__name__}: {error}"
            yield from Work.world.violations
    finally:
        logging.disable(logging.NOTSET)


# Faults.


def a_stale_job_is_written(patch: pytest.MonkeyPatch) -> None:
    save_job = MemoryStorage.save_job

    async def overwriting(self: MemoryStorage, document: Any, changed: Any) -> bool:
        if self._documents[document.job_id].fence > document.fence:
            self._documents[document.job_id] = document
            return True
        return await save_job(self, document, changed)

    patch.setattr(MemoryStorage, "save_job", overwriting)


def a_stale_ledger_is_written(patch: pytest.MonkeyPatch) -> None:
    save_ledger = MemoryStorage.save_ledger

    async def overwriting(self: MemoryStorage, job_id: Any, segments: Any) -> bool:
        kept = self._job(job_id).ledger
        for segment in segments:
            if kept[segment.plan, segment.index].fence > segment.fence:
                kept[segment.plan, segment.index] = segment
                return True
        return await save_ledger(self, job_id, segments)

    a_stale_job_is_written(patch)
    patch.setattr(MemoryStorage, "save_ledger", overwriting)


def no_table_is_asked_of_jobs(patch: pytest.MonkeyPatch) -> None:
    change_status = Situation.change_status

    def wrong(self: Situation, status: JobStatus, *rest: Any, **named: Any) -> None:
        ended = status is JobStatus.COMPLETED_SUCCESSFULLY
        change_status(self, JobStatus.PREPARING_STEPS if ended else status, *rest, **named)

    patch.setattr(situation, "check_job", lambda before, after: None)
    patch.setattr(Situation, "change_status", wrong)


def no_table_is_asked_of_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledgers, "check_step", lambda before, after: None)
    patch.setitem(CODE_OF, Decision.SUCCEEDED, StepCode.UNREACHABLE)  # type: ignore[arg-type]


def the_counts_forget_successes(patch: pytest.MonkeyPatch) -> None:
    def forgetting(stages: Any) -> Counts:
        counts = ledgers.total(stages)
        return replace(counts, succeeded=counts.succeeded % 3)

    patch.setattr(situation, "total", forgetting)


def successes_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    def doubling(stages: Any) -> Counts:
        counts = ledgers.total(stages)
        return replace(counts, succeeded=2 * counts.succeeded)

    patch.setattr(situation, "total", doubling)


def journals_stay(patch: pytest.MonkeyPatch) -> None:
    change = Turn.change

    def changing(self: Turn, **fields: Any) -> None:
        change(self, **{name: value for name, value in fields.items() if name != "journal" or value})

    patch.setattr(Turn, "change", changing)


def a_stop_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stopping, "pursue", lambda self, time: self.is_pursued)


def what_is_over_stays_assigned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_leave", lambda self, ordinal: None)


def a_final_step_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Of each ledger that is saved, from the second save on, what has succeeded is prepared."""
    take_changes = Ledger.take_changes

    def forgetting(self: Ledger, fence: int) -> Any:
        return tuple(
            replace(s, codes=s.codes.replace(bytes([StepCode.COMPLETED_SUCCESSFULLY]), bytes([StepCode.PREPARED])))
            if s.save % 5 == 0
            else s
            for s in take_changes(self, fence)
        )

    patch.setattr(Ledger, "take_changes", forgetting)


def a_job_ends_with_one_step_left(patch: pytest.MonkeyPatch) -> None:
    open_steps = Ledger.open_steps
    patch.setattr(Ledger, "open_steps", lambda self, stage=None: max(0, open_steps(self, stage) - 1))


def failures_are_not_saved(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: MemoryStorage, job_id: Any, failures: Any) -> None:
        pass

    patch.setattr(MemoryStorage, "save_failures", nothing)


def results_are_not_saved(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: MemoryStorage, job_id: Any, results: Any) -> None:
        pass

    patch.setattr(MemoryStorage, "save_results", nothing)


def nothing_is_cleared(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: MemoryStorage, job_id: Any, fence: Any, **_: Any) -> None:
        pass

    patch.setattr(MemoryStorage, "clear_job", nothing)


def a_host_begins_from_the_start(patch: pytest.MonkeyPatch) -> None:
    work = Plans.work

    async def fresh(self: Plans, group: Any, kind: Any, **named: Any) -> Any:
        return await work(self, group, kind, **{**named, "is_again": False})

    patch.setattr(Plans, "work", fresh)


def hosts_are_not_ended(patch: pytest.MonkeyPatch) -> None:
    """Neither by their job, nor by the kernel when their leases do, nor by themselves."""
    commands = Turn.commands
    patch.setattr(Turn, "commands", lambda self: [one for one in commands(self) if not isinstance(one, c.EndHost)])
    patch.setattr(SimHost, "live_until", lambda self, seconds: None)
    patch.setattr(SimHost, "end", lambda self: None)


def slots_of_jobs_that_are_gone_stay(patch: pytest.MonkeyPatch) -> None:
    test_planted_faults.forgets_a_slot(patch)
    patch.setattr(SlotTable, "_is_silenced_since", lambda self, left_at: False)


def a_stop_of_a_step_is_answered_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    def ask(self: StepStops, event: e.StepStopAsked, time: Any) -> None:
        self._job.turn.say(c.Answer((event.receipt,), JobStepStatus.STOPPED))

    patch.setattr(StepStops, "ask", ask)


PLANTED: dict[str, tuple[Plant, list[Story]]] = {
    # invariants.py
    "its fence fell": (a_stale_job_is_written, AWOKEN),
    " followed ": (no_table_is_asked_of_jobs, CALM),
    "it counted ": (the_counts_forget_successes, CALM),
    "it counts ": (successes_are_counted_twice, CALM),
    "it completed with decisions": (journals_stay, CALM),
    "its stop was accounted with decisions": (journals_stay, STOPPED),
    "its stop was accounted while ": (a_stop_does_not_wait, STOPPED),
    "steps are assigned twice": (what_is_over_stays_assigned, RETRIES),
    " are scheduled, ": (what_is_over_stays_assigned, CALM),
    "the fence of segment ": (a_stale_ledger_is_written, AWOKEN),
    "step 0: UNREACHABLE followed SCHEDULED": (no_table_is_asked_of_steps, CALM),
    " is open again without a mark": (a_final_step_is_forgotten, CALM),
    " ended [S5.2]": (test_planted_faults.opens_the_barrier_early, CALM),
    " steps have no outcome": (a_job_ends_with_one_step_left, CALM),
    "its stop was accounted, and steps are scheduled": (a_stop_does_not_wait, STOPPED),
    "verify finds ": (failures_are_not_saved, FAILING),
    # world.py
    " bodies at once": (test_planted_faults.grants_one_too_many, CALM),
    "two bodies of ": (test_planted_faults.performs_a_run_twice, COPIES),
    " in its window": (test_planted_faults.ignores_the_window, CALM),
    " begins although somebody was told": (a_stop_of_a_step_is_answered_and_forgotten, STEP_STOPS),
    " began without its durable SCHEDULED": (test_planted_faults.skips_the_ledger, CALM),
    " of earlier stages had ended": (test_planted_faults.opens_the_barrier_early, CALM),
    " was durable": (a_host_begins_from_the_start, KILLED),
    # check.py
    "hosts are left": (hosts_are_not_ended, PASSING),
    "the throttle holds ": (slots_of_jobs_that_are_gone_stay, ROOMY),
    "FindingKind.RESULT": (results_are_not_saved, CALM),
    "FindingKind.REMAINS": (nothing_is_cleared, PASSING),
}


@pytest.mark.parametrize("sign", PLANTED)
def test_what_must_hold_tells_when_it_does_not(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, stories = PLANTED[sign]
    plant(monkeypatch)
    told: list[str] = []
    for each in told_of(stories):
        told.append(each)
        if sign in each:
            return
    pytest.fail(f"nobody says {sign!r}, but {told[:5]}")


@pytest.mark.parametrize("stories", [SILENT, STOPPED, STUBBORN, FAILING, PASSING, KILLED])
def test_without_a_fault_nobody_says_anything(stories: list[Story]) -> None:
    assert list(told_of(stories)) == []


@pytest.mark.parametrize("module", [invariants, world])
def test_each_of_them_is_broken_by_some_fault(module: Any) -> None:
    """Whoever adds something that must hold adds what breaks it."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    demands = [
        ast.unparse(node.args[-1])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_demand"
    ]
    assert len(demands) > 5
    missing = [each for each in demands if not any(sign in each for sign in PLANTED) and "{what}" not in each]
    assert not missing
