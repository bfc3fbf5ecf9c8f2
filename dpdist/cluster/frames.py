"""Dask DataFrames, made without importing them anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def frame_of_parts(read: Callable[..., Any], parts: int, meta: Any, **settings: Any) -> Any:
    """A Dask DataFrame whose partitions are what `read` makes of the numbers of the parts. `read` (callable): number of
    a part, and `settings`, to a pandas DataFrame; `meta`: a frame without rows, of the types of the parts.
    """
    import dask.dataframe as dd

    return dd.from_map(read, range(parts), meta=meta, enforce_metadata=False, **settings)
