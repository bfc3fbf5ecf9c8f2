"""The executor of a release whose spec leaves the choice open, by the size of its table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpdist.cluster.executor import InProcess
from dpdist.data.inputs import Opened

if TYPE_CHECKING:
    from dpdist.cluster.executor import Executor
    from dpdist.spec.release import ReleaseSpec

IN_PROCESS_CELLS = 1 << 22
"""Values up to which plain NumPy reads and counts a table faster than a scheduler starts."""

THREADS_CELLS = 1 << 29
"""Values up to which the threads of this process are faster than worker processes, which take seconds to start."""


def executor_mode(spec: ReleaseSpec, table: Opened) -> str:
    """The mode that a spec names, or else the one for the size of the table.

    The size decides where the work is done, never what is released.

    Returns {"in-process", "threads", "embedded", "address"}.
    """
    if spec.cluster.mode != "auto":
        return spec.cluster.mode
    if spec.worker_resources:  # clients of a federated release, each with a worker of its own
        return "embedded"
    if table.cells <= IN_PROCESS_CELLS:
        return "in-process"
    return "threads" if table.cells <= THREADS_CELLS else "embedded"


@contextmanager
def opened_executor(spec: ReleaseSpec, table: Opened) -> Iterator[Executor]:
    """The executor of a release while the context lasts; Dask is imported where one needs it."""
    mode, cluster = executor_mode(spec, table), spec.cluster
    if mode == "in-process":
        yield InProcess()
        return
    from dpdist.cluster.opening import open_cluster

    with open_cluster(
        mode=mode,
        address=cluster.address,
        scheduler_file=cluster.scheduler_file,
        workers=cluster.workers,
        memory_limit=cluster.memory_limit,
        timeout=cluster.timeout,
        security=cluster.security,
        resources=spec.worker_resources,
    ) as executor:
        yield executor
