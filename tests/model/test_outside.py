"""Noisy tables of pairs that the junction tree has no room for."""

from dataclasses import replace

import numpy as np
import pytest

from dpdist.data.count import pair_counts
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import choose
from dpdist.model.coding import Coding, coding_of
from dpdist.model.drift import Estimate
from dpdist.model.learn import Known, measure
from dpdist.model.one_way import OneWay
from dpdist.model.outside import with_outside
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


PAIRS_OF_FOUR = [(a, b) for a in range(4) for b in range(a + 1, 4)]


def share_of(codes: list[np.ndarray], a: int, b: int) -> np.ndarray:
    """The shares of the pairs of values of two attributes of 12."""
    return np.bincount(codes[a].astype(np.int64) * 12 + codes[b], minlength=144).reshape(12, 12) / len(codes[0])
