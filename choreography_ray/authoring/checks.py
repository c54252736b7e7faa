"""Is a job or step class written in a way that can work? Asked once, when Python makes the class."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any, ForwardRef, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from choreography_ray.errors import InvalidJobType

OUR_RAY_OPTIONS = frozenset({"name", "namespace", "lifetime", "max_restarts", "max_task_retries", "max_concurrency"})
"""Options of a Ray actor that the framework sets itself [S14.4]."""


class Authored(abc.ABCMeta):
    """Makes the classes that users write, and has each one checked by its `_check_definition`.

    A class that cloudpickle brings back is empty at first and gets its content, flags included, afterwards: it was
    checked where it was written. It is known by the lack of `__qualname__`, which a class statement always sets.
    """

    is_concrete: bool
    """Whether the class passed all checks, so that it can be used and not only derived from."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **kwargs: Any) -> None:
        super().__init__(name, bases, namespace, **kwargs)
        is_root = not any(isinstance(base, Authored) for base in bases)
        is_written = "__qualname__" in namespace or any(isinstance(each, FunctionType) for each in namespace.values())
        if not is_written and not is_root:
            return  # cloudpickle leaves out what is inherited unchanged: nothing may stand in its way here
        cls.is_concrete = False
        if not is_root and not is_abstract(cls):
            cls._check_definition()
            cls.is_concrete = True

    def _check_definition(cls) -> None:
        """Raise `InvalidJobType` when the class cannot work; else set what is derived from its definition."""


def type_title(cls: type) -> str:
    """How a class is named in an error: module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def resolve_arguments(cls: type, origin: type) -> tuple[Any, ...]:
    """The arguments that `cls` gives to its generic base `origin`, through any number of generic bases between.

    What stays open comes back as the TypeVar it is.
    """
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        owner = get_origin(base) or base
        if not isinstance(owner, type) or not issubclass(owner, origin):
            continue
        given = get_args(base)
        if owner is origin:
            return given or _parameters(origin)
        known = dict(zip(_parameters(owner), given, strict=False))
        return tuple(_substitute(argument, known) for argument in resolve_arguments(owner, origin))
    return _parameters(origin)


def _parameters(owner: Any) -> tuple[Any, ...]:
    return tuple(getattr(owner, "__parameters__", ()))


def _substitute(argument: Any, known: Mapping[Any, Any]) -> Any:
    if isinstance(argument, TypeVar):
        return known.get(argument, argument)
    inner = _parameters(argument)
    return argument[tuple(known.get(each, each) for each in inner)] if inner else argument


def is_abstract(cls: type) -> bool:
    """True for a class that is only there to be derived from: open type arguments, `abc.ABC`, abstract methods.

    Does not rely on `inspect.isabstract`, which knows nothing yet while the class is being made.
    """
    return bool(
        _parameters(cls)
        or abc.ABC in cls.__bases__
        or any(getattr(member, "__isabstractmethod__", False) for member in vars(cls).values())
    )


def require_model(cls: type, what: str, found: Any, base: type[BaseModel]) -> type[BaseModel]:
    """`found` as the class it must be: a subclass of `base`; else `InvalidJobType`.

    A forward reference is looked up where `cls` is defined.
    """
    if isinstance(found, str | ForwardRef):
        found = _look_up(cls, found)
    if not isinstance(found, type) or not issubclass(found, base):
        kind = "a pydantic model" if base is BaseModel else f"a {base.__name__}"
        raise InvalidJobType(type_title(cls), f"its {what} type must be {kind}, not {_show(found)}")
    return found


def _look_up(cls: type, reference: str | ForwardRef) -> Any:
    first, *rest = (reference if isinstance(reference, str) else reference.__forward_arg__).split(".")
    found = _globals_of(cls).get(first, reference)
    for part in rest:
        found = getattr(found, part, reference)
    return found


def _globals_of(cls: type) -> dict[str, Any]:
    for member in vars(cls).values():
        if isinstance(member, FunctionType):
            return member.__globals__
    return {}


def _show(found: Any) -> str:
    return type_title(found) if isinstance(found, type) else repr(found)


def require_defaults(cls: type, state_type: type[BaseModel]) -> None:
    """Every field of a state needs a default, because a fresh state exists before anything fills it."""
    missing = [name for name, field in state_type.model_fields.items() if field.is_required()]
    if missing:
        raise InvalidJobType(
            type_title(cls),
            f"every field of its state {state_type.__name__} needs a default, and {', '.join(missing)} has none",
        )


def require_method(cls: type, name: str, parameters: tuple[str, ...], base: type, *, required: bool = False) -> None:
    """Method `name` can be called with `parameters`; when `required`, `cls` must define it beyond `base`."""
    static = inspect.getattr_static(cls, name, None)
    if static is None or static is inspect.getattr_static(base, name, None):
        if required:
            raise InvalidJobType(type_title(cls), f"it must define {name}({', '.join(('self', *parameters))})")
        return
    method = getattr(cls, name)
    if not callable(method):
        raise InvalidJobType(type_title(cls), f"{name} must be a method, not {method!r}")
    bound = isinstance(static, staticmethod | classmethod)
    try:
        inspect.signature(method).bind(*parameters if bound else ("self", *parameters))
    except TypeError as problem:
        wanted = ", ".join(("self", *parameters))
        raise InvalidJobType(type_title(cls), f"{name} must take ({wanted}): {problem}") from None
    except ValueError:
        return  # a callable without a readable signature: it may be right


def require_kind(title: str, name: str, value: object, kind: type) -> None:
    """`value` is an instance of `kind`; a bool is no int here."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidJobType(title, f"{name} must be of type {kind.__name__}, not {value!r}")


