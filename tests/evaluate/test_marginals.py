"""Distances of marginals against brute force, for any chunking; NIST's score; views and decoders."""

from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import SCHEMA

from dpdist.data.count import pair_counts
from dpdist.data.operators import pair_counts_operator, through
from dpdist.data.released import ReleaseDecoder
from dpdist.errors import VerificationFailed
from dpdist.evaluation.records import view_of
from dpdist.evaluation.utility import marginals
from dpdist.evaluation.utility.similarity import cramers_v, pearson
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import decode
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema

SIZES = (3, 2, 4, 5)


def random_codes(rows: int, seed: int, sizes: tuple[int, ...] = SIZES) -> Codes:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, max(sizes), rows)
    return [np.minimum((base + rng.integers(0, 3, rows)) % size, size - 1).astype(np.uint8) for size in sizes]


def counted(codes: Codes, sizes: tuple[int, ...] = SIZES) -> marginals.Marginals:
    triples = marginals.chosen_triples(sizes, seed=0)
    operator = marginals.marginals_operator(sizes, triples)
    found: marginals.Marginals = operator.finish(operator.compact(operator.chunk(codes)))
    return found


def brute_distance(a: Codes, b: Codes, which: tuple[int, ...]) -> float:
    ours, theirs = (Counter(zip(*(codes[i].tolist() for i in which), strict=True)) for codes in (a, b))
    sizes = [max(len(codes[0]), 1) for codes in (a, b)]
    return sum(abs(ours[cell] / sizes[0] - theirs[cell] / sizes[1]) for cell in ours | theirs) / 2


def test_distances_are_those_of_a_dictionary_of_records() -> None:
    a, b = random_codes(700, 1), random_codes(450, 2)
    for k in (1, 2, 3):
        found = marginals.distances(counted(a), counted(b), k)
        expected = [brute_distance(a, b, which) for which in combinations(range(4), k)]
        np.testing.assert_allclose(found, expected, atol=1e-12)
        # SDNist: (2 - mean sum |p - q|) * 500
        assert marginals.k_marginal_score(found) == pytest.approx((2 - 2 * np.mean(expected)) * 500)


def test_distance_to_independence() -> None:
    codes = random_codes(400, 3)
    shares = [np.bincount(column, minlength=size) / 400 for column, size in zip(codes, SIZES, strict=True)]
    expected = []
    for i, j in combinations(range(4), 2):
        joint = np.zeros((SIZES[i], SIZES[j]))
        np.add.at(joint, (codes[i], codes[j]), 1 / 400)
        expected.append(np.abs(joint - np.outer(shares[i], shares[j])).sum() / 2)
    np.testing.assert_allclose(marginals.distances_to_independence(counted(codes), 2), expected, atol=1e-12)
    assert not marginals.distances_to_independence(counted(codes), 1).max() > 1e-12


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 60), cuts=st.lists(st.integers(0, 60), max_size=4), seed=st.integers(0, 99))
def test_counts_are_the_same_for_any_batches(rows: int, cuts: list[int], seed: int) -> None:
    codes = random_codes(rows, seed)
    triples = marginals.chosen_triples(SIZES, seed=0)
    operator = marginals.marginals_operator(SIZES, triples)
    ends = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    summary = operator.chunk([column[:0] for column in codes])
    for start, stop in pairwise(ends):
        summary = operator.add(summary, [column[start:stop] for column in codes])
    parts, whole = operator.finish(operator.compact(summary)), counted(codes)
    assert np.array_equal(parts.pairs.cells, whole.pairs.cells)
    assert all(np.array_equal(parts.triples[which], table) for which, table in whole.triples.items())


def test_the_sample_of_three_way_marginals_is_repeatable_and_bounded() -> None:
    sizes = (50, 40, 30, 20, 10, 5)
    assert marginals.chosen_triples(sizes, seed=1, most=5) == marginals.chosen_triples(sizes, seed=1, most=5)
    assert marginals.chosen_triples(sizes, seed=1, most=5) != marginals.chosen_triples(sizes, seed=2, most=5)
    assert len(marginals.chosen_triples(sizes, seed=1)) == 20
    few = marginals.chosen_triples(sizes, seed=1, cells=30_000)
    assert sum(sizes[a] * sizes[b] * sizes[c] for a, b, c in few) <= 30_000
    assert marginals.chosen_triples((4, 4), seed=0) == ()


def test_a_random_part_scores_like_a_random_part() -> None:
    real = random_codes(20_000, 4)
    whole = counted(real)
    scores = marginals.subsample_scores(whole, 2, seed=0, shares=(0.01, 0.1, 0.5))
    rows = np.random.default_rng(5).permutation(20_000)[:2_000]
    part = marginals.k_marginal_score(marginals.distances(counted([column[rows] for column in real]), whole, 2))
    assert abs(part - scores[1]) < 4
    assert scores[0] < scores[1] < scores[2]
    assert marginals.equivalent_share(part, scores, (0.01, 0.1, 0.5)) == pytest.approx(0.1, rel=0.6)
    assert marginals.equivalent_share(0.0, scores, (0.01, 0.1, 0.5)) is None
    assert marginals.equivalent_share(1000.0, scores, (0.01, 0.1, 0.5)) == 1.0


def test_empty_tables_have_a_distance() -> None:
    none, some = np.zeros(3, np.int64), np.array([1, 2, 0])
    assert marginals.total_variation(none, some) == 1
    assert marginals.total_variation(none, none) == 0


