"""Prefix counts and ranks against direct counting, for any partitioning and any range of keys."""

import pickle
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import readable

from dpdist.families.deniability import prefixes
from dpdist.families.deniability.prefixes import (
    HISTOGRAM_BINS,
    PrefixCode,
    SeedIndex,
    key_histogram,
    key_ranges,
    keys_between,
    merge_keys,
    seed_keys,
)
from dpdist.privacy.arrays import Codes


@st.composite
def tables(draw: st.DrawFn) -> tuple[PrefixCode, Codes]:
    """A key and some records; the code of the key outgrows 63 bits in about half of the cases."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 7, 300, 4096, 65_536]), min_size=1, max_size=12))
    order = draw(st.permutations(range(len(sizes))))
    kept = draw(st.integers(1, len(sizes)))
    lengths = sorted(draw(st.sets(st.integers(0, kept - 1), max_size=4)) | {kept})
    rows = draw(st.integers(0, 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes = [
        random.choice(random.integers(0, size, 3), rows).astype(np.min_scalar_type(size - 1))
        if rows
        else np.zeros(0, np.min_scalar_type(size - 1))
        for size in sizes
    ]
    leading = tuple(order[:kept])
    return PrefixCode(leading, tuple(sizes[i] for i in leading), tuple(lengths)), codes


def leading_rows(code: PrefixCode, codes: Codes) -> list[tuple[int, ...]]:
    return list(zip(*(codes[i].tolist() for i in code.attributes), strict=True))


def take(codes: Codes, rows: np.ndarray) -> Codes:
    return [column[rows] for column in codes]


@given(tables())
def test_words_identify_prefixes_and_sort_like_them(table: tuple[PrefixCode, Codes]) -> None:
    code, codes = table
    words = code.words(codes)
    rows = leading_rows(code, codes)
    order = np.lexsort(words[::-1])
    assert [rows[i] for i in order] == sorted(rows)
    assert (words >= 0).all()
    for i, column in zip(code.attributes, code.columns(words), strict=True):
        assert np.array_equal(column, codes[i])
        assert column.dtype == codes[i].dtype


@given(tables(), st.data())
def test_counts_and_ranks_equal_direct_counting(table: tuple[PrefixCode, Codes], data: st.DataObject) -> None:
    code, codes = table
    rows = leading_rows(code, codes)
    index = SeedIndex(code, seed_keys(code, codes))
    assert index.size == len(rows)

    ranks = np.array(data.draw(st.permutations(range(len(rows)))), np.int64)
    found = list(zip(*(column.tolist() for column in index.prefixes(ranks)), strict=True))
    assert found == [sorted(rows)[rank] for rank in ranks]

    random = np.random.default_rng(1)  # seeds' own prefixes, mixtures of two, and foreign ones
    queries = list(codes)
    for i, size in zip(code.attributes, code.cardinalities, strict=True):
        others = [random.permutation(codes[i]), random.integers(0, size, 20)]
        queries[i] = np.concatenate([codes[i], *others]).astype(codes[i].dtype)
    counts = index.counts(queries)
    for length, row in zip(code.lengths, counts, strict=True):
        sharing = Counter(prefix[:length] for prefix in rows)
        assert row.tolist() == [sharing[prefix[:length]] for prefix in leading_rows(code, queries)]


@given(tables(), st.integers(1, 6))
def test_ranges_add_up_to_the_whole(table: tuple[PrefixCode, Codes], shards: int) -> None:
    code, codes = table
    half = len(codes[0]) // 2
    rows = np.arange(len(codes[0]))
    keys = [seed_keys(code, take(codes, part)) for part in (rows[:half], rows[half:])]
    histogram = key_histogram(code, keys[0]) + key_histogram(code, keys[1])
    ranges = key_ranges(code, histogram, shards)
    assert len(ranges) == shards
    assert ranges[0][0] == 0
    assert ranges[-1][1] > code.group_codes[0]
    assert all(a[1] == b[0] and a[0] <= a[1] for a, b in pairwise(ranges))

    whole = SeedIndex(code, seed_keys(code, codes))
    parts = [SeedIndex(code, merge_keys(keys_between(part, low, high) for part in keys)) for low, high in ranges]
    offsets = np.cumsum([0, *(part.size for part in parts)])
    assert offsets[-1] == whole.size
    ranks = np.arange(whole.size)
    pieces = [part.prefixes(ranks, offset=int(at)) for part, at in zip(parts, offsets, strict=False)]
    for columns in zip(whole.prefixes(ranks), *pieces, strict=True):
        assert np.array_equal(columns[0], sum(columns[1:]))
        assert all(column.dtype == columns[0].dtype for column in columns)
    assert np.array_equal(whole.counts(codes), sum(part.counts(codes) for part in parts))


@settings(max_examples=30)
@given(table=tables())
def test_tables_over_all_codes_and_over_present_ones_agree(table: tuple[PrefixCode, Codes]) -> None:
    code, codes = table
    keys = seed_keys(code, codes)
    queries = [column[::-1] for column in codes]
    usual = SeedIndex(code, keys).counts(queries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "_DENSE_CODES", 0)
        assert np.array_equal(SeedIndex(code, keys).counts(queries), usual)


@pytest.mark.parametrize("limit", [1, 5, 1 << 20])
def test_short_words_give_the_same_counts(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    random = np.random.default_rng(3)
    sizes = (5, 4, 3, 6, 2)
    codes = [random.integers(0, size, 500).astype(np.uint8) for size in sizes]
    queries = [random.integers(0, size, 500).astype(np.uint8) for size in sizes]
    lengths = (0, 1, 2, 3, 4, 5)
    whole = PrefixCode(tuple(range(5)), sizes, lengths)
    expected = SeedIndex(whole, seed_keys(whole, codes)).counts(queries)
    monkeypatch.setattr(prefixes, "_LEADING_CODES", limit)
    monkeypatch.setattr(prefixes, "_GROUP_CODES", limit)
    code = PrefixCode(tuple(range(5)), sizes, lengths)
    index = SeedIndex(code, seed_keys(code, codes))
    assert np.array_equal(index.counts(queries), expected)
    assert expected[0].tolist() == [500] * 500


def test_the_largest_words_do_not_overflow() -> None:
    sizes = (65_536,) * 9 + (16_384, 65_536)
    code = PrefixCode(tuple(range(11)), sizes, tuple(range(12)))
    assert len(code.groups) > 2
    codes = [np.array([size - 1, 0, size - 1, size - 2]).astype(np.uint16) for size in sizes]
    codes[-1][2] -= 1
    index = SeedIndex(code, seed_keys(code, codes))
    assert (code.words(codes) >= 0).all()
    assert index.counts(codes).T.tolist() == [
        [4] + [2] * 10 + [1],
        [4] + [1] * 11,
        [4] + [2] * 10 + [1],
        [4] + [1] * 11,
    ]


def test_memory_is_bounded_as_planned() -> None:
    random = np.random.default_rng(5)
    for sizes in [(3, 4, 5), (60_000, 300, 70, 2, 65_000, 1000)]:
        code = PrefixCode(tuple(range(len(sizes))), sizes, tuple(range(1, len(sizes) + 1)))
        codes = [random.integers(0, size, 50_000).astype(np.min_scalar_type(size - 1)) for size in sizes]
        index = SeedIndex(code, seed_keys(code, codes))
        bound = code.index_bytes(50_000)
        assert sys.getsizeof(index) <= bound + 256
        assert len(pickle.dumps(index)) <= bound + 4096
        assert code.index_bytes(10**15) >= bound


def test_an_index_does_not_print_its_seeds() -> None:
    code = PrefixCode((0,), (300,), (1,))
    keys = seed_keys(code, [np.full(7, 123, np.uint16)])
    assert "123" not in readable(keys, SeedIndex(code, keys))


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "_MOST_KEYS", 1)
    code = PrefixCode((0,), (3,), (1,))
    with pytest.raises(ValueError, match="more shards"):
        SeedIndex(code, seed_keys(code, [np.arange(3, dtype=np.uint8)]))


def test_the_histogram_has_a_public_size() -> None:
    code = PrefixCode((0, 1), (50_000, 50_000), (2,))
    empty = seed_keys(code, [np.zeros(0, np.uint16)] * 2)
    assert key_histogram(code, empty).shape == (HISTOGRAM_BINS,)
    assert key_ranges(code, key_histogram(code, empty), 3)[-1][1] > 50_000**2
