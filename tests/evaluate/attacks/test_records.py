"""Agreements, profiles and nearest records equal brute force over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.evaluation import records
from dpdist.evaluation.attacks.excess import agreeing_guesses, nearest_guesses
from dpdist.evaluation.records import Agreement, Gower, coarse, occurrences
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

MIXED = Schema.model_validate(
    {
        "attributes": [
            {"name": "a", "kind": "categorical", "values": [0, 1, 2]},
            {"name": "b", "kind": "ordinal", "values": [0, 1, 2, 3]},
            {"name": "c", "kind": "integer", "bounds": [10, 15]},
            {"name": "d", "kind": "number", "bounds": [-2.0, 2.0]},
        ]
    }
)


def mixed(rows: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    codes: Codes = [rng.integers(0, size, rows).astype(np.uint8) for size in (3, 4, 6)]
    return [*codes, rng.choice(np.linspace(-2, 2, 9), rows)]


def differences(ours: Codes, theirs: Codes) -> np.ndarray:
    """Number of attributes in which each pair differs."""
    return np.sum([a[:, None] != b[None, :] for a, b in zip(ours, theirs, strict=True)], axis=0)


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 10_000))
def test_agreements_are_those_of_all_pairs(rows: int, others: int, seed: int) -> None:
    ours, theirs = mixed(rows, seed), mixed(others, seed + 1)
    agreement, apart = Agreement(4, seed=seed), differences(ours, theirs)
    assert (agreement.exact(ours, theirs) == (apart == 0).sum(axis=1)).all()
    expected = np.array([(apart == number).sum(axis=1) for number in (0, 1, 2)])
    assert (agreement.profiles(ours, theirs)[0] == expected).all()
    without = agreement.without(ours, theirs)
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        rest = apart - (a[:, None] != b[None, :])
        assert (without[place] == (rest == 0).sum(axis=1)).all()


def test_many_attributes_are_estimated_from_some_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    ours, theirs = ([rng.integers(0, 2, rows).astype(np.uint8) for _ in range(8)] for rows in (50, 4000))
    exact = Agreement(8, seed=0).profiles(ours, theirs)[0]
    monkeypatch.setattr(records, "PAIRS", 14)
    estimates = np.mean([Agreement(8, seed=seed).profiles(ours, theirs)[0][2] for seed in range(60)], axis=0)
    assert estimates == pytest.approx(exact[2], rel=0.15)


def test_keys_count_repeated_values() -> None:
    keys = np.array([5, 7, 7, 9], np.uint64)
    assert occurrences(np.array([7, 5, 1], np.uint64), keys).tolist() == [2, 1, 0]
    assert Agreement(1, seed=0).exact([np.array([0.0])], [np.array([-0.0, 0.0])]).tolist() == [2]


def test_numbers_are_cut_into_cells_of_their_bounds() -> None:
    (cut,) = coarse([np.array([-2.0, -1.9, 0.0, 2.0, 3.0])], Schema(attributes=MIXED.attributes[3:]))
    assert cut.tolist() == [0, 0, 16, 31, 31]


def gower(ours: Codes, theirs: Codes) -> np.ndarray:
    parts = [np.where(ours[0][:, None] == theirs[0][None, :], 0, 1.0)]
    for a, b, width in zip(ours[1:], theirs[1:], (3, 5, 4), strict=True):
        parts.append(np.abs(a[:, None].astype(float) - b[None, :].astype(float)) / width)
    return np.array(parts)


@pytest.mark.parametrize("cells", [1, 100, 1 << 20])
def test_nearest_records_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    monkeypatch.setattr(records, "BLOCK_CELLS", cells)
    ours, theirs = mixed(30, 5), mixed(70, 6)
    parts = gower(ours, theirs)
    for places in ([0, 1, 2, 3], [1, 3], [0]):
        expected = parts[places].sum(axis=0)
        distances, where = Gower(MIXED).nearest(ours, theirs, places)
        assert distances == pytest.approx(expected.min(axis=1), abs=1e-5)
        assert expected[np.arange(30), where] == pytest.approx(expected.min(axis=1), abs=1e-5)


def test_guesses_are_those_of_all_pairs() -> None:
    ours, theirs = mixed(40, 7), mixed(3000, 8)
    ours, theirs = coarse(ours, MIXED), coarse(theirs, MIXED)
    apart = differences(ours, theirs)
    found = 0
    for place, guesses in enumerate(agreeing_guesses(ours, theirs, Agreement(4, seed=1))):
        rest = apart - (ours[place][:, None] != theirs[place][None, :])
        for row, guess in enumerate(guesses.tolist()):
            values = theirs[place][rest[row] == 0]
            if not len(values):
                assert guess == -1
            else:
                counts = np.bincount(values)
                assert counts[guess] == counts.max()
                found += 1
    assert found > 50
    parts = gower(mixed(40, 7), mixed(100, 8))
    for place, where in enumerate(nearest_guesses(mixed(40, 7), mixed(100, 8), MIXED)):
        expected = parts.sum(axis=0) - parts[place]
        assert expected[np.arange(40), where] == pytest.approx(expected.min(axis=1), abs=1e-5)
