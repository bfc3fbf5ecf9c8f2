"""Clusters: what embedded workers find in their environment, and a scheduler that hangs."""

import errno
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dask.system import CPU_COUNT
from distributed import LocalCluster

from dpdist.cluster.cluster import Cluster, translated
from dpdist.cluster.executor import DaskTasks, Executor, InProcess
from dpdist.cluster.opening import open_cluster
from dpdist.errors import ClusterUnreachable, ResourceError
from dpdist.spec.release import ClusterSpec

SCRIPT = """
import json, os
from dpdist.cluster.executor import Executor
from dpdist.cluster.opening import open_cluster
from dpdist.spec.release import ClusterSpec
if __name__ == "__main__":
    with open_cluster(ClusterSpec(workers=1)) as cluster:
        found = cluster._client.submit(lambda: dict(os.environ)).result()
    print(json.dumps(found))
"""


def test_embedded_workers_keep_their_memory_and_use_one_thread() -> None:
    """Dask's default returns every array to the kernel: four times the CPU. In a process of its own: Dask leaks it."""
    plain = {name: value for name, value in os.environ.items() if name != "MALLOC_TRIM_THRESHOLD_"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=plain)
    environment = json.loads(done.stdout)
    assert "MALLOC_TRIM_THRESHOLD_" not in environment
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "1"


@contextmanager
def one_worker() -> Iterator[tuple[LocalCluster, Executor]]:
    """A cluster of one worker in this process, by its address."""
    with (
        LocalCluster(
            n_workers=1, processes=False, dashboard_address="127.0.0.1:0", host="127.0.0.1", protocol="tcp"
        ) as local,
        open_cluster(ClusterSpec(mode="address", address=local.scheduler_address, timeout=5)) as executor,
    ):
        yield local, executor


def test_a_scheduler_that_hangs_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.cluster.opening.SILENCE", 0.6)
    with one_worker() as (hanging, cluster):
        assert cluster.compute([DaskTasks("alive")("task", pow, 2, 3)]) == [8]
        hanging.loop.add_callback(time.sleep, 3)  # nothing is said until then, and the task takes far longer
        with pytest.raises(ClusterUnreachable, match="resume"):
            cluster.compute([DaskTasks("lost")("task", time.sleep, 8)])


def test_the_last_word_of_a_scheduler_that_ends_is_no_error_of_a_run() -> None:
    async def last_word(comm: Any, **_: Any) -> None:
        await comm.write(None)

    with one_worker() as (local, executor):
        local.scheduler.handlers["feed"] = last_word
        task = executor.tasks("ends")("task", pow, 2, 3)
        assert executor.compute([task], progress=lambda done, total: None) == [8]


def test_a_lost_scheduler_is_told_where_its_workers_are_asked_for() -> None:
    with one_worker() as (local, executor):
        assert executor.slots
        assert executor.memory
        local.close()
        for ask in ("slots", "memory"):
            with pytest.raises(ClusterUnreachable, match="connection to the Dask cluster was lost"):
                getattr(executor, ask)


def test_tasks_are_in_this_process_or_in_others() -> None:
    threads = Cluster()
    assert threads.in_process
    assert threads.slots == CPU_COUNT  # what a container may use, not what its machine has
    assert InProcess().in_process
    with one_worker() as (_, executor):
        assert not executor.in_process


def test_an_error_of_who_watches_ends_the_run() -> None:
    def watch(done: int, total: int) -> None:
        raise TypeError("watching")

    with one_worker() as (_, executor), pytest.raises(TypeError, match="watching"):
        executor.compute([executor.tasks("watched")("task", pow, 2, 3)], progress=watch)


def test_the_words_of_a_server_are_not_repeated() -> None:
    with pytest.raises(ResourceError, match=r"^a task failed: Invalid argument$"), translated():
        raise OSError(errno.EINVAL, "planted")


def test_workers_that_do_not_start_in_time() -> None:
    """In less time than any process takes."""
    opening = open_cluster(ClusterSpec(timeout=0.01), resources=["a"])
    with (
        pytest.raises(ClusterUnreachable, match=r"1 workers did not start in 0\.01 s: raise cluster\.timeout"),
        opening,
    ):
        pass


@pytest.mark.parametrize("held", [1, 2])
def test_a_task_holds_the_results_in_its_lists(held: int) -> None:
    """The scheduler drops a result that nobody holds, and Dask's own lists hold none."""
    with one_worker() as (_, executor):
        make, use = executor.tasks("make"), executor.tasks("use")
        kept = executor.persist([make("one", pow, 2, i) for i in range(held)])
        total = use("sum", _weighted, kept, [1] * held, bias=10)
        del kept
        gc.collect()
        time.sleep(0.3)  # the client tells the scheduler some time later what it has let go
        assert executor.compute([total], progress=lambda done, all: None) == [2**held - 1 + 10]


def _weighted(values: list[int], weights: list[int], *, bias: int) -> int:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) + bias
