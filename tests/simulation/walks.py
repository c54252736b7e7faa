"""Draws stories: from a seed, in one go, for the fast walker."""

from __future__ import annotations

import random

from choreography_ray.testing.faults import Cut, Fault, Wire
from tests.simulation.chaos import Blow, Plan, Story, Strike
from tests.simulation.jobs import KeptPieces, PassingPieces, Piece, Pieces, SilentPieces


def draw_story(seed: int) -> Story:
    """The story of a seed, always the same."""
    chance = random.Random(seed)
    rough = chance.random() < 0.6
    return Story(
        plans=tuple(_draw_plan(chance) for _ in range(chance.choice((1, 1, 2, 3)))),
        strikes=tuple(_draw_strike(chance) for _ in range(chance.randrange(7))),
        job_faults=tuple(_draw_fault(chance, 60) for _ in range(chance.choice((0, 0, 1, 3)))),
        host_faults=tuple(_draw_fault(chance, 40) for _ in range(chance.choice((0, 0, 1, 2)))),
        wire=_draw_wire(chance) if rough else Wire(),
        slots=chance.choice((1, 2, 3, 5)),
        seed=seed,
        failing=0.1 if chance.random() < 0.15 else 0.0,
        waiting=0.3 if chance.random() < 0.15 else 0.0,
    )


def _draw_plan(chance: random.Random) -> Plan:
    stages = sorted(chance.sample(range(-5, 30), chance.choice((1, 1, 2, 3))))
    attempts = chance.choice((1, 1, 2, 3))
    shared = chance.choice(((0,), (1,), (2,), (0, 1, 2)))
    pace = chance.choice((0.0, 0.2, 2.0, 40.0))
    fail = chance.choice((0.0, 0.2))
    pieces = [
        Piece(
            key=f"{stage}/{i}",
            stage=stage,
            seconds=pace * chance.random(),
            fail_first=chance.randrange(4) if chance.random() < fail else 0,
            shared=chance.choice(shared),
            checkpoints=chance.choice((0, 0, 3)),
        )
        for stage in stages
        for i in range(chance.randrange(1, 9))
    ]
    if chance.random() < 0.3:
        chance.shuffle(pieces)
    return Plan(
        job_class=chance.choice((Pieces, KeptPieces, PassingPieces, SilentPieces)),
        pieces=tuple(pieces),
        continue_stages=tuple(stage for stage in stages if chance.random() < 0.5),
        window=chance.choice((None, None, 1, 3)),
        attempts=attempts,
        backoff=chance.choice((0.0, 2.0, 20.0)),
        starts=chance.choice((1, 2, 16)),
        begins_at=chance.choice((0.0, 0.0, 5.0 * chance.random())),
        hook_seconds=chance.choice((0.0, 0.0, 0.0, 0.5)),
    )


def _draw_fault(chance: random.Random, most: int) -> Fault:
    kills, isolates = chance.choice(((True, False), (False, False), (False, True)))
    return Fault(chance.randrange(most), chance.choice(list(Cut)), kills, isolates)


def _draw_strike(chance: random.Random) -> Strike:
    return Strike(
        at=chance.choice((3.0, 20.0, 90.0)) * chance.random(),
        blow=chance.choice(list(Blow)),
        pick=chance.randrange(1000),
        seconds=chance.choice((1.0, 10.0, 45.0)) * (0.5 + chance.random()),
    )


def _draw_wire(chance: random.Random) -> Wire:
    return Wire(
        loss=chance.choice((0.0, 0.05, 0.2)),
        copies=chance.choice((0.0, 0.1)),
        late=chance.choice((0.0, 0.02)),
        stale=chance.choice((0.0, 0.5)),
    )
