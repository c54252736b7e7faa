"""How does a failing story become a short one? Whatever it does not need is left out, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from choreography_ray.testing.faults import CALM
from tests.simulation.chaos import Plan, Story
from tests.simulation.jobs import Piece


def shrunk(story: Story, fails: Callable[[Story], bool], most: int = 2_000) -> Story:
    """The smallest story found that still fails, after at most so many tries."""
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in simpler(story):
            tries += 1
            if tries > most:
                return story
            if fails(candidate):
                story, is_smaller = candidate, True
                break
    return story


def simpler(story: Story) -> Iterator[Story]:
    """Each with one thing less, the large things first."""
    for i, _ in enumerate(story.plans[1:] and story.plans):
        yield replace(story, plans=_without(story.plans, i))
    if story.wire != CALM:
        yield replace(story, wire=CALM)
    for field in ("strikes", "job_faults", "host_faults"):
        items = getattr(story, field)
        if items:
            yield replace(story, **{field: ()})
        for i, _ in enumerate(items[1:] and items):
            yield replace(story, **{field: _without(items, i)})
    for field in ("loss", "copies", "late", "stale"):
        if getattr(story.wire, field):
            yield replace(story, wire=replace(story.wire, **{field: 0.0}))
    for field in ("failing", "waiting"):
        if getattr(story, field):
            yield replace(story, **{field: 0.0})
    for i, plan in enumerate(story.plans):
        for plainer in _simpler_plans(plan):
            yield replace(story, plans=(*story.plans[:i], plainer, *story.plans[i + 1 :]))


def _simpler_plans(plan: Plan) -> Iterator[Plan]:
    pieces = plan.pieces
    if len(pieces) > 3:
        yield replace(plan, pieces=pieces[: len(pieces) // 2])
        yield replace(plan, pieces=pieces[len(pieces) // 2 :])
    for i, _ in enumerate(pieces[1:] and pieces):
        yield replace(plan, pieces=_without(pieces, i))
    plain = Plan(plan.job_class, pieces)
    for field in ("continue_stages", "window", "attempts", "starts", "begins_at", "hook_seconds", "backoff"):
        if getattr(plan, field) != getattr(plain, field):
            yield replace(plan, **{field: getattr(plain, field)})
    for i, piece in enumerate(pieces):
        for field in ("checkpoints", "fail_first", "shared", "stage"):
            if getattr(piece, field):
                plainer: Piece = piece.model_copy(update={field: 0})
                yield replace(plan, pieces=(*pieces[:i], plainer, *pieces[i + 1 :]))


def _without(items: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*items[:place], *items[place + 1 :])
