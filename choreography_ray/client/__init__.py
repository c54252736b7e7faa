"""The client, in two faces: `AsyncChoreography`, and `Choreography` for scripts and notebooks."""

from choreography_ray.client.asynchronous import AsyncChoreography, AsyncJobHandle
from choreography_ray.client.blocking import Choreography, JobHandle

__all__ = ["AsyncChoreography", "AsyncJobHandle", "Choreography", "JobHandle"]
