"""How is code that belongs to the user put into bytes, and brought back to life in a process that lacks its modules?

Classes and functions go by value (cloudpickle); modules of the user that code refers to as modules go as a name, and
their members beside it, so that one member that cannot be pickled costs only itself. A lock is local to its process:
the copy gets its own. What only seems to travel is refused: open files, threads, child processes, handles of Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import io
import pickle
import subprocess
import sys
import threading
import typing
import uuid
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef, NewType, cast

import cloudpickle
import cloudpickle.cloudpickle
from pydantic import BaseModel
from pydantic.dataclasses import rebuild_dataclass
from typing_extensions import TypeAliasType

from choreography_ray.code.annotations import mentioned_in_annotations
from choreography_ray.code.enums import is_member_by_value, reduce_enum, reduce_member
from choreography_ray.code.ownership import stream_name
from choreography_ray.errors import InvalidJobType

if TYPE_CHECKING:
    _CloudPickler = pickle.Pickler
else:
    _CloudPickler = cloudpickle.Pickler
_cloudpickle: Any = cloudpickle  # has no types
_code_reduce: Any = _cloudpickle.cloudpickle._code_reduce  # noqa: SLF001

_registry = threading.Lock()
"""cloudpickle's table of modules to pickle by value is global to the process."""

MAX_COPY_BYTES = 64 * 1024 * 1024
"""Bytes of a captured copy: every process of the job loads it."""
_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}


_Cached: Any = type(functools.lru_cache(len))


def _cached(function: Any, parameters: Mapping[str, Any]) -> Any:
    """An empty cache around `function`, like the one that it had."""
    return functools.lru_cache(**parameters)(function)


_ALIASES: Any = (TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType))
"""That of the library is another one on some versions of Python."""


def _make_alias(make: Any, module: str, name: str, value: Any, type_params: tuple[Any, ...]) -> Any:
    alias = make(name, value, type_params=type_params)
    with contextlib.suppress(AttributeError):  # Python's own says that it is of here, and never has a text to look up
        alias.__module__ = module
    return alias


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
        self._aliases: set[int] = set()

    def persistent_id(self, obj: object) -> str | None:
        if isinstance(obj, ModuleType) and self.modules.get(obj.__name__) is obj:
            self.referenced.add(obj.__name__)
            return obj.__name__
        return None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return _reduce_code(obj)
        if type(obj) in _LOCKS:
            return _LOCKS[type(obj)], ()
        if (stream := stream_name(obj)) is not None:
            return getattr, (sys, stream)
        if (why := _tie(obj)) is not None:
            raise pickle.PicklingError(why)
        if is_member_by_value(obj):
            return reduce_member(obj)
        if obj is dataclasses.MISSING:
            return "MISSING"  # by name, since it is compared by identity
        if getattr(obj, "__module__", None) in self.modules:
            # Both pickle as a name to be imported, which nobody could do over there.
            if isinstance(obj, NewType):
                return NewType, (obj.__name__, obj.__supertype__)
            if isinstance(obj, _Cached):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            if isinstance(obj, _ALIASES):
                return self._reduce_alias(obj)
        generic = obj.__dict__.get("__pydantic_generic_metadata__") if isinstance(obj, type) else None
        if generic and generic["origin"]:
            # Made again by pydantic, so that asking for Page[Item] over there yields this very class.
            return _parametrize, (generic["origin"], generic["args"])
        reduced: Any = super().reducer_override(obj)
        if isinstance(obj, type) and reduced is not NotImplemented and len(reduced) == _PARTS_OF_A_CLASS:
            return _reduce_class(obj, *reduced)
        return reduced

    def _reduce_alias(self, alias: Any) -> Any:
        name = alias.__name__
        if id(alias) in self._aliases:  # else pickle would know it by now
            raise pickle.PicklingError(f"the type alias {name} contains itself: name it there as text, in quotes")
        self._aliases.add(id(alias))
        return _make_alias, (type(alias), alias.__module__, name, alias.__value__, alias.__type_params__)


_PARTS_OF_A_CLASS = 6
"""As cloudpickle takes one apart; what it finds by its name has fewer."""


