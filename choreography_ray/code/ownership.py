"""Which loaded modules belong to the user, and which to an installation that every node of the cluster has?"""

from __future__ import annotations

import dis
import importlib
import importlib.metadata
import importlib.util
import json
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial, partialmethod
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast
from urllib.parse import unquote, urlparse

from choreography_ray.codec.classes import led_to


def is_installed(module: ModuleType) -> bool:
    """Whether a module can be imported wherever its distribution is installed.

    True for the standard library, site-packages, and packages of distributions installed in editable mode; false
    for `__main__`, notebooks, and whatever lies beside a script or on a path of the user's own.
    """
    name = module.__name__
    top = name.partition(".")[0]
    if name in {"__main__", "__mp_main__"}:
        return False
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return True
    where = _location(module)
    if where is None:
        return False
    if {"site-packages", "dist-packages"} & set(where.parts) or any(where.is_relative_to(p) for p in _install_paths()):
        return True
    return any(where.is_relative_to(root) and _provides(root, names, top) for root, names in _editable())


def _location(module: ModuleType) -> Path | None:
    path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return Path(path).resolve() if isinstance(path, str) else None


@cache
def _install_paths() -> tuple[Path, ...]:
    schemes = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(path).resolve() for path in (*schemes, *site.getsitepackages(), site.getusersitepackages()))


@cache
def _editable() -> tuple[tuple[Path, frozenset[str]], ...]:
    """Project folders of editable installs, each with the top-level names that its metadata tells."""
    found: list[tuple[Path, frozenset[str]]] = []
    for distribution in importlib.metadata.distributions():
        origin = distribution.read_text("direct_url.json")
        about: dict[str, Any] = json.loads(origin) if origin else {}
        if about.get("dir_info", {}).get("editable"):
            names = frozenset((distribution.read_text("top_level.txt") or "").split())
            found.append((Path(unquote(urlparse(str(about["url"])).path)).resolve(), names))
    return tuple(found)


def _provides(root: Path, names: frozenset[str], top: str) -> bool:
    # Without top_level.txt: a regular package at the usual places. Scripts, tests and notebooks of the project have
    # no __init__.py there, and would not be part of its wheel.
    return top in names if names else any((root / sub / top / "__init__.py").exists() for sub in ("", "src"))


def owners_of(function: object) -> list[object]:
    """A callable and what it holds: what it is bound or applied to, defaults, what its closure has caught, and so on.

    Goes into containers, and into the bodies of classes of the user, to a bounded number of objects.
    """
    met: list[object] = [function]
    known = {id(function)}
    for each in met:
        for held in _held_by(each):
            if type(held) not in _PLAIN and id(held) not in known:
                known.add(id(held))
                met.append(held)
        if len(met) > _MAX_OWNERS:
            break
    return met


_MAX_OWNERS = 1_000
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""They hold nothing, and a table of data may have many."""


def _held_by(each: object) -> Iterable[object]:
    if isinstance(each, partial):
        return [each.func, *each.args, *each.keywords.values()]  # pyright: ignore[reportUnknownMemberType]
    if isinstance(each, MethodType):
        return [each.__func__, each.__self__]
    if isinstance(each, FunctionType):
        held = [*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values(), *each.__dict__.values()]
        return held + [content for cell in each.__closure__ or () for content in contents_of(cell)]
    if isinstance(each, list | tuple | set | frozenset):
        return list(cast("Iterable[object]", each))
    if isinstance(each, dict):
        return list(cast("dict[object, object]", each).values())
    if isinstance(each, type):
        module = sys.modules.get(each.__module__)
        return [] if module is None or is_installed(module) else list(vars(each).values())
    return _wrapped_by(each)


def _wrapped_by(member: object) -> list[object]:
    """The functions behind a descriptor in the body of a class, or behind a cache."""
    if isinstance(member, property):
        return [member.fget, member.fset, member.fdel]
    if isinstance(member, cached_property | partialmethod):
        return [cast("Any", member).func]
    if isinstance(member, staticmethod | classmethod | _Cached):
        return [cast("Any", member).__wrapped__]
    return []


_Cached: Any = type(lru_cache(len))


def contents_of(cell: CellType) -> list[object]:
    """What a closure has caught in a cell; nothing while that is not assigned yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def stream_name(value: object) -> str | None:
    """Under which name in `sys` a stream of this process is found, which is another object in every process."""
    return next((name for name in ("stdin", "stdout", "stderr") if value is getattr(sys, name)), None)


