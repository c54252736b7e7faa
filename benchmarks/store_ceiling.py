"""How near do warm actors come to what the store takes: the same bytes in the same groups, written by a bare loop?

While a job runs, a proxy before its store keeps every write command of it, planning and preparing included. Then a loop
sends the same messages, in their order and each after the reply to the one before, to a new store: no Ray, no driver
of a database, no thought. The job is timed while it is recorded.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from benchmarks.findings import Finding, at_least
from benchmarks.jobs import Count, WarmJob
from benchmarks.measure import Benchmark, Size, embedded_store, proxied, rounds_of, run_job, timed
from benchmarks.wire import HEAD_BYTES, WRITES, Messages, command_of, message_of


class Recorder:
    """Keeps the write commands to a store as they were sent, and those that made its indexes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.indexes: list[bytes] = []
        self._writes: list[bytes] = []

    def watch(self) -> Messages:
        """For one connection of a proxy."""
        return Messages(self._keep)

    def take(self) -> list[bytes]:
        """What was written since the last call."""
        with self._lock:
            writes, self._writes = self._writes, []
        return writes

    def _keep(self, message: bytes) -> None:
        name = next(iter(command_of(message)), "")
        with self._lock:
            if name in WRITES:
                self._writes.append(message)
            elif name == "createIndexes":
                self.indexes.append(message)


class Line:
    """A bare connection to a store."""

    def __init__(self, url: str) -> None:
        there = urlsplit(url)
        self._socket = socket.create_connection((there.hostname, there.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")
        self._log_in(there.username or "", there.password or "")

    def _log_in(self, user: str, password: str) -> None:
        """SCRAM-SHA-256, from RFC 5802: two messages, of which the second proves that we know the password."""
        bare = f"n={user},r={secrets.token_hex(12)}"
        begin = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,{bare}".encode()}
        reply = self._ask({**begin, "options": {"skipEmptyExchange": True}, "$db": "admin"})
        given = dict(part.split("=", 1) for part in reply["payload"].decode().split(","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(given["s"]), int(given["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={given['r']}"
        signed = f"{bare},{reply['payload'].decode()},{final}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        place = {"saslContinue": 1, "conversationId": reply["conversationId"], "$db": "admin"}
        self._ask({**place, "payload": f"{final},p={proof}".encode()})

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        return self._exchange(message_of(command))

    def send(self, messages: list[bytes]) -> None:
        """Each message after the reply to the one before."""
        for message in messages:
            self._exchange(message)

    def _exchange(self, message: bytes) -> dict[str, Any]:
        self._socket.sendall(message)
        (length,) = struct.unpack_from("<i", head := self._replies.read(HEAD_BYTES))
        reply = command_of(head + self._replies.read(length - HEAD_BYTES))
        if reply["ok"] != 1:
            raise RuntimeError(f"the store refuses {next(iter(command_of(message)))}: {reply}")
        return reply

    def close(self) -> None:
        """End it."""
        self._replies.close()
        self._socket.close()


def bare(indexes: list[bytes], messages: list[bytes]) -> float:
    """Seconds of the loop over a new store."""
    with embedded_store() as url:
        line = Line(url)
        try:
            line.send(indexes)
            return timed(lambda: line.send(messages))[1]
        finally:
            line.close()


def measure(size: Size) -> list[Finding]:
    """Jobs, and after each the loop with what it wrote."""
    recorder = Recorder()
    ours: list[float] = []
    recorded: list[list[bytes]] = []
    with proxied(size.slots, recorder.watch) as (choreography, _):
        run_job(choreography, WarmJob, Count(steps=200))
        for _ in rounds_of(size):
            recorder.take()
            ours.append(size.steps / timed(lambda: run_job(choreography, WarmJob, Count(steps=size.steps)))[1])
            recorded.append(recorder.take())
    time.sleep(1)  # what the cluster leaves behind should not slow the loop
    other = [size.steps / bare(recorder.indexes, messages) for messages in recorded]
    settings = {
        "write commands": ", ".join(f"{len(messages):,}" for messages in recorded),
        "MB": ", ".join(f"{sum(map(len, messages)) / 1e6:.1f}" for messages in recorded),
    }
    what = f"{size.steps:,} durable no-op steps on warm actors"
    against = "the same bytes, a bare loop"
    return [Finding(what, "steps/s", tuple(ours), against, tuple(other), at_least(0.3), settings)]


BENCHMARK = Benchmark("store_ceiling", __doc__ or "", measure, Size(50_000, 1), Size(100_000, 3))

if __name__ == "__main__":
    BENCHMARK.main()
