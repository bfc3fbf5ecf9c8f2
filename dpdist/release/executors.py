"""The executor of a release whose spec leaves the choice open, by the size of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdist.data.table import Table

if TYPE_CHECKING:
    from dpdist.schema.spec import ReleaseSpec

IN_PROCESS_CELLS = 1 << 22
"""Values up to which plain NumPy reads and counts a table faster than a scheduler starts."""

THREADS_CELLS = 1 << 29
"""Values up to which the threads of this process are faster than worker processes, which take seconds to start."""

_BYTES_PER_VALUE = 4  # of a CSV file, about


def executor_mode(spec: ReleaseSpec, table: Table) -> str:
    """The mode that a spec names, or else the one for the size of the table.

    The size comes from the files' metadata. It decides where the work is done, never what is released.

    Returns {"in-process", "threads", "embedded", "address"}.
    """
    if spec.cluster.mode != "auto":
        return spec.cluster.mode
    if spec.worker_resources:  # clients of a federated release, each with a worker of its own
        return "embedded"
    length = sum(file.length for file in table.files)
    cells = length * len(spec.table.attributes) if table.format == "parquet" else length // _BYTES_PER_VALUE
    if cells <= IN_PROCESS_CELLS:
        return "in-process"
    return "threads" if cells <= THREADS_CELLS else "embedded"
