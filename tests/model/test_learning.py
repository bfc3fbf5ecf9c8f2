"""The account of whole fits, the coding, rounding, raking, balancing, and the bytes of a fitted model."""

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from syntheses import learn

from dpdist.accuracy.tables import Tables, small_sets, tables_operator
from dpdist.data.count import pair_counts
from dpdist.errors import AccountingError
from dpdist.model import rake as raking
from dpdist.model import rounds as learning_rounds
from dpdist.model.account import GaussianAccount, Measurements, NoisyTable
from dpdist.model.balance import CELL_BITS, PairIndex, TableRows, balance
from dpdist.model.choices import HIGH_ROUNDS, Choices, choose, with_evidence, with_high
from dpdist.model.claims import model_claim
from dpdist.model.coding import coding_of, recode
from dpdist.model.draw import WeightedPool, _lexicographic, draw_part, draw_records, pool_part, rounded_groups
from dpdist.model.evidence import sums_of
from dpdist.model.fitted import UNIT, Fitted, cumulative_of, power_of_two, units_of
from dpdist.model.forecast import draws_at_most
from dpdist.model.grids import Grids
from dpdist.model.learn import Learned
from dpdist.model.one_way import OneWay, combine, expected_counts, merge_rare
from dpdist.model.pool import AllPairs, Pool, set_scores, with_margins
from dpdist.model.rake import WeightedRows, rake, shrink
from dpdist.model.rounds import LARGEST_WEIGHT, Learner
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import Candidates
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema

CARDS = (3, 4, 30, 6)
KEY = Noise(bytes(range(32)))
DRAWING = Noise(bytes(32))


