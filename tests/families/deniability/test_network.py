"""The network against brute force on small domains."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpdist.errors import UnreadableFile
from dpdist.families.base.network import Network, thresholds_from_weights

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
