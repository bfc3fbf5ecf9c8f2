"""Public bins of numeric columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import ColumnMismatch, OutOfDomain, SpecError
from dpdist.histogram.bins import Bins


@given(st.lists(st.floats(0, 10), max_size=50), st.integers(1, 40))
def test_equals_numpy(values: list[float], count: int) -> None:
    bins = Bins.equal(0, 10, count=count)
    codes = bins.encode(np.array(values), column="x")
    np.testing.assert_array_equal(np.bincount(codes, minlength=count), np.histogram(values, bins.edges)[0])
    assert codes.dtype == np.uint8
    assert bins.count == count


def test_integers_and_edges() -> None:
    assert Bins((0, 5, 10)).encode(np.array([0, 4, 5, 10]), column="x").tolist() == [0, 0, 1, 1]
    assert Bins((0.0, 1.0)).encode(np.empty(0), column="x").size == 0
    assert Bins.equal(0, 1, count=300).encode(np.array([0.999]), column="x").dtype == np.uint16


def test_clip() -> None:
    values = np.array([-np.inf, -1, 3, 11, np.inf])
    assert Bins((0, 5, 10)).encode(values, column="x", clip=True).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (["a", "b"], ColumnMismatch, "column 'income' is not numeric"),
        ([True], ColumnMismatch, "not numeric"),
        ([1.0, np.nan], OutOfDomain, "missing values or NaN"),
        ([1.0, np.inf], OutOfDomain, "do not cover all values"),
        ([1.0, 987654.0], OutOfDomain, "bins from 0 to 10 do not cover all values"),
        ([-0.001], OutOfDomain, "do not cover"),
    ],
)
def test_refused_without_naming_a_value(values: list[object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        Bins((0, 5, 10)).encode(np.array(values), column="income")
    assert "987654" not in str(caught.value)


@pytest.mark.parametrize("edges", [(), (1.0,), (1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0)])
def test_refused_edges(edges: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="edges"):
        Bins(edges)


@pytest.mark.parametrize(("low", "high", "count"), [(0, 1, 0), (1, 1, 3), (2, 1, 3), (np.nan, 1, 3)])
def test_refused_equal_bins(low: float, high: float, count: int) -> None:
    with pytest.raises(SpecError, match="equal bins"):
        Bins.equal(low, high, count=count)
