"""How does a captured Enum come back as it was: attributes, aliases, combinations of flags, values of what it mixes in?

Neither the class statement nor `__new__` and `__init__` of the user run again: what they made is in the members, and
members travel as objects. Functions of this module are named in stored copies: their names stay.
"""

from __future__ import annotations

import pickle
from enum import Enum
from types import BuiltinMethodType
from typing import Any

import cloudpickle
import cloudpickle.cloudpickle

_cloudpickle: Any = cloudpickle.cloudpickle  # has no types
_MEMBERS = "_member_map_"


def is_member_by_value(obj: object) -> bool:
    """Whether `obj` is a member, or a combination of flags, of a class that is captured by value."""
    return isinstance(obj, Enum) and not _cloudpickle._should_pickle_by_reference(type(obj))  # noqa: SLF001


def reduce_enum(cls: type[Enum], tracker: str) -> Any:
    """How pickle takes apart an Enum class: a class without members first, then all that the class has."""
    content, slots = _cloudpickle._class_getstate(cls)  # noqa: SLF001
    # Last: from then on the class lets no member be assigned.
    content = {name: value for name, value in content.items() if name != _MEMBERS} | {_MEMBERS: cls._member_map_}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    arguments = (type(cls), cls.__name__, cls.__bases__, names, tracker, None)
    return _cloudpickle._make_skeleton_class, arguments, (content, slots)  # noqa: SLF001


def reduce_member(member: Enum) -> Any:
    """How pickle takes apart a member. Raises `PicklingError` when the value that it mixes in cannot be told."""
    cls = type(member)
    makers = (vars(base).get("__new__") for base in cls.__mro__)
    built_in: Any = next(make.__self__ for make in makers if isinstance(make, BuiltinMethodType))
    if built_in is object:
        arguments: tuple[Any, ...] = ()
    elif hasattr(built_in, "__getnewargs__"):
        arguments = built_in.__getnewargs__(member)
    elif "__reduce__" in vars(built_in):
        arguments = built_in.__reduce__(member)[1]
    else:
        raise pickle.PicklingError(f"the enum {cls.__qualname__} is also a {built_in.__name__}, which cannot be copied")
    state: Any = object.__getstate__(member)
    # The name at once: it is what a member is hashed by.
    return make_member, (cls, built_in, arguments, member._name_), state, None, None, set_member


def make_member(cls: type[Enum], built_in: Any, arguments: tuple[Any, ...], name: str) -> Enum:
    """A member that has its name and the value that it mixes in, and nothing else yet."""
    member: Enum = built_in.__new__(cls, *arguments)
    member._name_ = name
    return member


_Attributes = dict[str, Any]
_State = _Attributes | tuple[_Attributes | None, _Attributes]


def set_member(member: Enum, state: _State) -> None:
    """Give a member its attributes, whatever its class says to assignments."""
    for name, value in attributes_in(state):
        object.__setattr__(member, name, value)


def attributes_in(state: _State) -> list[tuple[str, Any]]:
    """Names and values in the state of a reduced member, those in slots last."""
    return [item for part in (state if isinstance(state, tuple) else (state,)) for item in (part or {}).items()]
