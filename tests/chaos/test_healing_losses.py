"""Lost acknowledgements and reports, and a job actor killed around each of its writes: the full numbers [P13, P15]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from choreography_ray import Choreography, JobStatus
from tests.chaos.deeds import Deeds, FewBriskDeeds, Inside, WatchedDeeds, await_true, marks, order
from tests.chaos.faultpoints import Plan, fired, folder_of, lines, write_plan
from tests.chaos.faulty import faulty_client
from tests.chaos.losses import EVERY_POINT, kill_job_actor, lose_and_kill, lose_every_report
from tests.support import is_alive

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(1800)]

LEASE = 8.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where jobs have their plans of faults, and their witness."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def client(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Choreography]:
    """A client of a cluster with four slots."""
    with faulty_client(root, tmp_path_factory.mktemp("store"), slots=4, lease=20.0) as connected:
        yield connected


def test_every_acknowledgement_of_a_thousand_steps_is_lost_three_times(client: Choreography, root: Path) -> None:
    """Each is delivered four times, and counted once."""
    healed = lose_and_kill(client, root, "unacknowledged", 1_000, [], lost=3)
    print(healed)
    assert healed.lost >= 3
    assert healed.told_again == 0


def test_two_reports_of_each_outcome_arrive_together(client: Choreography, root: Path) -> None:
    """Each is counted once, and whoever comes second is told that it is recorded [P7]."""
    healed = lose_and_kill(client, root, "doubled", 400, [], lost=1, doubles=True)
    assert healed.told_again == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_job_actor_is_killed_between_any_two_writes(client: Choreography, root: Path, seed: int) -> None:
    """Before and after each write, in an order of the seed, and every acknowledgement lost besides."""
    random = Random(seed)
    kills = [kill.model_copy(update={"skip": random.randrange(2)}) for kill in EVERY_POINT]
    random.shuffle(kills)
    # So few at a time that the steps do not run out before the last of these writes.
    print(lose_and_kill(client, root, f"killed-{seed}", 1_000, kills, lost=3, job_class=FewBriskDeeds))


def test_a_thousand_reports_are_lost_for_good(client: Choreography, root: Path) -> None:
    """The watchdog, which looks every two seconds, settles them all."""
    print(f"{lose_every_report(client, root, 'unreported', 1_000):.1f} s")


def test_twenty_bodies_are_adopted_when_the_job_actor_is_killed(root: Path, tmp_path: Path) -> None:
    """They go on, each is counted once and none has failed [P2]."""
    folder = root / "twenty"
    with faulty_client(root, tmp_path, slots=20, lease=30.0) as client:
        job = client.start(Deeds, order(folder, [{"gate": str(folder / "go")}] * 20), job_id="twenty")
        await_true(lambda: len(marks(folder, "begin")) == 20, 120, "twenty bodies are at work")
        kill_job_actor(job)
        (folder / "go").touch()
        assert job.wait(timeout=120, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
        Inside(client).check_ended(job)
    assert max(Counter(mark["key"] for mark in marks(folder, "begin")).values()) == 1


def test_a_persisted_outcome_counts_when_the_lease_runs_out_while_the_watchdog_looks(
    root: Path, tmp_path: Path
) -> None:
    """Its report is lost, and while the job actor looks for it the kernel ends the host: still a success [P15]."""
    with faulty_client(root, tmp_path, slots=2, lease=LEASE) as client:
        write_plan(root, "lapsed", Plan(drops_reports=True, renews_no_lease=True, looks_slowly=True))
        folder = folder_of(root, "lapsed")
        job = client.start(WatchedDeeds, order(folder, [{}], "own"), job_id="lapsed")
        assert job.wait(timeout=60, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
        (body,) = marks(folder, "begin")
        assert not is_alive(body["pid"])
        first, *_ = lines(folder / "looks")
        (ended,) = marks(folder, "end")
        (told,) = marks(folder, "told")
        # The look began in the host's lifetime, and was answered after it.
        assert first["at"] < ended["at"] + LEASE
        assert told["at"] > body["at"] + LEASE * 0.6
        assert [line["outcomes"][0][2] for line in lines(folder / "persisted") if line["won"]] == ["SUCCEEDED"]
        Inside(client).check_ended(job)
        assert not fired(root, "lapsed")
