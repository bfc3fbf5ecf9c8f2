"""Marginals of tables against NumPy's sums."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.data.count import marginal

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=6).filter(lambda shape: prod(shape) <= 20_000).map(tuple)


@given(
    shape=SHAPES | st.sampled_from([(300, 3), (3, 300, 2), (20, 30, 40), (2, 3, 4, 200), (17, 17, 17)]), data=st.data()
)
@settings(deadline=None, max_examples=300)
def test_a_marginal_is_the_sum_over_the_other_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    keep = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    others = tuple(k for k in range(len(shape)) if k not in keep)
    values = np.random.default_rng(0).integers(-(10**6), 10**6, shape)
    before = values.copy()
    found = marginal(values, keep)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, values.sum(axis=others))
    np.testing.assert_array_equal(values, before)
    np.testing.assert_allclose(marginal(values / 7, keep), (values / 7).sum(axis=others), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("number", [2, 16])
def test_many_short_axes_are_added_in_their_order(number: int) -> None:
    table = np.random.default_rng(1).random((1000, number))
    total = np.zeros(1000)
    for column in table.T:
        total = total + column
    np.testing.assert_array_equal(marginal(table, [0]), total)
