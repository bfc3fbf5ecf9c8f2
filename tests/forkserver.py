"""Python processes that are forked from one that has imported everything, in place of new interpreters.

`Python` is a `subprocess.Popen` whose command begins with ``sys.executable``: what it runs, its files, environment and
exit status are those of a process of its own; only the seconds that imports take are saved. Not for tests of what is
imported.
"""

import atexit
import fcntl
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "dask.distributed",
    "distributed.cli.dask_scheduler",
    "distributed.cli.dask_worker",
    "pyarrow.parquet",
    "sqlalchemy.dialects.sqlite",
    "psycopg",
    "dp_accounting.pld.privacy_loss_distribution",
    "dp_accounting.rdp",
    "flint",
    "dpdist.cli.commands",
    "dpdist.lifecycle.run",
    "dpdist.families.deniability.stages",
    "dpdist.families.histogram.stages",
    "dpdist.families.mixing.stages",
    "dpdist.families.mixing.federated.stages",
    "dpdist.families.prediction.stages",
    "dpdist.families.prediction.private.stages",
    "dpdist.families.synthesis.stages",
)
LAST = "frozen"
_SHARED = os.environ.get("PYTEST_FORK_SERVER", "")
"""Of the process that deals out the tests: the server of all processes that run them."""


class Python(subprocess.Popen[Any]):
    """A process that runs ``[sys.executable, ...]``, forked from the server."""

    _waitpid_lock: threading.Lock
    _close_pipe_fds: Callable[..., None]
    _handle_exitstatus: Callable[[int], None]

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        _, pass_fds, cwd, env = rest[:4]
        files = rest[7:13]  # reading and writing ends of stdin, stdout, stderr; -1 where they are inherited
        p2cread, _, _, c2pwrite, _, errwrite = files
        if args[0] != sys.executable or preexec_fn is not None:
            raise ValueError("the fork server runs Python, without a function before it")
        request = {
            "args": [os.fspath(item) for item in args[1:]],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": bool(rest[-2]),
            "files": [0, 1, 2, *pass_fds],
        }
        ours = [given if given != -1 else standard for standard, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._answers = socket.socket(socket.AF_UNIX)
        self._answers.connect(_server())
        body = json.dumps(request).encode()
        socket.send_fds(self._answers, [struct.pack("I", len(body))], [*ours, *pass_fds])
        self._answers.sendall(body)
        (self.pid,) = struct.unpack("i", _exactly(self._answers, 4))
        self._child_created = True
        self._close_pipe_fds(*files)

    def __del__(self, *_: Any) -> None:
        """Nothing is left to wait for: the server does. `Popen` would keep the object, whose socket may be closed."""

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        self._answers.setblocking(not wait_flags & os.WNOHANG)
        try:
            answer = self._answers.recv(4, socket.MSG_WAITALL)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, struct.unpack("i", answer)[0] if answer else signal.SIGKILL

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(*command: Any, timeout: float = 300, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python`` with these arguments to its end; what it prints is text."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Python([sys.executable, *map(str, command)], **{**pipes, **settings}) as process:
        try:
            out, error = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def command(words: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
    """Start a command that is installed: ours and Dask's are forked, others run as ever."""
    if words[0] in ("dask", "dpdist"):
        return Python([sys.executable, "-m", *words], **settings)
    program = shutil.which(words[0], path=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return subprocess.Popen(words, executable=program, **settings)


def share() -> None:
    """Start the server of all processes that this one starts from now on."""
    os.environ["PYTEST_FORK_SERVER"] = _server()[1:]


@cache
def _server() -> str:
    """The address of the server; it ends with the process that has started it."""
    if _SHARED:
        return f"\0{_SHARED}"
    address = f"\0dpdist-forkserver-{os.getpid()}-{os.urandom(4).hex()}"
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])
    command = [sys.executable, __file__, address[1:]]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    if process.stdout is None or process.stdout.readline() != b"ready\n":
        raise RuntimeError("the fork server did not start")
    atexit.register(process.kill)
    return address


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise EOFError("the fork server is gone")
        content += part
    return content


# --- the server -------------------------------------------------------------------------------------------------------


def serve(address: str) -> None:
    """Fork a process for each request, wait for it and tell its exit status."""
    _end_with_parent()
    running: dict[int, tuple[int, socket.socket]] = {}  # by a file that is ready when the process has ended
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{address}")
        listening.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        select.select([listening], [], [])  # imports nothing before it is needed
        _import()
        while True:
            for ready in select.select([*running, listening.fileno()], [], [])[0]:
                with suppress(EOFError, OSError, struct.error):  # who asked is gone
                    if ready == listening.fileno():
                        connection, _ = listening.accept()
                        pid = _forked(connection, [listening, *(other for _, other in running.values())], [*running])
                        running[os.pidfd_open(pid)] = pid, connection
                        connection.sendall(struct.pack("i", pid))
                    else:
                        pid, connection = running.pop(ready)
                        os.close(ready)
                        with connection:
                            connection.sendall(struct.pack("i", os.waitpid(pid, 0)[1]))


def _import() -> None:
    from importlib import import_module

    import releases
    import unsynced

    for name in PRELOADED:
        import_module(name)
    unsynced.apply()
    releases.plan()  # what accounting caches is there in all forked processes
    import_module(LAST)


def _forked(connection: socket.socket, sockets: list[socket.socket], others: list[int]) -> int:
    """The process of a request, which keeps none of the server's files. Who asks for one that fails does not wait."""
    files: list[int] = []
    try:
        size, files, _, _ = socket.recv_fds(connection, 4, 8)
        request = json.loads(_exactly(connection, struct.unpack("I", size)[0]))
        pid = os.fork()
        if pid == 0:
            try:
                for theirs in (connection, *sockets):
                    theirs.close()
                for file in others:
                    os.close(file)
                _end_with_parent()
                _become(request, files)
            finally:
                os._exit(1)  # it never goes on as the server
    except BaseException:
        connection.close()
        raise
    finally:
        for file in files:
            os.close(file)
    return pid


def _become(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Run what was asked for in this process, and end it."""
    if request["session"]:
        os.setsid()
    wanted = request["files"]
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, max(wanted) + 1) for file in files]  # none is where another goes
    for file in files:
        os.close(file)
    for number, file in zip(wanted, above, strict=True):
        os.dup2(file, number)
        os.close(file)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    given = [part for part in request["env"].get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [*given, *(part for part in sys.path if part not in given)]
    sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    code = 1
    try:
        import dask

        dask.config.refresh()
        _run(request["args"])
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    _finish(code)


def _run(args: list[str]) -> None:
    if args[0] == "-m":
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[0] == "-c":
        sys.argv = ["-c", *args[2:]]
        exec(compile(args[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        sys.argv = args
        sys.path.insert(0, str(Path(args[0]).resolve().parent))
        runpy.run_path(args[0], run_name="__main__")


def _finish(code: int) -> NoReturn:
    """End as an interpreter does: threads, exit functions, buffers."""
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def _end_with_parent() -> None:
    """Let Linux end this process when its parent ends."""
    import ctypes

    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    serve(sys.argv[1])
