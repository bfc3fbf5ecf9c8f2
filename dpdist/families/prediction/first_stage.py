r"""Stage 1, the pure synthesis: kernel densities, a Latin hypercube, normal scores, the target correlation.

A column is binned into cells, and the Gaussian kernel is applied to the cells with reflection at both ends: in the
cosine basis that multiplies coefficient k by ``exp(-(pi k h)^2 / 2)``. So a bandwidth costs one transform whatever the
number of records, counts of parts of a table add up exactly, and the published choice of the bandwidth by 5-fold
cross-validation stays possible at any size. Cells are 1/4096 of the scale; a discrete column has one cell for each of
its values, and categories are not smoothed.

First stages are exchangeable: an entry of `FIRST_STAGES`, or a function of the user's
(`dpdist.families.prediction.lid.regression`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpdist.families.prediction.columns import Scale
from dpdist.privacy import portable
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.calibrate import round_up
from dpdist.privacy.noise import Noise

CELLS = 4096
"""Cells of a continuous column, and most cells of a discrete one."""

FOLDS = 5

BANDWIDTHS = np.geomspace(0.02, 2.0, 20).round(6)
"""Bandwidths that are tried, in units of Silverman's rule."""

PAPER_BANDWIDTHS = np.arange(1, 41) / 20
"""The paper's bandwidths, 0.05 to 2, in units of the column's scale."""

_LEAST = 1e-6  # density of an empty cell, in units of the uniform density, when bandwidths are compared
_FARTHEST = 2.0**-21  # normal scores stay within 5.0


def cell_count(scale: Scale) -> int:
    """Number of cells of a column."""
    count = scale.count
    return CELLS if count is None or count > CELLS or scale.log else count


def is_discrete(scale: Scale) -> bool:
    """Whether the cells of a column are its values."""
    return scale.discrete and not scale.log and cell_count(scale) == scale.count


def cell_counts(units: Floats, folds: NDArray[np.integer], cells: int) -> Counts:
    """Records in each cell, by fold (0 to `FOLDS` - 1): int64[FOLDS, cells], from units, float64[n]."""
    index = folds.astype(np.int64) * cells + cells_of(units, cells)
    return np.bincount(index, minlength=FOLDS * cells).reshape(FOLDS, cells).astype(np.int64)


def cells_of(units: Floats, cells: int) -> NDArray[np.int64]:
    """The cell of each value."""
    return np.clip((units * cells).astype(np.int64), 0, cells - 1)


@dataclass(frozen=True, eq=False)
class Marginal:
    """The distribution of a column on the unit interval: constant within a cell, or all of it at the cell's middle."""

    cumulative: Floats  # float64[cells + 1]: from 0 to 1
    discrete: bool  # whether the cells are values
    bandwidth: float  # of the kernel, on the unit interval; 0 where none exists

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.cumulative) - 1

    @property
    def middles(self) -> Floats:
        """Middle of each cell, float64[cells]."""
        return (np.arange(self.cells) + 0.5) / self.cells

    @property
    def masses(self) -> Floats:
        """Probability of each cell, float64[cells]."""
        return np.diff(self.cumulative)

    def cdf(self, units: Floats) -> Floats:
        """Distribution function; of a discrete column its mean before and after the value."""
        cells = cells_of(units, self.cells)
        below, mass = self.cumulative[cells], self.masses[cells]
        share = 0.5 if self.discrete else np.clip(units * self.cells - cells, 0.0, 1.0)
        return np.asarray(below + mass * share)

    def inverse(self, uniforms: Floats) -> Floats:
        """Inverse of the distribution function; the middle of the cell in a discrete column."""
        cells = np.clip(np.searchsorted(self.cumulative, uniforms, side="right") - 1, 0, self.cells - 1)
        if self.discrete:
            return np.asarray((cells + 0.5) / self.cells)
        mass = np.maximum(self.masses[cells], np.finfo(float).tiny)
        within = np.clip((uniforms - self.cumulative[cells]) / mass, 0.0, 1.0)
        return np.asarray((cells + within) / self.cells)

    def scores(self, units: Floats) -> Floats:
        """Normal scores: the standard normal quantiles of the distribution function."""
        return np.asarray(portable.ndtri(np.clip(self.cdf(units), _FARTHEST, 1 - _FARTHEST)))


