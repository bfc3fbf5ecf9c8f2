"""Groups of workers that may read what others must not, and calls that run on the workers of one group only.

A group has a Dask resource: its workers are started with ``--resources NAME=1``, and every task of the group requires
that resource. The result of a task is never private, because a scheduler may copy results to any worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from dpdist.cluster.cluster import SCHEDULER_LOST, Cluster, translated, workers_of
from dpdist.errors import ClusterUnreachable, SpecError

if TYPE_CHECKING:
    from distributed import Client, Future

_LOOK = 0.05  # seconds between two looks at what is done


@dataclass(frozen=True)
class Lost:
    """A group that gave no answer."""

    reason: str  # why; contains no value of a table


class WorkerGroups:
    """The groups of workers of a cluster, with the Dask resource of each; `grace`, `patience`: seconds for which a
    group may be without a worker, or an answer. Raises SpecError: the cluster has no processes of its own.
    """

    sparing: ClassVar[bool] = False

    def __init__(self, cluster: Cluster, resources: Mapping[str, str], *, grace: float, patience: float) -> None:
        self._client: Client = cluster.client
        self._resources = dict(resources)
        self._grace, self._patience = grace, patience

    def present(self) -> tuple[str, ...]:
        """The groups with a worker. Raises SpecError: one is of two groups; ClusterUnreachable: it was lost."""
        workers = workers_of(self._client)
        held: set[str] = set()
        for worker in workers:
            offered = {resource for resource, amount in (worker.get("resources") or {}).items() if amount >= 1}
            own = sorted(name for name, resource in self._resources.items() if resource in offered)
            if len(own) > 1:
                raise SpecError(
                    f"a worker offers the resources of {' and '.join(own)}: what it reads of one would be in the "
                    "memory of the other; start every worker with the resource of one client only"
                )
            held.update(own)
        return tuple(name for name in self._resources if name in held)

    def call(self, what: str, function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a function on one worker of each group with its `arguments`; `what` begins the tasks' names. Returns the
        answer of every group, in order; `Lost` where none exists. Raises as `present`.
        """
        self.present()
        graph = uuid4().hex[:8]  # two calls never share a task, even on one scheduler
        with translated():
            waiting = {
                name: self._client.submit(
                    function,
                    *given,
                    key=f"{what}-{name}-{graph}",
                    resources={self._resources[name]: 1},
                    allow_other_workers=False,
                    pure=False,
                )
                for name, given in arguments.items()
            }
            try:
                answers = dict(self._answers(waiting))
            finally:
                if waiting and self._client.status == "running":
                    self._client.cancel(list(waiting.values()), force=True)
        return {name: answers[name] for name in arguments}

    def _answers(self, waiting: dict[str, Future]) -> Iterator[tuple[str, Any]]:
        """The answers as they arrive; removes them from `waiting`."""
        end, seen = time.monotonic() + self._patience, dict.fromkeys(waiting, time.monotonic())
        looked = 0.0
        while waiting:
            for name in [name for name, future in waiting.items() if future.done()]:
                answer = self._answer(waiting[name])
                if answer is not None:
                    del waiting[name]
                    yield name, answer
            now = time.monotonic()
            if now - looked > 1:  # ask the scheduler once a second only
                looked = now
                seen.update(dict.fromkeys(self.present(), now))
            for name in list(waiting):
                gone = now - seen[name] > self._grace
                if gone or now > end:
                    self._client.cancel([waiting.pop(name)], force=True)
                    yield name, Lost("it has no worker any more" if gone else "it did not answer in time")
            time.sleep(_LOOK)

    def _answer(self, future: Future) -> Any:
        """The answer of a task that is done; None if its worker died before it was fetched."""
        if future.status == "finished":
            try:
                return future.result(timeout=self._grace)
            except TimeoutError:
                return None
        if future.status == "error":
            kind = type(future.exception(timeout=self._grace)).__name__
            return Lost("its task killed its workers" if kind == "KilledWorker" else f"its task failed ({kind})")
        if future.status == "cancelled":
            raise ClusterUnreachable(SCHEDULER_LOST)
        return None