def _reduce_class(
    cls: type[Any], make: Any, arguments: Any, state: Any, _items: Any, _pairs: Any, set_state: Any
) -> Any:
    if issubclass(cls, Enum):
        make, arguments, state = reduce_enum(cls, tracker=arguments[-2])
    content, slots = state
    if "__pydantic_validator__" in vars(cls):
        kept = {name: value for name, value in content.items() if name not in _BUILT_BY_PYDANTIC}
        return make, arguments, (set_state, (kept, slots)), None, None, _revive
    if _TOLD_OF_SUBCLASSES & content.keys():
        return make, arguments, (set_state, state), None, None, _set_state
    return make, arguments, state, None, None, set_state


def _reduce_code(code: CodeType) -> Any:
    """As cloudpickle does it, but a traceback over there shall name the file: its name, without the place."""
    make, arguments = _code_reduce(code)
    where = PurePath(code.co_filename)
    name = "<notebook>" if where.parent.name.startswith("ipykernel") else where.name
    return make, tuple(name if isinstance(part, str) and part == _NAMELESS else part for part in arguments)


_NAMELESS = "<dynamic-code>"
"""What cloudpickle makes of the name of every file."""

_RAY_HANDLES = frozenset({"ObjectRef", "ObjectRefGenerator", "ActorHandle", "ActorMethod"})


def _tie(obj: object) -> str | None:
    """Why an object cannot leave its process or cluster, where pickling would pretend that it can."""
    if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
        return "an open file"
    if isinstance(obj, threading.Thread | subprocess.Popen):
        kind = type(cast("object", obj)).__name__
        return f"a {kind} lives in this process only"
    if type(obj).__name__ in _RAY_HANDLES and type(obj).__module__.partition(".")[0] == "ray":
        return f"a ray {type(obj).__name__} lives only as long as its cluster"
    if type(obj).__name__ == "ValidateCallWrapper" and type(obj).__module__.startswith("pydantic."):
        return "what pydantic.validate_call builds cannot be copied: apply it inside the function that uses it"
    return None


_BUILT_BY_PYDANTIC = frozenset({"__pydantic_core_schema__", "__pydantic_serializer__", "__pydantic_validator__"})
"""Built anew over there, once all classes are whole: schemas of models that know each other share their parts, and
pickle would hand over parts that are not filled yet."""
_TOLD_OF_SUBCLASSES = frozenset({"__init_subclass__", "__pydantic_init_subclass__"})
"""Set last over there: what they did for each subclass is in the copy, and must not be done again."""


class _Unpickler(pickle.Unpickler):
    """Makes new classes, whatever else this process has loaded, and refuses to import from `foreign` modules."""

    def __init__(self, payload: bytes, foreign: Collection[str] = ()) -> None:
        super().__init__(io.BytesIO(payload))
        self.modules: dict[str, ModuleType] = {}
        self.made: list[Any] = []
        """Classes and aliases of types."""
        self.mine = uuid.uuid4().hex
        self._foreign = foreign

    def persistent_load(self, pid: Any) -> ModuleType:
        return self.modules.setdefault(pid, ModuleType(pid))

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name in self._foreign:
            raise AttributeError(f"{global_name} of the module {module_name} can only be found where that module is")
        found = super().find_class(module_name, global_name)
        if module_name == cloudpickle.cloudpickle.__name__ and global_name.startswith("_make_skeleton_"):
            return functools.partial(self._make_anew, found)
        return self._make_alias if found is _make_alias else found

    def _make_anew(self, make: Callable[..., type], *arguments: Any) -> type:
        # By the id that comes last but one cloudpickle finds a class that a base of it mentions, and would find, and
        # overwrite, that of an earlier load.
        cls = make(*arguments[:-2], f"{self.mine} {arguments[-2]}", arguments[-1])
        self.made.append(cls)
        return cls

    def _make_alias(self, *arguments: Any) -> Any:
        alias = _make_alias(*arguments)
        self.made.append(alias)
        return alias


class _Revived(threading.local):
    """What the load in this thread has made so far: pydantic classes, and what is set last, by class and name."""

    def __init__(self) -> None:
        self.classes: list[Any] = []
        self.last: list[tuple[type, str, Any]] = []


_revived = _Revived()

