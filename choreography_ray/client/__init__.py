"""The client, in two faces: `AsyncChoreography`, and `Choreography` for scripts and notebooks."""

from choreography_ray.client.asynchronous import AsyncChoreography
from choreography_ray.client.blocking import Choreography, JobHandle
from choreography_ray.client.handle import AsyncJobHandle

__all__ = ["AsyncChoreography", "AsyncJobHandle", "Choreography", "JobHandle"]
