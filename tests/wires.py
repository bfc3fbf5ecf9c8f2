"""Looking at a cluster from outside: every byte that leaves a process, and where each task ran."""

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed import SchedulerPlugin
from federations import NAMES, ClientProcesses
from ports import free_port


class Wire:
    """A proxy on 127.0.0.1.

    Parameters
    ----------
    target : int
        Port that connections are passed on to.
    inside : {"caller", "target"}
        Which side is the process whose bytes are kept: it calls through the wire, or it is called.
    port : int, optional
        Where to listen.
    """

    def __init__(self, target: int, *, inside: str, port: int | None = None) -> None:
        self.target, self.inside = target, inside
        self.port = port or free_port()
        self.left = bytearray()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller = self._listener.accept()[0]
                try:
                    target = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    caller.close()
                    continue
                for a, b, kept in ((caller, target, "caller"), (target, caller, "target")):
                    threading.Thread(target=self._pass, args=(a, b, kept == self.inside), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, kept: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if kept:
                    with self._lock:
                        self.left += data
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Ran(SchedulerPlugin):  # type: ignore[misc]  # distributed has no types
    """Which worker each task was given to, and which had its result, from the scheduler's transitions."""

    name = "ran"

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        task = self.scheduler.tasks[key]
        workers = {"processing": [task.processing_on], "memory": task.who_has or []}.get(finish, [])
        self.seen += [(str(key), finish, worker.address) for worker in workers]


class WiredClients(ClientProcesses):
    """Clients whose workers reach others, and are reached, through wires only."""

    def __init__(self, folder: Path, names: Iterable[str] = NAMES, **settings: Any) -> None:
        super().__init__(folder, names, **settings)
        self.wires: dict[str, list[Wire]] = {}

    def _start(self, *command: str, **variables: str) -> Any:
        if command[0] != "worker":
            return super()._start(*command, **variables)
        name = command[command.index("--name") + 1]
        port, scheme = free_port(), self.address.split(":")[0]
        called, calling = Wire(port, inside="target"), Wire(self.port, inside="caller")
        self.wires[name] = [called, calling]
        options = ["--listen-address", f"{scheme}://127.0.0.1:{port}", "--no-nanny"]
        options += ["--contact-address", f"{scheme}://127.0.0.1:{called.port}"]
        return super()._start("worker", f"{scheme}://127.0.0.1:{calling.port}", *command[2:], *options, **variables)

    def contact(self, name: str) -> str:
        """The address of a client's worker, as the scheduler knows it."""
        return f"{self.address.split(':')[0]}://127.0.0.1:{self.wires[name][0].port}"

    def left(self, name: str) -> bytes:
        """All that left a client's worker."""
        return b"".join(bytes(wire.left) for wire in self.wires[name])
