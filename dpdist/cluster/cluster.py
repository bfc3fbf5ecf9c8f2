"""Where graphs run: an embedded cluster of processes, a Dask scheduler by address, or the threads of this process.

The result of a graph is the same in all three; only speed and memory differ.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import dask
from dask.callbacks import Callback

from dpdist.cluster.executor import Executor, InProcess, Progress
from dpdist.cluster.tasks import DaskTasks, Deferred, Tasks
from dpdist.errors import ClusterUnreachable, DpdistError, OutOfMemory, ResourceError, SpecError

if TYPE_CHECKING:
    from distributed import Client, Security

    from dpdist.spec import SecuritySpec

WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}
"""Environment of embedded workers. Dask's own default also sets MALLOC_TRIM_THRESHOLD_=65536, which hands every
temporary array back to the kernel and costs NumPy code about four times the CPU; it is left out on purpose."""

SILENCE = 60.0
"""Seconds after which a scheduler that says nothing counts as lost. TCP notices a machine that is away, not a process
that hangs; of workers the scheduler itself takes care (``distributed.scheduler.worker-ttl``, five minutes)."""


class Cluster:
    """Computes delayed graphs with progress.

    Parameters
    ----------
    client : distributed.Client or None
        The client of a cluster; None runs graphs in the threads of this process.

    Attributes
    ----------
    attempt : str
        Id of the attempt that computes, for the logs of the workers.
    """

    def __init__(self, client: Client | None = None) -> None:
        self._client = client
        self.attempt = ""

    @property
    def client(self) -> Client:
        """The client of a cluster of processes.

        Raises
        ------
        SpecError
            Graphs run in the threads of this process.
        """
        if self._client is None:
            raise SpecError("cluster.mode: threads is one process; use embedded, or the address of a Dask scheduler")
        return self._client

    @property
    def address(self) -> str | None:
        """Address of the scheduler, if there is one."""
        return None if self._client is None else str(self._client.scheduler.address)

    @property
    def dashboard(self) -> str | None:
        """Address of the dashboard, if there is one."""
        return None if self._client is None else self._client.dashboard_link

    @property
    def slots(self) -> int:
        """Number of tasks that run at once."""
        if self._client is None:
            return os.cpu_count() or 1
        return sum(self._client.nthreads().values()) or 1

    @property
    def worker_memory(self) -> int:
        """Smallest memory limit of a worker, in bytes."""
        import psutil

        limits: list[int] = []
        if self._client is not None:
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
            limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
        return min(limits, default=int(psutil.virtual_memory().available))

    @property
    def memory(self) -> int:
        """Memory of all workers together, in bytes."""
        if self._client is None:
            return self.worker_memory
        return self.worker_memory * max(1, len(self._client.nthreads()))

    def tasks(self, stage: str) -> Tasks:
        """Delayed tasks named after the stage."""
        return DaskTasks(stage)

    def persist(self, tasks: Sequence[Deferred], *, progress: Progress | None = None) -> list[Deferred]:
        """Compute tasks and keep their results where they were computed.

        Returns
        -------
        list of Deferred
            Tasks whose results are held by the workers (or, with threads, by this process).
        """
        with translated():
            if self._client is None:
                with _ThreadProgress(progress):
                    return list(dask.persist(*tasks, scheduler="threads"))
            from distributed import futures_of

            with self._annotated():
                held = list(self._client.persist(list(tasks)))
            futures = futures_of(held)
            _watch(self._client, futures, progress or (lambda done, total: None))
            for future in futures:
                if future.status == "error":
                    future.result()
            return held

    def compute(self, tasks: Sequence[Deferred], *, progress: Progress | None = None) -> list[Any]:
        """Compute delayed objects together and return their results in order.

        Raises
        ------
        ResourceError
            A task kept killing its worker, the scheduler was lost, or memory ran out.
        DpdistError
            Whatever dpdist error a task raised.
        """
        with translated():
            if self._client is None:
                with _ThreadProgress(progress):
                    return list(dask.compute(*tasks, scheduler="threads"))
            with self._annotated():
                futures = self._client.compute(list(tasks))
            if progress is not None:
                _watch(self._client, futures, progress)
            return list(self._client.gather(futures))

    def _annotated(self) -> AbstractContextManager[None]:
        return dask.annotate(attempt=self.attempt) if self.attempt else nullcontext()


class _ThreadProgress(Callback):  # type: ignore[misc]
    """Counts finished tasks of the threaded scheduler."""

    def __init__(self, progress: Progress | None) -> None:
        self._report = progress or (lambda done, total: None)
        self._total = 0
        self._done = 0
        super().__init__(start_state=self._begin, posttask=self._one)

    def _begin(self, dsk: Any, state: dict[str, Any]) -> None:
        self._done, self._total = 0, len(state["ready"]) + len(state["waiting"])

    def _one(self, *_: Any) -> None:
        self._done += 1
        self._report(min(self._done, self._total), self._total)


def _watch(client: Client, futures: list[Any], progress: Progress) -> None:
    """Forward the scheduler's count of finished tasks until the futures are done or the scheduler is lost."""
    from distributed.diagnostics.progressbar import ProgressBar

    class Forward(ProgressBar):  # type: ignore[misc]
        def _draw_bar(self, remaining: int, all: int, **_: Any) -> None:
            progress(all - remaining, all)

    async def watch() -> None:
        bar = Forward(futures, scheduler=client.scheduler.address, interval="250ms")
        listening = asyncio.ensure_future(bar.listen())
        while client.status == "running":
            if (await asyncio.wait([listening], timeout=0.25))[0]:
                listening.result()
                return
        listening.cancel()

    client.sync(watch)
    if any(future.cancelled() for future in futures):
        raise CancelledError


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of a cluster as errors of dpdist."""
    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        yield
    except DpdistError:
        raise
    except KilledWorker:
        raise OutOfMemory(
            "a task killed its worker repeatedly, most likely for lack of memory: raise cluster.memory_limit, "
            "or use more partitions (cluster.partitions); the release can be resumed"
        ) from None
    except MemoryError:
        raise OutOfMemory(
            "a task ran out of memory: use more partitions (cluster.partitions) or a larger worker; "
            "the release can be resumed"
        ) from None
    except (CommClosedError, CancelledError, TimeoutError, ConnectionError):
        raise ClusterUnreachable(
            "the connection to the Dask cluster was lost; start it again and resume the release"
        ) from None
    except OSError as error:  # its own text may be a server's
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise ResourceError(f"a task failed: {reason}") from None


@contextmanager
def open_cluster(
    *,
    mode: str = "embedded",
    address: str | None = None,
    workers: int | None = None,
    memory_limit: str = "auto",
    timeout: float = 30,
    security: SecuritySpec | None = None,
    environment: dict[str, str] | None = None,
    resources: Sequence[str] = (),
) -> Iterator[Executor]:
    """Open an executor for the time of a release.

    Parameters
    ----------
    mode : {"in-process", "threads", "embedded", "address"}
    address : str, optional
        Scheduler address for ``mode="address"``.
    workers : int, optional
        Number of embedded worker processes, by default one per core; with ``mode="address"`` how many to wait for.
    memory_limit : str
        Memory limit of each embedded worker.
    timeout : float
        Seconds to wait for the scheduler, for a first worker, and then for `workers`; with fewer it goes on.
    security : SecuritySpec, optional
        Certificates for ``mode="address"`` with TLS; without it those of Dask's own configuration.
    environment : dict of str to str, optional
        Environment of the embedded workers, for the locations of secrets (never secrets themselves).
    resources : sequence of str
        Dask resources of the embedded workers, one worker for each; takes the place of `workers`.

    Raises
    ------
    ClusterUnreachable
        No scheduler answers at the address, or no worker is behind it.
    """
    if mode == "in-process":
        yield InProcess()
        return
    if mode == "threads":
        with _environment(environment or {}):
            yield Cluster()
        return
    import logging

    from distributed import Client, LocalCluster

    for name in ("", ".client", ".scheduler", ".worker", ".nanny"):
        logging.getLogger(f"distributed{name}").setLevel(logging.CRITICAL)
    if mode == "address":
        if address is None:
            raise SpecError("cluster.address: expected the address of a Dask scheduler")
        try:
            client = Client(address, timeout=timeout, security=_security(security), set_as_default=False)
        except (OSError, TimeoutError, ValueError, TypeError):
            raise ClusterUnreachable(
                f"no Dask scheduler answers at {address}, or it speaks TLS with other certificates: check "
                "cluster.address and cluster.security, or use cluster.mode=embedded"
            ) from None
        with client, _heard(client):
            try:
                client.wait_for_workers(1, timeout=timeout)
            except TimeoutError:
                raise ClusterUnreachable(
                    f"the Dask scheduler at {address} has no workers: start one, or use cluster.mode=embedded"
                ) from None
            with suppress(TimeoutError):  # memory and batches are laid out for those that are there
                client.wait_for_workers(workers or 1, timeout=timeout)
            yield _logged(Cluster(client))
        return
    with (
        dask.config.set(
            {
                "distributed.worker.daemon": False,
                "distributed.comm.timeouts.connect": f"{timeout}s",
                "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
            }
        ),
        _environment(environment or {}),
        LocalCluster(
            n_workers=0 if resources else workers or os.cpu_count() or 1,
            threads_per_worker=1,
            processes=True,
            memory_limit=memory_limit,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            security=True,  # certificates made for this cluster: no other process of the machine can connect
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        for resource in resources:
            options = {**cluster.new_spec["options"], "resources": {resource: 1}}
            cluster.worker_spec[resource] = {**cluster.new_spec, "options": options}
        if resources:
            cluster.scale(len(resources))
            try:
                client.wait_for_workers(len(resources), timeout=timeout)
            except TimeoutError:
                raise ClusterUnreachable(
                    f"{len(resources)} workers did not start in {timeout:g} s: raise cluster.timeout"
                ) from None
        yield _logged(Cluster(client))


@contextmanager
def _heard(client: Client) -> Iterator[None]:
    """Break the connection to a scheduler that says nothing for `SILENCE`: all goes on as if it had died."""

    async def listen() -> None:
        missed = 0  # twice in a row: after a pause of this process an answer may be there and unread
        while client.status != "closed":
            await asyncio.sleep(SILENCE / 10)
            if client.status != "running":
                continue
            try:
                await asyncio.wait_for(client.scheduler.identity(n_workers=0), SILENCE / 2)
                missed = 0
            except (OSError, RuntimeError):
                missed += 1
            if missed > 1 and client.scheduler_comm:
                client.scheduler_comm.comm.abort()

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(listen())

    listening = client.sync(begin)
    try:
        yield
    finally:
        client.loop.add_callback(listening.cancel)


def _logged(cluster: Cluster) -> Cluster:
    """The cluster, whose workers write structured logs if this process does."""
    if os.environ.get("DPDIST_LOG") == "json":
        from dpdist.cluster.task_log import TaskLog

        with translated():
            cluster.client.register_plugin(TaskLog("json"))
    return cluster


def _security(files: SecuritySpec | None) -> Security | None:
    """The certificates a client shows and asks for."""
    import ssl

    from distributed import Security

    if files is None:
        return None
    security = Security(
        tls_ca_file=files.ca, tls_client_cert=files.cert, tls_client_key=files.key, require_encryption=True
    )
    try:
        security.get_connection_args("client")
    except (OSError, ssl.SSLError):
        raise SpecError(
            "cluster.security: a file is missing or is not a certificate or key in PEM format; make a set with "
            "dpdist cluster certs FOLDER"
        ) from None
    return security


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while; worker processes started meanwhile inherit them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
