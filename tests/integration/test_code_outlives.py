"""A job's code outlives where it was written: the kernel of a notebook, the folder of a script, their nodes [S13]."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from choreography_ray import Choreography, JobStatus
from choreography_ray.storage.embedded import EmbeddedStore
from tests.integration.conftest import SMALL, only_here
from tests.support import clean_environment, is_alive, processes_of

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(400)]

CLASSES = """
import asyncio, enum, os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar
from pydantic import BaseModel, Field, field_validator
from choreography_ray import (
    Choreography, ClusterOptions, Job, JobState, JobsOptions, JobStep, JobStepState, StepHosting,
)

T = TypeVar("T")
FACTOR = 3

class Color(enum.Enum):
    RED = "r"
    BLUE = "b"

class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9

class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = "rex"

class Box(BaseModel, Generic[T]):
    inside: T
    tags: set[str] = set()

class Outer(BaseModel):
    class Inner(BaseModel):
        value: int = 1
    inner: Inner = Inner()

class Order(BaseModel):
    n: int
    color: Color = Color.RED
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] = Cat()
    box: Box[Outer.Inner] = Box[Outer.Inner](inside=Outer.Inner())
    waits_for: str = ""

    @field_validator("n")
    @classmethod
    def _positive(cls, value):
        if value < 0:
            raise ValueError("n must not be negative")
        return value

class OrderState(JobStepState):
    order: Order | None = None

class Handle(JobStep[Order, Box[Order], OrderState]):
    hosting = StepHosting.SHARED_ACTORS

    def initialize_state(self, request):
        self.state.order = request

    async def perform_step(self, state, context):
        while state.order.waits_for and not Path(state.order.waits_for).exists():
            await asyncio.sleep(0.05)
        Order.model_validate_json(state.order.model_dump_json())
        return Box[Order](inside=state.order.model_copy(update={"n": state.order.n * FACTOR}), tags={"handled"})

class Orders(BaseModel):
    orders: list[Order]

class Seen(JobState):
    pets: list[Cat | Dog] = []
    colors: dict[Color, int] = {}

class HandleOrders(Job[Orders, Seen]):
    keep_after_completed = True
    keep_results = True

    def prepare_steps(self, request):
        for order in request.orders:
            yield self.create_step(Handle, order)

    def on_step_completed_or_stopped(self, step_id, result):
        if result.is_success:
            order = result.value.inside
            self.state.pets.append(order.pet)
            self.state.colors[order.color] = self.state.colors.get(order.color, 0) + 1

def orders(gate=""):
    return Orders(orders=[
        Order(n=1), Order(n=2, color=Color.BLUE, pet=Dog(name="a"), waits_for=gate), Order(n=3, waits_for=gate),
    ])
"""
START = """
import time
choreography = Choreography.connect(cluster=ClusterOptions(step_lease_timeout=timedelta(seconds=4)))
job = choreography.start(HandleOrders, orders(os.path.abspath("go")), job_id="orders")
while job.progress().succeeded < 1:
    time.sleep(0.05)