_State = tuple[Callable[[type, Any], object], tuple[dict[str, Any], Any]]


def _set_state(cls: type, state: _State) -> None:
    set_state, (content, slots) = state
    _revived.last += [(cls, name, content[name]) for name in _TOLD_OF_SUBCLASSES & content.keys()]
    set_state(cls, ({name: value for name, value in content.items() if name not in _TOLD_OF_SUBCLASSES}, slots))


def _revive(cls: type, state: _State) -> None:
    _set_state(cls, state)
    _revived.classes.append(cls)


def _parametrize(origin: Any, arguments: tuple[Any, ...]) -> Any:
    cls = origin[arguments]
    _revived.classes.append(cls)
    return cls


def _complete_models() -> None:
    """Let pydantic build what `_BUILT_BY_PYDANTIC` names. First all are cleared: none may use another's old parts."""
    for cls in _revived.classes:
        for name in _BUILT_BY_PYDANTIC.intersection(cls.__dict__):
            delattr(cls, name)
        cls.__pydantic_complete__ = False
    for cls in _revived.classes:
        if issubclass(cls, BaseModel):
            cls.model_rebuild(force=True)
        else:
            rebuild_dataclass(cls, force=True)


@contextlib.contextmanager
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


def capture(
    job: str, types: Mapping[str, type], modules: Mapping[str, ModuleType], needed: Collection[str] = ()
) -> tuple[Bundle, bytes]:
    """The class `types[job]` with all `types` and `modules` of the user, and its pickled form.

    Raises `InvalidJobType` when the job class or another of the `needed` types cannot be captured, or when the copy
    would not load elsewhere, which is tried; other types that cannot be captured are left out and named.
    """
    with _by_value(modules):
        for name in (job, *needed):
            if (error := _refusal(types[name], modules)) is not None:
                why = f"its code cannot be captured: {_blame(types[name], modules, error)}"
                raise InvalidJobType(job, why) from error
        kept, missing = _divide(types, modules)
        referenced = _dump(kept, modules)[1]
        members: dict[str, dict[str, Any]] = {}
        absent: dict[str, dict[str, str]] = {}
        # Imports inside functions name no object, so every module of the user comes along.
        for name in modules:
            content = {key: value for key, value in vars(modules[name]).items() if key not in _MODULE_NOISE}
            if name == "__main__" and name not in referenced:
                content = mentioned_in_annotations(modules[name], kept.values())
            members[name], absent[name] = _divide(content, modules)
        bundle = Bundle(job, kept, missing, members, absent)
        payload = _dump(bundle, modules)[0]
    if len(payload) > MAX_COPY_BYTES:
        why = f"its captured copy takes {len(payload):,} bytes, the limit is {MAX_COPY_BYTES:,}"
        raise InvalidJobType(job, f"{why}; globals that functions use are copied too: let steps read large values")
    try:
        _load(_Unpickler(payload, foreign=modules))
    except Exception as error:
        raise InvalidJobType(job, f"its captured copy would not load ({type(error).__name__}: {error})") from error
    return bundle, payload


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
    """A sentence that names what is at fault: the name by which code of the user holds what cannot be pickled."""
    from choreography_ray.code.blame import fault_of  # here: few captures fail, and who restores one never asks

    return fault_of(value, modules, lambda suspect: _refusal(suspect, modules)) or (
        f"it needs something that cannot leave its process ({type(error).__name__}: {error})"
    )


def _refusal(value: object, modules: Mapping[str, ModuleType]) -> Exception | None:
    try:
        _dump(value, modules)
    except Exception as error:  # noqa: BLE001 - pickling runs code of the user
        return error
    return None


def restore(payload: bytes, *, is_alone: bool = False) -> tuple[Bundle, dict[str, ModuleType]]:
    """The bundle of a captured copy, its classes alive, and the modules that came with it, by name.

    `is_alone`: the modules are this process's own, before any files of their names, and what is of them goes to other
    processes by value. Runs what the capture contains: verify it first. Raises whatever unpickling raises.
    """
    unpickler = _Unpickler(payload)
    bundle = _load(unpickler)
    modules = dict(unpickler.modules)
    main = modules.pop("__main__")
    _finder.add(modules, comes_first=is_alone)
    if is_alone:
        # The process's own stays; whoever looks a class of the script up by its module finds it there.
        names = {name: value for name, value in vars(main).items() if not name.startswith("__")}
        vars(sys.modules["__main__"]).update(names)
        for name in modules:
            importlib.import_module(name)
            _cloudpickle.register_pickle_by_value(sys.modules[name])
    return bundle, modules


