"""Whatever is killed, whenever: does every job end, with each outcome counted once and nothing left?"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.cluster import ClusterUnderTest
from tests.chaos.endings import check_counts, check_nothing_left
from tests.chaos.killer import Killer
from tests.chaos.marks import Witness
from tests.chaos.processes import await_true

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(900)]

JOBS, KILLS = (40, 13) if os.environ.get("CHAOS_FULL") else (8, 10)
"""How many jobs, and how many processes die at least in each. In full: more than 500."""


def seeds() -> list[int]:
    """Other ones each day, or those that CHAOS_SEED names: `5` or `5-9`."""
    if named := os.environ.get("CHAOS_SEED"):
        first, _, last = named.partition("-")
        return list(range(int(first), int(last or first) + 1))
    first = datetime.now(UTC).toordinal() * 1_000
    return list(range(first, first + JOBS))


@pytest.mark.parametrize("seed", seeds())
def test_a_job_survives_random_kills(
    lasting: ClusterUnderTest, witness: Witness, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """200 steps in two or three stages on shared hosts, or 36 on own ones, with retries and failures: hosts, job actor,
    throttle, supervisor and store are killed or stopped at random. The report tells what was hit.
    """
    killer = run(lasting, witness, seed)
    for what, times in sorted(killer.struck.items()):
        record_property(what, times)
    record_property("performed again", witness.repeated(f"seed-{seed}"))


def run(cluster: ClusterUnderTest, witness: Witness, seed: int, kills: int = KILLS) -> Killer:
    """One job of one seed; every fourth has own actors."""
    own = seed % 4 == 3
    load = cluster.load(
        witness, steps=36 if own else 200, stages=2 + seed % 2, flaky=7, rotten=19, is_shared=not own, is_gated=True
    )
    job_id = f"seed-{seed}"
    gate = Path(load.folder, "gate")
    gate.unlink(missing_ok=True)
    driver = cluster.driver()
    killer = Killer(cluster, seed, most=kills + 4)
    try:
        driver.call("start", load=load.model_dump(), job_id=job_id)
        with killer:
            # The last stage waits, so that no job ends before it has got its share.
            await_true(lambda: killer.kills >= kills, 400, f"{kills} kills")
            gate.touch()
            with cluster.reader() as reader:
                reader.job(job_id).wait(timeout=180, progress=False)
        check_counts(cluster, witness, load, job_id)
        check_nothing_left(cluster, witness, driver, job_id)
    except BaseException:
        full = "CHAOS_FULL=1 " if "CHAOS_FULL" in os.environ else ""
        print(f"repeat: {full}CHAOS_SEED={seed} python -m pytest -n 0 -m chaos tests/chaos/test_random_kills.py")
        print("\n".join(killer.log))
        raise
    finally:
        driver.kill()
    return killer