print("one of", job.progress().total)
"""
ATTACH = """
from choreography_ray import Choreography
choreography = Choreography.connect()
job = choreography.job("orders")
open("go", "w").close()
record = job.wait(timeout=150, progress=False)
values = [value for _, value in job.results()]
print(record.status.name, [type(value).__name__ for value in values], [value.inside.n for value in values])
print(sorted(pet.kind for pet in job.state().pets), type(values[1].inside.pet).__name__, values[0].inside.color.name)
"""
AGAIN = """
values = [value for _, value in job.results()]
print([type(value) is Box[Order] and value.inside.color in Color for value in values], values[1].inside.pet)
second = choreography.start(HandleOrders, orders(), job_id="orders again")
print(second.wait(timeout=120, progress=False).status.name, [value.inside.n for _, value in second.results()])
print(second.state().colors == job.state().colors == {Color.RED: 2, Color.BLUE: 1})
"""


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for it, a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"not after a minute: {what}"
        time.sleep(0.05)


class Kernel:
    """A notebook's kernel in a folder."""

    def __init__(self, folder: Path) -> None:
        manager = pytest.importorskip("jupyter_client.manager")
        self._manager: Any = manager.KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(folder), env={**clean_environment(), "RAY_AUTH_MODE": "disabled"})
        self._client: Any = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=90)

    def run(self, cell: str) -> str:
        """What a cell prints; fails with what it raises."""
        shown: list[str] = []
        errors: list[str] = []

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                shown.append(content["text"])
            elif message["msg_type"] == "error":
                errors.extend(content["traceback"])

        reply = self._client.execute_interactive(cell, timeout=200, output_hook=take)
        assert reply["content"]["status"] == "ok", "\n".join(errors)
        return "".join(shown)

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more code."""
        os.kill(self._manager.provisioner.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Give back what is left of it."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@contextmanager
def kernel(folder: Path) -> Iterator[Kernel]:
    made = Kernel(folder)
    try:
        yield made
    finally:
        made.end()


def test_a_job_of_notebook_cells_goes_on_when_kernel_and_cluster_were_killed(tmp_path: Path) -> None:
    """P11: cells with an enum, a nested, a generic and a discriminated model, and a validator. A new kernel finds the
    job by its id, reads its results without the cells, and with them; the cell runs again, and starts it again.
    """
    with kernel(tmp_path) as first:
        first.run(CLASSES)
        assert first.run(START).strip() == "one of 3"
        first.kill()
    until(lambda: not processes_of(str(tmp_path)), "the killed kernel's cluster and store are gone")
    with kernel(tmp_path) as second:
        lines = second.run(ATTACH).splitlines()
        assert lines == [
            "COMPLETED_SUCCESSFULLY ['Box[Order]', 'Box[Order]', 'Box[Order]'] [3, 6, 9]",
            "['cat', 'cat', 'dog'] Dog RED",
        ]
        second.run(CLASSES)
        lines = second.run(AGAIN).splitlines()
        assert lines == ["[True, True, True] kind='dog' name='a'", "COMPLETED_SUCCESSFULLY [3, 6, 9]", "True"]
        second.run("choreography.close()")


SCRIPT = """
import asyncio, os
from pathlib import Path
from pydantic import BaseModel
from choreography_ray import Choreography, Job, JobState, JobStep, JobStepState
from helper import scaled

class Piece(BaseModel):
    n: int
    folder: str

class PieceState(JobStepState):
    piece: Piece | None = None

class Work(JobStep[Piece, tuple, PieceState]):
    ray_options = {"num_cpus": 1}

    def initialize_state(self, request):
        self.state.piece = request

    async def perform_step(self, state, context):
        import ray
        from late import named  # only where the body runs
        note = Path(state.piece.folder, "note")
        note.write_text(str(os.getpid()))
        note.rename(note.with_name("pid"))
        while not note.with_name("go").exists():
            await asyncio.sleep(0.05)
        return named(scaled(state.piece.n)), ray.get_runtime_context().get_node_id()

class Pieces(Job[Piece, JobState]):
    keep_after_completed = True
    keep_results = True

    def prepare_steps(self, request):
        return [self.create_step(Work, request)]

if __name__ == "__main__":
    import sys
    with Choreography.connect() as choreography:
        choreography.start(Pieces, Piece(n=5, folder=sys.argv[1]), job_id="pieces")
"""


def test_a_script_s_job_goes_on_at_another_node_when_its_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Script, helper beside it, and a module that only a body imports: deleted, and the node that ran it killed."""
    folder = tmp_path / "script"
    folder.mkdir()
    (folder / "pieces.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("FACTOR = 7\ndef scaled(n):\n    return n * FACTOR\n")
    (folder / "late.py").write_text("def named(n):\n    return f'n{n}'\n")
    store = EmbeddedStore(tmp_path / "store")
    url = store.start()
    with only_here(tmp_path):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
        try:
            doomed = cluster.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"])
            monkeypatch.setenv("CHOREOGRAPHY_MONGO_URL", url)
            environment = {**clean_environment(own_ray=False), "RAY_AUTH_MODE": "disabled"}
            environment |= {"CHOREOGRAPHY_MONGO_URL": url, "RAY_ADDRESS": cluster.address}
            arguments = [sys.executable, "pieces.py", str(tmp_path)]
            subprocess.run(arguments, cwd=folder, env=environment, check=True, timeout=120)
            until((tmp_path / "pid").exists, "the body has begun")
            body = int((tmp_path / "pid").read_text())
            shutil.rmtree(folder)
            cluster.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"])
            cluster.remove_node(doomed, allow_graceful=False)
            until(lambda: not is_alive(body), "the killed node's body is gone")  # it could still see the gate open
            (tmp_path / "go").touch()
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            with Choreography.connect() as client:
                job = client.job("pieces")
                assert job.wait(timeout=200, progress=False).status is JobStatus.COMPLETED_SUCCESSFULLY
                ((_, (value, node)),) = job.results()
                assert value == "n35"
                assert node != doomed.node_id
        finally:
            ray.shutdown()
            cluster.shutdown()
            store.stop()
