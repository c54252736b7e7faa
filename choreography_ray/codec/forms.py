"""Which stored form does each built-in and library type have?

Each form is a document `{"~": tag, ...}`. The tags and the names in the forms are stored: never change one.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import ipaddress
import pathlib
import re
import sys
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import networks
from pydantic_core import TzInfo

from choreography_ray.errors import UnknownJobType
from choreography_ray.records import Payload

TAG = "~"
"""The reserved key that marks a document as the form of something else than a dict."""

Encode = Callable[[Any, int], Payload]
Decode = Callable[[Payload], Any]
FormEncoder = Callable[[Any, Encode, int], Payload]
FormDecoder = Callable[[dict[str, Any], Decode], Any]


class Refusal(Exception):
    """A value cannot be stored. Collects the parts of its path from the inside out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self._parts: list[str] = []

    def within(self, part: str) -> Refusal:
        """This refusal, seen from the container that holds the value at `part` (`.name` or `[index]`)."""
        self._parts.append(part)
        return self

    def below(self, path: str) -> str:
        """The whole path, beginning with `path`."""
        inner = "".join(reversed(self._parts))
        return path + inner if path else inner.removeprefix(".")


_AWKWARD_KEY = re.compile("[.$\0\ud800-\udfff]|^$|^~$")


def is_harmless_key(key: str) -> bool:
    """True for text that may be a key of a stored document as it is."""
    return _AWKWARD_KEY.search(key) is None


