"""What of a driver's runtime_env is stored with its jobs: what any cluster can use [S13]."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import ray_constants
from ray._private.runtime_env import setup_hook
from ray.exceptions import RuntimeEnvSetupError

from choreography_ray.actors import job, runtime_envs
from choreography_ray.actors.connection import Connection
from choreography_ray.actors.runtime_envs import lasting
from choreography_ray.client import AsyncChoreography, asynchronous
from choreography_ray.codec import decode, encode
from choreography_ray.errors import StartJobError
from choreography_ray.model import JobId, StepId
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, JobDocument, Owner, PlannedStep, PlanRef, PlanSegment
from choreography_ray.storage.memory import MemoryStorage

HOOK = ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
KEPT: list[dict[str, Any]] = [
    {"env_vars": {"A": "1", "EMPTY": ""}},
    {"pip": {"packages": ["requests==2.31.0"], "pip_check": False}},
    {"uv": {"packages": ["x"]}, "config": {"setup_timeout_seconds": 60}},
    {"conda": {"dependencies": ["python=3.11", {"pip": ["a.b"]}]}},
    {"image_uri": "example.org/image:1", "env_vars": {"a.b": "$c"}},
    {"working_dir": "https://example.org/code.zip", "excludes": ["*.csv"]},
    {"working_dir": "s3://bucket/code.zip", "py_modules": ["gs://bucket/module.zip"]},
    {"env_vars": {HOOK: "package.module.prepare"}},
]


@pytest.mark.parametrize("env", KEPT, ids=repr)
def test_what_holds_everywhere_is_kept_and_comes_back_from_the_store(env: dict[str, Any]) -> None:
    assert lasting(env) == env
    assert decode(encode(lasting(env), "runtime_env")) == env


@pytest.mark.parametrize(
    ("env", "left"),
    [
        ({}, None),
        ({"working_dir": "gcs://_ray_pkg_1.zip", "excludes": ["a"]}, None),
        ({"working_dir": "/home/me/project", "env_vars": {"A": "1"}}, {"env_vars": {"A": "1"}}),
        ({"working_dir": "file:///home/me/code.zip"}, None),
        ({"py_modules": ["gcs://_ray_pkg_1.zip", "s3://b/m.zip"]}, {"py_modules": ["s3://b/m.zip"]}),
        ({"java_jars": ["gcs://_ray_pkg_1.zip"], "py_modules": []}, None),
        ({"_ray_commit": "1", "_ray_release": "2", "_inject_current_ray": True, "pip": ["x"]}, {"pip": ["x"]}),
    ],
    ids=repr,
)
def test_what_is_of_one_cluster_or_machine_is_left_out(env: dict[str, Any], left: dict[str, Any] | None) -> None:
    assert lasting(env) == left


def test_a_setup_hook_that_lies_in_the_clusters_own_store_is_left_out() -> None:
    """The names are private to Ray: this tells when they change."""
    key = setup_hook.decode_function_key(b"key")
    assert lasting({"worker_process_setup_hook": "prepare", "env_vars": {HOOK: key, "A": "1"}}) == {
        "env_vars": {"A": "1"}
    }
    assert runtime_envs._SETUP_HOOK == HOOK
    assert runtime_envs._HOOK_IN_GCS == setup_hook.RUNTIME_ENV_FUNC_IDENTIFIER


MINE = {"env_vars": {"A": "1"}}


@pytest.mark.parametrize(
    ("own", "stored", "is_clean", "given"),
    [
        pytest.param({}, None, False, None, id="nobody has one"),
        pytest.param({}, MINE, False, MINE, id="the supervisor"),
        pytest.param({**MINE, "working_dir": "gcs://1.zip"}, MINE, False, MINE, id="its own driver"),
        pytest.param({"pip": ["x"]}, MINE, True, MINE, id="another driver"),
        pytest.param({"pip": ["x"]}, None, True, None, id="another driver, for a job without one"),
    ],
)
def test_a_jobs_actor_gets_what_is_stored_and_nothing_of_another_driver(
    monkeypatch: pytest.MonkeyPatch, own: Any, stored: Any, is_clean: bool, given: Any
) -> None:
    """An actor inherits its creator's: where that is another's, a driver without one creates it [S13]."""
    created: list[Any] = []
    cleanly: list[bool] = []

    def create_cleanly(make: Any, order: Any) -> Any:
        cleanly.append(True)
        return make(order)

    def find(name: str, namespace: str) -> Any:
        raise ValueError(name)

    monkeypatch.setattr(job, "here", lambda: SimpleNamespace(has_runtime_env=bool(own)))
    monkeypatch.setattr(job, "own_runtime_env", lambda: own)
    monkeypatch.setattr(job, "find", find)
    monkeypatch.setattr(job, "create", lambda cls, options, *arguments: created.append(options))
    monkeypatch.setattr(job, "create_cleanly", create_cleanly)
    job.job_handle(JobId("job"), Connection("default", "mongodb://m"), encode(stored))
    assert bool(cleanly) == is_clean
    assert [options.get("runtime_env") for options in created] == [given]


@pytest.mark.parametrize("plan", [None, PlanRef(5, 1, 1)], ids=["planned by the job", "planned by its driver"])
def test_a_start_whose_runtime_env_cannot_be_made_is_a_start_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, plan: PlanRef | None
) -> None:
    """Ray tells it with the first call of the actor, which never lives: nobody else deletes the record for long."""

    async def started() -> None:
        raise RuntimeEnvSetupError("Traceback ...\nValueError: no-such-env")

    actor = SimpleNamespace(started=SimpleNamespace(remote=started))
    monkeypatch.setattr(asynchronous, "job_handle", lambda *_: actor)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    begun = JobDocument(JobId("job"), "T", CodeRef("m", "T"), None, None, JobsOptions(), at, at, plan=plan)

    async def story() -> None:
        store = MemoryStorage()
        await store.insert_job(begun)
        if plan is not None:
            segment = PlanSegment(0, (PlannedStep(StepId("0"), "", 0, None),))
            await store.save_plan_segments(begun.job_id, plan.fence, [segment])
        client = AsyncChoreography(store, Connection("n", "mongodb://m"), JobsOptions(), None)
        with pytest.raises(StartJobError, match="runtime_env of its driver cannot be made: ValueError: no-such-env"):
            await client._begin(begun)
        assert await store.read_job(begun.job_id) is None
        assert await store.count_records(begun.job_id) == {}

    asyncio.run(story())


def test_a_job_that_somebody_took_over_meanwhile_keeps_record_and_plan() -> None:
    """The supervisor of another cluster, say, which can make the environment."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    begun = JobDocument(JobId("job"), "T", CodeRef("m", "T"), None, None, JobsOptions(), at, at, plan=PlanRef(5, 1, 1))

    async def story() -> None:
        store = MemoryStorage()
        await store.insert_job(begun)
        segment = PlanSegment(0, (PlannedStep(StepId("0"), "", 0, None),))
        await store.save_plan_segments(begun.job_id, 5, [segment])
        assert await store.raise_fence(begun.job_id, 0, 6, Owner(cluster="other", fence=6), 0)
        await AsyncChoreography(store, Connection("n", "mongodb://m"), JobsOptions(), None)._take_back(begun)
        assert await store.read_job(begun.job_id) is not None
        assert await store.read_plan_segment(begun.job_id, 5, 0) == segment

    asyncio.run(story())
