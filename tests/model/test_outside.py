"""Noisy tables of pairs that the junction tree has no room for."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.data.count import pair_counts
from dpdist.model.coding import Coding, coding_of
from dpdist.model.drift import Estimate
from dpdist.model.one_way import OneWay
from dpdist.model.outside import with_outside
from dpdist.privacy.arrays import Floats

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