def encode_text(value: str) -> Payload:
    """The stored form of any text."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, as in names of files that are not UTF-8
        return {TAG: "str", "utf8": value.encode("utf-8", "surrogatepass")}
    return value


def _sequence(tag: str) -> FormEncoder:
    def encode_sequence(value: Iterable[Any], encode: Encode, depth: int) -> Payload:
        items: list[Payload] = []
        try:
            for item in value:
                items.append(encode(item, depth))  # noqa: PERF401 - a refusal names the item by what came before
        except Refusal as refusal:
            raise refusal.within(f"[{len(items)}]") from None
        return {TAG: tag, "items": items}

    return encode_sequence


def _encode_ordered(value: dict[Any, Any], encode: Encode, depth: int) -> Payload:
    return {TAG: "OrderedDict", "of": encode(dict(value), depth)}


def _encode_counter(value: Counter[Any], encode: Encode, depth: int) -> Payload:
    return {TAG: "Counter", "of": encode(dict(value), depth)}


def _encode_deque(value: deque[Any], encode: Encode, depth: int) -> Payload:
    form = _sequence("deque")(value, encode, depth)
    return form if value.maxlen is None else {**form, "maxlen": value.maxlen}


_SECOND = dt.timedelta(seconds=1)


def _zone(zone: dt.tzinfo | None) -> dict[str, Payload]:
    """What the ISO text of a moment does not tell of its zone."""
    if zone is None or type(zone) is TzInfo:
        return {}
    if type(zone) is dt.timezone:
        offset, *name = cast("tuple[Any, ...]", zone.__reduce__()[1])  # the name, if one was given
        told: dict[str, Payload] = {"zone_name": encode_text(name[0])} if name else {}
        if offset and abs(offset) < _SECOND:  # Python reads such a text as one in UTC
            told["offset"] = offset // dt.timedelta(microseconds=1)
        return told
    if type(zone) is ZoneInfo and zone.key:
        return {"zone": zone.key}
    raise Refusal(f"the time zone {zone!r} would not come back equal; use datetime.timezone or zoneinfo.ZoneInfo")


def _moment(tag: str) -> FormEncoder:
    def encode_moment(value: dt.datetime | dt.time, _encode: Encode, _depth: int) -> Payload:
        zone = _zone(value.tzinfo)
        text = value.replace(tzinfo=None).isoformat() if "zone" in zone else value.isoformat()
        form: dict[str, Payload] = {TAG: tag, "iso": text, **zone}
        if value.fold:
            form["fold"] = value.fold
        return form

    return encode_moment


def _read_zone(form: dict[str, Any]) -> ZoneInfo:
    try:
        return ZoneInfo(form["zone"])
    except ZoneInfoNotFoundError:
        raise UnknownJobType("ZoneInfo", f"the time zone {form['zone']!r} is not known here") from None


def _read_moment(parse: Callable[[str], Any]) -> FormDecoder:
    def decode_moment(form: dict[str, Any], decode: Decode) -> Any:
        value = parse(form["iso"])
        if "zone" in form:
            value = value.replace(tzinfo=_read_zone(form))
        if "offset" in form:
            value = value.replace(tzinfo=dt.timezone(dt.timedelta(microseconds=form["offset"])))
        if "zone_name" in form:
            offset = value.utcoffset() or dt.timedelta()
            value = value.replace(tzinfo=dt.timezone(offset, decode(form["zone_name"])))
        return value.replace(fold=1) if form.get("fold") else value

    return decode_moment


def _text_form(tag: str, to_text: Callable[[Any], str]) -> FormEncoder:
    def encode_as_text(value: Any, encode: Encode, depth: int) -> Payload:
        return {TAG: tag, "value": encode(to_text(value), depth)}

    return encode_as_text


def _read_text(parse: Callable[[str], Any]) -> FormDecoder:
    return lambda form, decode: parse(decode(form["value"]))


_TEXT_FORMS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    decimal.Decimal: ("Decimal", str, decimal.Decimal),
    uuid.UUID: ("UUID", str, uuid.UUID),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    **{
        cls: (cls.__name__, str, cls)
        for cls in (
            pathlib.PosixPath,
            pathlib.PurePosixPath,
            pathlib.WindowsPath,
            pathlib.PureWindowsPath,
            ipaddress.IPv4Address,
            ipaddress.IPv6Address,
            ipaddress.IPv4Network,
            ipaddress.IPv6Network,
            ipaddress.IPv4Interface,
            ipaddress.IPv6Interface,
        )
    },
}
_URLS: dict[type, str] = {
    cls: f"pydantic.{name}"
    for name, cls in vars(networks).items()
    if name.endswith(("Url", "Dsn")) and not name.startswith("_")
}


def _encode_url(value: Any, _encode: Encode, _depth: int) -> Payload:
    text = str(value)
    if type(value)(text) != value:  # as under pydantic's url_preserve_empty_path
        raise Refusal(f"the address {text!r} would be normalized; keep it as text")
    return {TAG: _URLS[type(value)], "value": text}


def _encode_fraction(value: fractions.Fraction, encode: Encode, depth: int) -> Payload:
    return {TAG: "Fraction", "of": [encode(value.numerator, depth), encode(value.denominator, depth)]}


ENCODERS: dict[type, FormEncoder] = {
    str: lambda value, _encode, _depth: encode_text(value),
    tuple: _sequence("tuple"),
    set: _sequence("set"),
    frozenset: _sequence("frozenset"),
    deque: _encode_deque,
    OrderedDict: _encode_ordered,
    Counter: _encode_counter,
    bytearray: lambda value, _encode, _depth: {TAG: "bytearray", "value": bytes(value)},
    complex: lambda value, _encode, _depth: {TAG: "complex", "real": value.real, "imag": value.imag},
    range: lambda value, encode, depth: _sequence("range")((value.start, value.stop, value.step), encode, depth),
    dt.datetime: _moment("datetime"),
    dt.time: _moment("time"),
    dt.timedelta: lambda value, _encode, _depth: {
        TAG: "timedelta",
        "days": value.days,
        "seconds": value.seconds,
        "microseconds": value.microseconds,
    },
    dt.timezone: lambda value, encode, depth: {
        TAG: "timezone",
        "args": [encode(arg, depth) for arg in value.__reduce__()[1]],
    },
    ZoneInfo: lambda value, _encode, _depth: {TAG: "ZoneInfo", **_zone(value)},
    fractions.Fraction: _encode_fraction,
    **{cls: _text_form(tag, to_text) for cls, (tag, to_text, _) in _TEXT_FORMS.items()},
    **dict.fromkeys(_URLS, _encode_url),
}
"""By exact class."""


def _decode_items(form: dict[str, Any], decode: Decode) -> list[Any]:
    return [decode(item) for item in form["items"]]


def _decode_pairs(form: dict[str, Any], decode: Decode) -> dict[Any, Any]:
    return {decode(key): decode(item) for key, item in form["items"]}


def _decode_counter(form: dict[str, Any], decode: Decode) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    counter.update(decode(form["of"]))
    return counter


DECODERS: dict[str, FormDecoder] = {
    "str": lambda form, _: form["utf8"].decode("utf-8", "surrogatepass"),
    "int": lambda form, _: int(form["value"], 0),
    "dict": _decode_pairs,
    "tuple": lambda form, decode: tuple(_decode_items(form, decode)),
    "set": lambda form, decode: set(_decode_items(form, decode)),
    "frozenset": lambda form, decode: frozenset(_decode_items(form, decode)),
    "deque": lambda form, decode: deque(_decode_items(form, decode), form.get("maxlen")),
    "OrderedDict": lambda form, decode: OrderedDict(decode(form["of"])),
    "Counter": _decode_counter,
    "bytearray": lambda form, _: bytearray(b"" + form["value"]),  # bytes: of a number it would make so many zeros
    "complex": lambda form, _: complex(form["real"], form["imag"]),
    "range": lambda form, decode: range(*_decode_items(form, decode)),
    "datetime": _read_moment(dt.datetime.fromisoformat),
    "time": _read_moment(dt.time.fromisoformat),
    "timedelta": lambda form, _: dt.timedelta(form["days"], form["seconds"], form["microseconds"]),
    "timezone": lambda form, decode: dt.timezone(*(decode(arg) for arg in form["args"])),
    "ZoneInfo": lambda form, _: _read_zone(form),
    "Fraction": lambda form, decode: fractions.Fraction(*(decode(part) for part in form["of"])),
    **{tag: _read_text(parse) for tag, _, parse in _TEXT_FORMS.values()},
    **{tag: _read_text(cls) for cls, tag in _URLS.items()},
}
"""By tag."""


def library_encoder(cls: type) -> FormEncoder | None:
    """The form of a numpy scalar or array; None for any other class."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if cls is numpy.ndarray:
            return _encode_array
        if issubclass(cls, numpy.generic) and numpy.dtype(cls).type is cls:  # no subclass of a scalar's class
            return _encode_scalar
    return None


