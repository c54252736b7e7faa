"""How are instances of classes taken apart and put together: pydantic models, dataclasses, named tuples, enums?

And how is a class named, so that the same one, with its generic arguments, is found again?
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Union, cast

from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from choreography_ray.codec.forms import Decode, Encode, Refusal, is_harmless_key
from choreography_ray.records import Payload

EncodeFields = Callable[[Any, dict[str, Payload], Encode, int], Payload]
"""Adds the fields of an instance to a document that names its class, and returns it."""

_SET, _PRIVATE, _EXTRA, _ABSENT = "~s", "~p", "~x", "~a"


class UnreadableClass(Exception):
    """The class is there, but has changed so that the stored value cannot be made again."""


_NO_DEFAULT = "the stored value has no {}, and the field no default"


@dataclasses.dataclass(frozen=True, slots=True)
class ClassForm:
    """How instances of one class are stored; made once per class."""

    encode: EncodeFields
    decode: Callable[[dict[str, Any], Decode], Any]


def form_of(cls: type[Any]) -> ClassForm | None:
    """The form of a class; None when its instances cannot be stored. Raises `Refusal` with a better reason."""
    if issubclass(cls, Enum):
        return _enum_form(cls)
    if issubclass(cls, BaseModel):
        return _model_form(cls)
    if tuple in cls.__mro__ and hasattr(cls, "_fields"):
        return _named_tuple_form(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass_form(cls)
    return None


def led_to(owner: object, qualname: str) -> Any:
    """What a qualified name leads to from a module; None if to nothing."""
    found: Any = owner
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


_captured: set[type] = set()


def know_captured(classes: Iterable[type]) -> None:
    """Classes that came alive from a captured copy: whoever has the copy finds them by name, if in no module [S13]."""
    _captured.update(classes)


def require_found(cls: type) -> None:
    """Raise `Refusal` unless the name of a class leads to this very class: else another's instance would come back."""
    if cls in _captured:
        return
    module, qualname = cls.__module__, cls.__qualname__
    found = led_to(sys.modules.get(module), qualname)
    if found is cls:
        return
    if "<" in qualname:
        raise Refusal(f"the class {qualname} is defined inside a function; define it at the top level of its module")
    if isinstance(found, type):
        raise Refusal(f"another class of the name {qualname} is in the module {module} by now; make the value anew")
    raise Refusal(f"the class {qualname} is not found under its name in the module {module}")


def encode_ref(cls: type[Any], encode: Encode) -> tuple[Payload, tuple[type, ...]]:
    """The name of a class, as it is stored, and the classes that are named in it. Raises `Refusal`."""
    named: dict[str, type] = {}
    ref = _ref(cls, named, encode)
    for one in named.values():
        require_found(one)
    if isinstance(ref, list) and resolve_ref(ref, named.__getitem__, lambda payload: payload) is not cls:
        raise Refusal(f"the generic class {cls.__qualname__} would not be found again by its arguments")
    return cast("Payload", ref), tuple(named.values())


def _ref(what: Any, named: dict[str, type], encode: Encode) -> Payload:
    if what is None or what is type(None):
        return "builtins:NoneType"
    if what is Any:
        return "typing:Any"
    generic = getattr(what, "__pydantic_generic_metadata__", None)
    if generic and generic["origin"]:
        return [_ref(generic["origin"], named, encode), *(_ref(arg, named, encode) for arg in generic["args"])]
    origin = typing.get_origin(what)
    args = typing.get_args(what)
    if origin is typing.Literal:
        return ["typing:Literal", *(encode(arg, 8) for arg in args)]
    if origin in (Union, types.UnionType):  # equal, but pydantic makes a class for each
        return ["typing:Union" if origin is Union else "types:UnionType", *(_ref(arg, named, encode) for arg in args)]
    if isinstance(origin, type):
        return [_ref(origin, named, encode), *("..." if arg is ... else _ref(arg, named, encode) for arg in args)]
    if isinstance(what, type):
        name = f"{what.__module__}:{what.__qualname__}"
        named[name] = what
        return name
    raise Refusal(f"the generic argument {what!r} cannot be named")


