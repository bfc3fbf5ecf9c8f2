"""Where the stages of a release compute: in this process, or on Dask (`dpdist.cluster.cluster.Cluster`).

A stage is written once, against `Executor`. `InProcess` makes plain calls without a scheduler and defines the result.
Audits run thousands of releases with it, and it suffices for a small table. Dask computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from dpdist.cluster.tasks import Deferred, DirectTasks, Tasks

TaskProgress = Callable[[int, int], None]  # called with (finished tasks, all tasks) while tasks run


class Executor(Protocol):
    """Runs the tasks of stages."""

    attempt: str  # id of the attempt that computes, for the logs of the workers

    @property
    def in_process(self) -> bool:
        """Whether tasks run in this process, so that what is given to them is not copied."""

    @property
    def slots(self) -> int:
        """Number of tasks that run at once."""

    @property
    def worker_memory(self) -> int:
        """Smallest memory limit of a worker, in bytes."""

    @property
    def memory(self) -> int:
        """Memory of all workers together, in bytes."""

    @property
    def dashboard(self) -> str | None:
        """Address of the dashboard, if there is one."""

    def tasks(self, stage: str) -> Tasks:
        """Returns the object that makes the tasks of a stage."""

    def hold(self, values: Sequence[Any]) -> list[Deferred]:
        """Give values of this process to the tasks: on a cluster each goes to one worker."""

    def persist(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Deferred]:
        """Compute tasks and keep their results where they were computed."""

    def compute(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Any]:
        """Compute tasks together and return their results in order. Raises ResourceError: the cluster was lost, or
        memory ran out; DpdistError: whatever dpdist error a task raised.
        """


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
        return DirectTasks()

    def hold(self, values: Sequence[Any]) -> list[Deferred]:
        """The values themselves."""
        return list(values)

    def persist(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Deferred]:
        """The results, which are there already."""
        return list(tasks)

    def compute(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Any]:
        """The results, which are there already."""
        return list(tasks)
