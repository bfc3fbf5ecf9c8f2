"""Stage 1, the pure synthesis: Latin hypercube, normal scores, target correlation, inverse distribution functions.

First stages are exchangeable: an entry of `FIRST_STAGES`, or a function of one's own
(`dpdist.families.base.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.families.prediction.density import Marginal
from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import cholesky, exp, log, matmul, ndtr, ndtri, positive_part, sin_turns, solve_lower

SCORE_STEP = 2.0**-14
"""Grid of the normal scores: sums of their products are integers, exact for any order of summation up to 2^28 rows."""

_ROWS = 1 << 16  # products of 2^34 steps: sums of so many are exact in float64
_EDGE = 2.0**-53


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Sums of the products of normal scores and of a constant, in steps of ``SCORE_STEP ** 2``; they add up exactly."""

    products: NDArray[np.int64]  # int64[d + 1, d + 1]: the last column is the constant

    def __add__(self, other: ScoreSums) -> ScoreSums:
        return ScoreSums(self.products + other.products)


def score_sums(units: Floats, marginals: Sequence[Marginal]) -> ScoreSums:
    """Sums over some rows, float64[n, d] on the unit cube."""
    width = len(marginals) + 1
    total = np.zeros((width, width), np.int64)
    for start in range(0, len(units), _ROWS):
        piece = units[start : start + _ROWS]
        steps = np.ones((len(piece), width)) / SCORE_STEP
        for i, marginal in enumerate(marginals):
            steps[:, i] = np.rint(marginal.scores(piece[:, i]) / SCORE_STEP)
        total += (steps.T @ steps).astype(np.int64)
    return ScoreSums(total)


def correlation(sums: ScoreSums) -> Floats:
    """Correlation of the normal scores, float64[d, d]; a column that does not vary is uncorrelated."""
    products = sums.products.astype(np.float64)
    n = products[-1, -1] / SCORE_STEP**-2
    mean = products[:-1, -1] / products[-1, -1]
    covariance = products[:-1, :-1] * SCORE_STEP**2 / n - np.outer(mean, mean)
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    varies = deviation > SCORE_STEP
    scale = np.where(varies, deviation, 1.0)
    out = np.where(np.outer(varies, varies), covariance / np.outer(scale, scale), 0.0)
    np.fill_diagonal(out, 1.0)
    return np.clip(out, -1.0, 1.0)


def nearest_correlation(matrix: Floats, *, least: float = 1e-6) -> Floats:
    """A symmetric matrix with its small eigenvalues raised to `least` and its diagonal scaled to one."""
    floor = least * np.eye(len(matrix))
    raised = positive_part(matrix - floor) + floor
    scale = np.sqrt(np.diag(raised))
    out = raised / np.outer(scale, scale)
    np.fill_diagonal(out, 1.0)
    return np.asarray(out)


@dataclass(frozen=True, eq=False)
class Target:
    """What stage 1 is to reproduce."""

    marginals: tuple[Marginal, ...]
    correlation: Floats  # float64[d, d]: of the normal scores

    def rows(self, scores: Floats) -> Floats:
        """Rows of the unit cube with these normal scores, by the inverse distribution functions."""
        uniforms = np.clip(ndtr(scores), 0.0, 1.0 - _EDGE)
        out = np.empty_like(scores)
        for i, marginal in enumerate(self.marginals):
            out[:, i] = marginal.inverse(uniforms[:, i])
        return out


Draw = Callable[[Target, int, np.random.Generator], Floats]
"""Rows of the unit cube, float64[n, d]."""


def latin_hypercube(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """A Latin hypercube with the target correlation and marginals.

    The scores' own sample correlation is removed first where there are enough rows, so that the target is met exactly
    and not only on average (Iman and Conover 1982).
    """
    width = len(target.marginals)
    if not rows or not width:
        return np.empty((rows, width))
    from scipy.stats import qmc

    uniforms = qmc.LatinHypercube(d=width, rng=rng).random(rows)
    scores = ndtri(np.clip(uniforms, _EDGE, 1 - _EDGE))
    if rows > 4 * width:
        scores = solve_lower(cholesky(nearest_correlation(_sample_correlation(scores))), scores.T).T
    return target.rows(matmul(scores, _factor(target).T))


def gaussian_copula(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent draws of the Gaussian copula."""
    return target.rows(matmul(standard_normal(rng, (rows, len(target.marginals))), _factor(target).T))


def uniform(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent uniform draws: neither marginals nor correlation."""
    return rng.random((rows, len(target.marginals)))


def weibull(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent Weibull draws, shape 1.5 and scale 0.5 of the scale's width, those beyond it at its end."""
    exponential = -log(1 - rng.random((rows, len(target.marginals))))
    return np.minimum(0.5 * exp(log(np.maximum(exponential, _EDGE)) / 1.5), 1.0)


def cauchy(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent Cauchy draws around the middle, scale 0.1 of the scale's width, those beyond it at its ends."""
    half_turns = np.maximum(rng.random((rows, len(target.marginals))), _EDGE) / 2
    return np.clip(0.5 - 0.1 * sin_turns(half_turns + 0.25) / sin_turns(half_turns), 0.0, 1.0)


FIRST_STAGES: dict[str, Draw] = {
    "lhs": latin_hypercube,
    "gaussian-copula": gaussian_copula,
    "uniform": uniform,
    "weibull": weibull,
    "cauchy": cauchy,
}
"""First stages by name."""


def standard_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Independent standard normal draws, the same on every processor: quantiles of uniforms."""
    return ndtri(np.clip(rng.random(shape), _EDGE, 1 - _EDGE))


def _sample_correlation(scores: Floats) -> Floats:
    centred = scores - scores.mean(axis=0)
    centred /= np.sqrt((centred * centred).sum(axis=0))
    return matmul(centred.T, centred)


def _factor(target: Target) -> Floats:
    return cholesky(nearest_correlation(target.correlation))
