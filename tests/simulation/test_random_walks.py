"""Random stories: several jobs at once, struck by whatever can strike, and at the end everything is as it must be.

The seeded walker is fast and covers much; the one by Hypothesis shrinks what it finds. A seed that failed is told again
by `draw_story(seed)`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from choreography_ray.testing.faults import Cut, Fault, Wire
from choreography_ray.testing.loop import run
from tests.simulation.chaos import Blow, Plan, Story, Strike, play
from tests.simulation.jobs import KeptPieces, PassingPieces, Piece, Pieces, SilentPieces
from tests.simulation.walks import draw_story

WALKS = 20
"""Stories per test."""


def walk(begin: int) -> None:
    for seed in range(begin, begin + WALKS):
        try:
            run(play(draw_story(seed)))
        except BaseException as error:
            error.add_note(f"the story of seed {seed}")
            raise


@pytest.mark.parametrize("begin", range(0, 12 * WALKS, WALKS))
def test_seeded_stories_come_to_their_end(begin: int) -> None:
    """Every job ends, each outcome counts once, and nothing is left of it."""
    walk(begin)


@pytest.mark.long
@pytest.mark.parametrize("begin", range(100_000, 100_000 + 300 * WALKS, WALKS))
def test_many_more_seeded_stories_come_to_their_end(begin: int) -> None:
    """The same for the big run."""
    walk(begin)


SECONDS = st.sampled_from((0.0, 0.3, 2.0, 15.0, 50.0))
PIECES = st.lists(
    st.builds(
        Piece,
        key=st.just(""),
        stage=st.sampled_from((0, 10, 20)),
        seconds=SECONDS,
        fail_first=st.sampled_from((0, 0, 0, 1, 9)),
        shared=st.integers(0, 2),
        checkpoints=st.sampled_from((0, 2)),
    ),
    min_size=1,
    max_size=10,
).map(lambda pieces: tuple(piece.model_copy(update={"key": f"p{i}"}) for i, piece in enumerate(pieces)))
PLANS = st.builds(
    Plan,
    job_class=st.sampled_from((Pieces, KeptPieces, PassingPieces, SilentPieces)),
    pieces=PIECES,
    continue_stages=st.sampled_from(((), (0,), (0, 10))),
    window=st.sampled_from((None, 1, 3)),
    attempts=st.integers(1, 3),
    backoff=st.sampled_from((0.0, 2.0, 20.0)),
    starts=st.sampled_from((16, 1, 2)),
    begins_at=st.sampled_from((0.0, 1.5)),
    hook_seconds=st.sampled_from((0.0, 0.5)),
)
STRIKES = st.lists(
    st.builds(
        Strike,
        at=st.floats(0.0, 60.0),
        blow=st.sampled_from(list(Blow)),
        pick=st.integers(0, 20),
        seconds=st.sampled_from((1.0, 8.0, 25.0, 60.0)),
    ),
    max_size=6,
).map(tuple)
FAULTS = st.lists(
    st.builds(
        Fault, at=st.integers(0, 60), cut=st.sampled_from(list(Cut)), kills=st.booleans(), isolates=st.booleans()
    ),
    max_size=3,
).map(tuple)
WIRES = st.builds(
    Wire,
    loss=st.sampled_from((0.0, 0.1)),
    copies=st.sampled_from((0.0, 0.2)),
    late=st.sampled_from((0.0, 0.03)),
    stale=st.sampled_from((0.0, 0.5)),
)
STORIES = st.builds(
    Story,
    plans=st.lists(PLANS, min_size=1, max_size=3).map(tuple),
    strikes=STRIKES,
    job_faults=FAULTS,
    host_faults=FAULTS,
    wire=WIRES,
    slots=st.integers(1, 4),
    seed=st.integers(0, 1000),
    failing=st.sampled_from((0.0, 0.0, 0.2)),
    waiting=st.sampled_from((0.0, 0.0, 0.3)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STORIES)
def test_any_story_comes_to_its_end(story: Story) -> None:
    """As the seeded ones, drawn so that a failing one shrinks to the few things that it takes."""
    run(play(story))


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=4_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(STORIES)
def test_any_story_of_very_many_comes_to_its_end(story: Story) -> None:
    """The same for the big run."""
    run(play(story))
