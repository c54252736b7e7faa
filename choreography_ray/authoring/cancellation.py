"""How is a body told to stop, wherever it runs: on a thread, or on a loop?"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from choreography_ray.authoring.bridge import block_on, patience
from choreography_ray.errors import StepCancelled


class _Signal:
    """Set once, and everybody who asked is told on the thread that sets it."""

    def __init__(self) -> None:
        self.is_set = False
        self._event: threading.Event | None = None
        self._lock = threading.Lock()
        self._listeners: dict[object, Callable[[], None]] = {}

    def set(self) -> None:
        with self._lock:
            self.is_set = True
            if self._event is not None:
                self._event.set()
            listeners, self._listeners = list(self._listeners.values()), {}
        for listener in listeners:
            listener()

    def event(self) -> threading.Event:
        """The flag for threads to wait on; made for the first who waits, as most bodies never do."""
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                if self.is_set:
                    self._event.set()
            return self._event

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        token = object()
        with self._lock:
            if not self.is_set:
                self._listeners[token] = listener
                return lambda: self._forget(token)
        listener()
        return lambda: None

    def _forget(self, token: object) -> None:
        with self._lock:
            self._listeners.pop(token, None)


class Cancellation:
    """A flag that is set once and never cleared. Safe from any thread; nothing polls.

    Made from another one it is a second face of the same flag.
    """

    def __init__(self, source: Cancellation | None = None) -> None:
        self._signal: _Signal = _Signal() if source is None else source._signal  # noqa: SLF001

    def set(self) -> None:
        """Set the flag; again has no effect. Listeners run here and now."""
        self._signal.set()

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._signal.is_set

    def raise_if_set(self) -> None:
        """Raise `StepCancelled` when the flag is set."""
        if self.is_set():
            raise StepCancelled

    def on_set(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` once, when the flag is set: on the setting thread, or at once when it is set already.

        It must be quick and must not raise. Returns a function that takes it back.
        """
        return self._signal.listen(listener)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'set' if self.is_set() else 'not set'}>"


class BlockingCancellation(Cancellation):
    """The face of a `Cancellation` for code on a thread."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set, at most `timeout` seconds. True when it is set."""
        if (thread := patience.get()) is not None:
            return block_on(thread.loop, AsyncCancellation(self).wait(timeout))
        return self.is_set() or self._signal.event().wait(timeout)


class AsyncCancellation(Cancellation):
    """The face of a `Cancellation` for code on a loop."""

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most `timeout` seconds. True when it is set."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def tell() -> None:
            # The loop may have closed since: then nobody waits there any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(told.set)

        forget = self.on_set(tell)
        try:
            async with asyncio.timeout(timeout):
                await told.wait()
        except TimeoutError:
            pass
        finally:
            forget()
        return self.is_set()
