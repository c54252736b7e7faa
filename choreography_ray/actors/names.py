"""How actors are named: every name is made here [S14.1]."""

from __future__ import annotations

import hashlib
import re

from choreography_ray.model import HostId, JobId

THROTTLE = "throttle"
SUPERVISOR = "supervisor"
STORE = "store"
JOB_PREFIX = "job/"

_PLAIN = re.compile(r"(?!job$)[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Not "job": the hosts of a job of that id would be called like actors of jobs."""


def ray_namespace(namespace: str) -> str:
    """The Ray namespace of a choreography namespace."""
    return f"choreography-{namespace}"


def _readable(text: str) -> str:
    """The id itself when it is plain, else what is readable of it and a digest: never two ids with one name."""
    if _PLAIN.fullmatch(text):
        return text
    shown = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:40].strip("-.")
    return f"{shown}~{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


def job_actor(job_id: JobId) -> str:
    """The name of a job's actor."""
    return JOB_PREFIX + _readable(job_id)


def host_prefix(job_id: JobId) -> str:
    """What the names of all hosts of a job begin with, and of no other job's."""
    return f"{_readable(job_id)}/"


def job_of_actor(name: str) -> JobId | None:
    """The job whose actor has this name; None where that is not all of its id."""
    plain = name.removeprefix(JOB_PREFIX)
    return JobId(plain) if name.startswith(JOB_PREFIX) and _PLAIN.fullmatch(plain) else None


def host_actor(job_id: JobId, host: HostId) -> str:
    """The name of a job's host; an own actor's host id bears the step's ordinal and the run."""
    return f"{host_prefix(job_id)}{host}"
