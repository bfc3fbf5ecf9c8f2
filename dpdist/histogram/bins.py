"""Public bins of a numeric column: values to codes, refusing what no bin covers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.errors import ColumnMismatch, OutOfDomain, SpecError
from dpdist.schema import MAX_CARDINALITY


@dataclass(frozen=True)
class Bins:
    """Intervals ``[e_0, e_1), [e_1, e_2), ..., [e_(k-1), e_k]``; the last one holds its upper edge.

    Parameters
    ----------
    edges : tuple of float
        Finite and strictly increasing; public, so never taken from the data.

    Raises
    ------
    SpecError
        Fewer than two edges, or not finite and increasing.
    """

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.edges) <= MAX_CARDINALITY + 1:
            raise SpecError(f"bins need from 2 to {MAX_CARDINALITY + 1} edges, got {len(self.edges)}")
        if not all(map(math.isfinite, self.edges)) or any(low >= high for low, high in pairwise(self.edges)):
            raise SpecError("the edges of bins must be finite and strictly increasing")

    @classmethod
    def equal(cls, low: float, high: float, *, count: int) -> Bins:
        """So many bins of equal width from `low` to `high`."""
        if count < 1 or not low < high:
            raise SpecError(f"equal bins need a count of at least 1 and low < high, got {count}, {low:g}, {high:g}")
        return cls(tuple(np.linspace(low, high, count + 1).tolist()))

    @property
    def count(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    def encode(self, values: ArrayLike, *, column: str, clip: bool = False) -> NDArray[np.unsignedinteger[Any]]:
        """Bin of each value.

        Parameters
        ----------
        values : array_like of numbers, shape (rows,)
        column : str
            Name of the column, for messages.
        clip : bool
            Put values outside the edges (infinite ones too) into the first or last bin instead of refusing them.

        Returns
        -------
        ndarray of unsigned int, shape (rows,)
            Smallest unsigned dtype.

        Raises
        ------
        ColumnMismatch
            The column is not numeric.
        OutOfDomain
            A value is missing or NaN, or (unless clipped) outside the edges.
        """
        numbers = np.asarray(values)
        if numbers.dtype.kind not in "iuf":
            raise ColumnMismatch(f"column {column!r} is not numeric; declare its categories instead of bins")
        if numbers.dtype.kind == "f" and np.isnan(numbers).any():
            raise OutOfDomain(f"column {column!r} holds missing values or NaN; clean it or declare a missing policy")
        edges = np.asarray(self.edges)
        if not clip and numbers.size and not (edges[0] <= numbers.min() and numbers.max() <= edges[-1]):
            raise OutOfDomain(
                f"column {column!r}: the bins from {edges[0]:g} to {edges[-1]:g} do not cover all values; widen them "
                "from public knowledge, or declare `clip`"
            )
        places = np.searchsorted(edges[1:-1], numbers, side="right")
        return places.astype(np.min_scalar_type(self.count - 1))
