"""What does the environment say? A module of its own, as hosts need none of it and start the faster."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What the environment says [S15]. Ray's own `RAY_ADDRESS` is read by Ray."""

    model_config = SettingsConfigDict(env_prefix="CHOREOGRAPHY_", extra="ignore")

    mongo_url: str | None = Field(default=None, repr=False)
    """Where the state is kept. None: the embedded store."""
    namespace: str = "default"
    """The choreography namespace: one database, one throttle."""
    signing_key: str | None = Field(default=None, repr=False)
    """Key that captured code is signed with [S13]."""
    data_directory: str = ".choreography"
    """Where the embedded store keeps its data."""
