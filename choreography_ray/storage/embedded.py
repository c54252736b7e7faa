"""How does a database run on a machine that has none: `secantusd-py` as a process of its own, found by its directory?

What matters of secantusdb 0.7 [S15]:

* With `--sync-on-commit` an acknowledged write is on disk: after kill -9 and a restart over the same directory all
  acknowledged documents are there (tests/integration/test_embedded.py). Without it the last ones are lost.
* Without `--config` it reads `secantusd.toml` of the working directory or the home; ours is written here.
* It says that it is a replica set of one, so clients need `directConnection=true`; it takes majority and journal.
* WiredTiger locks its files: two servers on one directory are impossible, and the second one exits.
* When its disk is full its engine gives up for good: it answers a ping, and an internal error to all else, also when
  there is room again. Started anew it has all that it acknowledged.
* With `--auth` it lets in whoever knows a password. Its first user is made before it runs, in its files: it would let
  in anybody to make it otherwise. The begin of a login is answered without one, and the engine must look for that.
* It finds documents by `_id` and by equality on an index; ranges of `_id` are scans, and a sorted query reads all
  that matches before its limit. `storage.mongo` asks accordingly.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import bson
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from choreography_ray.errors import EmbeddedStoreUnavailable

_SERVER = "secantusd-py"
_USER = "choreography"
_ADD_USER = """
import sys
from secantus.auth import SCRAM_SHA_256, derive_credentials
from secantus.storage import Storage

