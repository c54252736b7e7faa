"""What do the global options and the environment say about where the jobs are, and how is that reached?"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from choreography_ray.cli import local_cluster
from choreography_ray.cli.output import BadInput, busy
from choreography_ray.settings import Settings

if TYPE_CHECKING:
    from choreography_ray.client import Choreography


@dataclass(frozen=True, slots=True)
class Connection:
    """The global options of one command line. None: not given."""

    mongo_url: str | None = field(default=None, repr=False)
    namespace: str | None = None
    ray_address: str | None = None
    is_debugging: bool = False

    @classmethod
    def of(cls, context: typer.Context) -> Connection:
        """The options that the command line of `context` gave."""
        return context.ensure_object(cls)

    @property
    def directory(self) -> Path:
        """Where `up` writes down its cluster: beside the embedded store's data."""
        return Path(Settings().data_directory)

    @property
    def known_mongo_url(self) -> str | None:
        """The MongoDB that was named; None: the embedded store."""
        return self.mongo_url or Settings().mongo_url

    @property
    def known_namespace(self) -> str:
        """The choreography namespace that was named, else the default."""
        return self.namespace or Settings().namespace

    @property
    def known_address(self) -> str | None:
        """The cluster that was named, or that `up` started in this folder; None when there is none."""
        if named := self.ray_address or os.environ.get("RAY_ADDRESS"):
            return named
        cluster = local_cluster.running(self.directory)
        return cluster.address if cluster else None

    def open(self, *, with_ray: bool, resumes: bool = True) -> Choreography:
        """Connect; to be used as a context manager. Without Ray it reads only, and needs no cluster. Unless it
        `resumes`, interrupted jobs stay as they are.

        Raises `BadInput` for an address, URL or namespace that cannot be one.
        """
        address = self.known_address
        cluster = local_cluster.recorded(self.directory)
        if cluster and cluster.address == address:
            cluster.prepare_to_join()  # also for a reader: a later connection of this process may need it
        # Importing the client takes a second, which `--help` should not.
        from choreography_ray.client import Choreography

        try:
            with busy("connecting" if address or not with_ray else "starting Ray here"):
                return Choreography.connect(
                    ray_address=address if with_ray else None,
                    mongo_url=self.mongo_url,
                    namespace=self.namespace,
                    use_ray=with_ray,
                    resumes=resumes,
                )
        except ValueError as error:
            raise BadInput(str(error)) from error
