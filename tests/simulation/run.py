"""Very many random stories: `python -m tests.simulation.run --seeds 0:10000 --kind supervised --minutes 30`.

Tells how many events it went through. A seed that fails is played again, to the same end, and shrunk; what is printed
then is a story for a test.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from choreography_ray.core.job_machine import JobMachine
from choreography_ray.core.throttle import SlotTable
from choreography_ray.testing.loop import run
from tests.simulation.chaos import Story, play
from tests.simulation.jobs import Work
from tests.simulation.shrinking import shrunk
from tests.simulation.test_supervised_walks import supervised
from tests.simulation.test_two_cluster_walks import tell as tell_of_two_clusters
from tests.simulation.walks import draw_story
from tests.simulation.world import World

Tell = Callable[[Story], Coroutine[Any, Any, Any]]
KINDS: dict[str, Tell] = {
    "lone": play,
    "supervised": lambda story: play(story, supervised),
    "two-clusters": tell_of_two_clusters,
}
TELL_SECONDS = 60.0


@dataclass
class Tally:
    """What was simulated so far."""

    counts: Counter[str] = field(default_factory=Counter[str])

    def watch(self) -> None:
        """Count what machines and throttles take in from now on."""
        handle, receive = JobMachine.handle, SlotTable.receive

        def handled(machine: JobMachine, events: Any, time: Any) -> Any:
            self.counts["events of job machines"] += len(events)
            self.counts["turns"] += 1
            return handle(machine, events, time)

        def received(table: SlotTable, *message: Any) -> Any:
            self.counts["exchanges"] += 1
            return receive(table, *message)

        JobMachine.handle, SlotTable.receive = handled, received  # type: ignore[method-assign]

    def add(self, world: World) -> None:
        """A story is over."""
        self.counts["stories"] += 1
        for one in (world, *world.neighbours):
            self.counts["messages"] += one.messages
            self.counts["writes"] += one.job_writes[0] + one.host_writes[0]
            self.counts["bodies"] += sum(what == "begin" for _, what, _ in one.marks)
            self.counts["kills"] += one.job_kills + one.host_kills
            self.counts["looks at what must hold"] += one.invariants.looks
            self.counts["recounts"] += one.invariants.recounts

    @property
    def events(self) -> int:
        """What happened in all: messages, writes, events of machines and throttles, begun bodies."""
        names = ("messages", "writes", "events of job machines", "exchanges", "bodies")
        return sum(self.counts[name] for name in names)

    def __str__(self) -> str:
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        return f"{self.events:,} events: {told}"


def failure_of(tell: Tell, story: Story, tally: Tally | None = None) -> BaseException | None:
    """How the story fails; None when it comes to its end."""
    try:
        run(tell(story))
    except Exception as error:
        return error
    finally:
        if tally is not None:
            tally.add(Work.world)
    return None


def told(failure: BaseException) -> str:
    """One line of it."""
    return f"{type(failure).__name__}: {failure}".split("\n", 1)[0][:300]


def report(tell: Tell, seed: int, failure: BaseException) -> None:
    """Play the seed again, and shrink it."""
    story, trace = draw_story(seed), tuple(Work.world.notes)
    again = failure_of(tell, story)
    is_same = again is not None and told(again) == told(failure) and tuple(Work.world.notes) == trace
    print(f"\nseed {seed} fails: {told(failure)}\n  played again: {'the same' if is_same else again!r}", flush=True)

    def fails(candidate: Story) -> bool:
        found = failure_of(tell, candidate)
        return type(found) is type(failure)

    small = shrunk(story, fails)
    print(f"  shrunk, with which it is {told(failure_of(tell, small) or failure)}\n  {small!r}\n", flush=True)


def main() -> int:
    """The exit code: 1 when a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="FROM:TO")
    parser.add_argument("--kind", choices=KINDS, default="lone")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    chosen = parser.parse_args()
    begin, end = (int(part) for part in chosen.seeds.split(":"))
    logging.disable(logging.CRITICAL)
    gc.freeze()
    tell, tally = KINDS[chosen.kind], Tally()
    tally.watch()
    started = told_at = time.monotonic()
    failed = 0
    for seed in range(begin, end):
        if (failure := failure_of(tell, draw_story(seed), tally)) is not None:
            failed += 1
            report(tell, seed, failure)
        if seed % 20 == 0:
            gc.collect()
        now = time.monotonic()
        if now - told_at > TELL_SECONDS or seed == end - 1:
            told_at = now
            print(f"{now - started:.0f} s, to seed {seed}, {failed} failed; {tally}", flush=True)
        if failed >= chosen.failures or now - started > chosen.minutes * 60:
            break
    print(f"{chosen.kind}, seeds {begin} to {seed}: {failed} failed in {time.monotonic() - started:.0f} s; {tally}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
