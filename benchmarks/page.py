"""Findings for people: a table in Markdown, a picture, and the block of docs/benchmarks.md that is made from them.

`python -m benchmarks.page DIR` makes all three anew from the JSON files in a folder.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.findings import Finding

DOCS = Path(__file__).parents[1] / "docs"
PAGE = "benchmarks.md"
PICTURE = "benchmarks.svg"
BEGIN, END = "<!-- begin: made by python -m benchmarks -->", "<!-- end -->"


def read(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """What the named benchmarks wrote into a folder, in the order of their names; those that are missing are not."""
    return [json.loads(file.read_text()) for name in names if (file := folder / f"{name}.json").exists()]


def findings_of(found: list[dict[str, Any]]) -> list[Finding]:
    """All findings, one after the other."""
    return [Finding.from_json(each) for benchmark in found for each in benchmark["findings"]]


def table(found: list[dict[str, Any]]) -> str:
    """A line for each finding, and under which conditions it was found."""
    rows = ["| question | ours | against | theirs | value | target | |", "|---|---|---|---|---|---|---|"]
    for each in findings_of(found):
        ours = f"{number(statistics.median(each.ours))} {each.unit}"
        theirs = f"{number(statistics.median(each.other))} {each.unit}" if each.other else ""
        value = number(each.value) if each.other else ""
        target = str(each.target) if each.target is not None else "report"
        rows.append(f"| {each.what} | {ours} | {each.against} | {theirs} | {value} | {target} | {each.verdict} |")
    return "\n".join([*rows, "", *told_conditions(found)])


def told_conditions(found: list[dict[str, Any]]) -> list[str]:
    """When and where, and what one must know of single findings."""
    if not found:
        return []
    first = found[0]["conditions"]
    loads = [each["conditions"]["load"] for each in found]
    seconds = sum(each["seconds"] for each in found)
    versions = f"Python {first['python']}, Ray {first['ray']}, choreography-ray {first['choreography-ray']}"
    when = f"Measured {first['at']} on {first['cpus']} cores in {seconds / 60:.0f} minutes: {versions}."
    lines = [when, f"The load before each benchmark began was {min(loads):g} to {max(loads):g}.", ""]
    for each in findings_of(found):
        if each.settings:
            told = "; ".join(f"{name}: {value}" for name, value in each.settings.items())
            lines.append(f"- {each.what}: {told}")
    return lines


def number(value: float) -> str:
    """Three digits that count, and no exponent."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


BAR, GAP, LEFT, WIDTH = 18, 8, 470, 420


def picture(found: list[dict[str, Any]]) -> str:
    """A bar for each ratio, logarithmic, with a mark where its target is; an SVG."""
    shown = [each for each in findings_of(found) if each.other]
    most = max([1.0, *(abs(math.log10(n)) for each in shown for n in _numbers(each))])

    def across(value: float) -> float:
        return LEFT + WIDTH / 2 * (1 + math.log10(value) / most)

    height = 40 + len(shown) * (BAR + GAP)
    size = f'width="{LEFT + WIDTH + 90}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT + WIDTH / 2}" y="16" text-anchor="middle">ours / theirs, logarithmic; | is the target</text>',
        f'<line x1="{across(1):.1f}" x2="{across(1):.1f}" y1="24" y2="{height}" stroke="#999"/>',
    ]
    for place, each in enumerate(shown):
        top = 30 + place * (BAR + GAP)
        middle = top + BAR * 0.72
        begin, end = sorted((across(1), across(each.value)))
        color = {True: "#2a7f4f", False: "#b5462f", None: "#4a6fa5"}[each.is_met]
        parts += [
            f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(_cut(each.what))}</text>',
            f'<rect x="{begin:.1f}" y="{top}" width="{max(1.0, end - begin):.1f}" height="{BAR}" fill="{color}"/>',
            f'<text x="{max(end, across(1)) + 4:.1f}" y="{middle:.1f}">{number(each.value)}</text>',
        ]
        if each.target is not None:
            at = f"{across(each.target.bound):.1f}"
            parts.append(
                f'<line x1="{at}" x2="{at}" y1="{top - 2}" y2="{top + BAR + 2}" stroke="black" stroke-width="2"/>'
            )
    return "\n".join([*parts, "</svg>", ""])


def _numbers(finding: Finding) -> list[float]:
    return [finding.value, *([finding.target.bound] if finding.target is not None else [])]


def _cut(text: str) -> str:
    return text if len(text) <= 76 else text[:75] + "…"


def with_block(page: str, block: str) -> str:
    """A page with another text between its marks. Raises `ValueError` when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{block.strip()}\n\n{END}{after}"


def write(folder: Path, names: Sequence[str], *, docs: bool) -> None:
    """The table and the picture beside the JSON; with `docs` also in the page."""
    found = read(folder, names)
    (folder / "results.md").write_text(table(found) + "\n")
    (folder / PICTURE).write_text(picture(found))
    if docs:
        page = DOCS / PAGE
        block = f"![ratios]({PICTURE})\n\n{table(found)}"
        page.write_text(with_block(page.read_text(), block))
        (DOCS / PICTURE).write_text(picture(found))


def main() -> None:
    """Make the table, the picture and the page anew."""
    from benchmarks.__main__ import NAMES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the JSON files are")
    write(parser.parse_args().folder, NAMES, docs=True)


if __name__ == "__main__":
    main()