def resolve_ref(ref: Any, resolve: Callable[[str], type], decode: Decode) -> Any:
    """The class that a stored name means; what `resolve` raises passes through."""
    if ref.__class__ is list:
        parts: list[Any] = ref
        head, rest = parts[0], parts[1:]
        if head == "typing:Literal":
            return cast("Any", typing.Literal)[tuple(decode(value) for value in rest)]
        args: tuple[Any, ...] = tuple(... if arg == "..." else resolve_ref(arg, resolve, decode) for arg in rest)
        if head == "types:UnionType":
            return functools.reduce(_either, args)
        return (Union if head == "typing:Union" else resolve_ref(head, resolve, decode))[args]
    if ref == "builtins:NoneType":
        return type(None)
    if ref == "typing:Any":
        return Any
    module, _, name = ref.partition(":")
    return getattr(builtins, name, None) if module == "builtins" else resolve(ref)


def _either(left: Any, right: Any) -> Any:
    return left | right


def _model_form(cls: type[BaseModel]) -> ClassForm:
    fields = dict(cls.__pydantic_fields__)
    _check_layout(cls, set(fields), BaseModel)
    for name in fields:
        if name.startswith("~") or not is_harmless_key(name):
            raise Refusal(f"the field name {name!r} of {cls.__qualname__} cannot be the key of a document")
    return ClassForm(_model_encoder(cls, fields), _model_decoder(cls, fields))


def _model_encoder(cls: type[BaseModel], fields: dict[str, FieldInfo]) -> EncodeFields:
    all_fields = frozenset(fields)

    def encode_model(value: Any, out: dict[str, Payload], encode: Encode, depth: int) -> Payload:
        stored = value.__dict__
        absent: list[str] = []
        name = ""
        try:
            for name in fields:
                if name in stored:
                    out[name] = encode(stored[name], depth)
                else:  # made by model_construct, or deleted
                    absent.append(name)
        except Refusal as refusal:
            raise refusal.within(f".{name}") from None
        if absent:
            out[_ABSENT] = encode(absent, depth)
        if len(stored) + len(absent) > len(fields):
            _check_unknown(cls, stored, all_fields)
        if value.__pydantic_extra__:
            out[_EXTRA] = encode(value.__pydantic_extra__, depth)
        if value.__pydantic_private__:
            out[_PRIVATE] = _encode_named(value.__pydantic_private__, encode, depth - 1)
        if value.__pydantic_fields_set__ != (
            all_fields.union(value.__pydantic_extra__) if value.__pydantic_extra__ else all_fields
        ):
            out[_SET] = encode(sorted(value.__pydantic_fields_set__), depth)
        return out

    return encode_model


def _model_decoder(cls: type[BaseModel], fields: dict[str, FieldInfo]) -> Callable[[dict[str, Any], Decode], Any]:
    keeps_extra = cls.model_config.get("extra") == "allow"
    is_root = issubclass(cls, RootModel)
    private = dict(cls.__private_attributes__)

    def decode_model(form: dict[str, Any], decode: Decode) -> Any:
        values: dict[str, Any] = {}
        absent = form.get(_ABSENT, ())
        for name, field in fields.items():
            if name in form:
                values[name] = decode(form[name])
            elif name not in absent:
                default = field.get_default(call_default_factory=True, validated_data=values)
                if default is PydanticUndefined:
                    raise UnreadableClass(_NO_DEFAULT.format(name))
                values[name] = default
        extra: dict[str, Any] | None = None
        if keeps_extra:
            lost = {name: decode(form[name]) for name in form if name not in fields and not name.startswith("~")}
            extra = lost | decode(form.get(_EXTRA, {}))
        if _SET in form:
            explicit = set(decode(form[_SET]))
        else:
            explicit = {name for name in fields if name in form}.union(extra or ())
        model = cls.__new__(cls)
        _put(model, "__dict__", values)
        _put(model, "__pydantic_fields_set__", explicit)
        if not is_root:  # a root model has no slots for these
            _put(model, "__pydantic_extra__", extra)
        if private or not is_root:
            _put(model, "__pydantic_private__", _decode_private(form, decode) if private else None)
        return model

    def _decode_private(form: dict[str, Any], decode: Decode) -> dict[str, Any]:
        kept = {name: decode(value) for name, value in form.get(_PRIVATE, {}).items()}
        for name, attribute in private.items():
            if name not in kept and (default := attribute.get_default()) is not PydanticUndefined:
                kept[name] = default
        return kept

    return decode_model


