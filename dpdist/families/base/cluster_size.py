"""How large a cluster a release needs: workers, memory and partitions, from the plan, without a record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpdist.families.base.plan import Plan
from dpdist.privacy.formatting import number_of

GIB = 1 << 30
MEMORY = (1, 2, 4, 8, 16, 32, 64)  # GiB of a worker that are proposed
MOST_WORKERS = 64  # that are proposed: they read a billion rows in seconds, and starting takes the rest
DRIVER = 2  # GiB of the driver, if it needs no more: the chart's default
_WAVES = 8  # partitions of each worker, so that none waits long for the last
_REASONABLE = 16  # GiB of a worker that are proposed to hold codes from pass to pass
_FILL = 0.6  # share of a worker's memory that may be filled; Dask spills and pauses above
_PROCESS = 400 << 20  # a worker with its libraries, and its nanny
_NANNY = 128 << 20  # of a pod's memory that the chart keeps from the worker in it
_CODES = 0.25  # share of the workers' memory that codes may take (dpdist.families.base.passes)


@dataclass(frozen=True, kw_only=True)
class ClusterSize:
    """The proposed size of a cluster."""

    rows: int  # declared records
    partitions: int
    workers: int
    memory: int  # of each worker, in GiB
    needed: float  # GiB that a worker must have; more than `memory` where no size that is proposed suffices
    driver: int  # GiB of the process that drives the release
    clients: int  # of a federated release, each with a worker of its own that holds its records; 0 for others

    @property
    def fits(self) -> bool:
        """Whether the workers have the memory they need."""
        return self.needed <= self.memory

    @property
    def helm(self) -> str:
        """The matching setting of the chart."""
        driver = f",driver.memory={self.driver}Gi" if self.driver > DRIVER else ""
        workers = 0 if self.clients else self.workers  # those of clients are groups, with the memory of these
        return (
            f"--set dask.workers.replicas={workers},dask.workers.memory={self.memory}Gi,"
            f"release.settings.cluster.partitions={self.partitions}{driver}"
        )

    def to_json(self) -> dict[str, Any]:
        """The size as a JSON object."""
        return {
            "rows": self.rows,
            "workers": self.workers,
            "memory_gib": self.memory,
            "partitions": self.partitions,
            "clients": self.clients,
            "driver_gib": self.driver,
            "needed_gib": round(self.needed, 1),
            "fits": self.fits,
            "helm": self.helm,
        }

    def explain(self) -> str:
        """The size for people."""
        one = f"{self.clients} clients with a worker" if self.clients else number_of(self.workers, "worker")
        each = " of each" if self.clients else ""
        lines = [
            f"Cluster     {one} of {self.memory} GiB, {number_of(self.partitions, 'partition')}{each} of about "
            f"{self.rows / self.partitions:,.0f} of {self.rows:,} records"
        ]
        if not self.fits:
            lines.append(
                f"TOO LARGE   each worker needs about {self.needed:,.0f} GiB, and {MEMORY[-1]} is the most that is "
                "proposed: the release would run out of memory. Release fewer records at a time, or give larger "
                "workers yourself"
            )
        return "\n".join([*lines, "Helm", self.helm])


def size_cluster(plan: Plan) -> ClusterSize:
    """Propose workers, memory and partitions for the declared size of a table."""
    clients, needs = len(plan.spec.worker_resources), plan.needs()  # one worker reads and holds a client's records
    workers = 1 if clients else min(MOST_WORKERS, 1 << max(0, math.ceil(math.log2(plan.partitions / _WAVES))))
    task = needs.task_bytes + 2 * needs.held_bytes / plan.partitions + 2 * needs.copied_bytes  # gathered with a copy
    needed = (_PROCESS + task) / _FILL
    least = min(_gib(needed), MEMORY[-1])
    holding = (  # the first sizes whose workers hold the codes from pass to pass
        size
        for size in MEMORY
        if least <= size <= _REASONABLE and needs.held_bytes <= _CODES * workers * (size * GIB - _NANNY)
    )
    return ClusterSize(
        rows=plan.spec.data.minimum_records,
        partitions=plan.partitions,
        workers=workers,
        memory=next(holding, least),
        needed=needed / GIB,
        driver=_gib(_PROCESS + needs.driver_bytes / _FILL, least=DRIVER),
        clients=clients,
    )


def _gib(size: float, *, least: int = MEMORY[0]) -> int:
    """The first power of two of GiB that holds a number of bytes."""
    return max(least, 1 << max(0, math.ceil(math.log2(size / GIB))))