def test_correlations_are_numpys() -> None:
    codes = random_codes(3_000, 6)
    found = pearson(pair_counts(codes, SIZES))
    np.testing.assert_allclose(found, np.corrcoef(np.stack(codes).astype(float)), atol=1e-10)
    from scipy.stats.contingency import association

    v = cramers_v(pair_counts(codes, SIZES))
    for i, j in combinations(range(4), 2):
        table = np.zeros((SIZES[i], SIZES[j]), int)
        np.add.at(table, (codes[i], codes[j]), 1)
        table = table[table.any(axis=1)][:, table.any(axis=0)]
        assert v[i, j] == pytest.approx(association(table, method="cramer"))


def test_constant_attributes_have_no_correlation() -> None:
    codes: Codes = [np.zeros(10, np.uint8), np.arange(10, dtype=np.uint8) % 2]
    assert np.isnan(pearson(pair_counts(codes, (2, 2)))[0, 1])
    assert np.isnan(cramers_v(pair_counts(codes, (2, 2)))[0, 1])


# --- released values and back -----------------------------------------------------------------------------------------


def schema(*more: dict[str, Any]) -> Schema:
    missing = {"name": "m", "kind": "integer", "bounds": [3, 6], "missing": {"category": "none"}}
    text = {"name": "t", "kind": "categorical", "values": ["b", "a"], "missing": {"category": "?"}}
    return Schema.model_validate({"attributes": [*SCHEMA["attributes"], missing, text, *more]})


@pytest.mark.parametrize("values", ["values", "labels", "codes"])
@pytest.mark.parametrize("bins", ["uniform", "label"])
def test_released_values_become_their_codes_again(values: str, bins: str) -> None:
    form = PartFormat(values=values, bins=bins)
    table = schema()
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, a.cardinality, 500).astype(a.dtype) for a in table.attributes]
    released = decode(table, codes, form=form, noise=Noise(bytes(32)))
    decoder = ReleaseDecoder.of(table, form)
    batches = released.to_batches(max_chunksize=130)
    found = [np.concatenate(parts) for parts in zip(*(decoder.codes(batch) for batch in batches), strict=True)]
    for ours, theirs in zip(codes, found, strict=True):
        assert theirs.dtype == ours.dtype
        assert np.array_equal(ours, theirs)


def test_numbers_are_their_own_codes() -> None:
    table = schema({"name": "x", "kind": "number", "bounds": [0, 1]})
    codes: Codes = [np.zeros(3, a.dtype) for a in table.attributes[:-1]]
    codes.append(np.array([0.25, 0.5, 1.0]))
    form = PartFormat()
    released = decode(table, codes, form=form, noise=Noise(bytes(32)))
    decoder = ReleaseDecoder.of(table, form)
    assert np.array_equal(decoder.codes(released.to_batches()[0])[-1], codes[-1])
    view = view_of(table)
    assert view.codes(codes)[-1].tolist() == [5, 10, 19]


def test_values_that_are_written_alike_are_merged_on_both_sides() -> None:
    table = Schema.model_validate(
        {"attributes": [{"name": "a", "kind": "categorical", "values": [1, 2, 3], "labels": ["x", "y", "x"]}]}
    )
    form = PartFormat(values="labels")
    decoder = ReleaseDecoder.of(table, form)
    codes: Codes = [np.array([0, 1, 2], np.uint8)]
    released = decode(table, codes, form=form)
    assert decoder.codes(released.to_batches()[0])[0].tolist() == [0, 1, 0]
    assert decoder.merged(codes)[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ({"values": ["a", "b"]}, pa.array(["a", "c"]).dictionary_encode()),
        ({"values": [1, 3]}, pa.array([1, 2])),
        ({"values": [1, 3]}, pa.array([1, None], pa.int64())),
        ({"bounds": [0, 9], "bins": {"count": 2}}, pa.array([0, 10])),
        ({"bounds": [0, 9], "bins": {"count": 2}}, pa.array([-1, 3])),
    ],
)
def test_values_outside_the_domain_are_refused_without_being_shown(kind: dict[str, Any], values: pa.Array) -> None:
    body = {"name": "secret", "kind": "integer" if "bounds" in kind else "categorical", **kind}
    table = Schema.model_validate({"attributes": [body]})
    decoder = ReleaseDecoder.of(table, PartFormat())
    with pytest.raises(VerificationFailed, match="column 'secret'") as caught:
        decoder.codes(pa.record_batch([values], names=["secret"]))
    assert not set("c2-") & set(str(caught.value).split("'")[-1].split()[0])


def test_large_domains_are_looked_at_in_runs() -> None:
    big = Attribute(name="big", kind="integer", bounds=(0, 999), missing={"category": "none"})
    view = view_of(Schema(attributes=(big,)))
    assert view.sizes[0] <= 22
    codes = view.codes([np.arange(1001, dtype=np.uint16)])[0]
    assert np.all(np.diff(codes[:1000].astype(int)) >= 0)
    assert codes[1000] == view.sizes[0] - 1 == view.axes[0].missing
    assert codes[999] != codes[1000]
    operator = through(view.codes, pair_counts_operator(view.sizes))
    assert operator.chunk([np.arange(1001, dtype=np.uint16)]).sum() == 1001
