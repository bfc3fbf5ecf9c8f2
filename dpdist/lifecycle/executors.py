"""The executor of a release whose spec leaves the choice open, by the size of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdist.data.inputs import Opened

if TYPE_CHECKING:
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
