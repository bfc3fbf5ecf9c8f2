"""The Dask executor: worker processes of this machine, a scheduler by address, or the threads of this process.

Results are the same in all three; only speed and memory differ.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import dask
from dask.callbacks import Callback
from dask.system import CPU_COUNT
from dask.threaded import get

from dpdist.cluster.executor import DaskTasks, Deferred, TaskProgress, Tasks
from dpdist.errors import ClusterUnreachable, DpdistError, OutOfMemory, ResourceError, SpecError

if TYPE_CHECKING:
    from distributed import Client


SCHEDULER_LOST = "the connection to the Dask cluster was lost; start it again and resume the release"


class Cluster:
    """Computes delayed graphs with progress, on the cluster of a client or in the threads of this process."""

    def __init__(self, client: Client | None = None) -> None:
        self._client = client
        self.attempt = ""  # id of the attempt that computes, for the logs of the workers

    @property
    def client(self) -> Client:
        """The client of a cluster of processes. Raises SpecError: graphs run in the threads of this process."""
        if self._client is None:
            raise SpecError("cluster.mode: threads is one process; use embedded, or the address of a Dask scheduler")
        return self._client

    @property
    def address(self) -> str | None:
        """Address of the scheduler, if there is one."""
        return None if self._client is None else str(self._client.scheduler.address)

    @property
    def dashboard(self) -> str | None:
        """Address of the dashboard, if there is one: a scheduler of this process needs bokeh for it."""
        if self._client is None or (self._client.cluster is not None and find_spec("bokeh") is None):
            return None
        return str(self._client.dashboard_link)

    @property
    def in_process(self) -> bool:
        """Whether graphs run in the threads of this process."""
        return self._client is None

    @property
    def slots(self) -> int:
        """Number of tasks that run at once."""
        if self._client is None:
            return int(CPU_COUNT)
        return sum(worker["nthreads"] for worker in workers_of(self._client)) or 1

    @property
    def worker_memory(self) -> int:
        """Smallest memory limit of a worker, in bytes."""
        import psutil

        limits: list[int] = []
        if self._client is not None:
            limits = [worker["memory_limit"] for worker in workers_of(self._client) if worker["memory_limit"]]
        return min(limits, default=int(psutil.virtual_memory().available))

    @property
    def memory(self) -> int:
        """Memory of all workers together, in bytes."""
        if self._client is None:
            return self.worker_memory
        return self.worker_memory * max(1, len(workers_of(self._client)))

    def tasks(self, stage: str) -> Tasks:
        """Delayed tasks named after the stage."""
        return DaskTasks(stage)

    def hold(self, values: Sequence[Any]) -> list[Deferred]:
        """Values of this process as tasks; with a client each is sent to one worker, and lost with it."""
        if self._client is None:
            task = self.tasks("held")
            return [task.constant("value", value) for value in values]
        from dask.delayed import Delayed

        with translated():
            futures = self._client.scatter(list(values), hash=False)
        return [Delayed(future.key, {future.key: future}) for future in futures]

    def persist(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Deferred]:
        """Compute tasks and keep their results where they were computed."""
        with translated():
            if self._client is None:
                with _ThreadProgress(progress):
                    return list(dask.persist(*tasks, scheduler=get))
            from distributed import futures_of

            with self._annotated():
                held = list(self._client.persist(list(tasks)))
            futures = futures_of(held)
            _watch(self._client, futures, progress or (lambda done, total: None))
            for future in futures:
                if future.status == "error":
                    future.result()
            return held

    def compute(self, tasks: Sequence[Deferred], *, progress: TaskProgress | None = None) -> list[Any]:
        """Compute tasks together, in order. Raises ResourceError: the cluster or memory fails; DpdistError: a task."""
        with translated():
            if self._client is None:
                with _ThreadProgress(progress):
                    return list(dask.compute(*tasks, scheduler=get))
            with self._annotated():
                futures = self._client.compute(list(tasks))
            if progress is not None:
                _watch(self._client, futures, progress)
            return list(self._client.gather(futures))

    def _annotated(self) -> AbstractContextManager[None]:
        return dask.annotate(attempt=self.attempt) if self.attempt else nullcontext()


class _ThreadProgress(Callback):  # type: ignore[misc]
    """Counts finished tasks of the threaded scheduler."""

    def __init__(self, progress: TaskProgress | None) -> None:
        self._report = progress or (lambda done, total: None)
        self._total = 0
        self._done = 0
        super().__init__(start_state=self._begin, posttask=self._one)

    def _begin(self, dsk: Any, state: dict[str, Any]) -> None:
        self._done, self._total = 0, len(state["ready"]) + len(state["waiting"])

    def _one(self, *_: Any) -> None:
        self._done += 1
        self._report(min(self._done, self._total), self._total)


def _watch(client: Client, futures: list[Any], progress: TaskProgress) -> None:
    """Forward the scheduler's count of finished tasks until the futures are done or the scheduler is lost."""
    from distributed.diagnostics.progressbar import ProgressBar

    class Forward(ProgressBar):  # type: ignore[misc]
        async def listen(self) -> None:
            try:
                await super().listen()
            except TypeError:
                if self._last_response is not None:  # None is the last word of a scheduler that ends
                    raise

        def _draw_bar(self, remaining: int, all: int, **_: Any) -> None:
            progress(all - remaining, all)

    async def watch() -> None:
        bar = Forward(futures, scheduler=client.scheduler.address, interval="250ms")
        listening = asyncio.ensure_future(bar.listen())
        while client.status == "running" and not any(future.cancelled() for future in futures):
            if (await asyncio.wait([listening], timeout=0.25))[0]:
                listening.result()
                return
        listening.cancel()

    client.sync(watch)
    if any(future.cancelled() for future in futures):
        raise CancelledError


def workers_of(client: Client) -> list[dict[str, Any]]:
    """What the scheduler knows of each worker. Raises ClusterUnreachable: the scheduler was lost."""
    with translated():
        known = client.scheduler_info(n_workers=-1)
    # Without a scheduler a client answers what it knew, and later nothing.
    if client.status != "running" or "workers" not in known:
        raise ClusterUnreachable(SCHEDULER_LOST)
    return list(known["workers"].values())


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of a cluster as errors of dpdist."""
    try:
        yield
    except DpdistError:
        raise
    except MemoryError:
        raise OutOfMemory(
            "a task ran out of memory: use more partitions (cluster.partitions) or a larger worker; "
            "the release can be resumed"
        ) from None
    except (CancelledError, TimeoutError, ConnectionError):
        raise ClusterUnreachable(SCHEDULER_LOST) from None
    except Exception as error:
        from distributed import KilledWorker  # threads of this process need no `distributed`
        from distributed.comm.core import CommClosedError

        if isinstance(error, KilledWorker):
            raise OutOfMemory(
                "a task killed its worker repeatedly, most likely for lack of memory: raise cluster.memory_limit, "
                "or use more partitions (cluster.partitions); the release can be resumed"
            ) from None
        if isinstance(error, CommClosedError):
            raise ClusterUnreachable(SCHEDULER_LOST) from None
        if isinstance(error, OSError):  # its text may come from a server
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            raise ResourceError(f"a task failed: {reason}") from None
        raise
