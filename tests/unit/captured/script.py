"""A user's script: captures its job and writes it, with some encoded values, to the file named first."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shapes
from hard import Hard
from pydantic import BaseModel, model_validator
from shapes import Base, Cat, Color, Level, Mode, Outer, Page, Pair, Permission, Pet, Point, Sub, Tree

from choreography_ray.job import Job, JobState, StepDetails
from choreography_ray.step import BlockingStepContext, JobStep, JobStepState


class Request(BaseModel):
    color: Color = Color.BLUE
    level: Level = Level.LOW
    mode: Mode = Mode.FAST
    permission: Permission = Permission.READ | Permission.WRITE
    page: Page[Base] = Page[Base](items=[Sub(b="kept"), Base()])
    pet: Pet = Cat(lives=3)
    tree: Tree = Tree(name="root", children=[Tree(name="leaf")])
    outer: Outer = Outer(inner=Outer.Inner(n=5))
    point: Point = Point(1)
    pair: Pair = Pair(1)
    hard: Hard = Hard()
    n: int = 2

    @model_validator(mode="after")
    def _positive(self) -> Request:
        if self.n <= 0:
            raise ValueError("n must be positive")
        return self


class EchoState(JobStepState):
    n: int = 0


class Echo(JobStep[Request, int, EchoState]):
    ray_options = {"num_cpus": 0}

    def initialize_state(self, request: Request) -> None:
        self.state.n = shapes.double(request.n)

    def perform_step(self, state: EchoState, context: BlockingStepContext) -> int:
        from lazy import triple

        return triple(state.n)


class Louder(Echo):
    """Differs from what it is derived from in a single attribute."""

    steps_per_actor = 2


class EchoJobState(JobState):
    done: list[Base] = []


class EchoJob(Job[Request, EchoJobState]):
    def prepare_steps(self, request: Request) -> Iterator[StepDetails]:
        yield self.create_step(Echo, request, step_id="one")
        yield self.create_step(Echo, Request(n=7))
        yield self.create_step(Louder, request)

    def can_resume(self) -> Any:
        return super().can_resume()


if __name__ == "__main__":
    from choreography_ray.code import describe_code, load_code
    from choreography_ray.codec import encode

    ref, captured = describe_code(EchoJob)
    assert load_code(ref, captured).job_class is EchoJob
    Path(sys.argv[1]).write_bytes(pickle.dumps((ref, captured, encode(Request()), encode(EchoJobState(done=[Sub()])))))
