"""What do the pages of docs/ take from the code? `python -m harness.pages` writes it anew between their marks."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel

from choreography_ray import errors
from choreography_ray.actors import metrics
from choreography_ray.core.transitions import JOB_TRANSITIONS, STEP_TRANSITIONS
from choreography_ray.errors import ChoreographyError
from choreography_ray.job import Job
from choreography_ray.options import ClusterOptions, JobsOptions
from choreography_ray.settings import Settings
from choreography_ray.step import JobStep

DOCS = Path(__file__).parents[1] / "docs"
_REGION = re.compile(r"(?<=<!-- from the code: )([a-z ]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_NUMBERS = re.compile(r" \[S\d[^\]]*\]")
"""Of the project's own specification, which readers of the docs do not have."""
_DERIVED = {"is_async"}
"""Attributes that a class has and no author sets."""


def renewed(page: str) -> str:
    """The text of a page with what stands between its marks made anew."""
    return _REGION.sub(lambda found: f"{found[1]}{found[2]}\n{REGIONS[found[1]]()}\n\n", page)


# Code.

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)


class Block(NamedTuple):
    """A block of code; `title` names the file that it is to be saved as, where a page has several."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    return [Block(*found) for found in _BLOCK.findall(page)]


def script(page: str) -> str:
    """Its Python that belongs to no named file, as one script: a page may go on with what it defined before."""
    return "\n\n".join(each.text for each in blocks(page) if each.language == "python" and not each.title)


def commands(page: str) -> list[str]:
    """The lines of its shell, without comments."""
    text = "\n".join(each.text for each in blocks(page) if each.language == "sh").replace("\\\n", " ")
    return [line for line in map(str.strip, _COMMENT.sub("", text).splitlines()) if line]


# Options.


class Attribute(NamedTuple):
    """A documented attribute of a class."""

    name: str
    default: Any
    sentence: str


def attributes(cls: type[Any]) -> Iterator[Attribute]:
    """Those that have a default and a sentence under them, in their order."""
    (body,) = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()), ast.Expr(
                value=ast.Constant(value=str(told))
            ):
                if name not in _DERIVED:
                    yield Attribute(name, _default(cls, name), _NUMBERS.sub("", " ".join(told.split())))


def _default(cls: type[Any], name: str) -> Any:
    return cls.model_fields[name].default if issubclass(cls, BaseModel) else getattr(cls, name)


def _shown(value: Any) -> str:
    match value:
        case timedelta():
            seconds = value.total_seconds()
            size, unit = next(pair for pair in _UNITS if seconds >= pair[0])
            return f"{seconds / size:g} {unit}"
        case Enum():
            return f"`{value.name}`"
        case _:
            return f"`{value!r}`"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def _options(cls: type[Any], title: str = "option", name_of: Callable[[str], str] = str) -> str:
    rows = [f"| `{name_of(name)}` | {_shown(default)} | {sentence} |" for name, default, sentence in attributes(cls)]
    return "\n".join([f"| {title} | default | |", "|---|---|---|", *rows])


def _environment() -> str:
    return _options(Settings, "variable", lambda name: f"CHOREOGRAPHY_{name.upper()}")


# States.


def _arrows(table: Mapping[Any, frozenset[Any]]) -> Iterator[tuple[str, list[str]]]:
    """Each status and those that may follow it, by name, in the order of the table."""
    order = {status: place for place, status in enumerate(table)}
    for before, others in table.items():
        yield before.name, [after.name for after in sorted(others, key=order.__getitem__)]


def _diagram(table: Mapping[Any, frozenset[Any]]) -> str:
    """As Mermaid draws it, without REMOVING, to which arrows come from everywhere."""
    lines = [f"    [*] --> {next(iter(table)).name}"]
    for before, others in _arrows(table):
        if before != "REMOVING":
            lines += [f"    {before} --> {after}" for after in others if after != "REMOVING"] or [
                f"    {before} --> [*]"
            ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _pairs(table: Mapping[Any, frozenset[Any]]) -> str:
    rows = [
        f"| `{before}` | {', '.join(f'`{after}`' for after in others) or '-'} |" for before, others in _arrows(table)
    ]
    return "\n".join(["| from | to |", "|---|---|", *rows])


def _states(table: Mapping[Any, frozenset[Any]]) -> str:
    return f"{_diagram(table)}\n\n{_pairs(table)}"


# Errors.


class _Blank(str):
    """Stands for a value in a message, whatever the message does with it."""

    def __format__(self, _: str) -> str:
        return str(self)


def error_classes() -> list[type[ChoreographyError]]:
    """Every error with a message of its own, in the order of the alphabet."""
    found = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, ChoreographyError)]
    return sorted(
        (cls for cls in found if cls is not ChoreographyError and not cls.__name__.startswith("_")),
        key=lambda cls: cls.__name__,
    )


def reasons_of(cls: type[ChoreographyError]) -> type[Enum] | None:
    """The enum of its reasons: named in its signature or, for requests to a job, in its docstring."""
    hint = get_type_hints(cls.__init__, vars(errors)).get("reason")
    if inspect.isclass(hint) and tuple(hint):
        return hint
    named = re.search(r"`(\w+Reason)`", cls.__doc__ or "")
    return getattr(errors, named[1]) if named else None


def samples(cls: type[ChoreographyError]) -> list[str]:
    """Its messages, with the names of its fields in the place of their values: one, or one for each reason."""
    given = {
        name: _Blank(name.upper())
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name not in {"self", "reason", "details", "job"}
    }
    reasons = reasons_of(cls)
    if reasons is None:
        return [cls(**given).describe()]
    told = [re.sub(rf"\b{each}\b", "REASON", cls(reason=each, **given).describe()) for each in reasons]
    return list(dict.fromkeys(told))


def _messages() -> str:
    rows = [
        f"| {told} | [`{cls.__name__}`](#{cls.__name__.lower()}) |" for cls in error_classes() for told in samples(cls)
    ]
    return "\n".join(["| message | error |", "|---|---|", *rows])


def _metrics() -> str:
    counters = [(f"{name}_total", "counter", one) for name, one in metrics.COUNTERS.items()]
    histograms = [(name, "histogram", one) for name, one in metrics.HISTOGRAMS.items()]
    gauges = [(name, "gauge", one) for name, one in metrics.GAUGES.items()]
    rows = [
        f"| `ray_{metrics.PREFIX}{name}` | {form} | {f'`{one.kind}`' if one.kind else ''} | {one.description} |"
        for name, form, one in (*counters, *histograms, *gauges)
    ]
    return "\n".join(["| name | form | also by | what |", "|---|---|---|---|", *rows])


REGIONS: Mapping[str, Callable[[], str]] = {
    "options of jobs": lambda: _options(JobsOptions),
    "options of a namespace": lambda: _options(ClusterOptions),
    "attributes of jobs": lambda: _options(Job, "attribute"),
    "attributes of steps": lambda: _options(JobStep, "attribute"),
    "environment": _environment,
    "states of jobs": lambda: _states(JOB_TRANSITIONS),
    "states of steps": lambda: _states(STEP_TRANSITIONS),
    "messages": _messages,
    "metrics": _metrics,
}


def main() -> None:
    """Renew every page."""
    for page in sorted(DOCS.glob("*.md")):
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
