"""Noisy tables of pairs that the junction tree has no room for."""

from dataclasses import replace

import numpy as np
import pytest

from dpdist.data.count import pair_counts
from dpdist.model.account import GaussianAccount, Measurements, NoisyTable
from dpdist.model.choices import choose
from dpdist.model.coding import Coding, coding_of
from dpdist.model.drift import Estimate
from dpdist.model.evidence import Earlier, Evidence, Related
from dpdist.model.learn import Known, measure
from dpdist.model.one_way import OneWay
from dpdist.model.outside import told_by, with_outside
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise

ROWS, CARDS = 40_000, (30, 6, 4)


def case() -> tuple[Coding, dict[tuple[int, int], Floats], dict[tuple[int, int], Floats]]:
    """A coding with a coarse copy, the true tables of all its pairs, and those of independent attributes."""
    rng = np.random.default_rng(1)
    a = rng.integers(0, 30, ROWS)
    b = np.where(rng.random(ROWS) < 0.5, a // 5, rng.integers(0, 6, ROWS))
    counts = pair_counts([x.astype(np.uint8) for x in (a, b, rng.integers(0, 4, ROWS))], CARDS)
    one_way = OneWay(tuple(counts.single(i) * 1.0 for i in range(3)), np.full(3, 1.0), float(ROWS))
    coding = coding_of(one_way, merge_below=1.5, coarse=((24, 10),))
    true, model = {}, {}
    for p, x in enumerate(coding.source):
        for q, y in enumerate(coding.source[p + 1 :], p + 1):
            if x != y:
                table = np.zeros((coding.cardinalities[p], coding.cardinalities[q]))
                np.add.at(table, np.ix_(coding.maps[p], coding.maps[q]), counts.pair(x, y) / ROWS)
                true[p, q], model[p, q] = table, np.outer(table.sum(1), table.sum(0))
    return coding, true, model


@pytest.mark.parametrize("copy", [0, 1])
def test_all_copies_of_a_pair_move_and_keep_their_margins(copy: int) -> None:
    coding, true, model = case()
    copies = [p for p, source in enumerate(coding.source) if source == 0]  # from coarse to fine
    b = coding.source.index(1)
    pair = (min(copies[copy], b), max(copies[copy], b))
    noise = np.random.default_rng(2).normal(0, 20, true[pair].shape)
    noisy: Estimate = (true[pair] * ROWS + noise, np.full(noise.shape, 400.0))
    found = with_outside(model, {pair: noisy}, coding, ROWS)
    for key, table in found.items():
        assert np.abs(table.sum(1) - model[key].sum(1)).max() < 1e-4
        before, after = (np.abs(x[key] - true[key]).sum() for x in (model, found))
        if {coding.source[k] for k in key} == {0, 1}:
            assert after < 0.35 * before
        else:
            assert table is model[key]


def test_a_table_of_noise_moves_nothing() -> None:
    coding, _, model = case()
    pair = next(iter(model))
    noise = np.random.default_rng(3).normal(0, 300, model[pair].shape)
    found = with_outside(model, {pair: (model[pair] * ROWS + noise, np.full(noise.shape, 9e4))}, coding, ROWS)
    assert np.abs(found[pair] - model[pair]).sum() < 0.4 * np.abs(noise).sum() / ROWS


def test_pairs_for_which_the_tree_has_no_room_are_measured_and_kept_by_the_records() -> None:
    rng, n, cards = np.random.default_rng(0), 60_000, (12,) * 4
    first = rng.integers(0, 12, n)
    second = np.where(rng.random(n) < 0.7, first, rng.integers(0, 12, n))
    third = np.where(rng.random(n) < 0.7, second, rng.integers(0, 12, n))
    fourth = np.where(rng.random(n) < 0.5, third, np.where(rng.random(n) < 0.6, first, rng.integers(0, 12, n)))
    codes = [column.astype(np.uint8) for column in (first, second, third, fourth)]
    choices = replace(choose(cards, records=n, mu=0.5, raking=False), cells=500)  # three pairs, no more
    found = {}
    for balance in (0, choices.balance):
        account = GaussianAccount(0.5, Noise(bytes(range(32))))
        learner = measure(
            pair_counts(codes, cards), account, choices=replace(choices, balance=balance), known=Known()
        ).learner
        apart = [float(np.abs(learner.marginals[a, b] - share_of(codes, a, b)).sum() / 2) for a, b in PAIRS_OF_FOUR]
        found[bool(balance)] = max(apart)
        assert bool(learner.told) == bool(balance)
    assert found[True] < 0.06 < 0.1 < found[False]


def test_a_noisy_table_with_earlier_tables_of_its_sums_is_that_of_least_squares() -> None:
    """The earlier release has groups of values; what it lacks, and a table of other attributes, moves nothing."""
    coding, true, _ = case()
    rng, own = np.random.default_rng(4), 40.0
    a, b = (coding.source.index(k) for k in (0, 1))  # of the first attribute the coarse copy
    pair = (min(a, b), max(a, b))
    sums = np.rint(true[pair] * ROWS + rng.normal(0, 20, true[pair].shape)).astype(np.int64)
    singles = [
        NoisyTable("one-way", (i,), False, 9.0, (n,), np.full(n, ROWS // n, np.int64)) for i, n in enumerate(CARDS)
    ]
    of_pair = NoisyTable("round/0/tables", pair, True, 20.0, sums.shape, sums.ravel())
    evidence = Evidence(
        (Related("sum", (Earlier(Measurements((*singles, of_pair), coding.source, coding.maps), ROWS),)),)
    )
    evidence.weigh_values(OneWay(tuple(np.full(n, ROWS / n) for n in CARDS), np.full(3, 9.0), float(ROWS)))
    tables = []
    for one, other in ((0, 1), (0, 2), (1, 2)):
        p, q = coding.fine[one], coding.fine[other]
        exact = true[p, q] if p < q else true[q, p].T
        tables.append(np.rint(exact * ROWS + rng.normal(0, own, exact.shape)).astype(np.int64))
    evidence.weigh_all_pairs(coding, tables, [own] * 3)
    found, left = told_by(evidence, coding, (0, 1), tables[0].astype(float), own)

    counts, variance = evidence.earlier(pair) or (np.zeros(0), np.zeros(0))
    if a > b:
        counts, variance = counts.T, variance.T
    rows, columns = np.eye(len(counts))[coding.maps[a]], np.eye(counts.shape[1])[coding.maps[b]]
    of_sums = np.kron(rows, columns).T  # a row for each sum, a column for each cell
    normal = np.eye(tables[0].size) / own**2 + of_sums.T @ (of_sums / variance.reshape(-1, 1))
    right = tables[0].ravel() / own**2 + of_sums.T @ (counts.ravel() / variance.ravel())
    assert found.ravel() == pytest.approx(np.linalg.solve(normal, right), abs=1e-6)
    assert left == pytest.approx(np.sqrt(np.diag(np.linalg.inv(normal)).mean()))
    assert left < 0.99 * own

    same, unmoved = told_by(evidence, coding, (1, 2), tables[2].astype(float), own)
    assert (same.tolist(), unmoved) == (tables[2].tolist(), own)


PAIRS_OF_FOUR = [(a, b) for a in range(4) for b in range(a + 1, 4)]


def share_of(codes: list[np.ndarray], a: int, b: int) -> np.ndarray:
    """The shares of the pairs of values of two attributes of 12."""
    return np.bincount(codes[a].astype(np.int64) * 12 + codes[b], minlength=144).reshape(12, 12) / len(codes[0])
