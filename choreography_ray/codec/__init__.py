"""How does a value become a document that MongoDB can keep and a person can read, and the same value again?

Plain values (None, bool, 64-bit int, float, text, bytes, lists, dicts with harmless text keys) are stored as they
are. Everything else is a document with the reserved key `~`:

* `{"~": "module:qualname", ...fields}` is a pydantic model, dataclass, named tuple or enum member. `~s` lists the
  explicitly set fields of a model when those are not all, `~p` holds its private attributes, `~x` what it has
  beyond its fields, `~a` names fields that have no value. A parametrized generic is named by a list:
  `["app:Box", "builtins:int"]`.
* `{"~": "tuple", ...}` and other tags without a colon are the built-in and library types of `codec_forms`.

What cannot come back equal is refused with the path of its place [S12.3]. Fixed offsets of datetimes come back as
`datetime.timezone`. Nothing here runs validators: a stored value was valid when it was written.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable
from typing import Any, cast

from choreography_ray.codec.classes import ClassForm, UnreadableClass, encode_ref, form_of, require_found, resolve_ref
from choreography_ray.codec.forms import (
    DECODERS,
    ENCODERS,
    TAG,
    Decode,
    FormEncoder,
    Refusal,
    encode_text,
    is_harmless_key,
    library_encoder,
)
from choreography_ray.errors import NotStorable, UnknownJobType
from choreography_ray.records import Payload

TypeResolver = Callable[[str], type]
"""Finds the class that "module:qualname" names, or raises `UnknownJobType`."""

MAX_DEPTH = 80
"""Levels of documents in a payload. BSON stores take about 100, and records add a few of their own."""


def import_type(name: str) -> type:
    """The class that "module:qualname" names, imported if need be. Raises `UnknownJobType`."""
    module_name, _, qualname = name.partition(":")
    try:
        found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a name that begins with a dot
        raise UnknownJobType(name, str(error)) from error
    if not isinstance(found, type):
        raise UnknownJobType(name, "it is not a class")
    return found


def encode(value: object, path: str = "") -> Payload:
    """The stored form of a value. Raises `NotStorable` with the place below `path` of what would not come back equal.

    The form shares nothing mutable with the value.
    """
    return _encoder.encode(value, path)


def decode(payload: Payload, resolve: TypeResolver = import_type) -> Any:
    """The value that was encoded, also after a round trip through BSON; shares nothing mutable with the payload.

    Fields that a class has gained since get their defaults, those that it has lost are dropped. Raises
    `UnknownJobType` for a class that cannot be found or has gained a field without default, for a form that this
    version does not know, and for whatever else no `encode` has written; nothing else.
    """

    def decode_any(payload: Payload) -> Any:
        kind: type = payload.__class__
        if kind in _AS_IS:
            return payload
        if kind is dict:
            if TAG not in payload:
                return {key: decode_any(item) for key, item in payload.items()}
            tag = payload[TAG]
            known = DECODERS.get(tag) if type(tag) is str else None
            if known is not None:
                return known(payload, decode_any)
            return _decode_instance(tag, payload, decode_any, resolve)
        if kind is list:
            return [decode_any(item) for item in payload]
        if isinstance(payload, int):  # bson's Int64
            return int(payload)
        return payload

    try:
        return decode_any(payload)
    except UnknownJobType:
        raise
    except Exception as error:  # whatever a form or a class says of what is no value of it
        tag = cast("dict[str, Any]", payload).get(TAG) if type(payload) is dict else type(payload).__name__
        raise UnknownJobType(str(tag), f"what is stored is damaged: {type(error).__name__}: {error}") from error


def encoded_size(payload: Payload) -> int:
    """Bytes that a payload takes in a document, give or take the name of its field."""
    import bson  # here: a host whose values are small starts without it

    return len(bson.encode({"": payload}))


_AS_IS: frozenset[type] = frozenset({str, int, float, bool, type(None), bytes})
_NO_MORE_DEPTH = f"it is nested deeper than {MAX_DEPTH} levels, or contains itself"


def _decode_instance(tag: Any, payload: dict[str, Any], decode_any: Decode, resolve: TypeResolver) -> Any:
    if type(tag) is str and ":" not in tag:
        raise UnknownJobType(tag, "this version does not know the stored form")
    cls = resolve_ref(tag, resolve, decode_any)
    try:
        form = _form(cls) if isinstance(cls, type) else None
    except Refusal as refusal:
        raise UnknownJobType(str(tag), refusal.why) from None
    if form is None:
        raise UnknownJobType(str(tag), "it is not a class whose values can be stored")
    try:
        return form.decode(payload, decode_any)
    except UnreadableClass as error:
        raise UnknownJobType(str(tag), str(error)) from error


def _encode_int(value: int, _depth: int) -> Payload:
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return value
    return {
        TAG: "int",
        "value": str(value) if value.bit_length() < 10_000 else hex(value),
    }  # str is quadratic, and bounded


_EncodeAny = Callable[[Any, int], Payload]


class Encoder:
    """Encodes for readers of whom it is known which classes they have: `encode` is one for whoever has them all."""

    def __init__(self, why_missing: Callable[[type], str] = lambda _cls: "") -> None:
        """`why_missing` tells why the readers do not have a class, "" if they do; it is asked once for each."""
        self._why_missing = why_missing
        self._encoders: dict[type, _EncodeAny] = {int: _encode_int, list: self._list, dict: self._dict}
        """By exact class, learned as classes occur: a subclass must not pass for its base."""
        self._encoders |= dict.fromkeys((float, bool, type(None), bytes), lambda value, _depth: value)

    def encode(self, value: object, path: str = "") -> Payload:
        """As the function `encode`, which see; refuses instances of what the readers do not have too."""
        try:
            return self._any(value, MAX_DEPTH)
        except Refusal as refusal:
            raise NotStorable(refusal.below(path), refusal.why) from None

    def _any(self, value: object, depth: int) -> Payload:
        """`depth` counts down the levels that are left. The classes that occur most are asked for first."""
        cls = type(value)
        if cls is str:
            return encode_text(cast("str", value))
        if cls is bool or value is None or cls is float:
            return value
        encoder = self._encoders.get(cls)
        if encoder is None:
            encoder = self._encoders[cls] = self._learn(cls)
        return encoder(value, depth)

    def _list(self, value: list[Any], depth: int) -> list[Payload]:
        if depth <= 0:
            raise Refusal(_NO_MORE_DEPTH)
        depth -= 1
        out: list[Payload] = []
        try:
            for item in value:
                out.append(self._any(item, depth))  # noqa: PERF401 - a refusal names the item by what came before
        except Refusal as refusal:
            raise refusal.within(f"[{len(out)}]") from None
        return out

    def _dict(self, value: dict[Hashable, Any], depth: int) -> Payload:
        if depth <= 0:
            raise Refusal(_NO_MORE_DEPTH)
        out: dict[str, Payload] = {}
        pairs: list[Payload] = []
        key: Any = None
        try:
            for key, item in value.items():
                if type(key) is not str or not (key.isidentifier() or is_harmless_key(key)):
                    break
                out[key] = self._any(item, depth - 1)
            else:
                return out
            for key, item in value.items():
                if depth <= _LEVELS_OF_PAIRS:
                    raise Refusal(_NO_MORE_DEPTH)
                pairs.append([self._any(part, depth - _LEVELS_OF_PAIRS) for part in (key, item)])
            return {TAG: "dict", "items": pairs}
        except Refusal as refusal:
            raise refusal.within(f"[{key!r}]") from None

    def _learn(self, cls: type) -> _EncodeAny:
        known = ENCODERS.get(cls) or library_encoder(cls)
        if known is not None:
            return self._bounded(known)
        form = _form(cls)
        if form is None:
            raise Refusal(_why_not(cls))
        ref, classes = encode_ref(cls, self._any)
        for one in classes:
            if why := self._why_missing(one):
                raise Refusal(why)
        encode_fields = form.encode

        def encode_instance(value: Any, depth: int) -> Payload:
            if depth <= 0:
                raise Refusal(_NO_MORE_DEPTH)
            for one in classes:  # each time: a notebook's cell may have been run again
                require_found(one)
            return encode_fields(value, {TAG: ref}, self._any, depth - 1)

        return encode_instance

    def _bounded(self, known: FormEncoder) -> _EncodeAny:
        def encode_known(value: Any, depth: int) -> Payload:
            if depth <= 1:
                raise Refusal(_NO_MORE_DEPTH)
            return known(value, self._any, depth - 2)

        return encode_known


_LEVELS_OF_PAIRS = 3
"""The form of a dict, the list in it, and the pair."""
_encoder = Encoder()
_forms: dict[type, ClassForm | None] = {}


def _form(cls: type) -> ClassForm | None:
    if cls not in _forms:
        _forms[cls] = form_of(cls)
    return _forms[cls]


def _why_not(cls: type) -> str:
    name = f"{cls.__module__}.{cls.__qualname__}"
    if cls.__module__.partition(".")[0] == "ray":
        return f"a {name} lives only as long as its cluster; store its value"
    if cls.__module__ == "pydantic.types" and cls.__name__.startswith("Secret"):
        return f"a {name} would lie open in the database; store where the secret is found, and read it in the step"
    for plain in (str, int, float, bytes, list, dict, set, tuple):
        if issubclass(cls, plain):
            return f"a {name} would come back as a plain {plain.__name__}; convert it first"
    return f"a {name} cannot be stored; use pydantic models, dataclasses and plain values"
