"""The command that runs the demo, and searches what it made."""

from __future__ import annotations

import sysconfig
import uuid
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from choreography_ray import display
from choreography_ray.cli.arguments import JsonOption, examples
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.jobs import follow
from choreography_ray.cli.output import BadInput, ExitCode, busy, exit_code_of, show, show_json
from choreography_ray.demo import index
from choreography_ray.demo.jobs import INDEX_STAGE, PUBLISH_STAGE, SURVEY_STAGE, IndexRequest, IndexStandardLibrary
from choreography_ray.model import JobRecord, JobStatus


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("demo", epilog=examples("choreography demo", "choreography demo --search asyncio --limit 5"))(demo)


def demo(
    context: typer.Context,
    search: Annotated[
        list[str] | None, typer.Option(metavar="WORDS", help="Search the published index; starts nothing.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the index; default: .choreography/demo.")] = None,
    groups: Annotated[int, typer.Option(min=1, max=500, help="Groups of files, each a step.")] = 36,
    limit: Annotated[int, typer.Option(min=1, help="Files to show for a word.")] = 20,
    as_json: JsonOption = False,
) -> int:
    """Run the example job, or search its index.

    The job makes a full-text index of this Python's standard library in three stages.
    """
    connection = Connection.of(context)
    folder = (out or connection.directory / "demo").absolute()
    if search:
        _search(folder, " ".join(search), limit, as_json=as_json)
        return ExitCode.OK
    return _run(connection, folder, groups, as_json=as_json)


def _run(connection: Connection, folder: Path, groups: int, *, as_json: bool) -> int:
    root = Path(sysconfig.get_path("stdlib"))
    files = index.source_files(root)
    if not files:
        raise BadInput(f"there are no Python files in {root}")
    run = uuid.uuid4().hex[:12]
    request = IndexRequest(root=str(root), out=str(folder), run=run, groups=min(groups, len(files)))
    if not as_json:
        size = sum(file.size for file in files)
        show(f"a full-text index of {len(files):,} files ({size / 1e6:.1f} MB) in {root}")
        show(_plan(request))
    with connection.open(with_ray=True) as choreography:
        with busy("starting the job"):
            handle = choreography.start(IndexStandardLibrary, request, job_id=f"demo-{run}")
        record = follow(handle, progress=not as_json)
    if record.status is JobStatus.COMPLETED_SUCCESSFULLY:
        _show_result(record, folder, as_json=as_json)
    elif as_json:
        show_json(record)
    else:
        show(display.summary(record))
        show(f"look at its failures with: choreography steps {record.job_id}")
    return exit_code_of(record.status)


def _plan(request: IndexRequest) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="the plan", title_justify="left")
    for name in ("stage", "steps", "what they do"):
        table.add_column(name)
    table.add_row(str(SURVEY_STAGE), "1", "survey the files")
    table.add_row(str(INDEX_STAGE), str(request.groups), "index a group of files each, groups of equal size")
    table.add_row(str(PUBLISH_STAGE), "1", "merge what they left and publish one index")
    return table


def _show_result(record: JobRecord, folder: Path, *, as_json: bool) -> None:
    published = folder / index.INDEX_NAME
    facts = index.facts_of(published)
    if as_json:
        show_json(
            {
                "job": record.model_dump(mode="json"),
                "index": str(published),
                "files": facts.files,
                "words": facts.words,
                "distinct_words": facts.distinct_words,
                "bytes": facts.size,
            }
        )
        return
    table = Table.grid(padding=(0, 2))
    for name, told in (
        ("files", f"{facts.files:,}"),
        ("words", f"{facts.words:,} ({facts.distinct_words:,} different ones)"),
        ("index", f"{published} ({facts.size / 1e6:.1f} MB)"),
        ("steps", f"{record.progress.succeeded} of {record.progress.total} in {len(record.progress.stages)} stages"),
        ("time", display.format_duration(display.elapsed(record))),
        ("job", f"{record.job_id} (choreography show {record.job_id})"),
    ):
        table.add_row(name, told)
    show(display.summary(record))
    show(table)
    show("search it with: choreography demo --search asyncio")


def _search(folder: Path, text: str, limit: int, *, as_json: bool) -> None:
    try:
        found = index.search(folder / index.INDEX_NAME, text, limit)
    except index.NoIndex as error:
        raise BadInput(str(error)) from error
    if not found:
        raise BadInput(f"there is no word in {text!r}")
    if as_json:
        show_json(
            {
                each.word: {"total": each.total, "files": each.file_count, "most": [list(pair) for pair in each.files]}
                for each in found
            }
        )
        return
    for each in found:
        if not each.total:
            show(f"{each.word}: in no file")
            continue
        show(f"{each.word}: {each.total:,} times in {each.file_count:,} files")
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right")
        for path, count in each.files:
            table.add_row(str(count), path)
        show(table)
        if each.file_count > len(each.files):
            show(f"and in {each.file_count - len(each.files):,} more; --limit shows more of them")
