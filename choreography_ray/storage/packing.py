"""How are ids, moments, runs and lists of numbers written into documents of MongoDB?"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from choreography_ray.errors import NotStorable
from choreography_ray.records import Run


def address(*places: str | int) -> str:
    """The `_id` of a document, from texts and numbers that no other list of places gives [S12.2].

    Texts may be anything Unicode: what separates places is escaped in them. Raises `NotStorable` for other text.
    """
    return "/".join(f"{place:016x}" if isinstance(place, int) else _escaped(place) for place in places)


def _escaped(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotStorable("", f"the id {text!r} is not Unicode text") from None
    return text.replace("%", "%25").replace("/", "%2F") if "%" in text or "/" in text else text


def order_of(run: Run, is_closed: bool) -> str:
    """A text that is greater than another's exactly when (run, is_closed) is."""
    return f"{run.fence:016x}{run.counter:016x}{int(is_closed)}"


def at(moment: datetime) -> str:
    """A moment as it is stored. Raises ValueError for one without a zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def plain_text(text: str) -> str:
    """Text for people, with escapes for what is not Unicode (lone surrogates, as from names of files)."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def packed(numbers: Sequence[int]) -> bytes:
    """Numbers of 32 bits."""
    return struct.pack(f"<{len(numbers)}i", *numbers)


def unpacked(stored: bytes) -> tuple[int, ...]:
    """The numbers that were packed."""
    return struct.unpack(f"<{len(stored) // 4}i", stored)


def packed_attempts(attempts: Sequence[int]) -> int | bytes:
    """Attempts side by side: most often all are the same, which takes one number."""
    first = attempts[0] if attempts else 1
    return first if all(attempt == first for attempt in attempts) else packed(attempts)


def unpacked_attempts(stored: int | bytes, count: int) -> tuple[int, ...]:
    """The `count` attempts that were packed."""
    return unpacked(stored) if isinstance(stored, bytes) else (int(stored),) * count


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def packed_moments(moments: Sequence[datetime]) -> bytes:
    """Moments as microseconds since 1970 in 64 bits."""
    return struct.pack(f"<{len(moments)}q", *((moment - _EPOCH) // _MICROSECOND for moment in moments))


def unpacked_moments(stored: bytes) -> tuple[datetime, ...]:
    """The moments that were packed."""
    return tuple(_EPOCH + number * _MICROSECOND for number in struct.unpack(f"<{len(stored) // 8}q", stored))


def stored_run(run: Run) -> list[int]:
    """A run in a document."""
    return [run.fence, run.counter]


def as_run(stored: Sequence[int]) -> Run:
    """A run that was stored; bson's own class of 64-bit integers ends here."""
    return Run(int(stored[0]), int(stored[1]))


def known_fields(cls: type, stored: dict[str, Any]) -> dict[str, Any]:
    """The stored fields that a dataclass has."""
    return {f.name: stored[f.name] for f in dataclasses.fields(cast("Any", cls)) if f.name in stored}
