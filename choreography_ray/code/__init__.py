"""Which code does a job's record point at, and how is that code loaded again?

A class of an installed distribution is named and imported. Any other is captured by value, so that the job goes on when
its notebook or script is gone [S13].

What only capturing needs is imported where it is needed: every process of a job loads code, few capture any.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeGuard

from choreography_ray.codec.classes import know_captured, led_to
from choreography_ray.errors import InvalidJobType, UnknownJobType
from choreography_ray.job import Job, label_of
from choreography_ray.records import CodeRef
from choreography_ray.step import JobStep

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Captured bytecode runs on this minor version only."""

_FORMAT = 1
_lock = threading.RLock()
_loaded: dict[CodeRef, LoadedCode] = {}
_label_owners: dict[str, str] = {}


@dataclass(frozen=True)
class LoadedCode:
    """A job class in this process, and the types that its stored values name."""

    job_class: type[Job[Any, Any]]
    types: Mapping[str, type] = field(default_factory=dict[str, type])
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    modules: Mapping[str, ModuleType] = field(default_factory=dict[str, ModuleType])
    """Modules of the user that came with a captured copy."""

    def resolve(self, name: str) -> type:
        """The type named "module:qualname": a captured one, else an imported one. Raises `UnknownJobType`."""
        if (found := self.types.get(name)) is not None:
            return found
        if (why := self.missing.get(name)) is not None:
            raise UnknownJobType(name, f"it could not be captured when the job was started: {why}")
        module, _, qualname = name.partition(":")
        found = _import(name, module, qualname)
        if not isinstance(found, type):
            raise UnknownJobType(name, f"{qualname} in module {module} is no class")
        return found

    def why_missing(self, cls: type) -> str:
        """Why other processes of the job would not find this very class by its name; empty if they would."""
        name = type_reference(cls)
        if self.types.get(name) is cls:
            return ""
        if (why := self.missing.get(name)) is not None:
            return f"the class {name} could not be captured: {why}"
        from choreography_ray.code.ownership import is_installed

        module = sys.modules.get(cls.__module__)
        if module is not None and is_installed(module):
            return ""
        label = label_of(self.job_class)
        return f"the class {name} is neither installed nor captured with {label!r}: import it where that is defined"


def type_reference(cls: type) -> str:
    """How `LoadedCode.resolve` wants a class named."""
    return f"{cls.__module__}:{cls.__qualname__}"


def describe_code(job_class: type[Job[Any, Any]]) -> tuple[CodeRef, bytes | None]:
    """Where the code of a job class is found again, and the captured copy to be stored when it cannot be imported.

    Equal digests mean equal code; the bytes of two captures may differ all the same. Raises `InvalidJobType` when the
    class cannot be captured, or when another module of this process uses its label.
    """
    from choreography_ray.code.ownership import is_installed, user_modules

    _claim_label(job_class)
    module = sys.modules.get(job_class.__module__)
    is_found = module is not None and led_to(module, job_class.__qualname__) is job_class
    if module is not None and is_found and is_installed(module):
        return CodeRef(module=job_class.__module__, qualname=job_class.__qualname__), None
    modules = user_modules([job_class, job_class.request_type, job_class.state_type])
    types = {type_reference(cls): cls for cls in _local_classes({*modules, job_class.__module__})}
    return _captured(job_class, types, modules)


def describe_made_code(
    job_class: type[Job[Any, Any]], step_class: type[JobStep[Any, Any, Any]], function: Callable[..., Any]
) -> tuple[CodeRef, bytes]:
    """The captured copy of classes that were made around a function of the user, as `describe_code` tells of one.

    Raises `InvalidJobType` when the function, or what it uses, cannot be captured.
    """
    from choreography_ray.code.ownership import owners_of, user_modules

    step = type_reference(step_class)
    try:
        return _captured(job_class, {step: step_class}, user_modules(owners_of(function)), needed=(step,))
    except InvalidJobType as error:  # nobody has heard of the class
        raise InvalidJobType(label_of(job_class), error.why) from error


def _captured(
    job_class: type[Job[Any, Any]], types: dict[str, type], modules: dict[str, ModuleType], needed: Collection[str] = ()
) -> tuple[CodeRef, bytes]:
    from choreography_ray.code.capture import capture
    from choreography_ray.code.ownership import defined_classes

    types = {**types, **defined_classes(modules.values()), type_reference(job_class): job_class}
    bundle, payload = capture(type_reference(job_class), types, modules, needed)
    key = _signing_key()
    digest = _digest((bundle.job, bundle.types, bundle.members), modules, key)
    header = {"format": _FORMAT, "sha256": hashlib.sha256(payload).hexdigest(), "signature": ""}
    unsigned = CodeRef(job_class.__module__, job_class.__qualname__, digest, PYTHON)
    ref = unsigned
    if key:
        header["signature"] = _sign_copy(key, digest, payload)
        ref = CodeRef(unsigned.module, unsigned.qualname, digest, PYTHON, _sign_ref(key, unsigned))
    with _lock:
        # Here the living classes are the code; a second copy of them would be told apart by isinstance.
        _loaded[ref] = LoadedCode(job_class, bundle.types, bundle.missing)
    return ref, json.dumps(header).encode() + b"\n" + payload


def _signing_key() -> str | None:
    from choreography_ray.settings import Settings

    return Settings().signing_key


