"""Rows of a model given some attributes, beside the joint table of the same model."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.model.conditional import Conditional, KnownRows
from dpdist.model.fitted import Fitted, Step, cumulative_of
from dpdist.privacy.noise import Noise

NONE, NO_WEIGHTS = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
ROWS = 200_000


@pytest.fixture
def fitted() -> Fitted:
    """Four attributes; the last has six values, three of them merged."""
    rng, cards = np.random.default_rng(0), (2, 3, 3, 4)
    steps = (
        Step(0, (), cumulative_of(rng.random((1, 2)))),
        Step(1, (0,), cumulative_of(rng.random((2, 3)))),
        Step(2, (1,), cumulative_of(rng.random((3, 3)))),
        Step(3, (1, 2), cumulative_of(rng.random((9, 4)))),
    )
    values = (np.arange(2), np.arange(3), np.arange(3), np.array([0, 1, -1, 3]))
    rare = (NONE, NONE, NONE, np.array([2, 4, 5]))
    weights = (NO_WEIGHTS, NO_WEIGHTS, NO_WEIGHTS, cumulative_of(np.array([[1.0, 2.0, 3.0]])))
    return Fitted(cards, steps, (0, 1, 2, 3), values, rare, weights, NONE)


@pytest.mark.parametrize("given", [1, 2, 3])
def test_draws_are_those_of_the_joint_table(fitted: Fitted, given: int) -> None:
    found = fitted.conditionals()
    joint = np.einsum("a,ab,bc,bcd->abcd", *(found[s] for s in ((0,), (0, 1), (1, 2), (1, 2, 3))))
    wide = np.zeros((2, 3, 3, 6))
    wide[..., [0, 1, 3]] = joint[..., [0, 1, 3]]
    wide[..., [2, 4, 5]] = joint[..., [2]] * np.array([1, 2, 3]) / 6
    mask = np.ones((ROWS, 6), bool)
    mask[:, [0, 4]] = wide[..., 0] = wide[..., 4] = 0
    expected = wide[(1,) * given] / wide[(1,) * given].sum()
    drawn = Conditional(fitted, given).draw(KnownRows([np.full(ROWS, 1)] * given, {3: mask}), Noise(bytes(32)), "rows")
    counts = np.zeros(expected.shape)
    np.add.at(counts, tuple(drawn), 1)
    assert not counts[..., [0, 4]].any()
    assert np.abs(counts / ROWS - expected).max() < 6 * 0.5 / np.sqrt(ROWS)


def test_what_the_model_excludes_follows_what_is_admitted(fitted: Fitted) -> None:
    mask = np.zeros((7, 6), bool)
    mask[:, 4] = True
    drawn = Conditional(fitted, 3).draw(KnownRows([np.zeros(7, np.int64)] * 3, {3: mask}), Noise(bytes(32)), "rows")
    assert drawn[0].tolist() == [4] * 7


def test_rows_that_are_given_differently_and_a_factor_more_follow_the_joint_table(fitted: Fitted) -> None:
    """Batches, groups of rows, and a rule on two attributes that differs between groups."""
    found = fitted.conditionals()
    joint = np.einsum("a,ab,bc,bcd->abcd", *(found[s] for s in ((0,), (0, 1), (1, 2), (1, 2, 3))))
    rule = np.ones((2, 3, 4))
    rule[1, [0, 1, 2], [3, 0, 1]] = 0
    group, first = np.arange(ROWS) % 2, np.arange(ROWS) // 2 % 2
    law = Conditional(fitted, 1, [((2, 3), rule)])
    law._batch = ROWS // 3
    drawn = law.draw(KnownRows([first], {}, [group]), Noise(bytes(32)), "rows")
    merged = np.array([0, 1, 2, 3, 2, 2])
    counts = np.zeros((2, 2, *joint.shape[1:]))
    np.add.at(counts, (group, first, drawn[0], drawn[1], merged[drawn[2]]), 1)
    for k in range(2):
        expected = joint * rule[k][:, :]
        expected /= expected.sum((1, 2, 3), keepdims=True)
        assert not counts[k][:, :, rule[k] == 0].any()
        assert np.abs(counts[k] / (ROWS / 4) - expected).max() < 6 * 0.5 / np.sqrt(ROWS / 4)
