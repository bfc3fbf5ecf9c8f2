"""Executors for tests: one of each kind, opened once, and some in process that look closely at what they run."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
from distributed import LocalCluster

from dpdist.cluster.executor import Deferred, Executor, InProcess, Tasks
from dpdist.cluster.opening import open_cluster
from dpdist.spec.release import ClusterSpec, ReleaseSpec


class Executors:
    """One executor of each kind, opened when it is first asked for, closed together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[tuple[str, tuple[str, ...]], Executor] = {}

    def of(self, mode: str, spec: ReleaseSpec) -> Executor:
        """The executor of a kind, with the workers that the release needs by name."""
        resources = spec.worker_resources
        if (mode, resources) not in self._open:
            opened = self._stack.enter_context(open_cluster(self._where(mode, resources), resources=resources))
            self._open[mode, resources] = opened
        return self._open[mode, resources]

    def _where(self, mode: str, resources: tuple[str, ...]) -> ClusterSpec:
        if mode == "embedded":
            return ClusterSpec(workers=2, timeout=180)
        if mode != "address":
            return ClusterSpec.model_validate({"mode": mode})
        local = LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            processes=False,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
        )
        self._stack.enter_context(local)
        for name in resources or ("first", "second"):
            options = {**local.new_spec["options"], "resources": {name: 1} if resources else {}}
            local.worker_spec[name] = {**local.new_spec, "options": options}
        local.scale(len(local.worker_spec))
        workers = len(local.worker_spec)
        return ClusterSpec(mode="address", address=local.scheduler_address, workers=workers, timeout=180)

    def close(self) -> None:
        """Close them all."""
        self._stack.close()


@contextmanager
def runs_use(executor: Executor) -> Iterator[None]:
    """Let runs of releases compute on this executor, whatever their specs name; it stays open."""
    with mock.patch("dpdist.lifecycle.run.opened_executor", return_value=nullcontext(executor)):
        yield


class _Calls(Tasks):
    """Makes each task by another function: ``call(name, task)``."""

    def __init__(self, stage: str, call: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._stage, self._call = stage, call

    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Deferred:
        return self._call(f"{self._stage}-{what}", partial(function, *args, **settings))


class Twice(InProcess):
    """Calls every task twice and uses the second result, as a cluster does that lost the first."""

    def tasks(self, stage: str) -> Tasks:
        return _Calls(stage, self._twice)

    @staticmethod
    def _twice(name: str, task: Callable[[], Any]) -> Any:
        task()
        return task()


class Measured(InProcess):
    """Notes the largest memory that each kind of task allocates beyond its arguments, its result included."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[str, int] = {}

    def tasks(self, stage: str) -> Tasks:
        return _Calls(stage, self._measured)

    def _measured(self, name: str, task: Callable[[], Any]) -> Any:
        plain = pa.default_memory_pool()
        pool = pa.proxy_memory_pool(plain)
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            result = task()
            peak = tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(plain)
        self.peaks[name] = max(self.peaks.get(name, 0), peak)
        return result
