"""Preload of test schedulers and workers: what kills them, or fills their memory, in the middle of a chosen task.

A file in the folder DPDIST_FAULTS, named ``worker`` or ``scheduler``, holds ``<beginning of a task's name> <state>
<action>``. The process that removes the file first acts; `kill` is SIGKILL. `hog` leaves the file in place
and takes memory until the nanny steps in.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin

_hoard: list[bytearray] = []


def _strike(role: str, key: Any, state: str) -> None:
    order = Path(os.environ["DPDIST_FAULTS"]) / role
    try:
        prefix, when, action = order.read_text().split()
    except FileNotFoundError:
        return
    if not str(key).startswith(prefix) or state != when:
        return
    if action == "hog":
        while True:
            _hoard.append(bytearray(b"x" * (16 << 20)))
            time.sleep(0.02)
    try:
        order.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyWorker(WorkerPlugin):
    name = "faults"

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        _strike("worker", key, finish)


class FaultyScheduler(SchedulerPlugin):
    name = "faults"

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        _strike("scheduler", key, finish)


async def dask_setup(server: Any) -> None:
    """Called by Dask with the scheduler or the worker."""
    if isinstance(server, Scheduler):
        server.add_plugin(FaultyScheduler())
    elif isinstance(server, Worker):
        await server.plugin_add(FaultyWorker())