def pooled_deviation(marginals: Sequence[Marginal], records: Sequence[int]) -> float:
    """Deviation of a column of several parts, which have this many records; 1 where it does not vary."""
    total = sum(records)
    masses = sum(marginal.masses * (count / total) for marginal, count in zip(marginals, records, strict=True))
    middles = marginals[0].middles
    variance = portable.inner(np.asarray(masses), (middles - portable.inner(np.asarray(masses), middles)) ** 2)
    return math.sqrt(variance) if variance > 1e-18 else 1.0


def marginal_of_masses(masses: Floats, *, discrete: bool, bandwidth: float = 0.0) -> Marginal:
    """The marginal with these masses of its cells."""
    cumulative = np.concatenate([[0.0], np.cumsum(masses)])
    return Marginal(cumulative / cumulative[-1], discrete, bandwidth)


def fit_marginal(counts: Counts, scale: Scale, *, paper: bool = False) -> Marginal:
    """The kernel density of a column, from its `cell_counts`, with the paper's bandwidths and its cut at both ends
    where that is asked for. Raises ValueError: there is no record.
    """
    total = counts.sum(axis=0)
    if not total.sum():
        raise ValueError(f"column {scale.name!r}: no records")
    if scale.nominal:
        return marginal_of_masses(total.astype(np.float64), discrete=True)
    grid = np.maximum(PAPER_BANDWIDTHS if paper else BANDWIDTHS * silverman(total), 0.25 / counts.shape[1])
    bandwidth = float(grid[np.argmax(np.round(likelihoods(counts, grid, cut=paper), 6))])
    masses = smooth(total, [bandwidth], cut=paper)[0]
    return marginal_of_masses(masses, discrete=is_discrete(scale), bandwidth=bandwidth)


def silverman(counts: Counts) -> float:
    """Silverman's rule, ``0.9 min(sd, iqr / 1.34) n^(-1/5)``, from counts of cells; at least a quarter of a cell."""
    n, cells = int(counts.sum()), len(counts)
    middles = (np.arange(cells) + 0.5) / cells
    weights = counts / n
    mean = portable.inner(weights, middles)
    deviation = math.sqrt(max(portable.inner(weights, (middles - mean) ** 2), 0.0))
    cumulative = np.cumsum(counts) / n
    low, high = (middles[np.searchsorted(cumulative, q)] for q in (0.25, 0.75))
    spread = (high - low) / 1.34
    spread = min(deviation, spread) if spread > 0 else deviation
    return round_up(max(0.9 * spread * n**-0.2, 0.25 / cells))


def smooth(counts: NDArray[np.generic], bandwidths: Sequence[float] | Floats, *, cut: bool = False) -> Floats:
    """Counts smoothed with a Gaussian kernel: float64[bandwidths, cells].

    Bandwidths are on the unit interval. The kernel is reflected at both ends, and each row has the sum of the counts;
    or what lies beyond the ends is *cut*, as published. Rows are rounded to a part in 2**26 of that sum: the last bits
    of a transform depend on the processor.
    """
    widths, cells = np.asarray(bandwidths, np.float64)[:, None], len(counts)
    if cut:
        places = np.arange(2 * cells)
        kernel = portable.exp(-0.5 * (np.minimum(places, 2 * cells - places) / (cells * widths)) ** 2)
        spectrum = fft.rfft(np.asarray(counts, np.float64), 2 * cells)
        made = fft.irfft(spectrum * fft.rfft(kernel, axis=1), axis=1)[:, :cells] / (math.sqrt(2 * math.pi) * cells)
        made /= widths
    else:
        spectrum = fft.dct(np.asarray(counts, np.float64), type=2)
        made = fft.idct(spectrum * portable.exp(-0.5 * (widths * (np.pi * np.arange(cells))) ** 2), type=2, axis=1)
    grid = math.ldexp(1.0, math.frexp(2.0 * float(counts.sum()))[1] - 27)
    return np.asarray(np.maximum(np.rint(made / grid), 0.0) * grid)