user, password = sys.stdin.read().split()
storage = Storage(sys.argv[1], cache_size="64M", sync_on_commit=True)
credentials = derive_credentials(password, mechanism=SCRAM_SHA_256, username=user).to_doc()
record = {"_id": f"admin.{user}", "user": user, "db": "admin", "credentials": credentials}
record |= {"roles": [{"role": "root", "db": "admin"}], "mechanisms": [SCRAM_SHA_256]}
storage.add_user("admin", user, record, replace=True)
storage.close()
"""
_CONFIG = """# Written by choreography-ray; changes are overwritten.
[storage]
cache_size = "256M"
sync_on_commit = true
"""
_START_SECONDS = 120.0
"""A store with a long log to replay takes a while, and any takes long on a machine that is busy with much else."""
_STOP_SECONDS = 10.0
_PING_SECONDS = 2.0


class EmbeddedStore:
    """The database in a directory, for whoever starts first there: later ones find it and use it.

    `start` returns when the server answers. The server dies with the process that owns it, however that ends, and
    with `stop`. Owning is a lock on `<directory>/lock` that the kernel lets go with its holder; `endpoint.json`
    beside it tells others the address and is believed only if the server answers.

    It listens on the loopback address, and wants the password in `<directory>/password`, which is in the URL too. The
    directory and all in it can be read by its user only.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).absolute()
        self._lock_fd: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()

    @property
    def is_owner(self) -> bool:
        """True when this object started the server that runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_broken(self) -> bool:
        """True when the server that is ours says that it can do nothing any more: it must be started again."""
        reply = _greet(self._last_port()) if self.is_owner else None
        return reply is not None and reply.get("code") == _INTERNAL_ERROR

    @property
    def pid(self) -> int | None:
        """The server's process, when it is ours."""
        return None if self._process is None else self._process.pid

    def start(self) -> str:
        """The URL of the server of this directory, started if none answers; a password is in it. Can be called again,
        also after it died.

        Raises `EmbeddedStoreUnavailable`.
        """
        with self._guard:
            return self._start()

    def stop(self) -> None:
        """End the server if it is ours: SIGTERM, then SIGKILL. The data stays."""
        with self._guard:
            self._stop()

    def _start(self) -> str:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            url = find_endpoint(self.directory)
            if url is not None:
                return url
            if self._lock_fd is not None or self._own():
                return self._run(deadline)
            if time.monotonic() > deadline:
                raise EmbeddedStoreUnavailable(
                    f"another process owns {self.directory}, but its store does not answer; see {self._log}"
                )
            time.sleep(0.05)  # the owner is starting it: nothing tells when, but the endpoint

    @property
    def _log(self) -> Path:
        return self.directory / "store.log"

    def _own(self) -> bool:
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._lock_fd = fd
        return True

    def _run(self, deadline: float) -> str:
        """Start the server, on the port that clients know from before if it is free: they find it again."""
        try:
            self._end_process()
            password = self._password()
            for port in (self._last_port(), 0, 0):
                self._process = self._launch(port := _free_port(port))
                if self._is_up(port, deadline):
                    return self._announce(port, password)
                self._end_process()
            raise EmbeddedStoreUnavailable(f"{_SERVER} does not start; {self._log} ends with: {_tail(self._log)}")
        except BaseException:
            self._stop()
            raise

    def _password(self) -> str:
        """What lets in. Made, with its user, where there is none: also in a directory of an earlier version."""
        with contextlib.suppress(PermissionError):  # a folder that somebody else made and lets us use
            self.directory.chmod(0o700)
        kept = self.directory / "password"
        if kept.exists():
            return kept.read_text()
        _server()
        password = secrets.token_hex(32)
        data = self.directory / "data"
        added = subprocess.run(
            [sys.executable, "-c", _ADD_USER, str(data)],
            input=f"{_USER} {password}".encode(),
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            umask=0o077,
            check=False,
        )
        if added.returncode:
            why = added.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise EmbeddedStoreUnavailable(f"{data} does not take a password: {why}")
        self._write("password", password)  # only now: with this file there is a user
        return password

    def _write(self, name: str, text: str) -> None:
        """A file that is there whole or not at all, for this user only."""
        written = self.directory / f"{name}.new"
        written.unlink(missing_ok=True)
        fd = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        written.replace(self.directory / name)

    def _last_port(self) -> int:
        try:
            return int(json.loads((self.directory / "endpoint.json").read_text())["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _is_up(self, port: int, deadline: float) -> bool:
        """True once the server answers; False when it ended, perhaps because somebody else took the port."""
        assert self._process is not None
        while self._process.poll() is None:
            if _answers(port):
                return True
            if time.monotonic() > deadline:
                raise EmbeddedStoreUnavailable(f"{_SERVER} does not answer in time; see {self._log}")
            time.sleep(0.02)  # a server that starts gives no other sign
        return False

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        """Start the server from a thread that lives as long as it: the kernel's signal comes when the *thread* ends
        that made the child, not only when the process does.
        """
        self._write("secantusd.toml", _CONFIG)
        config, data = str(self.directory / "secantusd.toml"), str(self.directory / "data")
        command = [_server(), "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--storage-path", data, "--auth", "--sync-on-commit", "--log-level", "WARNING"]
        assert self._lock_fd is not None
        inherited = (self._lock_fd,)  # the directory is not free before the server is gone too
        made: Future[subprocess.Popen[bytes]] = Future()

        def keep() -> None:
            try:
                with open(self._log, "ab", opener=_for_me_alone) as log:
                    process = subprocess.Popen(
                        command,
                        cwd=self.directory,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        pass_fds=inherited,
                        umask=0o077,
                        start_new_session=True,  # an interrupt at the terminal is not for it
                        preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509 - it only makes two system calls
                    )
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                made.set_exception(error)
                return
            made.set_result(process)
            process.wait()

        threading.Thread(target=keep, name="embedded-store", daemon=True).start()
        return made.result()

    def _announce(self, port: int, password: str) -> str:
        url = f"mongodb://{_USER}:{password}@127.0.0.1:{port}/?directConnection=true"
        assert self._process is not None
        endpoint = {"url": url, "port": port, "pid": self._process.pid, "owner": os.getpid()}
        self._write("endpoint.json", json.dumps(endpoint))
        return url

    def _stop(self) -> None:
        self._end_process()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_endpoint(directory: Path | str) -> str | None:
    """The URL of the store that runs in a directory; None when none answers there."""
    directory = Path(directory).absolute()
    try:
        endpoint: dict[str, Any] = json.loads((directory / "endpoint.json").read_text())
        url, port, pid = str(endpoint["url"]), int(endpoint["port"]), int(endpoint["pid"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_ours = os.fsencode(directory / "data") in command  # else pid or port may have gone to somebody else
    return url if is_ours and _answers(port) else None


def _answers(port: int) -> bool:
    """Whether a server of MongoDB's protocol is there and well."""
    reply = _greet(port)
    return reply is not None and reply.get("ok") == 1


def _greet(port: int) -> Mapping[str, Any] | None:
    """A server's reply to the begin of a login, for which its engine must look for the user; None: there is none."""
    login = f"n,,n={_USER},r={secrets.token_hex(12)}".encode()
    greeting = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": login, "$db": "admin"}
    body = b"\0\0\0\0\0" + bson.encode(greeting)
    try:
        with socket.create_connection(("127.0.0.1", port), _PING_SECONDS) as connection:
            connection.settimeout(_PING_SECONDS)
            connection.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, _OP_MSG) + body)
            answer = connection.makefile("rb")
            length, _, _, code = struct.unpack("<iiii", answer.read(16))
            return RawBSONDocument(answer.read(length - 16)[5:]) if code == _OP_MSG else None
    except (OSError, struct.error, InvalidBSON):
        return None


_OP_MSG = 2013
_INTERNAL_ERROR = 1


def _for_me_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _free_port(wanted: int) -> int:
    """The wanted port if nobody listens there, else one that is free now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _dies_with(owner: int) -> Callable[[], None]:
    """What the child does before it becomes the server: ask the kernel to be killed when its owner ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != owner:  # it ended before we asked
            os._exit(1)

    return prepare


_PR_SET_PDEATHSIG = 1


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-500:].strip() or "nothing"
    except OSError:
        return "nothing"


def _server() -> str:
    beside = Path(sys.executable).with_name(_SERVER)
    found = str(beside) if beside.exists() else shutil.which(_SERVER)
    if found is None:
        raise EmbeddedStoreUnavailable(
            "secantusdb is not installed; pip install 'choreography-ray[embedded]', or set CHOREOGRAPHY_MONGO_URL"
        )
    return found
