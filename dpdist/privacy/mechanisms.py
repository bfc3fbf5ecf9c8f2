"""The dominating pairs of the basic mechanisms."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpdist.errors import AccountingError
from dpdist.privacy.composition import Piece
from dpdist.privacy.pair import DominatingPair
from dpdist.privacy.sampled_gaussian import SampledUnit, largest_loss, sampled_gaussian_pair


def discrete_laplace(scale: float, sensitivity: int, count: int) -> Piece:
    """Discrete Laplace noise around the sensitivity (A) against around 0 (B).

    The loss at z is ``(|z| - |z - sensitivity|)/scale``: constant outside 0 .. sensitivity, in steps of ``2/scale``
    inside. Runs of z (beyond 2048 steps; else single ones) are replaced by their two ends with both masses kept, a
    mean-preserving spread: as ``ln A/B`` of a run is the middle of its ends, A's share of the far end is
    ``1/(1 + e^{-width/2})``, and so is B's of the near one.
    """
    rate, top = 1 / scale, sensitivity / scale
    stop = np.unique(np.linspace(0, sensitivity - 1, min(sensitivity, 2048)).round())[1:]
    start = np.append(1.0, stop[:-1] + 1)[: len(stop)]
    near, far = (2 * start - sensitivity) * rate, (2 * stop - sensitivity) * rate
    with np.errstate(under="ignore"):
        run = math.tanh(rate / 2) * np.expm1(-rate * (stop - start + 1)) / math.expm1(-rate)
        upper, lower = run * np.exp(-rate * (sensitivity - stop)), run * np.exp(-rate * start)
        share = 1 / (1 + np.exp((near - far) / 2))
    common = 1 / (1 + math.exp(-rate))
    rare = common * math.exp(-top)
    pair = DominatingPair(
        np.concatenate([[-top], near, far, [top]]),
        np.concatenate([[rare], upper * (1 - share), upper * share, [common]]),
        np.concatenate([[common], lower * share, lower * (1 - share), [rare]]),
    ).ascending()
    return Piece.of(pair, count, symmetric=True)


def approximate(epsilon: float, delta: float) -> Piece:
    """Randomised response that fails with probability delta dominates every (epsilon, delta)-DP mechanism."""
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    unlikely = likely * math.exp(-epsilon)
    pair = DominatingPair(
        np.array([-epsilon, epsilon]), np.array([unlikely, likely]), np.array([likely, unlikely]), delta, delta
    )
    return Piece.of(pair, symmetric=True)


def require_protection(multiplier: float) -> None:
    """Refuse a Gaussian mechanism whose noise is less than a hundredth of the sensitivity."""
    if multiplier < 0.01:
        raise AccountingError(
            f"a Gaussian mechanism with noise multiplier {multiplier:g} protects nothing: use at least 0.01"
        )


@lru_cache(maxsize=128)
def gaussian(multiplier: float, rate: float = 1.0, count: int = 1) -> Piece:
    """The Gaussian mechanism on a Poisson sample."""
    require_protection(multiplier)
    mu = 1 / multiplier
    variance = min(mu**2 + mu**4 / 4, rate**2 * math.expm1(min(mu**2, 700.0)) + 1e-24)

    @lru_cache(maxsize=4)
    def build(interval: float) -> DominatingPair:
        return sampled_gaussian_pair(multiplier, rate, interval)

    return Piece(build, count, variance, largest_loss(multiplier, rate), exact=False, symmetric=rate == 1.0)


@lru_cache(maxsize=128)
def sampled_units(multiplier: float, rate: float, records: int, count: int) -> Piece:
    """The Gaussian mechanism on a Poisson sample of the records of a unit."""
    require_protection(multiplier)
    sampled = SampledUnit(multiplier, rate, records)
    return Piece(lru_cache(maxsize=4)(sampled.pair), count, sampled.variance, sampled.largest_loss, exact=False)
