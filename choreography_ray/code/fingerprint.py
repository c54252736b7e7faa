"""When is captured code the same code? A digest of what it says, alike in every process that captures it.

Pickle bytes will not do: they vary with the process (order of sets, random ids of classes, which strings happen to be
one object), so the same notebook would be a new version after each restart. Source text will not do either: a
notebook's functions also depend on values from other cells. So everything that the capture carries is walked and
hashed: bytecode without file names and line numbers, class bodies, the globals that functions use, plain values.
What the walk does not understand it takes apart as pickle would; at worst the same code counts as a new version,
never new code as an old one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, ForwardRef, TypeVar, cast

import cloudpickle

from choreography_ray.code.blame import names_in
from choreography_ray.code.enums import attributes_in, reduce_member
from choreography_ray.code.ownership import contents_of, stream_name

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)

_DERIVED = frozenset(
    {
        "__abstractmethods__",
        "__annotate_func__",
        "__annotations_cache__",
        "__dict__",
        "__firstlineno__",
        "__parameters__",
        "__signature__",
        "__slotnames__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
        "_value2member_map_",
    }
)
"""Entries of a class that Python makes from the others, that tell where it stands, or that are filled by its use."""

_DERIVED_OF_MEMBER = frozenset({"__objclass__", "_inverted_", "_sort_order_"})
_PYDANTIC_KEPT = frozenset({"__pydantic_config__", "__pydantic_fields__", "__pydantic_generic_metadata__"})
_NAMELY = ("__wrapped__", "__supertype__", "__value__", "__bound__", "__constraints__")
"""What is behind an object that pickles as a name: a cached function, a new type, an alias of a type, a variable."""
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def fingerprint(root: object, is_by_value: Callable[[str], bool]) -> str:
    """Hex digest of `root` and of all that it leads to. `is_by_value(module name)`: what belongs to that module is
    walked; everything else is named.
    """
    return _Walk(is_by_value).digest(root)


class _Walk:
    def __init__(self, is_by_value: Callable[[str], bool]) -> None:
        self._is_by_value = is_by_value
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []

    def digest(self, root: object) -> str:
        self._visit(root)
        return self._hash.hexdigest()

    def _token(self, *parts: object) -> None:
        for part in parts:
            text = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
            self._hash.update(len(text).to_bytes(8, "big") + text)

    def _visit(self, value: object) -> None:
        if type(value) in _ATOMS:
            # Python writes no number of thousands of digits in tens.
            self._token(type(value).__name__, hex(value) if isinstance(value, int) else repr(value))
        elif isinstance(value, ModuleType):
            self._token("module", value.__name__)
        elif type(value) in {set, frozenset}:
            members = cast("Iterable[object]", value)
            self._token("set", *sorted(_Walk(self._is_by_value).digest(member) for member in members))
        elif self._is_first(value):
            self._visit_once(value)

    def _is_walked(self, module: str, qualname: str) -> bool:
        # What is defined inside a function, or is a lambda, goes by value from any module: nothing can import it.
        return self._is_by_value(module) or "<" in qualname

    def _is_first(self, value: object) -> bool:
        """False, with a reference noted, for what was met before: ends cycles."""
        number = self._seen.setdefault(id(value), len(self._seen))
        is_first = number == len(self._kept)
        if is_first:
            self._kept.append(value)  # keeps the id from being used again
        else:
            self._token("seen", number)
        return is_first

    def _visit_once(self, value: object) -> None:
        match value:
            case Enum():
                self._visit_member(value)
            case _ if type(value) in {list, tuple}:
                self._each(type(value).__name__, cast("list[object]", value))
            case _ if type(value) in {dict, MappingProxyType}:
                mapping = cast("Mapping[object, object]", value)
                self._each("dict", [part for item in list(mapping.items()) for part in item])
            case CodeType():
                self._visit_code(value)
            case FunctionType():
                self._visit_function(value)
            case MethodType():
                self._each("method", [value.__func__, value.__self__])
            case staticmethod() | classmethod():
                self._each(type(cast("object", value)).__name__, [cast("Any", value).__func__])
            case property():
                self._each("property", [value.fget, value.fset, value.fdel])
            case CellType():
                self._each("cell", contents_of(value))
            case type():
                self._visit_class(value)
            case ForwardRef():
                self._token("forward", value.__forward_arg__)
            case _ if isinstance(value, _LOCKS):
                self._token("lock", type(value).__name__)
            case _ if (stream := stream_name(value)) is not None:
                self._token("stream", stream)
            case _:
                self._visit_parts(value)

    def _each(self, tag: str, parts: Iterable[object]) -> None:
        parts = list(parts)
        self._token(tag, len(parts))
        for part in parts:
            self._visit(part)

    def _visit_code(self, code: CodeType) -> None:
        self._token("code", code.co_name, code.co_code, code.co_exceptiontable, code.co_flags)
        self._token(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._token(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self._each("constants", code.co_consts)

    def _visit_function(self, function: FunctionType) -> None:
        module = function.__module__ or ""
        if not self._is_walked(module, function.__qualname__):
            self._token("function", module, function.__qualname__)
            return
        self._token("own function", function.__qualname__)
        self._each("", [function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__])
        self._each("", [function.__dict__, function.__annotations__])
        for name in sorted(function.__globals__.keys() & set(names_in(function.__code__))):
            self._token("global", name)
            self._visit(function.__globals__[name])

    def _visit_class(self, cls: type) -> None:
        self._token("class", cls.__module__, cls.__qualname__)
        if not self._is_walked(cls.__module__, cls.__qualname__):
            return
        generic = cls.__dict__.get("__pydantic_generic_metadata__")
        if generic and generic["origin"]:
            self._each("of", [generic["origin"], generic["args"]])  # pydantic derives the rest
            return
        self._each("bases", [*cls.__dict__.get("__orig_bases__", cls.__bases__), type(cls)])
        for name, member in sorted(vars(cls).items()):
            is_derived = name in _DERIVED or (name.startswith("__pydantic_") and name not in _PYDANTIC_KEPT)
            if not is_derived:
                self._token("attribute", name)
                self._visit(member)
        for rule, how in _pydantic_rules(cls):
            self._token("rule", rule)
            self._visit(how)

    def _visit_member(self, member: Enum) -> None:
        cls = type(member)
        self._token("member", member.name)
        self._visit(cls)
        if self._is_walked(cls.__module__, cls.__qualname__):
            _, (_, _, mixed_in, _), state, *_ = reduce_member(member)
            own = {name: value for name, value in attributes_in(state) if name not in _DERIVED_OF_MEMBER}
            self._each("made of", [mixed_in, own])

    def _visit_parts(self, value: object) -> None:
        """Any other object: what pickle would take it apart into; what cannot be told is new each time."""
        self._visit(type(value))
        try:
            parts = _taken_apart(value)
        except Exception:  # noqa: BLE001 - it runs code of the user
            self._token("opaque", uuid.uuid4())
            return
        if isinstance(parts, str):
            self._token("named", parts)
            known: Any = value
            self._each("namely", [getattr(known, name, None) for name in _NAMELY])
            self._visit(known.cache_parameters() if hasattr(known, "cache_parameters") else None)
            return
        constructor, arguments, *rest = parts
        self._each("made by", [constructor, arguments])
        for more in rest:
            self._visit(list(cast("Iterator[object]", more)) if isinstance(more, Iterator) else more)


def _taken_apart(value: object) -> Any:
    # cloudpickle numbers type variables by chance.
    how = None if isinstance(value, TypeVar) else _how_to_reduce.get(type(value))
    return how(value) if how else value.__reduce_ex__(4)


_how_to_reduce: Mapping[type, Callable[[Any], Any]] = cast("Any", cloudpickle).CloudPickler.dispatch_table
"""What copyreg and cloudpickle know of types that do not take themselves apart."""


def _pydantic_rules(cls: type) -> list[tuple[str, object]]:
    """How pydantic applies the validators and serializers of a class; the functions are attributes of the class.

    The records around them hold addresses of classes, which differ from process to process.
    """
    found: list[tuple[str, object]] = []
    kinds: Any = cls.__dict__.get("__pydantic_decorators__")
    for kind in dataclasses.fields(kinds) if dataclasses.is_dataclass(kinds) else ():
        rules: Any = getattr(kinds, kind.name)
        if isinstance(rules, dict):
            found += [(f"{kind.name}.{name}", rule.info) for name, rule in cast("dict[str, Any]", rules).items()]
    return found
