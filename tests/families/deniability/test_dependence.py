"""Entropies, distances and correlations by their formulas; the sensitivity by enumeration."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from dpdist.data.count import pair_counts
from dpdist.families.deniability.search import (
    entropies,
    entropy_columns,
    mutual_information,
    pair_distances,
    pair_matrix,
    symmetrical_uncertainty,
    total_variation_sensitivity,
)
from dpdist.spec.schema import Attribute, Schema

SIZES, WIDTHS = (6, 2, 5, 4), (2, 1, 3, 1)
SCHEMA = Schema(
    attributes=tuple(
        Attribute(name=f"a{i}", kind="integer", bounds=(0, size - 1), buckets={"width": width})
        for i, (size, width) in enumerate(zip(SIZES, WIDTHS, strict=True))
    )
)


@pytest.fixture(scope="module")
def records():
    """300 records of dependent codes."""
    random = np.random.default_rng(4)
    first = random.integers(0, 6, 300)
    columns = [first, first // 3, (first + random.integers(0, 2, 300)) % 5, random.integers(0, 4, 300)]
    return [column.astype(np.uint8) for column in columns]


def _entropy(rows) -> float:
    counts = Counter(rows)
    total = sum(counts.values())
    return -sum(c / total * math.log2(c / total) for c in counts.values())


def _view(records, i, coarse):
    return [int(v) // WIDTHS[i] if coarse else int(v) for v in records[i]]


def test_entropies_are_those_of_the_columns(records):
    values = entropies(pair_counts(records, SIZES), SCHEMA)
    columns = entropy_columns(SCHEMA)
    assert len(values) == len(columns) == len(set(columns))
    for value, key in zip(values, columns, strict=True):
        assert value == pytest.approx(_entropy(zip(*(_view(records, i, c) for i, c in key), strict=True)), abs=1e-12)


def test_an_attribute_whose_buckets_are_its_values_counts_once():
    # Attributes 0 and 2 have coarser buckets: 4 + 2 single entropies. Of the 6 pairs, one has none coarser (1 entropy),
    # four have one coarser (2 entropies), one has both coarser (3 entropies).
    assert len(entropy_columns(SCHEMA)) == 6 + 1 * 1 + 4 * 2 + 1 * 3


def test_entropies_of_no_record_are_zero():
    empty = pair_counts([np.zeros(0, np.uint8)] * 4, SIZES)
    assert not entropies(empty, SCHEMA).any()
    assert not pair_distances(empty, SCHEMA).any()


def test_correlations_follow_their_formulas(records):
    values = entropies(pair_counts(records, SIZES), SCHEMA)
    child, between = symmetrical_uncertainty(values, SCHEMA)
    information = mutual_information(values, SCHEMA)
    for i, j in product(range(4), repeat=2):
        if i == j:
            assert child[i, j] == between[i, j] == information[i, j] == 0
            continue
        x, b, bx = _view(records, i, False), _view(records, j, True), _view(records, i, True)
        mutual = _entropy(x) + _entropy(b) - _entropy(zip(x, b, strict=True))
        assert information[i, j] == pytest.approx(mutual, abs=1e-12)
        assert child[i, j] == pytest.approx(2 * mutual / (_entropy(x) + _entropy(b)), abs=1e-12)
        mutual = _entropy(bx) + _entropy(b) - _entropy(zip(bx, b, strict=True))
        assert between[i, j] == pytest.approx(2 * mutual / (_entropy(bx) + _entropy(b)), abs=1e-12)


def test_noisy_correlations_are_clipped():
    columns = entropy_columns(SCHEMA)
    for single, pair in ((1.0, 5.0), (1.0, -5.0), (-1.0, 0.0)):
        values = [single if len(key) == 1 else pair for key in columns]
        child, between = symmetrical_uncertainty(values, SCHEMA)
        for matrix in (child, between):
            assert set(matrix[~np.eye(4, dtype=bool)]) == {1.0 if pair < -1 else 0.0}
        assert (mutual_information(values, SCHEMA) >= 0).all()


def test_distances_are_those_of_the_bucketised_pairs(records):
    values = pair_distances(pair_counts(records, SIZES), SCHEMA)
    for value, (i, j) in zip(values, combinations(range(4), 2), strict=True):
        x, y = _view(records, i, True), _view(records, j, True)
        joint, left, right = Counter(zip(x, y, strict=True)), Counter(x), Counter(y)
        n = len(x)
        expected = sum(abs(joint[a, b] / n - left[a] * right[b] / n**2) for a in left for b in right) / 2
        assert value == pytest.approx(expected, abs=1e-14)
    matrix = pair_matrix(values, 4)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix[1, 3] == values[4]
    assert not np.diag(matrix).any()


def _tables(cells: int, n: int):
    """All ways to put n records in the cells."""
    if cells == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in _tables(cells - 1, n - first):
            yield (first, *rest)


def _distance(table: np.ndarray) -> np.ndarray:
    joint = table / table.sum(axis=(-2, -1), keepdims=True)
    return 0.5 * np.abs(joint - joint.sum(-1, keepdims=True) * joint.sum(-2, keepdims=True)).sum(axis=(-2, -1))


@pytest.mark.parametrize(("shape", "largest"), [((2, 2), 12), ((2, 3), 7), ((3, 3), 5)])
def test_no_table_exceeds_the_sensitivity_of_the_distance(shape, largest):
    cells = shape[0] * shape[1]
    for n in range(2, largest + 1):
        before = np.array(list(_tables(cells, n - 1)), float).reshape(-1, *shape)
        base = _distance(before)
        change = 0.0
        for cell in range(cells):
            after = before.copy()
            after.reshape(-1, cells)[:, cell] += 1
            change = max(change, float(np.abs(_distance(after) - base).max()))
        assert change <= total_variation_sensitivity(n)
        assert change >= 2 * (n - 1) / n**2 - 1e-12  # one record against all others in another cell


def test_the_distance_comes_near_its_sensitivity():
    """A nearly diagonal table, with a small independent row and column: the new record meets them."""
    k, row, n = 400, 1_000.0, 10**8
    table = np.zeros((k + 1, k + 1))
    side = n / k
    table[np.arange(k), np.arange(k)] = side
    table[k, :k] = table[:k, k] = row
    after = table.copy()
    after[k, k] += 1
    change = float(_distance(table) - _distance(after))
    assert 0.9 * total_variation_sensitivity(int(after.sum())) < change <= total_variation_sensitivity(int(after.sum()))