def require_subclass(title: str, name: str, value: object, base: type) -> None:
    """`value` is a class derived from `base`."""
    if not isinstance(value, type) or not issubclass(value, base):
        raise InvalidJobType(title, f"{name} needs a subclass of {base.__name__}, not {_show(value)}")


def require_no_arguments(cls: type) -> None:
    """Instances are made by the engine, again after each crash, so a constructor can ask for nothing."""
    try:
        inspect.signature(inspect.getattr_static(cls, "__init__")).bind("self")
    except TypeError as problem:
        raise InvalidJobType(type_title(cls), f"its __init__ must work without arguments: {problem}") from None


def require_annotation(cls: type, method: str, position: int, actual: type, what: str) -> None:
    """The annotation of a parameter (from 0, after self), if there is one that can be read, must admit `actual`.

    Only plain classes are judged; unions, type variables and names that cannot be looked up are left to mypy.
    """
    function = inspect.unwrap(getattr(cls, method))
    if not isinstance(function, FunctionType):
        return
    names = list(inspect.signature(function).parameters)[1:]
    if position >= len(names):
        return
    try:
        hints = get_type_hints(function, localns={actual.__name__: actual})
    except Exception:  # noqa: BLE001 - an annotation may name anything, also what only type checkers see
        hints = function.__annotations__
    annotation = hints.get(names[position])
    if not isinstance(annotation, type) or annotation is Any or get_origin(annotation) is not None:
        return
    if not issubclass(actual, annotation):
        raise InvalidJobType(
            type_title(cls),
            f"{method} takes {names[position]}: {annotation.__name__}, but {what} is {actual.__name__}",
        )


def check_ray_options(title: str, options: object) -> None:
    """`ray_options` is a mapping with text keys and none of the options that are ours [S14.4]."""
    if not isinstance(options, Mapping):
        raise InvalidJobType(title, f"ray_options must map names of Ray actor options to values, not {options!r}")
    names = set(cast("Mapping[object, object]", options))
    if not all(isinstance(name, str) for name in names):
        raise InvalidJobType(title, f"ray_options must map names of Ray actor options to values, not {options!r}")
    ours = sorted(OUR_RAY_OPTIONS.intersection(cast("set[str]", names)))
    if ours:
        raise InvalidJobType(
            title,
            f"ray_options cannot set {', '.join(ours)}: the framework names its actors, keeps them alive and "
            "repeats their work itself",
        )
