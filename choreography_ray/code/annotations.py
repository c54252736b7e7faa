"""Which names of a module do annotations mention that are text, and are looked up there when they are needed?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from choreography_ray.code.ownership import functions_of

_NAME = re.compile(r"[^\W\d]\w*")


def mentioned_in_annotations(module: ModuleType, classes: Iterable[type]) -> dict[str, Any]:
    """What in `module` the annotations of these classes of it may mean, and those of classes that its functions make.

    Values that no annotation can mean, such as data, are left out.
    """
    mine = [cls for cls in classes if cls.__module__ == module.__name__]
    texts = [repr(what) for cls in mine for what in vars(cls).get("__annotations__", {}).values()]
    for value in (*mine, *vars(module).values()):
        if getattr(value, "__module__", None) == module.__name__:
            texts += [text for function in functions_of(value) for text in _texts_of_classes(function.__code__)]
            if isinstance(value, TypeAliasType):
                texts.append(repr(value.__value__))
    names = {name for text in texts for name in _NAME.findall(text)}
    return {name: value for name, value in vars(module).items() if name in names and _can_annotate(value)}


def _texts_of_classes(code: CodeType) -> Iterator[str]:
    """Texts in the bodies of classes that a function makes: annotations are among them."""
    if "__qualname__" in code.co_names:
        yield from (constant for constant in code.co_consts if isinstance(constant, str))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _texts_of_classes(constant)


def _can_annotate(value: object) -> bool:
    if isinstance(value, type | ModuleType | FieldInfo):
        return True
    return type(value).__module__ in {"typing", "typing_extensions", "types", "annotated_types"}
