"""Where the stages of a release compute: in this process, or on Dask (`dpdist.cluster.cluster.Cluster`).

A stage is written once, for both. `InProcess` makes plain calls without a scheduler and defines the result. Audits run
thousands of releases with it, and it suffices for a small table. Dask computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from dpdist.cluster.tasks import Deferred, Tasks

if TYPE_CHECKING:
    from dpdist.cluster.cluster import Cluster

TaskProgress = Callable[[int, int], None]  # called with (finished tasks, all tasks) while tasks run


class InProcess:
    """Computes each task when it is made, in this process: one slot, no dashboard."""

    in_process = True
    slots = 1
    dashboard: str | None = None

    def __init__(self) -> None:
        self.attempt = ""

    @cached_property
    def worker_memory(self) -> int:
        """Free memory of this machine at the first use of this property, in bytes."""
        import psutil

        return int(psutil.virtual_memory().available)

    @property
    def memory(self) -> int:
        """As `worker_memory`."""
        return self.worker_memory

    def tasks(self, stage: str) -> Tasks:
        """Calls that are made at once."""
        return Tasks()

    def hold(self, values: Sequence[Any]) -> list[Deferred]:
        """The values themselves."""
        return list(values)

    def persist(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Deferred]:
        """The results, which are there already."""
        return list(tasks)

    def compute(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Any]:
        """The results, which are there already."""
        return list(tasks)


Executor: TypeAlias = "InProcess | Cluster"  # runs the tasks of stages
