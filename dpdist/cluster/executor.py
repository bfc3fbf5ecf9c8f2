"""Where the stages of a release compute: in this process, or on Dask (`dpdist.cluster.cluster.Cluster`).

A stage is written once, for both. `InProcess` makes plain calls without a scheduler and defines the result. Audits run
thousands of releases with it, and it suffices for a small table. Dask computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

if TYPE_CHECKING:
    from dpdist.cluster.cluster import Cluster


Deferred: TypeAlias = Any  # the result of a task: the value itself in process, a `dask.delayed.Delayed` on a cluster


class Tasks:
    """Makes the tasks of one stage: calls each function at once, in this process."""

    def constant(self, what: str, value: Any) -> Deferred:
        """A value that is sent once and shared by tasks."""
        return value

    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Deferred:
        """A task that calls a function; arguments may be tasks, or lists of them."""
        return function(*args, **settings)

    def tree(
        self, what: str, function: Callable[[list[Any]], Any], parts: Sequence[Deferred], *, fan_in: int = 8
    ) -> Deferred:
        """All parts combined in their order, `fan_in` at a time; a single part as it is."""
        left = list(parts)
        while len(left) > 1:
            groups = [left[i : i + fan_in] for i in range(0, len(left), fan_in)]
            left = [group[0] if len(group) == 1 else self(what, function, group) for group in groups]
        return left[0]


class DaskTasks(Tasks):
    """Makes delayed tasks named ``<stage>-<what>-<number of the graph>-<number of the task>``."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._graph = uuid4().hex[:8]  # two graphs never share a task, even on one scheduler
        self._numbers = count()

    def _name(self, what: str) -> str:
        return f"{self._stage}-{what}-{self._graph}-{next(self._numbers)}"

    def constant(self, what: str, value: Any) -> Deferred:
        """A delayed constant."""
        from dask import delayed

        return delayed(value, name=self._name(what), traverse=False)

    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Deferred:
        """A delayed call.

        Lists of tasks are given to Dask one by one: within a list it forgets the futures of tasks that are held by
        workers, and the scheduler then drops their results before they are used (dask 2026.8, `unpack_collections`).
        """
        from dask import delayed, is_dask_collection

        def of_tasks(arg: Any) -> bool:
            return isinstance(arg, list) and any(is_dask_collection(item) for item in arg)

        lengths = [len(arg) if of_tasks(arg) else None for arg in args]
        each = [item for arg in args for item in (arg if of_tasks(arg) else [arg])]
        call = partial(_with_lists, function, lengths, **settings)
        return delayed(call, pure=False, traverse=False)(*each, dask_key_name=self._name(what))


def _with_lists(function: Callable[..., Any], lengths: list[int | None], *each: Any, **settings: Any) -> Any:
    """Call a function with lists of the given lengths made again from single arguments (None: no list)."""
    left = iter(each)
    args = [next(left) if length is None else list(islice(left, length)) for length in lengths]
    return function(*args, **settings)


def frame_of_parts(read: Callable[..., Any], parts: int, meta: Any, **settings: Any) -> Any:
    """A Dask DataFrame whose partitions are the pandas DataFrames that `read` makes of the numbers of the parts, and
    of `settings`; `meta` is one without rows, of the same types.
    """
    import dask.dataframe as dd

    return dd.from_map(read, range(parts), meta=meta, enforce_metadata=False, **settings)


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