def user_modules(roots: Iterable[object]) -> dict[str, ModuleType]:
    """The modules of the user that these objects can reach, by name: their own, and what those refer to or import."""
    found: dict[str, ModuleType] = {}
    waiting = [sys.modules.get(name) for root in roots for name in _module_names(root)]
    while waiting:
        module = waiting.pop()
        if module is None or module.__name__ in found or is_installed(module):
            continue
        found[module.__name__] = module
        waiting.extend(_neighbours(module))
    return found


def _module_names(root: object) -> list[str]:
    if isinstance(root, ModuleType):
        return [root.__name__]
    kinds = (root if isinstance(root, type) else type(root)).__mro__
    own = getattr(root, "__module__", None)
    return [base.__module__ for base in kinds] + ([own] if isinstance(own, str) else [])


def _neighbours(module: ModuleType) -> Iterator[ModuleType | None]:
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value
            continue
        try:
            owner = getattr(value, "__module__", None)
        except Exception:  # noqa: BLE001 - a user's object may raise whatever it likes here
            owner = None
        if isinstance(owner, str):
            yield sys.modules.get(owner)
        if owner == module.__name__ or isinstance(value, _HOLDERS):
            for each in owners_of(value):
                if isinstance(each, FunctionType):
                    home = each.__globals__.get("__name__")
                    yield sys.modules.get(str(home))
                    if home == module.__name__:
                        yield from _imports(each)


_HOLDERS = (partial, list, tuple, set, frozenset, dict, _Cached, MethodType)
"""What a module makes of functions, and what does not tell that it did."""


def functions_of(value: object) -> Iterator[FunctionType]:
    """A function itself, or the functions in the body of a class, also those behind properties and the like."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, type):
        for member in vars(value).values():
            yield from (inner for inner in (member, *_wrapped_by(member)) if isinstance(inner, FunctionType))


def _imports(function: FunctionType) -> Iterator[ModuleType | None]:
    """Modules that a function imports when it runs; those that cannot be imported here are left out."""
    package = function.__globals__.get("__package__") or ""
    for name in _imported_names(function.__code__, package):
        if name in sys.modules:
            yield sys.modules[name]
            continue
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin and not is_installed(importlib.util.module_from_spec(spec)):
                yield importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - the function may never come to this import
            continue


def _imported_names(code: CodeType, package: str) -> Iterator[str]:
    level = 0
    previous: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            with suppress(ImportError):  # beyond its package, as the function would find out if it came to it
                name = "." * level + instruction.argval
                yield importlib.util.resolve_name(name, package) if level else name
        # The level is the constant loaded before the names that are taken from the module.
        level = previous if isinstance(previous, int) else 0
        previous = instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported_names(constant, package)


def defined_classes(modules: Iterable[ModuleType]) -> dict[str, type]:
    """Every class that is defined in these modules, nested ones included, as "module:qualname".

    Of several with one name it is the class that the name leads to: a notebook may still hold older ones.
    """
    found: dict[str, type] = {}
    for module in modules:
        seen: set[type] = set()
        waiting: list[object] = list(vars(module).values())
        while waiting:
            value = waiting.pop()
            if not isinstance(value, type) or value.__module__ != module.__name__ or value in seen:
                continue
            seen.add(value)
            waiting.extend(vars(value).values())
            name = f"{value.__module__}:{value.__qualname__}"
            if name not in found or value is led_to(module, value.__qualname__):
                found[name] = value
    return found
