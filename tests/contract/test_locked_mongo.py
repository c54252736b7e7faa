"""Who gets into a MongoDB behind TLS, client certificates and a password, and what is told to whoever does not?"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from choreography_ray.cli import main
from choreography_ray.storage.embedded import EmbeddedStore
from choreography_ray.storage.mongo import MongoStorage
from choreography_ray.storage.protocol import JobFilter

NO_REASON = ""
"""The server hangs up, and what the client makes of that depends on when."""


class Locked(NamedTuple):
    """A server at 127.0.0.1 that wants TLS, a certificate that its own authority signed, and a password."""

    folder: Path
    port: int
    password: str

    def url(
        self, *, host: str = "127.0.0.1", password: str | None = None, tls: bool = True, ms: int = 3_000, **files: str
    ) -> str:
        """`files` are names in the folder; those not given are the right ones, an empty one is left out."""
        options = {"directConnection": "true", "serverSelectionTimeoutMS": f"{ms}"}
        if tls:
            files = {"tlsCAFile": "ours.pem", "tlsCertificateKeyFile": "client.pem", **files}
            options |= {"tls": "true", **{name: f"{self.folder / file}" for name, file in files.items() if file}}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"mongodb://choreography:{password or self.password}@{host}:{self.port}/?{query}"


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with its user and the certificates of everybody."""
    folder = tmp_path_factory.mktemp("locked")
    store = EmbeddedStore(folder)
    store.start()  # makes its user
    store.stop()
    ours, other = trustme.CA(), trustme.CA()
    server = ours.issue_cert("127.0.0.1")
    files = {
        "ours.pem": ours.cert_pem,
        "other.pem": other.cert_pem,
        "key.pem": server.private_key_pem,
        "chain.pem": server.cert_chain_pems[0],
        "client.pem": ours.issue_cert("client@example.org").private_key_and_cert_chain_pem,
        "others-client.pem": other.issue_cert("client@example.org").private_key_and_cert_chain_pem,
    }
    for name, content in files.items():
        content.write_to_path(folder / name)
    return folder


@pytest.fixture
def locked(furnished: Path) -> Iterator[Locked]:
    """Each test has its own: this server shakes one hand at a time, and clients of another test may keep it waiting."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command: list[str | Path] = [
        Path(sys.executable).with_name("secantusd-py"),
        "--config",
        furnished / "secantusd.toml",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--storage-path", furnished / "data", "--auth"]
    command += ["--tls-cert-file", furnished / "chain.pem", "--tls-key-file", furnished / "key.pem"]
    command += ["--tls-ca-file", furnished / "ours.pem", "--tls-require-client-cert"]
    with (furnished / "store.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until_it_listens(port, process)
            yield Locked(furnished, port, (furnished / "password").read_text())
        finally:
            process.kill()  # asked to end, it would first wait for the hand that it shakes


def wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)  # a server that starts gives no other sign


async def test_the_right_certificates_and_the_password_open_it(locked: Locked) -> None:
    storage = MongoStorage(locked.url(ms=60_000), "default")
    await storage.open()
    assert await storage.list_jobs(JobFilter()) == []
    await storage.close()


def told_by_list(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What `choreography list` prints, out and err, as soon as the server has answered anything."""
    until = time.monotonic() + 60
    while True:
        assert main(["list"]) == 1
        out, err = capsys.readouterr()
        if "No servers found yet" not in err or time.monotonic() > until:
            return out, err


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        pytest.param({"password": "hunter2", "ms": 60_000}, r"authentication failed\n", id="another password"),
        pytest.param({"tlsCAFile": "other.pem"}, "certificate verify failed", id="an authority that did not sign it"),
        pytest.param({"host": "localhost"}, "Hostname mismatch", id="a name that it was not signed for"),
        pytest.param({"tlsCertificateKeyFile": "", "ms": 500}, NO_REASON, id="no certificate of the client"),
        pytest.param({"tlsCertificateKeyFile": "others-client.pem", "ms": 500}, NO_REASON, id="one that others signed"),
        pytest.param({"tls": False, "ms": 500}, NO_REASON, id="no TLS"),
    ],
)
def test_whoever_is_not_let_in_reads_one_line_without_the_password(
    locked: Locked,
    wrong: dict[str, Any],
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHOREOGRAPHY_MONGO_URL", locked.url(**wrong))
    out, err = told_by_list(capsys)
    assert out == ""
    assert re.fullmatch(rf"choreography: the database at mongodb://[a-z0-9.:]+ cannot be used: .*{why}.*\n?", err)
    assert locked.password not in err
    assert "hunter2" not in err
