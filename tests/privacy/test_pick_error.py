"""What the floors of a pick's weights move, and what is charged for it."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpdist.lifecycle.preflight import LARGEST_EPSILON
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import Choices
from dpdist.model.forecast import draws_at_most
from dpdist.privacy import selection as module
from dpdist.privacy.noise import SAMPLER_DELTA, Noise
from dpdist.privacy.selection import Candidates, draws_of_pick

PAIRS = math.comb(300, 2)


def _moved(weights: list[int], gaps: list[int], scale: int) -> mpmath.mpf:
    """Total variation between weights and those they are floors of."""
    with mpmath.workprec(400):
        true = [mpmath.exp(-mpmath.mpf(gap) / scale) for gap in gaps]
        total, exact = sum(weights), mpmath.fsum(true)
        return mpmath.fsum(abs(mpmath.mpf(w) / total - t / exact) for w, t in zip(weights, true, strict=True)) / 2


@pytest.mark.parametrize("scale", [3, 1000])
def test_a_draw_is_as_near_as_the_proof_says(scale: int) -> None:
    """Also where what is left weighs as little as it may before the weights are computed again."""
    scores = -np.arange(0, 40 * scale, max(scale // 10, 1), dtype=np.int64)
    found = Candidates(scores, scale=float(scale))
    for index in range(len(scores) - 1):
        found.remove(index)
        found.at(0)  # computes the weights again where it must
        left = [i for i, is_left in enumerate(found._left) if is_left]
        weights, gaps = [found._weights[i] for i in left], [int(scores[index + 1] - scores[i]) for i in left]
        assert sum(weights) >= 1 << 124
        if index % 29 == 0:
            assert _moved(weights, gaps, scale) < len(left) * mpmath.mpf(2) ** -124


@pytest.mark.parametrize(
    ("candidates", "epsilon"), [(PAIRS + 1, 20), (PAIRS + 1, LARGEST_EPSILON), (11, 27), (10**6, 27)]
)
def test_the_charge_covers_the_error(candidates: int, epsilon: int) -> None:
    """One draw's charge covered neither 300 attributes at epsilon 20, nor candidates that are refused."""
    floors = Fraction(1, module._LEAST_SUM) + Fraction(1, 2**128)
    moved = candidates**2 * floors * (1 + math.ceil(math.exp(epsilon)))
    charged = draws_of_pick(candidates) * Fraction(SAMPLER_DELTA)
    assert moved <= charged
    assert charged < 2.0**-59 + 2 * moved * math.exp(LARGEST_EPSILON - epsilon) * 1.1  # not much more


def test_a_plan_counts_what_its_picks_are_charged() -> None:
    account = GaussianAccount(1.0, Noise(bytes(32)))
    scores = Candidates(np.zeros(PAIRS + 1, np.int64), scale=100.0)
    account.pick("one", scores, scale=100.0, allowed=lambda index: True)
    assert account.draws == draws_of_pick(PAIRS + 1) > 1
    few, many = (draws_at_most(Choices(mu=1.0, rounds=0, per_round=0, rake=0.0), (2,) * m) for m in (20, 300))
    assert few == 3 * 40 + 1 + 20 * (4 + 1)
    assert many == 3 * 600 + 1 + 300 * (4 + draws_of_pick(math.comb(600, 2) + 1))