def likelihoods(counts: Counts, bandwidths: Floats, *, cut: bool = False) -> Floats:
    """Log-likelihood of each fold under the density of the others, summed over folds, for each bandwidth."""
    folds, cells = counts.shape
    total = counts.sum(axis=0)
    out = np.zeros(len(bandwidths))
    for held in range(folds):
        rest = total - counts[held]
        if not rest.sum() or not counts[held].any():
            continue
        density = smooth(rest, bandwidths, cut=cut) * (cells / rest.sum())
        present = np.flatnonzero(counts[held])
        out += (portable.log(np.maximum(density[:, present], _LEAST)) * counts[held, present]).sum(axis=1)
    return out


SCORE_STEP = 2.0**-14
"""Grid of the normal scores: sums of their products are integers, exact for any order of summation up to 2^28 rows."""

_ROWS = 1 << 16  # products of 2^34 steps: sums of this many are exact in float64
_EDGE = 2.0**-53


def score_sums(units: Floats, marginals: Sequence[Marginal]) -> Counts:
    """Sums of the products of normal scores and of a constant (the last column) over some rows, float64[n, d] on the
    unit cube: int64[d + 1, d + 1] in steps of ``SCORE_STEP ** 2``. They add up exactly.
    """
    width = len(marginals) + 1
    total = np.zeros((width, width), np.int64)
    for start in range(0, len(units), _ROWS):
        piece = units[start : start + _ROWS]
        steps = np.ones((len(piece), width)) / SCORE_STEP
        for i, marginal in enumerate(marginals):
            steps[:, i] = np.rint(marginal.scores(piece[:, i]) / SCORE_STEP)
        total += (steps.T @ steps).astype(np.int64)
    return total


def correlation(sums: Counts) -> Floats:
    """Correlation of the normal scores, float64[d, d], from `score_sums`; a column that does not vary is
    uncorrelated.
    """
    products = sums.astype(np.float64)
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
    raised = portable.positive_part(matrix - floor) + floor
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
        uniforms = np.clip(portable.ndtr(scores), 0.0, 1.0 - _EDGE)
        columns = zip(self.marginals, uniforms.T, strict=True)
        return np.column_stack([marginal.inverse(column) for marginal, column in columns])


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
    scores = portable.ndtri(np.clip(uniforms, _EDGE, 1 - _EDGE))
    if rows > 4 * width:
        centred = scores - scores.mean(axis=0)
        centred /= np.sqrt((centred * centred).sum(axis=0))
        scores = portable.solve_lower(
            portable.cholesky(nearest_correlation(portable.matmul(centred.T, centred))), scores.T
        ).T
    return target.rows(portable.matmul(scores, _factor(target).T))


def gaussian_copula(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent draws of the Gaussian copula."""
    return target.rows(portable.matmul(standard_normal(rng, (rows, len(target.marginals))), _factor(target).T))


def uniform(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent uniform draws: neither marginals nor correlation."""
    return rng.random((rows, len(target.marginals)))


def weibull(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent Weibull draws, of the paper's shape 8 and scale 1, those beyond the scale's width at its end."""
    exponential = -portable.log(1 - rng.random((rows, len(target.marginals))))
    return np.minimum(portable.exp(portable.log(np.maximum(exponential, _EDGE)) / 8), 1.0)


def cauchy(target: Target, rows: int, rng: np.random.Generator) -> Floats:
    """Independent Cauchy draws, of the paper's location 0 and scale 1, those beyond the scale's width at its ends."""
    half_turns = np.maximum(rng.random((rows, len(target.marginals))), _EDGE) / 2
    return np.clip(-portable.sin_turns(half_turns + 0.25) / portable.sin_turns(half_turns), 0.0, 1.0)


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
    return portable.ndtri(np.clip(rng.random(shape), _EDGE, 1 - _EDGE))


def _factor(target: Target) -> Floats:
    return portable.cholesky(nearest_correlation(target.correlation))


def generator(noise: Noise, name: str, number: int) -> np.random.Generator:
    """A generator for draws that protect nothing (synthetic rows), a pure function of key, name and number."""
    return np.random.default_rng([int(word) for word in noise.words(name, 4, start=4 * number)])
