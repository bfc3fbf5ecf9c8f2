"""Servers to break: a Dask cluster of separate processes, and an S3 server; faults on order."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest
from buckets import moto, serving
from forkserver import Python
from ports import free_port

LOOPBACK = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
PRELOAD = Path(__file__).parent / "faults" / "dask_faults.py"


def _end_with_parent() -> None:
    """Let Linux end this process when the tests are killed."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class DaskProcesses:
    """A scheduler and two workers with their nannies, started by Dask's own command line; faults on order."""

    def __init__(self, folder: Path, *, memory: str = "2GiB", certificates: Path | None = None) -> None:
        self.folder = folder
        self.certificates = certificates
        self.memory = memory
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.prefix: list[str] = []  # what runs the processes that are started from now on, as another user say

    @property
    def address(self) -> str:
        return f"{'tls' if self.certificates else 'tcp'}://127.0.0.1:{self.port}"

    def _tls(self, role: str) -> list[str]:
        if self.certificates is None:
            return []
        files = {"ca-file": "ca", "cert": role, "key": f"{role}-key"}
        pairs = [(f"--tls-{option}", f"{self.certificates}/{name}.pem") for option, name in files.items()]
        return ["--protocol", "tls", *(text for pair in pairs for text in pair)]

    def _start(self, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "DPDIST_FAULTS": str(self.folder),
            "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parents[1], Path(__file__).parent))),
            "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "0",
            "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "fork",  # imports nothing anew
            **variables,
        }
        loopback = LOOPBACK[2:] if "--listen-address" in command else LOOPBACK
        started = [sys.executable, "-m", "dask", *command, *loopback, "--preload", str(PRELOAD)]
        started += self._tls(command[0])
        with (self.folder / "log").open("ab") as log:
            settings: dict[str, Any] = {"env": environment, "stdout": log, "stderr": log, "start_new_session": True}
            if self.prefix:
                return subprocess.Popen([*self.prefix, *started], **settings, preexec_fn=_end_with_parent)
            return Python(started, **settings)

    def start(self) -> None:
        """Start what is not running."""
        if self.processes and all(process.poll() is None for process in self.processes):
            return
        self.stop()
        file = ["--scheduler-file", str(self.folder / "scheduler.json")]
        self.processes = [self._start("scheduler", "--port", str(self.port), *file)]
        for number in range(2):
            options = ["--nthreads", "1", "--memory-limit", self.memory, "--death-timeout", "180"]
            options += ["--local-directory", str(self.folder / f"worker-{number}"), "--no-dashboard"]
            self.processes.append(self._start("worker", self.address, *options))

    def kill(self, role: str) -> None:
        """SIGKILL the scheduler, or a worker with its nanny."""
        process = self.processes[0 if role == "scheduler" else 1]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def order(self, role: str, task: str, *, state: str, action: str = "kill") -> None:
        """Let a worker or the scheduler act when a task reaches a state."""
        temporary = self.folder / ".order"
        temporary.write_text(f"{task} {state} {action}")
        temporary.rename(self.folder / role)

    def carried_out(self, role: str) -> bool:
        return not (self.folder / role).exists()

    def cancel(self) -> None:
        for role in ("worker", "scheduler"):
            (self.folder / role).unlink(missing_ok=True)

    def stop(self) -> None:
        """End all processes that this object started."""
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes:
            process.wait(30)
        self.processes = []


def parts(release: Path) -> list[bytes]:
    """The released records, byte for byte."""
    return [path.read_bytes() for path in sorted((release / "data").rglob("*.parquet"))]


class FlakyS3:
    """An S3 server that fails when told to: moto, or a gateway before the real one that DPDIST_TEST_S3 names."""

    def __init__(self) -> None:
        real = os.environ.get("DPDIST_TEST_S3")
        self._app = _forward(real) if real else moto()
        self._faults: Iterator[str] = iter(())
        self._where: Callable[[str], bool] = bool
        self._calm = threading.Event()
        self.struck: list[str] = []
        self.bucket = ""
        self._lock = threading.Lock()
        self._serving = serving(self._answer)
        self.environment: dict[str, str] = {}
        if not real:
            self.environment |= {"AWS_ACCESS_KEY_ID": "planted-access-key", "AWS_SECRET_ACCESS_KEY": "planted-secret"}

    def __enter__(self) -> Self:
        self.environment["AWS_ENDPOINT_URL"] = self._serving.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.fail()
        self._serving.__exit__(None, None, None)

    def fail(self, *faults: str, forever: bool = False, where: Callable[[str], bool] = bool) -> None:
        """Let the next requests fail, each with its error code; without any, all is well from now on.

        ``hang up`` closes the connection instead, ``silence`` never answers. `where` chooses among the requests, each
        given as ``PUT /bucket/key``.
        """
        with self._lock:
            self._faults, self._where = (cycle(faults) if forever else iter(faults)), where
            self._calm.set()
            self._calm = threading.Event()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        from werkzeug import Request, Response

        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        with self._lock:
            fault = next(self._faults, None) if self._where(request) else None
            calm = self._calm
        if fault is None:
            return self._app(environ, start)
        self.struck.append(request)
        Request(environ).get_data()
        if fault == "silence":
            calm.wait(20)
        if fault in ("silence", "hang up"):
            with suppress(OSError):
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        status = STATUS.get(fault, 503)
        body = f"<Error><Code>{fault}</Code><Message>planted</Message></Error>"
        return Response(body, status, mimetype="application/xml")(environ, start)


STATUS = {
    "InternalError": 500,
    "AccessDenied": 403,
    "InvalidAccessKeyId": 403,
    "ExpiredToken": 400,
    "NoSuchBucket": 404,
}
"""Of the error codes that are not 503."""


def _forward(endpoint: str) -> Any:
    """An application that passes each request on as it came, signature and all."""
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    from werkzeug import Request, Response

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        request = Request(environ)
        connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
        connection.request(request.method, environ["RAW_URI"], request.get_data(), dict(request.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP]
        response = Response(content, answer.status, headers)
        response.automatically_set_content_length = request.method != "HEAD"
        return response(environ, start)

    return application


HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


@contextmanager
def flaky_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyS3]:
    """An S3 server that fails when told to, with a bucket of its own, known by the environment; retries do not wait."""
    import s3fs

    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    with FlakyS3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.bucket = f"flaky-{uuid4().hex[:12]}"
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(server.bucket)
        yield server