_PLAIN_KINDS = "?bhilqBHILQefdFD"
"""numpy's codes of the types whose `item()` is an equal Python value."""


def _encode_scalar(value: Any, encode: Encode, depth: int) -> Payload:
    dtype = value.dtype
    form: dict[str, Payload] = {TAG: "numpy.scalar", "dtype": _dtype(dtype)}
    if dtype.kind in "US":  # item() would drop NULs at the end
        return form | {"value": encode("".join(value) if dtype.kind == "U" else value.tobytes(), depth)}
    if dtype.char in _PLAIN_KINDS:
        return form | {"value": encode(value.item(), depth)}
    return form | {"bytes": _bytes(value)}


def _encode_array(value: Any, _encode: Encode, _depth: int) -> Payload:
    return {
        TAG: "numpy.ndarray",
        "dtype": _dtype(value.dtype),
        "shape": [int(length) for length in value.shape],
        "bytes": _bytes(value),
    }


def _bytes(value: Any) -> bytes:
    """The bytes of a numpy value, the same for equal ones."""
    data: bytes = value.tobytes()
    numpy = sys.modules["numpy"]
    if value.dtype.char not in "gG" or numpy.finfo(value.dtype).nmant != 63 or not value.dtype.isnative:
        return data
    # 80 bits take 16 bytes, and in the rest is whatever was in memory.
    raw = numpy.frombuffer(data, numpy.uint8).reshape(-1, numpy.dtype("g").itemsize).copy()
    raw[:, 10:] = 0
    return bytes(raw.tobytes())


def _dtype(dtype: Any) -> str:
    """The text that is stored of a dtype. Raises `Refusal` for one that the text does not mean."""
    try:  # of fields, or of an extension, it tells no more than how many bytes they take
        is_told = sys.modules["numpy"].dtype(dtype.str) == dtype
    except TypeError:
        is_told = False
    if not is_told or dtype.kind not in "biufcSUmMV":
        raise Refusal(f"a numpy value of dtype {dtype} cannot be stored; only plain numbers, times, text and bytes can")
    return str(dtype.str)


def _numpy(tag: str) -> Any:
    try:
        import numpy
    except ModuleNotFoundError:
        raise UnknownJobType(tag, "it needs the module 'numpy', which is not installed here") from None
    return numpy


def _decode_scalar(form: dict[str, Any], decode: Decode) -> Any:
    numpy = _numpy("numpy.scalar")
    dtype = numpy.dtype(form["dtype"])
    if "bytes" in form:
        return numpy.frombuffer(form["bytes"], dtype)[0]
    return dtype.type(decode(form["value"]))


def _decode_array(form: dict[str, Any], _decode: Decode) -> Any:
    numpy = _numpy("numpy.ndarray")
    dtype = numpy.dtype(form["dtype"])
    if dtype.itemsize == 0:  # text or bytes without a character: nothing to read from a buffer
        return numpy.zeros(form["shape"], dtype)
    return numpy.frombuffer(form["bytes"], dtype).reshape(form["shape"]).copy()


DECODERS["numpy.scalar"] = _decode_scalar
DECODERS["numpy.ndarray"] = _decode_array
