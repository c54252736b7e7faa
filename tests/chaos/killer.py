"""What is killed or paused next, and when? Drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from typing import NamedTuple, Self

from tests.chaos.cluster import HOST, JOB, SUPERVISOR, THROTTLE, ClusterUnderTest
from tests.chaos.processes import Process

STORE = "store"


class Blow(NamedTuple):
    """After `pause` seconds, a process of this kind is killed, or stopped for `stopped` seconds if not 0."""

    pause: float
    kind: str
    stopped: float
    which: float

    @classmethod
    def draw(cls, random: random.Random, weights: dict[str, int]) -> Blow:
        """The next one."""
        kind = random.choices(list(weights), list(weights.values()))[0]
        stopped = random.uniform(0.2, 4.0) if random.random() < 0.2 else 0.0
        return cls(random.uniform(0.3, 3.0), kind, stopped, random.random())

    def __str__(self) -> str:
        return f"{self.kind} {'killed' if not self.stopped else f'stopped for {self.stopped:.1f} s'}"


WEIGHTS = {HOST: 10, JOB: 4, THROTTLE: 1, SUPERVISOR: 1, STORE: 1}
"""How often each is hit. A throttle's death holds up everybody for a lease, so it is rare."""


class Killer:
    """Strikes in the background until told to stop, and kills at most `most` times: nobody gets on who dies too often.

    `struck` counts what was hit, by kind and action.
    """

    def __init__(self, cluster: ClusterUnderTest, seed: int, most: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._most = most
        self._over = threading.Event()
        self.struck: Counter[str] = Counter()
        self.log: list[str] = []
        self._began = time.monotonic()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="killer", daemon=True)

    @property
    def kills(self) -> int:
        """How many have died: who was stopped for a while has not."""
        return sum(times for what, times in self.struck.items() if what.endswith("killed"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def _live(self) -> None:
        try:
            while self.kills < self._most and not self._over.is_set():
                blow = Blow.draw(self._random, WEIGHTS)
                if self._over.wait(blow.pause):
                    return
                if self._strike(blow):
                    self.struck[f"{blow.kind} {'stopped' if blow.stopped else 'killed'}"] += 1
        except BaseException as error:
            self._failed = error

    def _strike(self, blow: Blow) -> bool:
        if blow.kind == STORE:
            victim = self._cluster.store_process
        else:
            victims = self._await_victims(blow.kind)
            if not victims:
                return False
            victim = victims[int(blow.which * len(victims))]
        self.log.append(f"{time.monotonic() - self._began:7.2f} {blow}: {victim.pid} {victim.title[:40]}")
        if blow.stopped:
            return self._stop_for(victim, blow.stopped)
        if blow.kind == STORE:
            self._cluster.kill_store(away=blow.which * 2)
            return True
        return victim.kill()

    def _await_victims(self, kind: str) -> list[Process]:
        """Whoever there is, or is next: a throttle that died holds up hosts, which are not to be spared for that."""
        while not (victims := sorted(self._cluster.processes(kind))) and not self._over.wait(0.1):
            pass
        return victims

    def _stop_for(self, victim: Process, seconds: float) -> bool:
        if not victim.send(signal.SIGSTOP):
            return False
        try:
            self._over.wait(seconds)
        finally:
            victim.send(signal.SIGCONT)
        return True
