"""Where could a password of the URL be read by somebody who looks at something else: a repr, an error, a page?"""

from __future__ import annotations

import asyncio
import json
import traceback

import pytest

from choreography_ray.actors.connection import Connection
from choreography_ray.cli import main
from choreography_ray.cli.connection import Connection as CliConnection
from choreography_ray.client import AsyncChoreography, JobHandle
from choreography_ray.client.blocking import Home
from choreography_ray.model import JobId
from choreography_ray.settings import Settings

NOBODY = "127.0.0.1:1"
QUICK = "directConnection=true&serverSelectionTimeoutMS=50"
URLS = [
    f"mongodb://user:hunter2@{NOBODY}/?{QUICK}",
    f"mongodb://{NOBODY}/?{QUICK}&tls=true&tlsCertificateKeyFile=/nowhere&tlsCertificateKeyFilePassword=hunter2",
    f"mongodb://user:hunter2@{NOBODY}/?{QUICK}&tls=maybe",
    f"mongodb://user:hunter2@{NOBODY}/?{QUICK}&authMechanismProperties=hunter2",
    f"mongodb://user:hun@ter2@{NOBODY}/",
    f"mongodb://user:hun/ter2@{NOBODY}/",
    f"mongodb://user:hunter2%zz@{NOBODY}/",
    "mongodb://user:hunter2@127.0.0.1:port/",
    "mongodb://user:hunter2@/",
    "mongodb://user:hunter2",
    "user:hunter2@host",
    "postgres://user:hunter2@host/",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_leads_nowhere_is_an_error_without_its_secrets(url: str) -> None:
    """Neither does the traceback, with all that came before, have them."""
    with pytest.raises(Exception, match=r"MongoDB|cannot be used") as caught:
        asyncio.run(AsyncChoreography.connect(mongo_url=url, use_ray=False))
    told = "".join(traceback.format_exception(caught.value))
    assert "ter2" not in told


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", [["list"], ["doctor"], ["doctor", "--json"]])
def test_no_command_tells_them(
    url: str, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHOREOGRAPHY_MONGO_URL", url)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert main(command) != 0
    shown = capsys.readouterr()
    assert shown.out + shown.err
    assert "ter2" not in shown.out + shown.err


@pytest.mark.parametrize("option", ["tls=maybe", "tlss=true", "tlsCAFile=/nowhere", "authMechanism=NONE"])
def test_an_option_that_the_driver_would_leave_out_is_refused(option: str) -> None:
    """Else a slip of the pen in `tls` sends everything in clear."""
    with pytest.raises(ValueError, match=r"no URL of a MongoDB"):
        asyncio.run(AsyncChoreography.connect(mongo_url=f"mongodb://{NOBODY}/?{QUICK}&{option}", use_ray=False))


def test_nothing_that_holds_the_url_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    url = URLS[0]
    monkeypatch.setenv("CHOREOGRAPHY_SIGNING_KEY", "hunter2")
    home = Home("default", url, "folder")
    handle = JobHandle(JobId("nightly"), home)
    held = [Settings(mongo_url=url), Connection("default", url), CliConnection(mongo_url=url), home, handle]
    for each in held:
        assert "hunter2" not in f"{each!r} {each}"
    assert "hunter2" not in json.dumps(repr(held))
