"""The commands about what jobs run on: start a cluster, end it, and look whether all is well."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from choreography_ray import display
from choreography_ray.cli import local_cluster
from choreography_ray.cli.arguments import JsonOption, examples
from choreography_ray.cli.connection import Connection
from choreography_ray.cli.output import ExitCode, busy, show, show_json
from choreography_ray.code import PYTHON
from choreography_ray.model import Frozen, JobRecord, JobStatus

PAGE = 100
SHOWN = 5
"""Jobs that are named where one sentence tells of many."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("up", epilog=examples("choreography up", "choreography up --dashboard --cpus 4"))(up)
    app.command("down", epilog=examples("choreography down"))(down)
    app.command("doctor", epilog=examples("choreography doctor", "choreography doctor --json"))(doctor)


class Check(Frozen):
    """One thing that `doctor` looked at: what was found, and what to do when it is not ok."""

    name: str
    is_ok: bool
    told: str
    advice: str = ""


def up(
    context: typer.Context,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="With Ray's dashboard, for `ray job submit`.")] = False,
    cpus: Annotated[int | None, typer.Option(min=1, help="CPUs to offer; default: all of the machine.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a Ray here that outlives this shell.

    Commands in this folder then use it, and interrupted jobs go on. Ray listens on the machine's own address; who
    wants in must know Ray's token, unless RAY_AUTH_MODE says otherwise.
    """
    connection = Connection.of(context)
    cluster = local_cluster.running(connection.directory)
    is_new = cluster is None
    if cluster is None:
        with busy("starting Ray"):
            cluster = local_cluster.start(connection.directory, with_dashboard=dashboard, cpus=cpus)
        try:
            with Connection(connection.mongo_url, connection.namespace, cluster.address).open(with_ray=True):
                pass
        except BaseException:
            local_cluster.stop(connection.directory)
            raise
    if as_json:
        show_json(cluster)
        return
    show(f"{'started' if is_new else 'already running:'} a Ray cluster at {cluster.address}")
    if cluster.dashboard:
        show(f"dashboard: {cluster.dashboard}")
    show("commands in this folder use it; end it with: choreography down")


def down(context: typer.Context, as_json: JsonOption = False) -> None:
    """End the Ray that `up` started here.

    Nothing else is ended. Its running jobs go on at the next `up`.
    """
    with busy("ending Ray"):
        ended = local_cluster.stop(Connection.of(context).directory)
    if as_json:
        show_json({"processes_ended": ended or 0})
    elif ended is None:
        show("no cluster of this folder is running")
    else:
        show(f"ended the cluster ({ended} processes)")


def doctor(context: typer.Context, as_json: JsonOption = False) -> int:
    """Look whether all is well, and what to do.

    Looks at Python, the packages, the store, Ray and the throttle. Exits with 1 when something is not ok.
    """
    connection = Connection.of(context)
    checks = [_python(), _versions(), *_store(connection), *_cluster(connection)]
    if as_json:
        show_json(checks)
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("what", "", "found", "what to do"):
            table.add_column(name, overflow="fold")
        for check in checks:
            verdict = Text("ok", style="green") if check.is_ok else Text("not ok", style="red")
            table.add_row(check.name, verdict, display.clean(check.told), display.clean(check.advice))
        show(table)
    return ExitCode.OK if all(check.is_ok for check in checks) else ExitCode.ERROR


def _python() -> Check:
    return Check(name="Python", is_ok=True, told=f"{platform.python_version()} on {platform.system()}")


def _versions() -> Check:
    names = ("choreography-ray", "ray", "pymongo", "pydantic", "secantusdb")
    found: list[str] = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} missing")
    return Check(name="packages", is_ok=True, told=", ".join(found))


def _store(connection: Connection) -> list[Check]:
    namespace, url = connection.known_namespace, connection.known_mongo_url
    where = "MongoDB" if url else f"the embedded store in {connection.directory}/"

    foreign: list[Check] = []

    def look() -> str:
        with connection.open(with_ray=False) as choreography:
            latest = choreography.jobs(take=1)
            foreign.extend(_captures(_unfinished(choreography)))
        jobs = f"latest job {latest[0].job_id}" if latest else "no job yet"
        return f"{where} answers; namespace {namespace!r}, {jobs}"

    advice = (
        "check the URL in CHOREOGRAPHY_MONGO_URL or --mongo-url, and that the server runs"
        if url
        else "pip install 'choreography-ray[embedded]', or set CHOREOGRAPHY_MONGO_URL"
    )
    return [_attempt("store", look, advice), *foreign]


def _unfinished(choreography: Any) -> Iterator[JobRecord]:
    statuses = [status for status in JobStatus if not status.is_final]
    for skip in count(0, PAGE):
        page = choreography.jobs(statuses=statuses, skip=skip, take=PAGE)
        yield from page
        if len(page) < PAGE:
            return


def _captures(jobs: Iterable[JobRecord]) -> list[Check]:
    """Whether jobs wait for a Python that is not this one; nothing to tell where no code was captured."""
    captured = [job for job in jobs if job.python]
    if not captured:
        return []
    foreign = [f"{job.job_id} ({job.python})" for job in captured if job.python != PYTHON]
    told = f"{len(captured)} unfinished jobs have captured code, {len(foreign)} of another Python than {PYTHON}"
    if foreign:
        told += ": " + ", ".join(foreign[:SHOWN]) + (f" and {len(foreign) - SHOWN} more" if foreign[SHOWN:] else "")
    advice = "let them go on in a cluster of that Python, or remove them and start them anew" if foreign else ""
    return [Check(name="captured code", is_ok=not foreign, told=told, advice=advice)]


def _cluster(connection: Connection) -> list[Check]:
    address = connection.known_address
    if address in {None, "local"}:
        told = "none runs here: each command starts one for itself, and it ends with the command"
        return [Check(name="Ray cluster", is_ok=True, told=told, advice="choreography up starts one that lasts")]
    throttle: list[str] = []

    def look() -> str:
        with connection.open(with_ray=True) as choreography:
            snapshot = choreography.throttle()
            nodes = choreography.nodes()
        throttle.append(_describe_throttle(snapshot))
        if problems := [node.problem for node in nodes if node.problem]:
            raise ValueError("; ".join(problems))
        return f"{address} can be used; {len(nodes)} nodes, each with this version"

    named = "--ray-address" if connection.ray_address else "RAY_ADDRESS" if "RAY_ADDRESS" in os.environ else "up"
    checks = [_attempt("Ray cluster", look, f"check that the cluster of {named} runs and has this version installed")]
    return checks + [Check(name="throttle", is_ok=True, told=told) for told in throttle]


def _describe_throttle(snapshot: dict[str, Any] | None) -> str:
    if not snapshot:
        return "not used yet"
    jobs = snapshot["jobs"].values()
    told = (
        f"{snapshot['held']} of {snapshot['maximum']} slots are held, {sum(job['wanted'] for job in jobs)} more wanted"
    )
    told += f", {len(jobs)} jobs at work"
    return told if snapshot["is_granting"] else f"{told}; it grants none until jobs have told it what they hold"


def _attempt(name: str, look: Callable[[], str], advice: str) -> Check:
    try:
        return Check(name=name, is_ok=True, told=look())
    except Exception as error:  # noqa: BLE001 -- whatever is wrong is what doctor is there to tell
        return Check(name=name, is_ok=False, told=str(error) or type(error).__name__, advice=advice)
