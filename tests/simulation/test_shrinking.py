"""A failing story shrinks to what it takes, and a seed plays the same story each time."""

from __future__ import annotations

from choreography_ray.testing.loop import run
from tests.simulation.chaos import Blow, Story, play
from tests.simulation.jobs import Work
from tests.simulation.shrinking import shrunk
from tests.simulation.walks import draw_story


def test_a_story_shrinks_to_what_it_fails_with() -> None:
    """Here: with a job actor that is killed, and any piece that fails."""

    def fails(story: Story) -> bool:
        kills = any(one.blow is Blow.KILL_JOB for one in story.strikes)
        return kills and any(piece.fail_first for plan in story.plans for piece in plan.pieces)

    story = next(story for story in map(draw_story, range(1_000)) if fails(story) and len(story.plans) > 1)
    small = shrunk(story, fails)
    (plan,) = small.plans
    (piece,) = plan.pieces
    (strike,) = small.strikes
    assert piece.fail_first
    assert strike.blow is Blow.KILL_JOB
    assert not small.job_faults
    assert not small.host_faults


def test_a_seed_plays_the_same_story_each_time() -> None:
    traces = []
    for _ in range(2):
        run(play(draw_story(7)))
        traces.append([*Work.world.notes])
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100