_put = object.__setattr__


def _encode_named(values: dict[str, Any], encode: Encode, depth: int) -> dict[str, Payload]:
    out: dict[str, Payload] = {}
    name = ""
    try:
        for name, value in values.items():
            out[name] = encode(value, depth)
    except Refusal as refusal:
        raise refusal.within(f".{name}") from None
    return out


def _check_unknown(cls: type, stored: dict[str, Any], known: frozenset[str]) -> None:
    """Values in an instance's dict that are no fields would be lost; cached ones are made again."""
    for name in stored.keys() - known:
        if not name.startswith("__") and not isinstance(getattr(cls, name, None), functools.cached_property):
            raise Refusal("it is set on the instance but is no field of its class").within(f".{name}")


def _check_layout(cls: type, fields: set[str], root: type) -> None:
    """Refuse classes that hold more than their fields: in slots, or as an instance of a built-in class."""
    for base in cls.__mro__:
        if base is root:
            return
        if not base.__flags__ & _HEAP_TYPE and base is not object:
            raise Refusal(f"{cls.__qualname__} is also a {base.__name__}, whose value is no field")
        slots = base.__dict__.get("__slots__", ())
        more = {slots} if isinstance(slots, str) else set(slots)
        if not {name for name in more if not name.startswith("__")} <= fields:
            raise Refusal(f"{cls.__qualname__} has slots that are no fields")


_HEAP_TYPE = 1 << 9


def _dataclass_form(cls: type) -> ClassForm:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    _check_layout(cls, set(fields), object)
    known = frozenset(fields)

    def encode_dataclass(value: Any, out: dict[str, Payload], encode: Encode, depth: int) -> Payload:
        name = ""
        try:
            for name in fields:
                out[name] = encode(getattr(value, name), depth)
        except Refusal as refusal:
            raise refusal.within(f".{name}") from None
        except AttributeError:
            raise Refusal("the field has no value").within(f".{name}") from None
        _check_unknown(cls, getattr(value, "__dict__", {}), known)
        return out

    def decode_dataclass(form: dict[str, Any], decode: Decode) -> Any:
        made: Any = object.__new__(cast("Any", cls))
        for name, field in fields.items():
            if name in form:
                _put(made, name, decode(form[name]))
            elif field.default is not dataclasses.MISSING:
                _put(made, name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                _put(made, name, field.default_factory())
            else:
                raise UnreadableClass(_NO_DEFAULT.format(name))
        return made

    return ClassForm(encode_dataclass, decode_dataclass)


def _named_tuple_form(cls: Any) -> ClassForm:
    fields: tuple[str, ...] = cls._fields

    def encode_named_tuple(value: Any, out: dict[str, Payload], encode: Encode, depth: int) -> Payload:
        if getattr(value, "__dict__", None):
            raise Refusal(f"{cls.__qualname__} has attributes that are no fields of the named tuple")
        return out | _encode_named(dict(zip(fields, value, strict=True)), encode, depth)

    def decode_named_tuple(form: dict[str, Any], decode: Decode) -> Any:
        values: list[Any] = []
        for name in fields:
            if name in form:
                values.append(decode(form[name]))
            elif name in cls._field_defaults:
                values.append(cls._field_defaults[name])
            else:
                raise UnreadableClass(_NO_DEFAULT.format(name))
        return cls._make(values)

    return ClassForm(encode_named_tuple, decode_named_tuple)


def _enum_form(cls: type[Enum]) -> ClassForm:
    members: dict[str, Any] = dict(cls.__members__)

    def encode_member(value: Enum, out: dict[str, Payload], encode: Encode, depth: int) -> Payload:
        name = value.name
        if members.get(name) is value:
            out["name"] = name
        else:  # a combination of flags
            out["value"] = encode(value.value, depth)
        return out

    def decode_member(form: dict[str, Any], decode: Decode) -> Any:
        try:
            return members[form["name"]] if "name" in form else cls(decode(form["value"]))
        except (KeyError, ValueError):
            raise UnreadableClass(f"it has no member {form.get('name', form.get('value'))!r}") from None

    return ClassForm(encode_member, decode_member)
