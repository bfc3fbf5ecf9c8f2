"""Work on many rows, a piece at a time, on the threads of the machine.

NumPy counts, takes and multiplies without the interpreter's lock. The pieces do not depend on the number of threads,
and their results come in order, so that sums of them are the same on any machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

PIECE = 1 << 18
"""Rows of a piece."""

MOST_THREADS = 8
"""Each works in memory of its own."""

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Cores that the process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slices(rows: int) -> list[slice]:
    """The rows in pieces of `PIECE`."""
    return [slice(start, min(start + PIECE, rows)) for start in range(0, rows, PIECE)]


class Threads:
    """Threads for as long as a ``with`` block lasts, as many as the process has cores for, and no more than items.

    Parameters
    ----------
    items : int
        Items that `map` gets at a time, at most.
    """

    def __init__(self, items: int) -> None:
        number = min(items, cores(), MOST_THREADS)
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="dpdist-pieces") if number > 1 else None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        """What a function gives for each item, in their order."""
        return map(function, items) if self._pool is None else self._pool.map(function, items)
