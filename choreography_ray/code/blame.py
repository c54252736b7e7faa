"""Which name of the user's code holds what cannot be captured? A refusal that does not say so helps nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType

from choreography_ray.code.ownership import contents_of, functions_of


def fault_of(
    value: object, modules: Mapping[str, ModuleType], refusal_of: Callable[[object], Exception | None]
) -> str | None:
    """A sentence that names the innermost holder of what is refused; None when nothing that `value` holds is.

    Goes through classes, functions and instances of the user's `modules`, and what is made of them.
    """
    return _fault(value, modules, refusal_of, [value])


def _fault(
    value: object,
    modules: Mapping[str, ModuleType],
    refusal_of: Callable[[object], Exception | None],
    met: list[object],
) -> str | None:
    for how, held in _held_by(value, modules):
        if any(held is each for each in met):
            continue
        met.append(held)
        if (cause := refusal_of(held)) is not None:
            kind = "" if isinstance(held, type | FunctionType) else f" (a {type(held).__name__})"
            deeper = _fault(held, modules, refusal_of, met)
            return deeper or f"{how}{kind}, which cannot leave its process: {cause}"
    return None


def _held_by(value: object, modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, object]]:
    """What code, or an object of a class, of the user holds, and how that is told."""
    if isinstance(value, MethodType):
        yield f"{value.__func__.__qualname__} is bound to an object", value.__self__
        yield from _held_by(value.__func__, modules)
    elif isinstance(value, partial):
        parts = [value.func, *value.args, *value.keywords.values()]  # pyright: ignore[reportUnknownMemberType]
        for held in parts:
            yield "a partial application holds a value", held
    elif isinstance(value, type | FunctionType):
        for function in functions_of(value):
            yield from _held_by_function(function)
        if isinstance(value, type) and (value.__module__ in modules or "<locals>" in value.__qualname__):
            for name, member in list(vars(value).items()):
                held = getattr(member, "__func__", member)
                if not name.startswith(("__", "_abc_")) and not isinstance(held, FunctionType):
                    yield f"{value.__qualname__} has the attribute {name}", held
    elif type(value).__module__ in modules:
        for name, held in list(getattr(value, "__dict__", {}).items()):
            yield f"a {type(value).__qualname__} has the attribute {name}", held


def _held_by_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    module = function.__globals__.get("__name__", "?")
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield f"{function.__qualname__} uses {name} of the module {module}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        for held in contents_of(cell):
            yield f"{function.__qualname__} has caught {name}", held
    for held in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"{function.__qualname__} has a default value", held


def names_in(code: CodeType) -> list[str]:
    """The names that a function uses, those of functions inside it included; each once."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in names_in(constant)]
    return list(dict.fromkeys((*code.co_names, *inner)))
