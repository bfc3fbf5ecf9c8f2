"""Thresholds against exact rational arithmetic, and draws against their definition."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.families.base.network import WEIGHT_BITS, draw, thresholds_from_weights

WORD = 1 << 64


def _exact(weights: list[int]) -> list[int]:
    total = sum(weights)
    return [min(WORD * c // total, WORD - 1) for c in list(accumulate(weights))[:-1]]


@given(st.lists(st.integers(0, (1 << WEIGHT_BITS) // 8), min_size=1, max_size=8).filter(any))
def test_integer_weights_are_exact(weights: list[int]) -> None:
    assert thresholds_from_weights(np.array([weights])).tolist() == [_exact(weights)]


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(1e-9, 1.0)), min_size=1, max_size=70).filter(
        any
    )
)
def test_float_weights_follow_the_stated_rounding(weights: list[float]) -> None:
    bits = WEIGHT_BITS - (len(weights) - 1).bit_length()
    exponent = next(e for e in range(-1100, 1100) if max(weights) < Fraction(2) ** e)
    integers = [max(round(Fraction(w) * Fraction(2) ** (bits - exponent)), int(w > 0)) for w in weights]
    assert sum(integers) <= 1 << WEIGHT_BITS
    assert thresholds_from_weights(np.array([weights])).tolist() == [_exact(integers)]


def test_support_is_preserved_and_probabilities_are_close() -> None:
    weights = np.array([[1e-12, 0.0, 3.0, 1.0, 1e-30], [0.0, 0.0, 2.0, 0.0, 5.0]])
    thresholds = thresholds_from_weights(weights)
    ends = np.hstack([np.zeros((2, 1)), thresholds.astype(object), np.full((2, 1), WORD)])
    width = np.diff(ends, axis=1)
    assert ((width > 0) == (weights > 0)).all()
    probabilities = (width / WORD).astype(float)
    np.testing.assert_allclose(probabilities, weights / weights.sum(1, keepdims=True), atol=2.0**-40)


def test_a_row_whose_last_weights_are_zero_leaves_one_unit_to_the_last_value() -> None:
    assert thresholds_from_weights([[1, 0, 0], [0, 4, 0]]).tolist() == [[WORD - 1, WORD - 1], [0, WORD - 1]]


@pytest.mark.parametrize(
    "weights",
    [
        [1.0, 2.0],
        np.empty((2, 0)),
        [[1.0, -1.0]],
        [[np.nan, 1.0]],
        [[np.inf, 1.0]],
        [[0.0, 0.0]],
        [["a", "b"]],
        [[True, False]],
    ],
)
def test_what_is_no_table_of_weights_is_refused(weights: object) -> None:
    with pytest.raises(ValueError, match="weights"):
        thresholds_from_weights(weights)


@pytest.mark.parametrize("weights", [[[1 << 48, 1]], [[1 << 62] * 5]])
def test_integer_weights_that_are_too_large_are_refused(weights: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at most 2\\^48"):
        thresholds_from_weights(np.array(weights))


@pytest.mark.parametrize("values", [2, 3, 5, 64, 257])
def test_draw_counts_the_thresholds_at_most_the_word(values: int) -> None:
    random = np.random.default_rng(values)
    weights = random.integers(0, 3, (40, values)) + (np.arange(values) == values // 2)
    thresholds = thresholds_from_weights(weights)
    row = random.integers(0, 40, 20_000)
    words = random.integers(0, WORD, 20_000, dtype=np.uint64)
    edge = thresholds[row[:9_000], random.integers(0, values - 1, 9_000)]  # at, below and above a threshold
    words[:9_000] = edge - np.tile(np.array([0, 1, WORD - 1], np.uint64), 3_000)
    words[9_000:9_002] = [0, WORD - 1]
    drawn = draw(thresholds, row, words)
    assert drawn.dtype == np.min_scalar_type(values - 1)
    np.testing.assert_array_equal(drawn, (thresholds[row] <= words[:, None]).sum(axis=1))


def test_draw_has_the_stated_frequencies_and_would_show_others(chi_square) -> None:
    random = np.random.default_rng(7)
    weights = random.integers(1, 1_000, (3, 30))
    row = np.repeat(np.arange(3), 100_000)
    drawn = draw(thresholds_from_weights(weights), row, random.integers(0, WORD, len(row), dtype=np.uint64))
    seen = np.zeros((3, 30))
    np.add.at(seen, (row, drawn), 1)
    expected = 100_000 * weights / weights.sum(axis=1, keepdims=True)
    other = np.where(np.arange(30) < 15, 1.3, 1.0) * weights
    other = 100_000 * other / other.sum(axis=1, keepdims=True)
    for i in range(3):
        assert chi_square(seen[i], expected[i]) > 1e-20
        assert chi_square(seen[i], other[i]) < 1e-20
