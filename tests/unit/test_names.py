"""Names of actors: one for each id, and back again where the id is all of it [S14.1]."""

from __future__ import annotations

import pytest

from choreography_ray.actors.names import JOB_PREFIX, host_actor, job_actor, job_of_actor
from choreography_ray.model import HostId, JobId


@pytest.mark.parametrize("job_id", ["a", "job.1-b_c", "x" * 100, "0"])
def test_the_name_of_a_plain_id_tells_it(job_id: str) -> None:
    assert job_of_actor(job_actor(JobId(job_id))) == job_id


@pytest.mark.parametrize("job_id", ["a/b", "", ".hidden", "x" * 101, "\u00fc", "a~b", "job/a", "job"])
def test_the_name_of_any_other_id_tells_none(job_id: str) -> None:
    """Rather than a wrong one."""
    assert job_of_actor(job_actor(JobId(job_id))) is None


@pytest.mark.parametrize("job_id", ["a", "job", "job/a", "jobs"])
def test_a_host_is_no_job(job_id: str) -> None:
    """Those of a job with the id "job" were taken for job actors that say nothing: no rebuilt throttle granted."""
    name = host_actor(JobId(job_id), HostId("own-1.1"))
    assert not name.startswith(JOB_PREFIX)
    assert job_of_actor(name) is None
