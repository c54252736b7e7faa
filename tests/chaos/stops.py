"""Stops at every moment of a step's life, and what must hold after each of them [S9.1, S9.2, S6.4]."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from choreography_ray import Choreography, DrainResult, JobHandle, JobStatus, StopJobError, StopJobReason
from tests.chaos.deeds import Inside, NarrowDeeds, await_true, marks, order, overlaps
from tests.chaos.faultpoints import lines

MOMENTS = ("at once", "begin", "middle", "end", "persisted")
"""Of a step's life: before its host is up; its body begins; works; ends; its outcome is persisted and delivered."""
SECONDS = 0.12
"""How long a body takes."""
FLUSH_SECONDS = 0.25
"""When a host persists what has ended."""


def stop_many_times(client: Choreography, root: Path, job_id: str, hosting: str, stops: int, seed: int) -> Counter[str]:
    """Stop and resume one job, a step at a time, at random moments; then run it to its end. Checks every stop.

    Returns how often each moment was tried, and what the stops met.
    """
    random = Random(seed)
    folder = root / job_id
    deeds: list[dict[str, Any]] = [{"seconds": SECONDS, "deaf": random.random() < 0.3} for _ in range(2 * stops + 4)]
    job = client.start(NarrowDeeds, order(folder, deeds, hosting), job_id=job_id)
    inside = Inside(client)
    seen: Counter[str] = Counter()
    begun = 0
    while seen["stops"] < stops:
        moment = random.choice(MOMENTS)
        _await_moment(folder, moment, begun, random)
        asked = time.monotonic()
        try:
            job.stop()
        except StopJobError as error:
            if error.reason is not StopJobReason.JOB_IS_COMPLETED:
                raise
            break
        answered = time.monotonic()
        if job.drain(timeout=60) is DrainResult.COMPLETED:
            break
        seen[moment] += 1
        seen["stops"] += 1
        seen["slow answers"] += answered - asked > 1.0
        _check_stopped(inside, job, folder, len(deeds), f"seed {seed}, stop {seen['stops']} ({moment})")
        begun = len(marks(folder, "begin"))
        job.resume()
    assert job.wait(timeout=120, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
    assert job.progress().succeeded == len(deeds)
    inside.check_ended(job)
    told = marks(folder, "told")
    assert Counter(m["key"] for m in told if m["kind"] == "done") == Counter(f"s{n}" for n in range(len(deeds)))
    seen["told stopped"] += sum(m["kind"] == "stopped" for m in told)
    _check_first_persisted(folder, seed)
    assert not overlaps(folder)
    seen["won against the stop"] += _won(folder)
    return seen


def _await_moment(folder: Path, moment: str, begun: int, random: Random) -> None:
    if moment == "at once":
        time.sleep(random.random() * 0.3)
        return
    await_true(lambda: len(marks(folder, "begin")) > begun, 60, "a body begins", pause=0.002)
    mark = marks(folder, "begin")[begun]
    after = {
        "begin": 0.0,
        "middle": random.uniform(0.02, SECONDS - 0.02),
        # The stop takes some milliseconds to arrive: it is sent from well before the end to just after it.
        "end": SECONDS + random.uniform(-0.03, 0.01),
        "persisted": SECONDS + FLUSH_SECONDS + random.uniform(-0.03, 0.06),
    }[moment]
    left = mark["at"] + after - time.clock_gettime(time.CLOCK_BOOTTIME)
    time.sleep(max(0.0, left))


def _check_stopped(inside: Inside, job: JobHandle, folder: Path, steps: int, where: str) -> None:
    """Each step is counted once, final or as stopped, and `on_stopped` came after the last outcome hook."""
    progress = job.progress()
    assert progress.succeeded + progress.stopped == steps, (where, progress)
    assert progress.failed == 0, where
    inside.check_counts(str(job.job_id))
    story = marks(folder, "told", "stopped", "resuming")
    assert story[-1]["what"] == "stopped", (where, story[-1])
    last = max((i for i, mark in enumerate(story) if mark["what"] == "resuming"), default=-1)
    epoch = story[last + 1 :]
    assert sum(mark["what"] == "stopped" for mark in epoch) == 1, where
    told = Counter(mark["key"] for mark in epoch if mark["what"] == "told")
    assert not told or max(told.values()) == 1, (where, told)
    done = {mark["key"] for mark in story if mark["what"] == "told" and mark["kind"] == "done"}
    stopped = {mark["key"] for mark in epoch if mark["what"] == "told" and mark["kind"] == "stopped"}
    assert (len(done), len(stopped)) == (progress.succeeded, progress.stopped), where
    state = job.state()
    assert sorted(state.done) == sorted(done), where


def first_persisted(folder: Path) -> dict[tuple[str, tuple[int, int], int], str]:
    """What the first entry that names it says of each step of each run, by (host, run, ordinal) [S6.4]."""
    found: dict[tuple[str, tuple[int, int], int], str] = {}
    won = [line for line in lines(folder / "persisted") if line["won"]]
    for line in sorted(won, key=lambda line: line["n"]):
        for ordinal, _, kind in line["outcomes"]:
            found.setdefault((line["host"], tuple(line["run"]), ordinal), kind)
    return found


def _check_first_persisted(folder: Path, seed: int) -> None:
    """A success that was persisted first was counted, and a stop that was persisted first was told as one."""
    kinds: dict[str, Counter[int]] = {"SUCCEEDED": Counter(), "STOPPED": Counter()}
    for (_, _, ordinal), kind in first_persisted(folder).items():
        kinds[kind][ordinal] += 1
    told = marks(folder, "told")
    done = Counter(int(m["key"][1:]) for m in told if m["kind"] == "done")
    stopped = Counter(int(m["key"][1:]) for m in told if m["kind"] == "stopped")
    assert kinds["SUCCEEDED"] == done, f"seed {seed}"
    assert kinds["STOPPED"] <= stopped, f"seed {seed}"


def _won(folder: Path) -> int:
    """How many successes were told while their job was being stopped."""
    story = marks(folder, "told", "stopped", "resuming")
    count = 0
    for i, mark in enumerate(story):
        if mark["what"] == "told" and mark["kind"] == "done":
            epoch = [later["what"] for later in story[i:]]
            count += "stopped" in epoch and "resuming" not in epoch[: epoch.index("stopped")]
    return count
