"""The dominating pair of Gaussian noise on a Poisson sample, on a lattice of losses.

With noise multiplier s and sampling rate q the pair is ``A = (1 - q) N(0, s^2) + q N(1, s^2)`` against
``B = N(0, s^2)`` (Zhu, Dong and Wang 2022). The loss ``ln dA/dB (x) = ln(1 - q + q e^{(2x - 1)/(2 s^2)})`` rises with
x, so the losses between two places of the lattice are those of an interval of x. Both masses of the interval go to
its two ends so that both are kept: the profile is exact at the lattice, and its chord (in ``e^epsilon``) between, which
is the least that any pair on the lattice can have (Doroshenko et al. 2022, "Connect the dots").
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.privacy.arrays import Floats
from dpdist.privacy.pair import DominatingPair

TAIL = 9.67
"""The lattice ends so many deviations from the means: 2e-22 of the mass is beyond."""


def largest_loss(multiplier: float, rate: float) -> float:
    """The loss at `TAIL` deviations beyond the mean with the record."""
    full = (0.5 / multiplier + TAIL) / multiplier
    return math.log1p(rate * math.expm1(full)) if full < 700 else full


def sampled_gaussian_pair(multiplier: float, rate: float, interval: float) -> DominatingPair:
    """The pair on multiples of ``interval``.

    Parameters
    ----------
    multiplier : float
        Standard deviation of the noise over the sensitivity.
    rate : float
        Probability that the sample holds the record, in (0, 1].
    interval : float
        Between two losses of the lattice.
    """
    top = largest_loss(multiplier, rate)
    least = -top if rate == 1 else max(math.log1p(-rate), -top)
    nodes = np.arange(math.floor(least / interval), math.ceil(top / interval) + 1, dtype=np.float64) * interval
    with np.errstate(invalid="ignore", divide="ignore"):
        inner = np.log1p(-(1 - rate) * np.exp(-nodes))  # NaN below the least loss
    ends = multiplier * (nodes - math.log(rate) + inner) + 0.5 / multiplier
    ends = np.concatenate([[-math.inf], np.where(np.isnan(ends), -math.inf, ends), [math.inf]])
    without, shifted = _masses(ends), _masses(ends - 1 / multiplier)
    upper, lower = (1 - rate) * without + rate * shifted, without
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = np.log(upper[1:-1]) - np.log(lower[1:-1]) - nodes[:-1]
    # where the masses are too small for a ratio the whole interval has its largest loss
    rest = np.clip(np.nan_to_num(rest, nan=interval, posinf=interval, neginf=interval), 0.0, interval)
    spread: list[Floats] = []
    for mass, sign in ((upper, -1.0), (lower, 1.0)):
        right = mass[1:-1] * (np.expm1(sign * rest) / math.expm1(sign * interval))
        spread.append(np.append(mass[1:-1] - right, 0.0) + np.append(0.0, right))
    # beyond the lattice the smaller mass stays at its end, and what the larger one has more is infinite
    below, above = upper[0], lower[-1]
    spread[0][0] += below
    spread[1][0] += below * math.exp(-nodes[0])
    spread[0][-1] += above * math.exp(min(nodes[-1], 700.0))
    spread[1][-1] += above
    return DominatingPair(
        nodes,
        spread[0],
        spread[1],
        max(upper[-1] - above * math.exp(min(nodes[-1], 700.0)), 0.0),
        max(lower[0] - below * math.exp(-nodes[0]), 0.0),
    )


def _masses(ends: Floats) -> Floats:
    """Standard normal masses between ascending ends, each from the tail that is nearer, so that it does not cancel."""
    scaled = ends / math.sqrt(2)
    above = np.fromiter(map(math.erfc, scaled), np.float64, len(ends)) / 2
    below = np.fromiter(map(math.erfc, -scaled), np.float64, len(ends)) / 2
    with np.errstate(invalid="ignore"):
        right = ends[:-1] + ends[1:] > 0
    return np.where(right, above[:-1] - above[1:], below[1:] - below[:-1])