def load_code(ref: CodeRef, captured: bytes | None = None, *, is_alone: bool = False) -> LoadedCode:
    """The code that a record points at; the same object for the same reference in one process.

    `is_alone`: this process performs this code and no other. Modules of a captured copy are then the process's own,
    before any files of their names: those may be newer, or somebody else's.

    Raises `UnknownJobType` with a sentence for whatever is in the way. With a signing key set, a captured copy that is
    not signed with it is not even unpickled.
    """
    with _lock:
        key = _signing_key() if ref.digest else None
        if key and not _is_same(ref.signature, _sign_ref(key, ref)):
            raise UnknownJobType(_title(ref), "the record's reference to its code is not signed with this signing key")
        if (known := _loaded.get(ref)) is None:
            known = _load_captured(ref, captured, key, is_alone) if ref.digest else _load_imported(ref)
            _loaded[ref] = known
        return known


def _load_imported(ref: CodeRef) -> LoadedCode:
    found = _import(_title(ref), ref.module, ref.qualname)
    return LoadedCode(_as_job(ref, found))


def _load_captured(ref: CodeRef, captured: bytes | None, key: str | None, is_alone: bool) -> LoadedCode:
    if ref.python != PYTHON:
        raise UnknownJobType(_title(ref), f"it was captured with Python {ref.python}, and this is Python {PYTHON}")
    if captured is None:
        raise UnknownJobType(_title(ref), "its captured copy is not in the store")
    head, _, payload = captured.partition(b"\n")
    try:
        header = json.loads(head)
        expected, signature, version = str(header["sha256"]), str(header["signature"]), header["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnknownJobType(_title(ref), "its captured copy is damaged: it has no readable header") from None
    if version != _FORMAT:
        raise UnknownJobType(_title(ref), f"its captured copy has format {version}, this version reads {_FORMAT}")
    if key and not _is_same(signature, _sign_copy(key, ref.digest, payload)):
        raise UnknownJobType(_title(ref), "its captured copy is not signed with this signing key")
    if not _is_same(expected, hashlib.sha256(payload).hexdigest()):
        raise UnknownJobType(_title(ref), "its captured copy is damaged: the content does not match its checksum")
    from choreography_ray.code.capture import restore

    try:
        bundle, modules = restore(payload, is_alone=is_alone)
    except ModuleNotFoundError as error:
        raise UnknownJobType(_title(ref), f"it needs the module {error.name!r}, which is not installed here") from error
    except Exception as error:
        raise UnknownJobType(
            _title(ref), f"its captured copy does not load ({type(error).__name__}: {error})"
        ) from error
    know_captured(bundle.types.values())
    return LoadedCode(_as_job(ref, bundle.types.get(bundle.job)), bundle.types, bundle.missing, modules)


def _as_job(ref: CodeRef, found: object) -> type[Job[Any, Any]]:
    if not _is_job(found):
        raise UnknownJobType(_title(ref), f"{ref.qualname} in module {ref.module} is no subclass of Job")
    if not found.is_concrete:
        raise UnknownJobType(_title(ref), f"{ref.qualname} in module {ref.module} is abstract")
    return found


def _is_job(found: object) -> TypeGuard[type[Job[Any, Any]]]:
    return isinstance(found, type) and issubclass(found, Job)


def _import(title: str, module: str, qualname: str) -> Any:
    if module == "__main__":
        raise UnknownJobType(title, f"{qualname} was defined in a notebook or script and is not in the captured copy")
    try:
        __import__(module)  # by far the fastest where it is loaded already, as it is for each value after the first
        loaded = sys.modules[module]
    except ModuleNotFoundError as error:
        raise UnknownJobType(title, f"it needs the module {error.name!r}, which is not installed here") from error
    except Exception as error:
        why = f"importing the module {module!r} raised {type(error).__name__}: {error}"
        raise UnknownJobType(title, why) from error
    found = led_to(loaded, qualname)
    if found is None:
        raise UnknownJobType(title, f"the module {module!r} has no {qualname!r} (any more)")
    return found


def _claim_label(job_class: type[Job[Any, Any]]) -> None:
    """Records show the label; two modules that both use one would be mistaken for versions of each other [S13]."""
    label = label_of(job_class)
    with _lock:
        owner = _label_owners.setdefault(label, job_class.__module__)
    if owner != job_class.__module__:
        raise InvalidJobType(
            type_reference(job_class),
            f"the module {owner} has a job type {label!r} as well; give one of them a type_name of its own",
        )


def _local_classes(modules: Collection[str]) -> Iterator[type]:
    """Steps and jobs that are defined inside functions: no module has them, yet plans name them. Newest last."""
    waiting: list[Any] = [JobStep, Job]
    while waiting:
        for cls in waiting.pop(0).__subclasses__():
            waiting.append(cls)
            if "<locals>" in cls.__qualname__ and cls.__module__ in modules:
                yield cls


def _digest(content: object, modules: Mapping[str, object], key: str | None) -> str:
    from choreography_ray.code.fingerprint import fingerprint

    # Copies are stored under their digest and kept: one that is signed differently must not meet another's.
    signer = hmac.digest(key.encode(), b"choreography-ray signer", "sha256").hex() if key else ""
    return hashlib.sha256(f"{PYTHON}\n{signer}\n{fingerprint(content, modules.__contains__)}".encode()).hexdigest()


def _sign_copy(key: str, digest: str, payload: bytes) -> str:
    return hmac.digest(key.encode(), f"copy\n{digest}\n".encode() + payload, "sha256").hex()


def _sign_ref(key: str, ref: CodeRef) -> str:
    fields = json.dumps(["ref", ref.module, ref.qualname, ref.digest, ref.python])
    return hmac.digest(key.encode(), fields.encode(), "sha256").hex()


def _is_same(claimed: str, expected: str) -> bool:
    # As bytes: of text it compares ASCII only, and what is claimed may be anything.
    return hmac.compare_digest(claimed.encode("utf-8", "surrogatepass"), expected.encode())


def _title(ref: CodeRef) -> str:
    return f"{ref.module}:{ref.qualname}"
