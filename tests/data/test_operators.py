"""What passes compute: counts against brute force, sums, and the keyed coin that splits the records."""

from collections import Counter
from fractions import Fraction
from functools import reduce
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpdist.data import count, operators
from dpdist.data.count import (
    MAX_PAIR_CELLS,
    PairCounts,
    coarsen,
    configuration_index,
    covering_blocks,
    marginal,
    pair_cells,
    pair_counts,
)
from dpdist.data.operators import Split, exact_shares, split_labels
from dpdist.errors import SpecError
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.noise import Noise
from tests.data.strategies import contingency

ACS = (56, 79, 8, 24, 5, 25, 5, 2, 99, 2, 2)


def draw_codes(cardinalities: tuple[int, ...], rows: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, c, rows).astype(np.min_scalar_type(c - 1)) for c in cardinalities]


def brute_force(codes: list[np.ndarray], counts: PairCounts) -> None:
    rows = list(zip(*(c.tolist() for c in codes), strict=True))
    assert counts.total == len(rows)
    for i in range(len(codes)):
        assert counts.single(i).tolist() == [Counter(codes[i].tolist())[v] for v in range(counts.cardinalities[i])]
    for i, j in combinations(range(len(codes)), 2):
        expected = Counter((row[i], row[j]) for row in rows)
        assert counts.pair(i, j).shape == (counts.cardinalities[i], counts.cardinalities[j])
        assert {k: v for k, v in np.ndenumerate(counts.pair(i, j)) if v} == expected
        assert np.array_equal(counts.pair(j, i), counts.pair(i, j).T)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=7).map(tuple),
    st.integers(0, 80),
    st.sampled_from([4, 64, 1 << 15]),
    st.sampled_from([1, 7, 1 << 16]),
)
def test_pairs_equal_brute_force(cardinalities: tuple[int, ...], rows: int, cells: int, chunk: int) -> None:
    codes = draw_codes(cardinalities, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count, "BLOCK_CELLS", cells)
        patch.setattr(count, "CHUNK_ROWS", chunk)
        covering_blocks.cache_clear()
        counts = pair_counts(codes, cardinalities)
    covering_blocks.cache_clear()
    assert len(counts.cells) == pair_cells(cardinalities)
    brute_force(codes, counts)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=5).map(tuple),
    st.lists(st.integers(0, 300), max_size=4),
    st.sampled_from([8, 64, 1 << 16]),
)
def test_adding_batches_in_place_equals_counting_all(
    cardinalities: tuple[int, ...], batches: list[int], chunk: int
) -> None:
    """Tables that are larger and smaller than a chunk; only the summary of the task changes."""
    pieces = [draw_codes(cardinalities, rows, seed) for seed, rows in enumerate([0, *batches])]
    whole = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    sets = tuple(combinations(range(len(cardinalities)), 2))
    for operator in (
        operators.pair_counts_operator(cardinalities),
        operators.table_counts_operator(cardinalities, sets),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(count, "CHUNK_ROWS", chunk)
            summary = operator.chunk(pieces[0])
            for piece in pieces[1:]:
                summary = operator.add(summary, piece)
        parts = [operator.chunk(piece) for piece in pieces]
        kept = [part.copy() for part in parts]
        combined = reduce(operator.combine, parts)
        assert np.array_equal(summary, operator.chunk(whole))
        assert np.array_equal(combined, summary)
        assert all(np.array_equal(a, b) for a, b in zip(parts, kept, strict=True))


@pytest.mark.parametrize("sizes", [(70_000, 3, 2), (65_536,), (1, 65_535), (256, 256, 256), (300, 300, 70_000)])
def test_attributes_of_many_values_are_counted(sizes: tuple[int, ...]) -> None:
    """Their codes need more than 16 bits, or the domains do; the last values are among them."""
    codes = draw_codes(sizes, 400)
    for column, size in zip(codes, sizes, strict=True):
        column[:3] = size - 1
    sets = [which for k in (1, 2) for which in combinations(range(len(sizes)), k)]
    tables = count.split_tables(count.table_counts(codes, sizes, sets), sizes, sets) if prod(sizes) < 1 << 25 else []
    for which, table in zip(sets, tables, strict=False):
        expected = Counter(zip(*(codes[i].tolist() for i in which), strict=True))
        assert {k: v for k, v in np.ndenumerate(table) if v} == expected
    index = configuration_index(codes, sizes)
    assert index.tolist() == [int(np.ravel_multi_index(row, sizes)) for row in zip(*codes, strict=True)]


def test_blocks_cover_every_pair_within_the_limit() -> None:
    for cardinalities in (ACS, (2,) * 30, (65_536, 100, 2), (1000, 1000, 5)):
        blocks = covering_blocks(cardinalities)
        covered = {pair for block in blocks for pair in combinations(block, 2)}
        assert covered == set(combinations(range(len(cardinalities)), 2))
        assert all(len(b) == 2 or prod(cardinalities[i] for i in b) <= count.BLOCK_CELLS for b in blocks)
    assert len(covering_blocks(ACS)) <= 12  # instead of 55 pairs


def test_a_table_too_large_to_count_is_refused_with_advice() -> None:
    assert pair_cells((3, 4, 5)) == 12 + 12 + 15 + 20
    assert pair_cells((65_536, *ACS)) <= MAX_PAIR_CELLS
    for action in (pair_cells, covering_blocks, lambda c: pair_counts([], c)):
        with pytest.raises(SpecError, match=r"cells, more than the limit of .*65,536 and 65,536 values.*bins"):
            action((65_536, 65_536))


def test_counts_are_hidden() -> None:
    counts = pair_counts(draw_codes((3, 4), 977), (3, 4))
    assert repr(counts) == "PairCounts(cardinalities=(3, 4), <counts hidden>)"


def test_marginals_onto_buckets() -> None:
    codes = draw_codes((6, 9), 200)
    to_three, to_two = np.array([0, 1, 0, 2, 2, 1], np.uint32), np.array([0, 0, 0, 1, 1, 1, 0, 1, 0], np.uint32)
    pair = pair_counts(codes, (6, 9)).pair(0, 1)
    both = coarsen(coarsen(pair, to_three, buckets=3, axis=0), to_two, buckets=2, axis=1)
    direct = contingency([to_three[codes[0]], to_two[codes[1]]], (0, 1), (3, 2))
    assert np.array_equal(both, direct)
    assert np.array_equal(contingency(codes, (0, 1), (3, 2), maps=(to_three, to_two)), direct)
    assert np.array_equal(contingency(codes, (1, 0), (9, 3), maps=(None, to_three)).sum(0), direct.sum(1))


def test_indexes_beyond_32_bits() -> None:
    sizes = (65_536, 65_536, 65_536)
    codes = [np.array([65_535, 0], np.uint16)] * 3
    assert configuration_index(codes, sizes).tolist() == [2**48 - 1, 0]
    assert configuration_index(codes[:2], sizes[:2]).tolist() == [2**32 - 1, 0]


def test_wide_tables_are_counted_without_all_blocks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the blocks together are large, batches are marginalised one by one, to the same counts."""
    rng = np.random.default_rng(3)
    sizes = tuple(rng.integers(2, 9, 24).tolist())
    codes = [rng.integers(0, size, 3000).astype(np.uint8) for size in sizes]
    whole = pair_counts(codes, sizes)
    monkeypatch.setattr(operators, "WIDE_CELLS", 1)
    wide = operators.pair_counts_operator(sizes)
    assert wide.update is None
    parts = [wide.chunk([column[start : start + 1000] for column in codes]) for start in range(0, 3000, 1000)]
    np.testing.assert_array_equal(wide.combine(wide.combine(*parts[:2]), parts[2]).cells, whole.cells)


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=6).filter(lambda shape: prod(shape) <= 20_000).map(tuple)


@given(
    shape=SHAPES | st.sampled_from([(300, 3), (3, 300, 2), (20, 30, 40), (2, 3, 4, 200), (17, 17, 17)]), data=st.data()
)
@settings(deadline=None, max_examples=120)
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


NOISE = Noise(bytes(range(32)))
SHARES = (Fraction(1, 10), Fraction(2, 5), Fraction(1, 2))


class Words:
    """Stands for a Noise and returns chosen words."""

    def __init__(self, words: list[int]) -> None:
        self._words = np.array(words, np.uint64)

    def words(self, name: str, count: int, *, start: int = 0) -> np.ndarray:
        assert (name, count, start) == ("split/4", len(self._words), 7)
        return self._words


def labels_of(words: list[int], shares: Any) -> list[int]:
    noise: Any = Words(words)
    return split_labels(noise, file=4, row_start=7, count=len(words), shares=shares).tolist()


def test_thresholds_are_exact() -> None:
    third = (1 << 64) // 3
    words = [0, third - 1, third, 2 * third - 1, 2 * third, 2**64 - 1]
    assert labels_of(words, ("1/3", "1/3", "1/3")) == [0, 0, 1, 1, 2, 2]
    assert labels_of([0, 2**64 - 1], (1,)) == [0, 0]
    assert labels_of([0, 2**64 - 1], (1, 0)) == [0, 0]
    assert labels_of([0, 2**64 - 1], (0, 1, 0)) == [1, 1]
    assert labels_of([0, 2**63 - 1, 2**63, 2**64 - 1], ("0.5", 0, "0.5")) == [0, 0, 2, 2]


def test_files_are_independent() -> None:
    a, b = (split_labels(NOISE, file=f, row_start=0, count=100_000, shares=SHARES) for f in (1, 11))
    table = np.zeros((3, 3))
    np.add.at(table, (a, b), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-20
    assert stats.chi2_contingency(np.diag(table.sum(0)) + 1).pvalue < 1e-20  # what equal labels would give


def test_shares_are_met() -> None:
    """Accepts the declared shares at 100,000 rows and rejects shares 30 % off."""
    n = 100_000
    seen = np.bincount(split_labels(NOISE, file=0, row_start=0, count=n, shares=SHARES), minlength=3)
    for times, share in zip(seen.tolist(), map(float, SHARES), strict=True):
        assert stats.binomtest(times, n, share).pvalue > 1e-20
        for wrong in (0.7 * share, 1.3 * share):
            assert stats.binomtest(times, n, wrong).pvalue < 1e-20


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (("0.1", "0.4", "0.4"), r"sum to one, not 1/10 \+ 2/5 \+ 2/5 = 9/10"),
        (("-0.5", "1.5"), r"lie in \[0, 1\]"),
        ((), "sum to one"),
        ((0.1, 0.9), "must be exact"),
        (("a half", "0.5"), "must be exact"),
        (("1/0",), "must be exact"),
        ((None,), "must be exact"),
        ((Fraction(1, 256),) * 256, "sum to one"),
    ],
)
def test_bad_shares_are_refused(shares: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        exact_shares(shares)
    with pytest.raises(SpecError, match=message):
        Split(KeyRef.fixed("00" * 32), shares)


def test_a_split_holds_exact_shares() -> None:
    assert Split(KeyRef.fixed("00" * 32), ("0.1", "2/5", "0.5")).shares == SHARES
