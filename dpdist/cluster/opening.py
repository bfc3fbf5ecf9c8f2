"""Opening an executor: in process, threads, worker processes of this machine, or a scheduler; or taking a client."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import dask
from dask.system import CPU_COUNT

from dpdist.cluster.cluster import Cluster, translated
from dpdist.cluster.executor import Executor, InProcess
from dpdist.errors import ClusterUnreachable, SpecError

if TYPE_CHECKING:
    from distributed import Client, Security

    from dpdist.spec.release import ClusterSpec, SecuritySpec

WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}
"""Environment of embedded workers without MALLOC_TRIM_THRESHOLD_, whose default makes NumPy take four times the CPU."""

SILENCE = 60.0  # seconds without an answer after which a scheduler counts as lost: TCP detects dead machines only


@contextmanager
def open_cluster(where: ClusterSpec, *, mode: str | None = None, resources: Sequence[str] = ()) -> Iterator[Executor]:
    """Open an executor for the time of a release. Raises ClusterUnreachable: no scheduler answers at the address, or no
    worker is behind it.

    The timeout is for the scheduler, for a first worker, and then for `workers`; then fewer suffice. `mode` takes the
    place of that of the spec, whose ``auto`` is embedded here, and `resources` that of `workers`: an embedded worker
    for each of these Dask resources.
    """
    mode = mode or where.mode
    if mode == "in-process":
        yield InProcess()
    elif mode == "threads":
        yield Cluster()
    else:
        for name in ("", ".client", ".scheduler", ".worker", ".nanny"):
            logging.getLogger(f"distributed{name}").setLevel(logging.CRITICAL)
        with _at_address(where) if mode == "address" else _embedded(where, resources) as connected:
            yield _logged(Cluster(connected))


def executor_of(client: Client) -> Cluster:
    """The executor of a client of the caller, who keeps it.
    Raises SpecError: it is no client, or an asynchronous one; ClusterUnreachable: it is closed, or no worker is behind
    it.
    """
    from distributed import Client

    if not isinstance(client, Client) or client.asynchronous:
        raise SpecError("client: expected a distributed.Client that is not asynchronous")
    if client.status != "running":
        raise ClusterUnreachable("client: it is closed; connect another one")
    cluster = Cluster(client)
    with translated():
        if not client.nthreads():
            raise ClusterUnreachable("client: its scheduler has no workers; start one")
    return _logged(cluster)


@contextmanager
def _at_address(where: ClusterSpec) -> Iterator[Client]:
    """A client of the scheduler at an address, once there are workers."""
    from distributed import Client

    place, timeout = where.address or where.scheduler_file, where.timeout
    if where.scheduler_file is not None and not os.path.exists(where.scheduler_file):
        raise ClusterUnreachable(f"cluster.scheduler_file: there is no file {place}: start the scheduler first")
    found = {"address": place} if where.address else {"scheduler_file": place}
    try:
        client = Client(**found, timeout=timeout, security=_security(where.security), set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError):
        raise ClusterUnreachable(
            f"no Dask scheduler answers at {place}, or it speaks TLS with other certificates: check "
            "cluster.address and cluster.security, or use cluster.mode=embedded"
        ) from None
    # It logs the traceback of a connection that is lost; `translated` says what it means.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with client, _watched_scheduler(client):
        try:
            client.wait_for_workers(1, timeout=timeout)
        except TimeoutError:
            raise ClusterUnreachable(
                f"the Dask scheduler at {place} has no workers: start one, or use cluster.mode=embedded"
            ) from None
        with suppress(TimeoutError):  # memory and batches are laid out for those that are there
            client.wait_for_workers(where.workers or 1, timeout=timeout)
        yield client


@contextmanager
def _embedded(where: ClusterSpec, resources: Sequence[str]) -> Iterator[Client]:
    """A client of worker processes that end with it."""
    from distributed import Client, LocalCluster

    require_guard()
    timeout = where.timeout
    settings = {
        "distributed.worker.daemon": False,
        "distributed.comm.timeouts.connect": f"{max(timeout, 10):g}s",  # to the scheduler, in this process
        "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=0 if resources else where.workers or int(CPU_COUNT),
            threads_per_worker=1,
            processes=True,
            memory_limit=where.memory_limit,
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
        yield client


def require_guard() -> None:
    """Refuse to start processes from a script that each of them would run again.
    Raises SpecError: the script that is running has no ``if __name__ == "__main__":``.
    """
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or Path(path).name == "__main__.py":
        return  # a notebook, a package that is run, or no script at all: processes do not run it again
    try:
        words = set(re.findall(r"\w+", Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return
    if words & {"__name__", "parent_process"}:
        return
    raise SpecError(
        'worker processes begin by running this script again: put what it does below `if __name__ == "__main__":`, or '
        "set cluster.mode to threads, or give a client of a running cluster"
    )


@contextmanager
def _watched_scheduler(client: Client) -> Iterator[None]:
    """Break the connection to a scheduler after two consecutive timeouts (`SILENCE` together), as if it had died."""

    async def listen() -> None:
        missed = 0  # two in a row: after a pause of this process an answer may have arrived and be unread
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
    """The cluster; its workers write structured logs if this process does."""
    if os.environ.get("DPDIST_LOG") == "json":
        from dpdist.cluster.logs import task_log

        with translated():
            cluster.client.register_plugin(task_log("json"))
    return cluster


def _security(files: SecuritySpec | None) -> Security | None:
    """The certificate that a client shows, and the authority whose certificates it accepts."""
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
