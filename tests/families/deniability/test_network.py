"""The network against brute force on small domains."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from itertools import accumulate, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import UnreadableFile
from dpdist.families.base.network import WEIGHT_BITS, Network, draw, thresholds_from_weights

WORD = 1 << 64


def _probability(network: Network, i: int, row: int, value: int) -> Fraction:
    ends = [0, *map(int, network.thresholds[i][row]), WORD]
    return Fraction(ends[value + 1] - ends[value], WORD)


@pytest.mark.parametrize("seed", range(5))
def test_configuration_is_mixed_radix_with_the_first_parent_most_significant(seed, random_network, random_codes):
    sizes = (3, 7, 2, 5, 11)
    network = random_network(seed, sizes, parents=3)
    codes = random_codes(seed, sizes, 500)
    for i, parents in enumerate(network.parents):
        expected = []
        for record in zip(*codes, strict=True):
            index = 0
            for p in parents:
                index = index * network.bucket_counts[p] + int(network.bucket_maps[p][record[p]])
            expected.append(index)
        found = network.configuration(i, codes)
        assert found.dtype == np.int64
        assert found.tolist() == expected
        assert max(expected) < network.configurations(i) == len(network.thresholds[i])


def test_probabilities_sum_to_one_over_all_records(random_network):
    sizes = (3, 4, 2, 3)
    network = random_network(1, sizes)
    records = [np.array(column, np.uint8) for column in zip(*product(*map(range, sizes)), strict=True)]
    total = Fraction(0)
    for k in range(len(records[0])):
        probability = Fraction(1)
        for i in range(len(sizes)):
            row = int(network.configuration(i, records)[k])
            probability *= _probability(network, i, row, int(records[i][k]))
        total += probability
    assert total == 1


@pytest.mark.parametrize("seed", range(3))
def test_log_probability_is_that_of_the_exact_threshold_differences(seed, random_network):
    network = random_network(seed, (3, 9, 4, 1))
    for i, size in enumerate(network.cardinalities):
        for row in range(network.configurations(i)):
            values = np.arange(size)
            found = network.log_probability(i, np.full(size, row), values)
            exact = [_probability(network, i, row, v) for v in range(size)]
            expected = [math.log(p.numerator) - math.log(p.denominator) for p in exact]
            np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)


def test_log_probability_of_certain_and_impossible_values():
    thresholds = np.array([[0, 0], [0, WORD - 1], [5, 5]], np.uint64)
    network = _two(thresholds)
    rows, values = np.divmod(np.arange(9), 3)
    found = network.log_probability(1, rows, values).reshape(3, 3)
    unit = -64 * math.log(2)
    assert found[0].tolist() == [-math.inf, -math.inf, 0.0]
    assert found[1, 0] == -math.inf
    assert found[1, 1] == pytest.approx(0.0, abs=1e-15)
    assert found[1, 2] == pytest.approx(unit)
    assert found[2, 0] == pytest.approx(unit + math.log(5))
    assert found[2, 1] == -math.inf


def test_damaged_bytes_are_refused(random_network):
    data = random_network(2, (3, 4)).to_bytes()
    other, pickled = io.BytesIO(), io.BytesIO()
    np.savez(other, header=np.frombuffer(b'{"format": "other"}', np.uint8))
    np.savez(pickled, header=np.array([{"a": 1}], dtype=object))
    for bad in (b"", b"not an npz", data[: len(data) // 2], other.getvalue(), pickled.getvalue()):
        with pytest.raises(UnreadableFile, match="begin a new attempt"):
            Network.from_bytes(bad)


def _two(child: np.ndarray) -> Network:
    values = child.shape[1] + 1
    return Network(
        cardinalities=(3, values),
        bucket_maps=(np.arange(3, dtype=np.uint32), np.zeros(values, np.uint32)),
        bucket_counts=(3, 1),
        parents=((), (0,)),
        order=(0, 1),
        thresholds=(thresholds_from_weights(np.ones((1, 3))), child),
    )


# --- Thresholds against exact rational arithmetic, and draws against their definition


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
