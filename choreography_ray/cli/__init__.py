"""The command line `choreography`."""

from __future__ import annotations

from choreography_ray.cli.app import main

__all__ = ["main"]
