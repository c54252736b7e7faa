"""Which part of a driver's runtime_env outlives its cluster, so that the job gets it wherever it goes on [S13]?

Ray hands an actor's runtime_env on to the actors that it creates: what the job's actor carries, its hosts carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LASTING_SCHEMES = frozenset({"https", "s3", "gs", "azure", "abfss"})
"""Of URIs that any cluster can fetch. Ray's own store (`gcs`) is gone with its cluster, a path is of one machine."""
_MARKS = frozenset({"_ray_release", "_ray_commit", "_inject_current_ray"})
"""What Ray adds, and would add again."""
_SETUP_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
_HOOK_IN_GCS = "ray_runtime_env_func::"


def lasting(env: Mapping[str, Any]) -> dict[str, Any] | None:
    """What of a runtime_env holds on every cluster; None when nothing does.

    Left out are a `working_dir`, modules and jars that were uploaded to the cluster or lie on this machine, and a setup
    hook that is a function. The job's own modules come with its captured code.
    """
    kept = {name: value for name, value in env.items() if name not in _MARKS}
    if not _is_lasting(kept.get("working_dir")):
        kept.pop("working_dir", None)
        kept.pop("excludes", None)
    for name in ("py_modules", "java_jars"):
        kept[name] = [uri for uri in kept.get(name) or () if _is_lasting(uri)]
    kept.pop("worker_process_setup_hook", None)  # no more than a name of what `env_vars` carries
    variables: Mapping[str, str] = kept.get("env_vars") or {}
    kept["env_vars"] = {
        name: value for name, value in variables.items() if not (name == _SETUP_HOOK and value.startswith(_HOOK_IN_GCS))
    }
    return {name: value for name, value in kept.items() if value not in (None, [], {}, "")} or None


def _is_lasting(uri: object) -> bool:
    return isinstance(uri, str) and uri.partition("://")[0] in LASTING_SCHEMES and "://" in uri
