"""The client, in two faces: `AsyncChoreography`, and `Choreography` for scripts and notebooks."""

from choreography_ray.access.step import AsyncStepHandle
from choreography_ray.client.asynchronous import AsyncChoreography
from choreography_ray.client.blocking import Choreography, JobHandle, StepHandle
from choreography_ray.client.handle import AsyncJobHandle

__all__ = ["AsyncChoreography", "AsyncJobHandle", "AsyncStepHandle", "Choreography", "JobHandle", "StepHandle"]
