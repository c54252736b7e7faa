"""What passes between a client and the store: whole messages of MongoDB's protocol, and the commands in them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import bson

WRITES = frozenset({"insert", "update", "delete", "findAndModify"})
OP_MSG = 2013
HEAD_BYTES = 16


class Messages:
    """Puts the pieces of one connection together and tells each whole message. A `harness.proxy.Watch`."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._rest = bytearray()

    def __call__(self, piece: bytes) -> None:
        self._rest += piece
        while len(self._rest) >= HEAD_BYTES and len(self._rest) >= (length := struct.unpack_from("<i", self._rest)[0]):
            message = bytes(self._rest[:length])
            del self._rest[:length]
            self._tell(message)


def command_of(message: bytes) -> dict[str, Any]:
    """The command of a message, without the documents that lie beside it; empty for another kind of message."""
    _, _, _, code = struct.unpack_from("<iiii", message)
    if code != OP_MSG:
        return {}
    begin = HEAD_BYTES + 5  # behind flags and the kind of the first section
    (size,) = struct.unpack_from("<i", message, begin)
    return bson.decode(message[begin : begin + size])


def message_of(command: dict[str, Any]) -> bytes:
    """A command as a message of its own."""
    body = b"\0\0\0\0\0" + bson.encode(command)
    return struct.pack("<iiii", HEAD_BYTES + len(body), 1, 0, OP_MSG) + body
