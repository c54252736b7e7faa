"""How do threads and virtual time meet? They take turns with the loop: while one computes, time stands still."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple

from choreography_ray.authoring.bridge import block_on, patience

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ALLOWED_SECONDS = 5.0
"""Virtual seconds that may pass for a thread that a body has made itself, while the body computes."""
LOOK_SECONDS = 0.001


class Released(BaseException):
    """The process of this thread is gone, and it unwinds."""


class Turn:
    """A function on a thread of its own, which computes only while it is its turn. See `authoring.bridge.Patience`."""

    def __init__(self, turns: Turns, loop: asyncio.AbstractEventLoop, work: Callable[[], Any]) -> None:
        self.loop = loop
        self._turns = turns
        self._work = work
        self._go = threading.Event()
        self._value: Future[Any] = Future()
        self.is_over = False
        self.is_released = False
        self.future: asyncio.Future[Any] = asyncio.wrap_future(self._value, loop=loop)
        self.thread = threading.Thread(target=self._run, name="simulated", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self._go.wait()
        try:
            if not self.is_released:
                self._tell(self._value.set_result, self._work())
        except BaseException as error:  # noqa: BLE001 - whoever awaits it gets what was raised
            self._tell(self._value.set_exception, error)
        self.is_over = True
        self._turns.hand_back()

    def _tell(self, tell: Callable[[Any], None], what: Any) -> None:
        if not (self.is_released or self._value.cancelled()):
            tell(what)

    def go(self) -> None:
        """It is its turn."""
        self._go.set()

    def wait(self, future: Future[Any]) -> None:
        """Hand the turn back until the future is done."""
        if self.is_released:
            raise Released
        self._go.clear()
        # Told on the loop's thread: threads go on in the order in which what they wait for was done.
        future.add_done_callback(lambda _: self._turns.enqueue(self))
        self._turns.hand_back()
        self._go.wait()
        if self.is_released:
            raise Released

    def release(self) -> None:
        """Its process is gone: it unwinds from where it waits, and nobody hears of it."""
        if not (self.is_over or self.is_released):
            self.is_released = True
            self._turns.enqueue(self)


class Turns:
    """The threads of one virtual loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._home = threading.current_thread()
        self._waiting: deque[Turn] = deque()
        self._all: dict[Turn, None] = {}
        self._computing: Turn | None = None
        self._back = threading.Event()
        self._allowed_until = -math.inf

    def begin(self, function: Callable[[*Ts], Any], *args: *Ts) -> Turn:
        """Run the function on a thread; `future` is awaited on the loop. Nothing of it has run when this returns."""
        context = contextvars.copy_context()

        def work() -> Any:
            patience.set(turn)
            return function(*args)

        turn = Turn(self, self._loop, lambda: context.run(work))
        self._all[turn] = None
        self.enqueue(turn)
        return turn

    def enqueue(self, turn: Turn) -> None:
        """It can go on."""
        self._waiting.append(turn)

    def hand_back(self) -> None:
        """The turn is over."""
        self._computing = None
        self._back.set()

    def wake(self) -> None:
        """Something was put on the loop: by a thread that was given no turn when a body has threads of its own."""
        here, computing = threading.current_thread(), self._computing
        if here is not self._home and (computing is None or computing.thread is not here):
            self._allowed_until = self._loop.time() + ALLOWED_SECONDS
            self._back.set()

    def take(self) -> float:
        """Let every thread that can go on compute until it waits. Virtual seconds that may pass now."""
        if self._computing is None and not self._waiting:
            return math.inf
        while self._computing is not None or self._waiting:
            if self._computing is None:
                self._back.clear()
                self._computing = self._waiting.popleft()
                if self._computing.is_over:
                    self._computing = None
                    continue
                self._computing.go()
            allowed = self._allowed_until - self._loop.time()
            self._back.wait(LOOK_SECONDS if allowed > 0 else None)
            self._back.clear()
            if self._is_busy():
                return max(0.0, self._allowed_until - self._loop.time())
        self._all = {turn: None for turn in self._all if not turn.is_over}
        return 0.0

    def _is_busy(self) -> bool:
        return self._computing is not None

    def release(self) -> None:
        """Nobody needs them any more."""
        for turn in tuple(self._all):
            turn.release()


@contextmanager
def virtual_sleep() -> Generator[None]:
    """While this is open `time.sleep` on a simulated thread takes virtual time. On any other thread it is as ever."""
    sleep = time.sleep

    def sleep_in_turn(seconds: Any, /) -> None:
        turn = patience.get()
        if turn is None:
            sleep(seconds)
        else:
            block_on(turn.loop, asyncio.sleep(float(seconds)))

    time.sleep = sleep_in_turn
    try:
        yield
    finally:
        time.sleep = sleep
