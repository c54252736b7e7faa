"""How is code that belongs to the user put into bytes, and brought back to life in a process that lacks its modules?

Classes and functions go by value (cloudpickle); modules of the user that code refers to as modules go as a name, and
their members beside it, so that one member that cannot be pickled costs only itself. A lock is local to its process:
the copy gets its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import io
import operator
import pickle
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from choreography_ray.errors import InvalidJobType
from choreography_ray.ownership import functions_of

if TYPE_CHECKING:
    _CloudPickler = pickle.Pickler
else:
    _CloudPickler = cloudpickle.Pickler
_cloudpickle: Any = cloudpickle  # has no types

_registry = threading.Lock()
"""cloudpickle's table of modules to pickle by value is global to the process."""

_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}


@dataclass(frozen=True)
class Bundle:
    """A captured job class and what it needs. Keys of `types` and `missing` are "module:qualname".

    `missing` tells of each type that could not be captured why; `members` holds the contents of modules of the user,
    and `absent` what of them could not be captured.
    """

    job: str
    types: dict[str, type]
    missing: dict[str, str] = field(default_factory=dict[str, str])
    members: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    absent: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])


class _Pickler(_CloudPickler):
    def __init__(self, file: io.BytesIO, modules: Mapping[str, ModuleType]) -> None:
        super().__init__(file, protocol=5)
        self.modules = modules
        self.referenced: set[str] = set()

    def persistent_id(self, obj: object) -> str | None:
        if isinstance(obj, ModuleType) and self.modules.get(obj.__name__) is obj:
            self.referenced.add(obj.__name__)
            return obj.__name__
        return None

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in _LOCKS:
            return _LOCKS[type(obj)], ()
        generic = obj.__dict__.get("__pydantic_generic_metadata__") if isinstance(obj, type) else None
        if generic and generic["origin"]:
            # Made again by pydantic, so that asking for Page[Item] over there yields this very class.
            return operator.getitem, (generic["origin"], generic["args"])
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, payload: bytes) -> None:
        super().__init__(io.BytesIO(payload))
        self.modules: dict[str, ModuleType] = {}

    def persistent_load(self, pid: Any) -> ModuleType:
        return self.modules.setdefault(pid, ModuleType(pid))


@contextmanager
def _by_value(modules: Mapping[str, ModuleType]) -> Generator[None]:
    with _registry:
        before: set[str] = _cloudpickle.list_registry_pickle_by_value()
        # `__main__` goes by value anyway.
        mine = [module for name, module in modules.items() if name not in before and name in sys.modules]
        for module in mine:
            _cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in mine:
                _cloudpickle.unregister_pickle_by_value(module)


def capture(job: str, types: Mapping[str, type], modules: Mapping[str, ModuleType]) -> tuple[Bundle, bytes]:
    """The class `types[job]` with all `types` and `modules` of the user, and its pickled form.

    Raises `InvalidJobType` when the job class itself cannot be captured; other types are left out and named.
    """
    with _by_value(modules):
        if (error := _refusal(types[job], modules)) is not None:
            raise InvalidJobType(job, f"its code cannot be captured: {_blame(types[job], modules, error)}") from error
        kept, missing = _divide(types, modules)
        referenced = _dump(kept, modules)[1]
        members: dict[str, dict[str, Any]] = {}
        absent: dict[str, dict[str, str]] = {}
        # Imports inside functions name no object, so every module of the user comes along.
        for name in modules:
            content = {key: value for key, value in vars(modules[name]).items() if key not in _MODULE_NOISE}
            if name == "__main__" and name not in referenced:
                continue
            members[name], absent[name] = _divide(content, modules)
        bundle = Bundle(job, kept, missing, members, absent)
        return bundle, _dump(bundle, modules)[0]


_MODULE_NOISE = frozenset({"__builtins__", "__loader__", "__spec__", "__cached__", "__file__", "__path__"})


def _dump(value: object, modules: Mapping[str, ModuleType]) -> tuple[bytes, set[str]]:
    file = io.BytesIO()
    pickler = _Pickler(file, modules)
    pickler.dump(value)
    return file.getvalue(), pickler.referenced


def _divide(values: Mapping[str, Any], modules: Mapping[str, ModuleType]) -> tuple[dict[str, Any], dict[str, str]]:
    """What can be pickled, and of the rest why not. Values are tried singly only when they fail together."""
    if _refusal(dict(values), modules) is not None:
        kept: dict[str, Any] = {}
        failed: dict[str, str] = {}
        for name, value in values.items():
            if (error := _refusal(value, modules)) is None:
                kept[name] = value
            else:
                failed[name] = _blame(value, modules, error)
        return kept, failed
    return dict(values), {}


def _blame(value: object, modules: Mapping[str, ModuleType], error: Exception) -> str:
    """A sentence that names the global at fault, if a method or function uses one that cannot be pickled."""
    met: list[object] = [value]
    for suspect in met:
        for function in functions_of(suspect):
            for name in function.__code__.co_names:
                used = function.__globals__.get(name)
                if any(used is each for each in met) or (cause := _refusal(used, modules)) is None:
                    continue
                if not isinstance(used, type | FunctionType):
                    return f"{function.__qualname__} uses {name}, which cannot leave its process ({cause})"
                met.append(used)
    return f"it needs something that cannot leave its process ({type(error).__name__}: {error})"


def _refusal(value: object, modules: Mapping[str, ModuleType]) -> Exception | None:
    try:
        _dump(value, modules)
    except Exception as error:  # noqa: BLE001 - pickling runs code of the user
        return error
    return None


def restore(payload: bytes) -> Bundle:
    """The bundle of a captured copy, its classes alive. Runs what the capture contains: verify it first.

    Raises whatever unpickling raises.
    """
    unpickler = _Unpickler(payload)
    bundle = unpickler.load()
    if not isinstance(bundle, Bundle):
        raise TypeError(f"a captured copy holds a Bundle, this one a {type(bundle).__name__}")
    for name, cls in bundle.types.items():
        # cloudpickle makes a class from its plain name; stored values name it by the qualified one.
        cls.__qualname__ = name.partition(":")[2]
    for name, content in bundle.members.items():
        module = unpickler.persistent_load(name)
        vars(module).update(content)
        _explain_absent(module, bundle.absent.get(name, {}))
    _finder.add(unpickler.modules)
    return bundle


def _explain_absent(module: ModuleType, absent: Mapping[str, str]) -> None:
    if not absent or "__getattr__" in vars(module):
        return

    def explain(name: str) -> Any:
        why = absent.get(name)
        raise AttributeError(
            f"module {module.__name__!r} has no attribute {name!r}" + (f": not captured, {why}" if why else "")
        )

    vars(module)["__getattr__"] = explain


class _CapturedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports inside captured functions, and only those that nothing else can answer."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def add(self, modules: Mapping[str, ModuleType]) -> None:
        self._modules.update((name, module) for name, module in modules.items() if name != "__main__")
        if self._modules and self not in sys.meta_path:
            sys.meta_path.append(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname not in self._modules:
            return None
        is_package = any(name.startswith(fullname + ".") for name in self._modules)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """The module is there already."""


_finder = _CapturedModules()
