"""Delayed tasks with readable names. Building them computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

from dask import delayed
from dask.delayed import Delayed


class Tasks:
    """Makes tasks named ``<stage>-<what>-<number of the graph>-<number of the task>``.

    Parameters
    ----------
    stage : str
        The beginning of every task's name: what progress bars and the dashboard show. Names tell no private value.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._graph = uuid4().hex[:8]  # two graphs never share a task, even on one scheduler
        self._numbers = count()

    def _name(self, what: str) -> str:
        return f"{self._stage}-{what}-{self._graph}-{next(self._numbers)}"

    def constant(self, what: str, value: Any) -> Delayed:
        """A value that is sent once and shared by tasks."""
        return delayed(value, name=self._name(what), traverse=False)

    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Delayed:
        """A task that calls a function; arguments may be tasks, or lists of them."""
        return delayed(function, pure=False, traverse=False)(*args, dask_key_name=self._name(what), **settings)

    def tree(
        self, what: str, function: Callable[[list[Any]], Any], parts: Sequence[Delayed], *, fan_in: int = 8
    ) -> Delayed:
        """All parts combined in their order, `fan_in` at a time; a single part as it is."""
        left = list(parts)
        while len(left) > 1:
            groups = [left[i : i + fan_in] for i in range(0, len(left), fan_in)]
            left = [group[0] if len(group) == 1 else self(what, function, group) for group in groups]
        return left[0]