def records(rows: int = 20_000, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.choice(3, rows, p=[0.6, 0.3, 0.1])
    c = np.clip(rng.normal(10 + 5 * a, 4, rows), 0, 29).astype(int)
    b = (a + (rng.random(rows) < 0.3)) % 4
    d = np.minimum(rng.poisson(0.4 * b), 5)
    return [x.astype(np.uint8) for x in (a, b, c, d)]


def fitted(**changes: object) -> Learned:
    choices = choose(CARDS, records=20_000, mu=1.0, raking=False)
    return learn(pair_counts(records(), CARDS), choices=replace(choices, **changes), noise=KEY, drawing=DRAWING)


def raked(**changes: object) -> Learned:
    choices = replace(choose(CARDS, records=200_000, mu=2.0), pool_parts=2, pool_rows=20_000, **changes)
    assert choices.rake > 0
    return learn(pair_counts(records(200_000), CARDS), choices=choices, noise=KEY, drawing=DRAWING)


def distance(columns: list[np.ndarray], others: list[np.ndarray]) -> float:
    index = PairIndex.of(CARDS)
    tables = [
        np.bincount(index.of_rows(np.stack(c).astype(np.int32)).ravel(), minlength=index.cells) / len(c[0])
        for c in (columns, others)
    ]
    return float(np.abs(tables[0] - tables[1]).sum() / 2 / len(index.left))


# --- account ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("triples", [0.0, 0.2])
def test_a_likelihood_ratio_counts_each_noisy_table_once(triples: float) -> None:
    """The claim's ratio falls with the mean that is taken from it, by the precision of all tables: what they cost."""
    schema = Schema(attributes=tuple(Attribute(name=n, kind="categorical", values=(1, 2, 3)) for n in "abc"))
    shares = {"one_way": 0.03, "one_way_again": 0.05, "rake": 0.92 - triples, "triples": triples}
    tables = {"triple_tables": int(triples > 0), "triple_groups": 2 * (triples > 0)}
    choices = Choices(mu=2.0, tree=0.0, pairs=0.0, picks=0.0, rounds=2, **shares, **tables)  # type: ignore[arg-type]
    one, three = (model_claim(schema, choices, epsilon=1, delta=1e-6, copies=copies) for copies in (1, 3))
    found = [float(np.asarray(claim.absent(KEY))[0]) for claim in (one, three)]
    assert found[0] - found[1] == pytest.approx(2.0**2, rel=1e-6)


def test_a_fit_spends_what_it_has_and_no_more() -> None:
    for learned in (fitted(), raked()):
        assert math.fsum(share for _, share in learned.report["account"]) <= 1
        assert len({name for name, _ in learned.report["account"]}) == len(learned.report["account"])
    assert math.fsum(share for _, share in raked().report["account"]) > 0.99


def test_what_no_pair_is_picked_for_goes_to_the_one_way_tables() -> None:
    rng = np.random.default_rng(0)
    codes = [rng.choice(k, 20_000, p=np.arange(1, k + 1) / (k * (k + 1) / 2)).astype(np.uint8) for k in CARDS]
    choices = replace(choose(CARDS, records=20_000, mu=1.0, raking=False), penalty=1e4)  # nothing is worth a table
    learned = learn(pair_counts(codes, CARDS), choices=choices, noise=KEY, drawing=DRAWING)
    account = dict(learned.report["account"])
    assert not learned.report["pairs"]
    assert account["one-way/rest"] > 0.5
    assert 0.99 < math.fsum(account.values()) <= 1
    sigma = math.sqrt(4) / math.sqrt(1.0)  # about that of all of the account
    errors = []
    for i, (column, size) in enumerate(zip(codes, CARDS, strict=True)):
        found = learned.measurements.combined((i,), (size,))
        assert found is not None
        errors.append(found[0] - np.bincount(column, minlength=size))
    assert np.sqrt(np.mean(np.concatenate(errors) ** 2)) < 1.5 * sigma
    half = replace(choices, one_way=0.03, one_way_again=0.07, tree=0.15, pairs=0.2)
    learned = learn(pair_counts(codes, CARDS), choices=half, noise=KEY, drawing=DRAWING)
    assert math.fsum(share for _, share in learned.report["account"]) <= half.spends + 1e-9 < 0.5


def test_the_account_refuses_what_it_does_not_have() -> None:
    account = GaussianAccount(0.5, KEY)
    table = np.zeros(10, np.int64)
    account.measure("first", [table, table], share=0.7)
    assert account.left == pytest.approx(0.3)
    with pytest.raises(AccountingError, match="second"):
        account.measure("second", [table], share=0.31)
    with pytest.raises(AccountingError, match="noise name"):
        account.measure("first", [table], share=0.1)
    scale = account.pick_scale(0.3, 3)
    candidates = Candidates(table, scale=scale)
    for number in range(3):
        account.pick(f"pick/{number}", candidates, scale=scale, allowed=lambda index: True)
    assert account.left == pytest.approx(0, abs=3e-4)  # scales of picks are on their grid
    with pytest.raises(AccountingError, match="pick/3"):
        account.pick("pick/3", candidates, scale=scale, allowed=lambda index: True)


def test_deviations_of_weighted_tables_and_of_sums() -> None:
    account = GaussianAccount(0.5, KEY)
    tables = [np.zeros(40_000, np.int64)] * 2
    noisy, sigmas = account.measure("weighted", tables, share=0.5, weights=[1.0, 3.0])
    assert (1 / sigmas**2).sum() == pytest.approx(0.5 * 0.25)
    for table, sigma in zip(noisy, sigmas, strict=True):
        assert table.std() == pytest.approx(sigma, rel=0.03)
    _, (sigma,) = account.measure("a sum", [np.zeros(1, np.int64)], share=0.25, sensitivity=6)
    assert sigma == pytest.approx(6 / (0.5 * 0.5))


# --- one-way tables and coding ----------------------------------------------------------------------------------------


def test_combined_measurements_are_weighted_by_precision() -> None:
    first = [np.array([10.0, 0.0]), np.array([4.0, 2.0, 4.0])]
    second = [np.array([20.0, 10.0]), np.array([4.0, 2.0, 4.0])]
    one_way = combine([first, second], [np.array([1.0, 1.0]), np.array([2.0, 1.0])])
    np.testing.assert_allclose(one_way.counts[0], [12, 2])
    np.testing.assert_allclose(one_way.sigmas, [math.sqrt(0.8), math.sqrt(0.5)])
    totals, precision = np.array([14.0, 10.0]), 1 / (np.array([2, 3]) * one_way.sigmas**2)
    assert one_way.records == pytest.approx(float(totals @ precision / precision.sum()))


def test_rare_values_are_merged_with_positive_weights() -> None:
    merging = merge_rare(np.array([100.0, -30.0, 5.0, 60.0, 19.0]), 10.0, below=2.0, records=160.0)
    assert merging.codes.tolist() == [0, 2, 2, 1, 2]
    assert merging.rare.tolist() == [1, 2, 4]
    assert (merging.weights > 0).all()
    assert merging.weights[2] > merging.weights[1] > merging.weights[0]
    alone = merge_rare(np.array([100.0, 1.0]), 10.0, below=2.0, records=100.0)
    assert alone.cardinality == 2
    assert not len(alone.rare)


def test_expected_counts_are_closer_than_noisy_ones_and_have_the_sum() -> None:
    rng, sigma = np.random.default_rng(0), 30.0
    counts = np.concatenate([[20_000.0], 2_000 / np.arange(1, 60) ** 1.5])
    noisy = counts + sigma * rng.normal(size=(50, len(counts)))
    expected = np.array([expected_counts(row, sigma, records=counts.sum()) for row in noisy])
    assert (expected > 0).all()
    np.testing.assert_allclose(expected.sum(1), counts.sum(), rtol=1e-3)
    clipped = np.maximum(noisy, 0)
    clipped *= counts.sum() / clipped.sum(1, keepdims=True)
    assert np.abs(expected - counts).sum() < 0.75 * np.abs(clipped - counts).sum()


def test_coarse_copies_are_functions_of_their_attribute() -> None:
    counts = (np.full(30, 50.0), np.full(3, 500.0))
    coding = coding_of(OneWay(counts, np.array([1.0, 1.0]), 1500.0), merge_below=2.0, coarse=((24, 10), (10, 5)))
    assert coding.cardinalities == (3, 5, 10, 30)
    assert coding.source == (1, 0, 0, 0)
    assert coding.fine == (3, 0)
    assert set(coding.links) == {(2, 3), (1, 2)}
    for (coarse, fine), possible in coding.links.items():
        assert (possible.sum(0) == 1).all()
        for value in range(30):
            assert possible[coding.maps[coarse][value], coding.maps[fine][value]]


def test_recoded_tables_are_sums_of_the_exact_ones() -> None:
    codes = records()
    counts = pair_counts(codes, CARDS)
    one_way = OneWay(
        tuple(counts.single(i).astype(float) for i in range(4)), np.array([300.0, 300.0, 300.0, 300.0]), 20_000.0
    )
    coding = coding_of(one_way, merge_below=2.0, coarse=((12, 4),))
    assert len(coding.merging[2].rare) > 2
    tables = recode(counts, coding)
    for k, (a, b) in enumerate(tables.pairs):
        left, right = (coding.maps[i][codes[coding.source[i]]] for i in (a, b))
        expected = np.zeros(tables.table(k).shape, np.int64)
        np.add.at(expected, (left, right), 1)
        np.testing.assert_array_equal(tables.table(k), expected)
    model = np.full(len(tables.cells), 7)
    distances = [np.abs(tables.table(k) - 7).sum() for k in range(len(tables.pairs))]
    np.testing.assert_array_equal(tables.distances(model), distances)


def test_one_record_moves_every_distance_by_one_at_most() -> None:
    codes = records(500)
    coding = coding_of(
        OneWay(tuple(np.full(c, 99.0) for c in CARDS), np.ones(4), 500.0), merge_below=2.0, coarse=((12, 4),)
    )
    public = np.random.default_rng(1).integers(0, 9, recode(pair_counts(codes, CARDS), coding).cells.size)
    whole = recode(pair_counts(codes, CARDS), coding).distances(public)
    for row in range(0, 500, 50):
        without = [np.delete(column, row) for column in codes]
        assert np.abs(whole - recode(pair_counts(without, CARDS), coding).distances(public)).max() == 1


@pytest.mark.parametrize("share", [math.nan, math.inf, 1e30])
def test_no_distance_to_what_is_no_share_is_looked_at(share: float) -> None:
    """As an integer it would be the least one, and a sum of distances to it may move by 2^64 with a record."""
    counts = pair_counts(records(500), CARDS)
    one_way = OneWay(tuple(np.full(c, 99.0) for c in CARDS), np.ones(4), 500.0)
    coding = coding_of(one_way, merge_below=2.0, coarse=())
    learner = Learner(recode(counts, coding), coding, one_way, GaussianAccount(1.0, KEY), Choices(mu=1.0))
    assert learner.expected().sum() > 0
    learner._predict({pair: np.full(table.shape, share) for pair, table in learner.marginals.items()})
    with pytest.raises(ValueError, match="shares of a model"):
        learner.round("round/0", share=0.1, pick_share=0.1, most=1)
    assert not learner.account.lines


def test_priorities_weigh_distances_and_keep_their_sensitivity() -> None:
    """A record moves a weighted score by 1 at most; a pair of a high weight is picked first."""
    distances = np.arange(5000)
    for weight in (1, 3, 700, LARGEST_WEIGHT):
        assert np.abs(np.diff(distances * weight // LARGEST_WEIGHT)).max() <= 1
    pair = (0, 3)
    assert sorted(place for place, _ in fitted().report["pairs"][0]) != list(pair)
    weighted = fitted(priorities=((*pair, 50.0),), penalty=0.0)
    assert sorted(place for place, _ in weighted.report["pairs"][0]) == list(pair)
    deviations = []
    for learned in (raked(), raked(priorities=((3, 0, 9.0),))):  # where all pairs are measured, it is more precise
        of_step = {t.attributes: t.deviation for t in learned.measurements.tables if t.step == "all pairs"}
        deviations.append(of_step[pair] / of_step[1, 2])
    assert deviations[0] / deviations[1] == pytest.approx(3, rel=0.25)  # weights are rounded
    least = [t.deviation for t in raked(priorities=((0, 3, 1e-300),)).measurements.tables if t.step == "all pairs"]
    assert max(least) < 4 * math.sqrt(LARGEST_WEIGHT) * min(least)


# --- drawing ----------------------------------------------------------------------------------------------------------


def test_groups_are_rounded_to_a_record() -> None:
    rng = np.random.default_rng(5)
    weights = rng.gamma(0.5, size=(7, 9))
    groups = rng.integers(0, 7, 3000, np.uint8)
    cumulative = cumulative_of(weights)
    assert (cumulative[:, -1] == UNIT).all()
    values = rounded_groups(groups, cumulative, KEY, "groups")
    for group in range(7):
        sizes = np.bincount(values[groups == group], minlength=9)
        expected = sizes.sum() * weights[group] / weights[group].sum()
        assert np.abs(sizes - expected).max() < 1 + 1e-6


def test_values_are_even_among_rows_that_have_others_in_common() -> None:
    """Within each of 40 values of another attribute by less than half of what rows in a random order would be off."""
    rng = np.random.default_rng(6)
    weights, groups = rng.gamma(2.0, size=(3, 5)), np.sort(rng.integers(0, 3, 20_000, np.uint8))
    other = rng.integers(0, 40, len(groups)).astype(np.uint8)
    values = rounded_groups(groups, cumulative_of(weights), KEY, "even", [other])
    shares = (weights / weights.sum(1, keepdims=True))[groups]
    found, expected = np.zeros((40, 5)), np.zeros((40, 5))
    np.add.at(found, (other, values), 1)
    np.add.at(expected, other, shares)
    assert ((found - expected) ** 2).sum() < 0.25 * (expected * (1 - expected / expected.sum(1, keepdims=True))).sum()


SIZES = [
    (3,),
    (2, 3, 300, 70_000, 5),
    (1, 65_536),
    (1, 1, 65_536, 2),
    (65_536, 1, 2),
    (256, 256, 256),
    (70_000, 2),
    (12,) * 24,
]


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_have_a_lexicographic_order(sizes: tuple[int, ...]) -> None:
    """Values at both ends of the domains, in the smallest integers that hold them; equal rows keep their order."""
    rng = np.random.default_rng(9)
    ends = [np.array([0, size // 2, size - 1], np.min_scalar_type(size - 1)) for size in sizes]
    columns = [values[rng.integers(0, 3, 2000)] for values in ends]
    np.testing.assert_array_equal(_lexicographic(columns, sizes), np.lexsort(columns[::-1]))


def test_what_is_drawn_given_others_has_few_cells_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model could have a table of all attributes, which a draw would sum over for each group of rows."""
    choices = choose(CARDS, records=20_000, mu=1.0, raking=False)
    monkeypatch.setattr(learning_rounds, "DRAWN_CELLS", 1500)
    found = []
    for given in (0, 1):
        learned = learn(pair_counts(records(), CARDS), choices=choices, noise=KEY, drawing=DRAWING, given=given).fitted
        scopes = [{*step.parents, step.attribute} - {learned.fine[0]} for step in learned.steps]
        found.append(max(math.prod(learned.cardinalities[a] for a in scope) for scope in scopes))
    assert found[1] <= 1500 < found[0]


def test_rounding_has_the_right_mean_and_mixes_rows() -> None:
    cumulative = cumulative_of(np.array([[0.25, 0.35, 0.4]]))
    runs = [rounded_groups(np.zeros(7, np.uint8), cumulative, KEY, f"mean/{i}") for i in range(4000)]
    share = np.bincount(np.concatenate(runs)) / 28_000
    np.testing.assert_allclose(share, [0.25, 0.35, 0.4], atol=0.006)
    first = np.mean([run[0] == 0 for run in runs])
    assert first == pytest.approx(0.25, abs=0.05)


def test_parts_are_functions_of_model_key_and_number() -> None:
    for learned in (fitted(), raked()):
        model = Learned.from_bytes(learned.to_bytes()).fitted
        assert Learned.from_bytes(learned.to_bytes()).to_bytes() == learned.to_bytes()
        for part in (0, 1, 5):
            once, again = (draw_records(m, DRAWING, part, 1000, rounds=20) for m in (learned.fitted, model))
            for a, b, size in zip(once, again, CARDS, strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.shape == (1000,)
                assert a.min() >= 0
                assert a.max() < size
        other = draw_records(model, DRAWING, 1, 1000, rounds=20)
        assert any(not np.array_equal(a, b) for a, b in zip(other, draw_records(model, DRAWING, 0, 1000, rounds=20)))  # noqa: B905


def test_learning_is_the_same_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raking, "PIECE", 7_000)
    found = []
    for cores in (1, 4):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: range(cores))
        found.append(raked().to_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(("values", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_drawn_columns_are_as_small_as_their_values(values: int, dtype: type) -> None:
    """The largest values too, where rare ones are merged."""
    rng = np.random.default_rng(0)
    codes = [np.minimum(rng.geometric(0.05, 30_000) - 1, values - 1).astype(np.uint16), rng.integers(0, 3, 30_000)]
    codes[0][:200] = values - 1
    cards = (values, 3)
    learned = learn(
        pair_counts(codes, cards), choices=choose(cards, records=30_000, mu=2.0), noise=KEY, drawing=DRAWING
    )
    assert values == 2 or len(learned.fitted.rare[0])
    drawn = draw_part(learned.fitted, DRAWING, "part", 60_000)
    assert [column.dtype for column in drawn] == [dtype, np.uint8]
    assert drawn[0].max() == values - 1
    np.testing.assert_allclose(np.mean(drawn[0] == values - 1), np.mean(codes[0] == values - 1), atol=0.004)


def test_refuses_an_empty_part() -> None:
    with pytest.raises(ValueError, match="rows"):
        draw_part(fitted().fitted, DRAWING, "part", 0)


def test_records_are_like_the_table() -> None:
    truth = records()
    noiseless = distance(records(20_000, seed=1), truth)
    drawn = draw_records(fitted().fitted, DRAWING, 0, 20_000, rounds=100)
    assert distance(drawn, truth) < 0.8 * noiseless + 0.02


def test_raked_records_are_like_the_table() -> None:
    truth, learned = records(200_000), raked()
    assert learned.fitted.adjustment is not None
    parts = [draw_records(learned.fitted, DRAWING, p, 20_000, rounds=0) for p in (0, 1)]
    drawn = [np.concatenate(x) for x in zip(*parts, strict=True)]
    assert distance(drawn, truth) < 0.02
    fitted = learned.fitted
    pool = [pool_part(fitted, DRAWING, p, fitted.pool_rows, ()) for p in range(fitted.pool_parts)]
    whole = WeightedPool.of(fitted, pool)
    held = [draw_records(fitted, DRAWING, p, 20_000, rounds=0, pool=whole) for p in (0, 1)]
    for part, again in zip(parts, held, strict=True):
        for column, other in zip(part, again, strict=True):
            np.testing.assert_array_equal(column, other)
    turned = WeightedPool.of(fitted, pool[:1])
    other = draw_records(fitted, DRAWING, 0, 20_000, rounds=0, pool=turned)  # what is held is what is taken from
    assert any(not np.array_equal(a, b) for a, b in zip(parts[0], other, strict=True))


# --- raking and balancing ---------------------------------------------------------------------------------------------


def test_shrinking_keeps_evidence_and_drops_noise() -> None:
    model = np.concatenate([np.full(16, 100.0), np.full(32, 10.0)])
    noisy = model.copy()
    noisy[:16] += np.tile([60.0, -60.0], 8)
    noisy[16:] += np.tile([4.0, -4.0], 16)
    estimate = shrink(noisy, model, 5.0)
    np.testing.assert_allclose(estimate[:16], noisy[:16], rtol=0.02)
    np.testing.assert_allclose(estimate[16:], model[16:])


def test_powers_of_two_are_exact_integers() -> None:
    logs = np.array([0, 1 << 20, -(1 << 20), 12_345, -777_777, 40 << 20, -(60 << 20)])
    expected = np.floor(2.0 ** (30 + np.clip(logs / 2**20, -30, 10)))
    assert np.abs(power_of_two(logs) - expected).max() <= expected.max() * 2e-9


def test_raking_meets_consistent_tables() -> None:
    pool, truth = records(50_000, seed=2), records(50_000, seed=3)
    rng = np.random.default_rng(4)
    pool = [np.where(rng.random(50_000) < 0.5, column, rng.permutation(column)) for column in pool]
    counts = pair_counts(truth, CARDS)
    targets = {(i, j): counts.pair(i, j) / 50_000 for i in range(4) for j in range(i + 1, 4)}
    targets |= {(i,): counts.single(i) / 50_000 for i in range(4)}
    rows = WeightedRows(pool, CARDS)
    rake(rows, targets, sweeps=12)
    shares = rows.shares(combinations(range(4), 2))
    expected = np.concatenate([shares[pair].ravel() for pair in combinations(range(4), 2)])
    weights = rows.adjustment().weights(pool, CARDS)
    index = PairIndex.of(CARDS)
    cells = index.of_rows(np.stack(pool).astype(np.int32))
    found = np.bincount(cells.ravel(), weights=np.tile(weights, len(cells)), minlength=index.cells) / weights.sum()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    flat = np.concatenate([targets[i, j].ravel() for i in range(4) for j in range(i + 1, 4)])
    assert np.abs(found - flat).sum() / 2 / 6 < 0.01


def triple_of(columns: list[np.ndarray], weights: np.ndarray | None = None) -> np.ndarray:
    """Shares of the first three attributes' table."""
    index = np.ravel_multi_index([column.astype(np.int64) for column in columns[:3]], CARDS[:3])
    table = np.bincount(index, weights=weights, minlength=math.prod(CARDS[:3])).reshape(CARDS[:3])
    return np.asarray(table / table.sum())


def test_weighted_rows_give_the_tables_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets within blocks and others, after a change that waited, with several pieces of the rows."""
    monkeypatch.setattr(raking, "PIECE", 700)
    rng = np.random.default_rng(1)
    cards = (40, 3, 50, 30, 2)
    columns = [rng.integers(0, size, 5_000).astype(np.uint8) for size in cards]
    rows, weights = WeightedRows(columns, cards), np.ones(5_000)
    sets = [s for size in (1, 2, 3) for s in combinations(range(5), size)]
    assert any(not any(set(s) <= set(block) for block in rows.blocks) for s in sets)
    for b in (len(rows.blocks) - 1, 0, 0):
        block = rows.blocks[b]
        change = rng.uniform(0.1, 3, [cards[i] for i in block])
        rows.multiply(b, change)
        weights *= change[tuple(columns[i] for i in block)]
        for wanted in (sets, sets[-10:]):
            for s, found in rows.shares(wanted).items():
                expected = np.zeros([cards[i] for i in s])
                np.add.at(expected, tuple(columns[i] for i in s), weights / weights.sum())
                np.testing.assert_allclose(found, expected, atol=1e-12)
    rows.cover(sets)
    assert all(any(set(s) <= set(block) for block in rows.blocks) for s in sets)
    integers = rows.adjustment().weights(columns, cards)
    np.testing.assert_allclose(integers / 2**30, np.clip(weights, 2**-30, 1024), rtol=1e-5, atol=2**-29)


def test_damped_passes_end_between_targets_that_contradict_each_other() -> None:
    """Two blocks contradict each other: whole steps end at the last of them, damped ones nearer to the middle."""
    cards = (4, 250, 250)  # the pairs of the first attribute share no block
    rng = np.random.default_rng(1)
    pool = [rng.integers(0, size, 40_000).astype(np.uint8) for size in cards]
    shares = [np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])]
    targets = {(0, k + 1): np.repeat(share[:, None], 250, 1) / 250 for k, share in enumerate(shares)}
    off = []
    for damping in ((), (0.8, 0.6, 0.4)):
        rows = WeightedRows(pool, cards)
        assert sorted(map(len, rows.blocks)) == [2, 2, 2]
        rake(rows, targets, sweeps=6, damping=damping)
        off.append(np.abs(rows.shares([(0,)])[(0,)] - 0.25).max())
    assert off[0] > 0.12
    assert off[1] < 0.08


def test_a_pool_has_its_one_way_targets_whatever_noisy_pairs_say() -> None:
    """Rare values lose nothing to targets that contradict each other."""
    truth, rng = records(40_000, seed=3), np.random.default_rng(5)
    counts, pairs = pair_counts(truth, CARDS), list(combinations(range(4), 2))
    made = replace(choose(CARDS, records=40_000, mu=0.5), pool_parts=1, pool_rows=40_000)
    pool = Pool(records(40_000, seed=2), CARDS, made, 40_000)
    sigmas = np.full(len(pairs), 60.0)
    noisy = [np.rint(counts.pair(*of) + rng.normal(0, 60, counts.pair(*of).shape)).astype(np.int64) for of in pairs]
    one_way = OneWay(tuple(counts.single(i).astype(float) for i in range(4)), np.full(4, 1.0), 40_000.0)
    pool.rake_to_pairs(one_way, AllPairs(tuple(noisy), sigmas))
    for (i,), share in pool._rows.shares([(i,) for i in range(4)]).items():
        np.testing.assert_allclose(share, counts.single(i) / 40_000, atol=1e-3)


def test_raking_meets_triples_as_well() -> None:
    """An interaction of three attributes that no pair shows."""
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(0, 2, 80_000) for _ in range(3))
    pool = [a, b, c, np.zeros(80_000, np.int64)]
    odd = [a, b, np.where(rng.random(80_000) < 0.9, a ^ b, c), pool[3]]
    counts = pair_counts([column.astype(np.uint8) for column in odd], CARDS)
    targets = {(i, j): counts.pair(i, j) / 80_000 for i in range(4) for j in range(i + 1, 4)}
    targets |= {(i,): counts.single(i) / 80_000 for i in range(4)}
    truth = triple_of(odd)
    rows = WeightedRows(pool, CARDS)
    rake(rows, targets, sweeps=8)
    assert np.abs(triple_of(pool, rows.adjustment().weights(pool, CARDS)) - truth).sum() / 2 > 0.4
    rake(rows, targets | {(0, 1, 2): truth}, sweeps=8)
    assert np.abs(triple_of(pool, rows.adjustment().weights(pool, CARDS)) - truth).sum() / 2 < 0.01


def test_triples_on_groups_make_pairs_more_precise_and_are_met_by_the_pool() -> None:
    """Pairs of independent attributes whose values are merged in twos; their triple has an interaction of its own."""
    cards, rows = (8, 6, 4), 80_000
    rng = np.random.default_rng(4)
    pool = [rng.integers(0, size, rows).astype(np.uint8) for size in cards]
    odd = [column[(pool[0] // 2 + pool[1] // 2 + pool[2] // 2) % 2 == 0] for column in pool]
    tables, groups = Tables.counted(odd, cards), tuple(np.arange(size) // 2 for size in cards)
    total, pairs = len(odd[0]), list(combinations(range(3), 2))
    exact = [tables.pairs.pair(*pair) for pair in pairs]
    account = GaussianAccount(1.0, KEY)
    noisy, sigmas = account.measure("all pairs", exact, share=3e-4)
    triples = Grids.measured("triples", [(0, 1, 2)], groups, account, 0.1, tables)
    assert account.left == pytest.approx(1 - 3e-4 - 0.1, abs=1e-6)
    measured = AllPairs(tuple(noisy), sigmas, triples)
    sharp = measured.sharpened()
    for table, true, left in zip(sharp.tables, exact, sharp.sigmas.tolist(), strict=True):
        away = sums_of(table - true, np.arange(true.shape[0]) // 2, np.arange(true.shape[1]) // 2)
        assert np.abs(away).max() < 6 * math.sqrt(4) * triples.sigma  # without it they are off by 200
        assert left == pytest.approx(math.sqrt(0.75) * sigmas[0], rel=1e-3)
        assert 0.5 < np.std(table - true) / left < 1.6
    one_way = OneWay(tuple(tables.pairs.single(i) + 0.0 for i in range(3)), np.ones(3), float(total))
    made = Pool(pool, cards, replace(choose(cards, records=total, mu=1.0), pool_rows=rows, sweeps=6), total)
    made.rake_to_pairs(one_way, measured)
    model = learn(tables.pairs, choices=choose(cards, records=1000, mu=1.0), noise=KEY, drawing=DRAWING).fitted
    again = Fitted.from_arrays(made.fitted(model).arrays()).adjustment
    assert again is not None
    weights = again.weights(pool, cards)
    merged = [group[column] for group, column in zip(groups, pool, strict=True)]
    parity = np.bincount((merged[0] + merged[1] + merged[2]) % 2, weights=weights)
    assert parity[1] / parity.sum() < 0.02


def test_many_records_have_triples_and_few_have_none() -> None:
    cards = (51, 79, 8, 24, 5, 25, 5, 2, 99, 2, 2)
    many = choose(cards, records=1_200_000, mu=0.18)
    assert (many.triple_tables, many.triple_groups, many.tree, many.picks) == (165, 19, 0, 0)
    assert draws_at_most(choose(cards, records=330_000_000, mu=0.18), cards) < 10**7  # or no guarantee could hold them
    assert choose(cards, records=1_200_000, mu=0.02).triple_tables == 0
    assert choose(cards, records=100_000, mu=0.18).triple_tables == 0
    assert choose(CARDS, records=10**8, mu=2.0).triple_tables == 0  # there are four triples
    for mu, number in ((0.07, 165), (0.02, 0)):
        beside = with_evidence(alone := choose(cards, records=1_200_000, mu=mu), cards)
        assert alone.triple_tables == beside.triple_tables == number
        assert beside.spends == pytest.approx(alone.spends)


# --- small sets -------------------------------------------------------------------------------------------------------

SMALL = (2, 2, 3, 2, 2)


def parity(rows: int, part: float) -> list[np.ndarray]:
    """Records whose binary attributes have an even sum in this part; any three of them are independent."""
    rng = np.random.default_rng(5)
    a, b, d = rng.integers(0, 2, (3, rows))
    e = (a + b + d + (rng.random(rows) >= part)) % 2
    return [x.astype(np.uint8) for x in (a, b, rng.choice(3, rows, p=[0.5, 0.4, 0.1]), d, e)]


def is_even(columns: list[np.ndarray]) -> float:
    return float(1 - (sum(columns[i].astype(int) for i in (0, 1, 3, 4)) % 2).mean())


def test_small_sets_are_counted_in_parts_and_one_record_moves_their_scores_by_one() -> None:
    codes, operator = parity(500, 0.7), tables_operator(SMALL, small=True)
    halves = [operator.chunk([column[of] for column in codes]) for of in (slice(200), slice(200, None))]
    exact = operator.finish(operator.compact(operator.combine(*halves))).small()
    assert tuple(exact) == small_sets(SMALL)
    assert len(exact) == 15
    for of, table in exact.items():
        truth = np.zeros(table.shape, np.int64)
        np.add.at(truth, tuple(codes[i] for i in of), 1)
        np.testing.assert_array_equal(table, truth)
    rng = np.random.default_rng(0)
    model = {of: rng.gamma(0.5, 40, table.size) for of, table in exact.items()}
    scores = set_scores(exact, model, sigma=3.3, spread=1.5)
    moved = set[int]()
    for record in np.ndindex(*SMALL):
        more = Tables.counted(
            [np.append(c, np.uint8(v)) for c, v in zip(codes, record, strict=True)], SMALL, small=True
        )
        moved |= set((set_scores(more.small(), model, sigma=3.3, spread=1.5) - scores).tolist())
    assert moved == {-1, 1}


@pytest.mark.parametrize("raking", [False, True])
def test_a_parity_of_four_is_kept_and_costs_nothing_where_there_is_none(raking: bool) -> None:
    choices = with_high(choose(SMALL, records=20_000, mu=1.0, raking=raking), SMALL)
    choices = replace(choices, pool_parts=1, pool_rows=20_000)
    assert bool(choices.rake) == raking
    for part in (0.9, 0.5):
        codes = parity(20_000, part)
        learned = learn(Tables.counted(codes, SMALL, small=True), choices=choices, noise=KEY, drawing=DRAWING)
        account = dict(learned.report["account"])
        assert math.fsum(account.values()) <= choices.spends
        assert is_even(draw_records(learned.fitted, DRAWING, 0, 20_000, rounds=0)) == pytest.approx(part, abs=0.03)
        sets = [pair for pair in learned.report["pairs"] if len(pair) > 2]
        named = [name for name in account if name.startswith("high/")]
        if part == 0.5:
            assert not sets
            assert len(named) == 1
            assert account[named[0]] < 0.001
            continue
        assert sets == [[[i, False] for i in (0, 1, 3, 4)]]
        assert math.fsum(account[name] for name in named) < HIGH_ROUNDS * (choices.high + choices.high_picks)
        found = learned.measurements.combined((0, 1, 3, 4), (2, 2, 2, 2))
        assert found is not None
        truth = np.bincount(codes[0] * 8 + codes[1] * 4 + codes[3] * 2 + codes[4], minlength=16)
        assert (np.abs(found[0] - truth) < 6 * found[1] + 1).all()


def test_balancing_brings_tables_closer_and_keeps_the_size() -> None:
    rows = np.stack(records(8000, seed=6)).astype(np.int32)
    index = PairIndex.of(CARDS)
    expected = (np.bincount(index.of_rows(rows).ravel(), minlength=index.cells) << CELL_BITS) // 2

    def excess(taken: np.ndarray) -> float:
        found = np.bincount(index.of_rows(rows[:, taken]).ravel(), minlength=index.cells)
        return float(np.abs(found - expected / (1 << CELL_BITS)).sum())

    before = np.arange(4000)
    after = balance(TableRows(rows, index), before, expected, KEY, "balance", rounds=60)
    assert len(np.unique(after)) == 4000
    assert excess(after) < 0.6 * excess(before)
    everything = np.arange(8000)
    np.testing.assert_array_equal(
        balance(TableRows(rows, index), everything, expected, KEY, "balance", rounds=3), everything
    )


def test_balancing_keeps_large_cells_too() -> None:
    """Cells of thousands of records have a weight of their own; one of 10,000 records had none."""
    rows = np.zeros((2, 40_000), np.int32)
    rows[0] = np.arange(40_000) % 2
    index = PairIndex.of((2, 1))
    expected = np.full(2, 10_000 << CELL_BITS)
    before = np.concatenate([np.arange(0, 24_000, 2), np.arange(1, 16_001, 2)])  # 12,000 and 8,001 of the values
    after = balance(TableRows(rows, index), before[:20_000], expected, KEY, "balance", rounds=150)
    assert abs(int((rows[0, after] == 0).sum()) - 10_000) <= 5


def test_margins_of_all_pairs_make_one_way_counts_more_precise() -> None:
    rng = np.random.default_rng(0)
    counts, sizes = pair_counts(records(), CARDS), np.array(CARDS)
    errors = []
    for _ in range(40):
        one_way = OneWay(
            tuple(counts.single(i) + 20 * rng.normal(size=k) for i, k in enumerate(CARDS)), np.full(4, 20.0), 20_000.0
        )
        pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
        noisy = tuple(np.rint(counts.pair(*p) + 10 * rng.normal(size=sizes[list(p)])).astype(np.int64) for p in pairs)
        found = with_margins(one_way, AllPairs(noisy, np.full(6, 10.0)))
        errors.append([(found.counts[i] - counts.single(i)) / found.sigmas[i] for i in range(4)])
    assert found.sigmas[2] == pytest.approx(1 / math.sqrt(1 / 400 + sum(1 / (100 * k) for k in (3, 4, 6))))
    for i in range(4):  # their deviations are what they are said to be
        assert np.std([error[i] for error in errors]) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_small_sets_are_picked_after_pairs_in_one_round_too(rounds: int) -> None:
    """Of a chain pairs tell all, and what small sets may take goes to one-way tables."""
    cards, rng = (4,) * 6, np.random.default_rng(0)
    codes = [rng.integers(0, 4, 20_000)]
    for _ in cards[1:]:
        codes.append(np.where(rng.random(20_000) < 0.4, codes[-1], rng.integers(0, 4, 20_000)))
    counts = Tables.counted([column.astype(np.uint8) for column in codes], cards, small=True)
    choices = replace(choose(cards, records=20_000, mu=1.0), rounds=rounds, balance=0)
    learned = learn(counts, choices=with_high(choices, cards), noise=KEY, drawing=DRAWING)
    assert all(len(pair) == 2 for pair in learned.report["pairs"])
    assert any(step == "one-way/rest" for step, _ in learned.report["account"]) is (rounds > 0)
    assert 1 - 1e-6 < math.fsum(share for _, share in learned.report["account"]) <= 1


def test_raked_records_are_balanced_where_the_pool_is_much_larger() -> None:
    assert choose(CARDS, records=200_000, mu=2.0).balance > 0
    assert choose(CARDS, records=300_000, mu=2.0).balance == 0
    rng, cards = np.random.default_rng(0), (4,) * 8
    codes = [rng.integers(0, 4, 20_000)]
    for _ in range(7):
        codes.append(np.where(rng.random(20_000) < 0.4, codes[-1], rng.integers(0, 4, 20_000)))
    choices = replace(choose(cards, records=20_000, mu=2.0), rounds=1)
    counts = pair_counts([column.astype(np.uint8) for column in codes], cards)
    learned = learn(counts, choices=choices, noise=KEY, drawing=DRAWING)
    assert learned.report["raked"]
    expected, index, errors = learned.fitted.expected / UNIT, PairIndex.of(cards), []
    for rounds in (0, 150):
        drawn = np.stack(draw_records(learned.fitted, DRAWING, 0, 20_000, rounds=rounds)).astype(np.int32)
        found = np.bincount(index.of_rows(drawn).ravel(), minlength=index.cells) / 20_000
        errors.append(float(np.abs(found - expected).sum()))
    assert errors[1] < 0.7 * errors[0]


def test_shares_go_to_one_way_tables_as_their_noise_grows() -> None:
    """Without a jump: the share of one-way tables grows with the noise until it is all."""
    cards, shares = (8,) * 8, []
    for n in np.geomspace(200, 200_000, 60)[::-1].tolist():
        choices = choose(cards, records=round(n), mu=0.02, raking=False)
        shares.append(choices.one_way + choices.one_way_again)
        assert bool(choices.rounds) == (shares[-1] < 0.95)
    assert np.diff(shares).min() > -1e-9
    assert np.diff(shares).max() < 0.3
    assert (round(shares[0], 2), shares[-1]) == (0.25, 1.0)


# --- other processors -------------------------------------------------------------------------------------------------


def with_triples() -> Learned:
    """A small model whose pool is weighted to pairs, and to triples on groups of values."""
    cards, columns = (3, 4, 5, 6, 2), records(50_000)
    codes = [column % size for column, size in zip([*columns, columns[2] // 5], cards, strict=True)]
    choices = replace(choose(cards, records=50_000, mu=2.0), triple_groups=2, balance=0, pool_rows=10_000)
    assert choices.triple_tables
    return learn(Tables.counted(codes, cards), choices=choices, noise=KEY, drawing=DRAWING)


def digests() -> str:
    """The numbers in which learned models may differ."""
    models = (fitted(), raked(), with_triples())
    return " ".join(hashlib.sha256(learned.to_bytes()).hexdigest() for learned in models)


@pytest.mark.parametrize(
    ("features", "kernel"), [("X86_V4 AVX512_ICL", "Haswell"), ("X86_V3 X86_V4 AVX512_ICL AVX512_SPR", "Nehalem")]
)
def test_the_same_bits_on_other_processors(features: str, kernel: str) -> None:
    """Models of a process whose NumPy and linear algebra do without some instructions; unknown names are ignored."""
    changes = {"NPY_DISABLE_CPU_FEATURES": features, "OPENBLAS_CORETYPE": kernel, "PYTHONWARNINGS": "ignore"}
    environment = os.environ | changes
    environment["PYTHONPATH"] = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    script = "import test_learning; print(test_learning.digests())"
    command = [sys.executable, "-c", script]
    found = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, check=True, text=True
    )
    assert found.stdout.strip() == digests()


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.02, 0.18, 1.2])
@pytest.mark.parametrize("rows", [1000, 40_000, 2_000_000])
@pytest.mark.parametrize("cards", [(2, 2), CARDS, (2,) * 60, (79, 8, 24, 5, 25, 18, 5, 2, 99, 8, 2)])
def test_shares_are_of_one_account(mu: float, rows: int, cards: tuple[int, ...]) -> None:
    c = choose(cards, records=rows, mu=mu)
    total = math.fsum([c.one_way, c.one_way_again, c.tree, c.pairs, c.picks, c.rake, c.triples])
    assert total == pytest.approx(1, abs=1e-9)
    assert isinstance(c, Choices)


def test_two_attributes_and_one() -> None:
    for width in (1, 2):
        codes, cards = records(2000)[:width], CARDS[:width]
        learned = learn(
            pair_counts(codes, cards), choices=choose(cards, records=2000, mu=0.5), noise=KEY, drawing=DRAWING
        )
        drawn = draw_records(learned.fitted, DRAWING, 0, 100, rounds=10)
        assert len(drawn) == width


def test_what_is_measured_does_not_depend_on_the_drawing_key() -> None:
    cards = (2, 3, 2)
    codes = [np.arange(2000, dtype=np.uint8) % size for size in cards]
    choices = replace(choose(cards, records=2000, mu=3.0), pool_rows=2_000)
    assert choices.rake > 0
    learned = [
        learn(pair_counts(codes, cards), choices=choices, noise=KEY, drawing=Noise(bytes([k]) * 32)) for k in (1, 2)
    ]
    one, other = (item.measurements for item in learned)
    assert one.to_json() == other.to_json()
    np.testing.assert_array_equal(one.counts, other.counts)
    assert learned[0].report == learned[1].report
    tables = {table.step: table for table in one.tables}
    of_pairs = math.fsum(1 / t.deviation**2 for t in one.tables if t.step == "all pairs")
    assert of_pairs == pytest.approx(choices.rake * 9)
    assert tables["one-way"].shape == (2,)
    found = one.combined((0, 1), (2, 3))
    assert found is not None
    noisy, sigma = found
    truth = pair_counts(codes, cards).pair(0, 1).ravel()
    assert (np.abs(noisy - truth) < 5 * sigma).all()
    assert (sigma <= tables["all pairs"].deviation).all()
    assert one.combined((0, 1, 2), cards) is None


def test_margins_of_noisy_tables_say_how_well_values_are_known() -> None:
    """Values that a pair's table joins are known by their own alone; margins add up the noise of their cells."""
    of = [("one-way", (0,), False, 2.0, (3,)), ("pairs", (0, 1), True, 1.0, (2, 4))]
    tables = tuple(NoisyTable(*item, counts=np.zeros(math.prod(item[-1]), np.int64)) for item in of)
    found = Measurements(tables, (0, 1), (np.array([0, 1, 1]), np.arange(4)))
    assert found.deviations_of(0, 3) == pytest.approx([math.sqrt(2), 2, 2])
    assert found.deviations_of(1, 4) == pytest.approx([math.sqrt(2)] * 4)
    assert found.deviations_of(2, 2).tolist() == [0, 0]


def test_the_share_of_all_records_is_one_unit() -> None:
    """What floats err by is far more than a unit, and readers refuse shares above 1."""
    found = units_of(np.array([1 + 1e-11, 0.5, 1.0, -1e-18]))
    assert found.tolist() == [UNIT, UNIT // 2, UNIT, 0]
