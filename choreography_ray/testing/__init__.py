"""A job, or one of its steps, in the test's own process: no Ray, no MongoDB, in virtual time [S17].

What is named here is public; the other modules of this package are what it is made of, and may change.
"""

from choreography_ray.testing.crashes import crash_at_every_write
from choreography_ray.testing.faults import Cut, Fate
from choreography_ray.testing.one_step import StepTrial, run_step
from choreography_ray.testing.virtual import TEST_LEASE, TEST_OPTIONS, VirtualCluster
from choreography_ray.testing.virtual_job import VirtualJob

__all__ = [
    "TEST_LEASE",
    "TEST_OPTIONS",
    "Cut",
    "Fate",
    "StepTrial",
    "VirtualCluster",
    "VirtualJob",
    "crash_at_every_write",
    "run_step",
]