def _load(unpickler: _Unpickler) -> Bundle:
    before, _revived.classes, _revived.last = (_revived.classes, _revived.last), [], []
    try:
        bundle = unpickler.load()
        if not isinstance(bundle, Bundle):
            raise TypeError(f"a captured copy holds a Bundle, this one a {type(bundle).__name__}")
        for name, content in bundle.members.items():
            module = unpickler.persistent_load(name)
            vars(module).update(content)
            _explain_absent(module, bundle.absent.get(name, {}))
        main = unpickler.persistent_load("__main__")
        for name, cls in bundle.types.items():
            module_name, _, qualname = name.partition(":")
            # cloudpickle makes a class from its plain name; stored values name it by the qualified one.
            cls.__qualname__ = qualname
            if module_name == "__main__" and cls.__name__ == qualname:
                vars(main).setdefault(qualname, cls)
        for cls, name, value in _revived.last:
            setattr(cls, name, value)
        with _apart(unpickler):
            _complete_models()
    finally:
        _revived.classes, _revived.last = before
    return bundle


@contextlib.contextmanager
def _apart(unpickler: _Unpickler) -> Generator[None]:
    """For a moment what was loaded is of modules of names of its own.

    Annotations that are text are looked up in the module of their class, by its name. Under that name this process may
    have another, and its other threads go on using that: what they import, pickle or capture must not be a copy's.
    """
    own = {name: f"{name} {unpickler.mine}" for name in unpickler.modules}
    made: list[Any] = [each for each in (*unpickler.made, *_revived.classes) if each.__module__ in own]
    places: list[str] = [each.__module__ for each in made]
    refs: list[Any] = [ref for each in made for ref in _texts_of_other_modules(each)]
    homes: list[str] = [ref.__forward_module__ for ref in refs]
    sys.modules.update({own[name]: module for name, module in unpickler.modules.items()})
    try:
        for each, place in zip(made, places, strict=True):
            _move(each, own[place])
        for ref in refs:
            ref.__forward_module__ = own.get(ref.__forward_module__, ref.__forward_module__)
        yield
    finally:
        for each, place in zip(made, places, strict=True):
            _move(each, place)
        for ref, home in zip(refs, homes, strict=True):
            ref.__forward_module__ = home
        for name in own.values():
            del sys.modules[name]


def _move(made: Any, module: str) -> None:
    if isinstance(made, type):
        type.__setattr__(made, "__module__", module)  # whatever a metaclass of the user says to that
    else:
        made.__module__ = module


def _texts_of_other_modules(made: object) -> list[ForwardRef]:
    """Annotations that tell themselves where they are looked up: a TypedDict has those of its bases among its own."""
    annotations = cast("Mapping[str, object]", vars(made).get("__annotations__", {}))
    return [text for text in annotations.values() if isinstance(text, ForwardRef)]


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
    """Answers imports inside captured functions: before any other finder, or only what no other can answer."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def add(self, modules: Mapping[str, ModuleType], *, comes_first: bool) -> None:
        self._modules.update(modules)
        for name in modules:
            while name := name.rpartition(".")[0]:
                # Imports go by way of the package; of one that no code refers to nothing but its name came along.
                self._modules.setdefault(name, ModuleType(name))
        if self._modules and self not in sys.meta_path:
            sys.meta_path.insert(0 if comes_first else len(sys.meta_path), self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del target
        if fullname not in self._modules:
            return None
        is_package = any(name.startswith(fullname + ".") for name in self._modules)
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        if is_package and (there := importlib.machinery.PathFinder.find_spec(fullname, path)) is not None:
            # What is imported by a name made at run time was not captured: it may lie where the package was.
            spec.submodule_search_locations = there.submodule_search_locations
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """The module is there already."""


_finder = _CapturedModules()
