"""A line to the store that can be cut, blocked and slowed, between any two of whoever uses it and the store."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

Watch = Callable[[bytes], None]
"""Is shown each piece that a connection's client sends, in its order, on the proxy's thread."""


class Proxy:
    """Forwards connections from a port of its own.

    `delay` is in seconds and adds to the way of whatever is sent, in each direction; it does not narrow the line.
    `watch` makes a watcher for each connection.
    """

    def __init__(self, port: int, watch: Callable[[], Watch] | None = None) -> None:
        self.delay = 0.0
        self._watch = watch
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._passes = asyncio.Event()
        self._passes.set()
        self._is_cut = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port: int = self._run(self._listen())

    def _run(self, work: Coroutine[Any, Any, int | None]) -> int:
        return int(asyncio.run_coroutine_threadsafe(work, self._loop).result(10) or 0)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._open |= {writer, there}
        watch = None if self._watch is None else self._watch()
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, there, watch), self._pump(there_reader, writer))
        self._open -= {writer, there}

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, watch: Watch | None = None) -> None:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def take() -> None:
            with contextlib.suppress(OSError):
                while piece := await source.read(1 << 16):
                    if watch is not None:
                        watch(piece)
                    pieces.put_nowait((loop.time() + self.delay, piece))
            pieces.put_nowait((0.0, b""))

        taking = loop.create_task(take())
        try:
            while True:
                due, piece = await pieces.get()
                if not piece:
                    return
                await self._passes.wait()
                if (early := due - loop.time()) > 0:
                    await asyncio.sleep(early)
                sink.write(piece)
                await sink.drain()
        finally:
            taking.cancel()
            sink.close()

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Nothing passes within, and nobody is told: what was sent meanwhile arrives afterwards."""
        self._loop.call_soon_threadsafe(self._passes.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._passes.set)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Every connection breaks, and new ones are refused within."""

        def begin() -> None:
            self._is_cut = True
            for writer in tuple(self._open):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(begin)
        try:
            yield
        finally:
            self._is_cut = False

    def break_connections(self) -> None:
        """Every connection breaks once: whoever waited for a reply does not know whether his write was taken."""
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in tuple(self._open)])

    def close(self) -> None:
        """Forward no more."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
