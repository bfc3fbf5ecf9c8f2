r"""Kernel density of a column on the unit interval, its distribution function and the inverse.

The column is binned into cells, and the Gaussian kernel is applied to the cells with reflection at both ends: in the
cosine basis that multiplies coefficient k by ``exp(-(pi k h)^2 / 2)``. So a bandwidth costs one transform whatever the
number of records, counts of parts of a table add up exactly, and the published choice of the bandwidth by 5-fold
cross-validation stays possible at any size. Cells are 1/4096 of the scale; a discrete column has one cell for each of
its values, and categories are not smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpdist.families.prediction.scales import Scale
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.calibrate import round_up
from dpdist.privacy.portable import exp, inner, log, ndtri

CELLS = 4096
"""Cells of a continuous column, and most cells of a discrete one."""

FOLDS = 5

BANDWIDTHS = np.geomspace(0.02, 2.0, 20).round(6)
"""Bandwidths that are tried, in units of Silverman's rule."""

_LEAST = 1e-6  # density of an empty cell, in units of the uniform density, when bandwidths are compared
_EDGE = 2.0**-21  # normal scores stay within 5.0


def cell_count(scale: Scale) -> int:
    """Number of cells of a column."""
    count = scale.count
    return CELLS if count is None or count > CELLS or scale.log else count


def is_discrete(scale: Scale) -> bool:
    """Whether the cells of a column are its values."""
    return scale.discrete and not scale.log and cell_count(scale) == scale.count


def cell_counts(units: Floats, folds: NDArray[np.integer], cells: int) -> Counts:
    """Records in each cell, by fold (0 to `FOLDS` - 1): int64[FOLDS, cells], from a column on the unit interval,
    float64[n].
    """
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
    bandwidth: float  # of the kernel, on the unit interval; 0 where there is none

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
        return np.asarray(ndtri(np.clip(self.cdf(units), _EDGE, 1 - _EDGE)))


def pooled_deviation(marginals: Sequence[Marginal], records: Sequence[int]) -> float:
    """Deviation of the mixture of marginals of one column in parts of a table, which have so many records; 1 where it
    does not vary.
    """
    total = sum(records)
    masses = sum(marginal.masses * (count / total) for marginal, count in zip(marginals, records, strict=True))
    middles = marginals[0].middles
    variance = inner(np.asarray(masses), (middles - inner(np.asarray(masses), middles)) ** 2)
    return math.sqrt(variance) if variance > 1e-18 else 1.0


def marginal_of_masses(masses: Floats, *, discrete: bool, bandwidth: float = 0.0) -> Marginal:
    """The marginal with these masses of its cells, which need not sum to one. Raises ValueError: a mass is negative or
    not finite, or all are zero.
    """
    if not np.all(np.isfinite(masses)) or masses.min() < 0 or not masses.sum() > 0:
        raise ValueError("masses of cells are finite, not negative and not all zero")
    cumulative = np.concatenate([[0.0], np.cumsum(masses)])
    return Marginal(cumulative / cumulative[-1], discrete, bandwidth)


def fit_marginal(counts: Counts, scale: Scale) -> Marginal:
    """The kernel density of a column, from its `cell_counts`. The bandwidth is by 5-fold cross-validated likelihood
    over `BANDWIDTHS`. Raises ValueError: there is no record.
    """
    total = counts.sum(axis=0)
    if not total.sum():
        raise ValueError(f"column {scale.name!r}: no records")
    if scale.nominal:
        return marginal_of_masses(total.astype(np.float64), discrete=True)
    reference = silverman(total)
    grid = np.maximum(BANDWIDTHS * reference, 0.25 / counts.shape[1])
    bandwidth = float(grid[np.argmax(np.round(likelihoods(counts, grid), 6))])
    masses = smooth(total, [bandwidth])[0]
    return marginal_of_masses(masses, discrete=is_discrete(scale), bandwidth=bandwidth)


def silverman(counts: Counts) -> float:
    """Silverman's rule, ``0.9 min(sd, iqr / 1.34) n^(-1/5)``, from counts of cells; at least a quarter of a cell."""
    n, cells = int(counts.sum()), len(counts)
    middles = (np.arange(cells) + 0.5) / cells
    weights = counts / n
    mean = inner(weights, middles)
    deviation = math.sqrt(max(inner(weights, (middles - mean) ** 2), 0.0))
    cumulative = np.cumsum(counts) / n
    low, high = (middles[np.searchsorted(cumulative, q)] for q in (0.25, 0.75))
    spread = (high - low) / 1.34
    spread = min(deviation, spread) if spread > 0 else deviation
    return round_up(max(0.9 * spread * n**-0.2, 0.25 / cells))


def smooth(counts: NDArray[np.generic], bandwidths: Sequence[float] | Floats) -> Floats:
    """Counts smoothed with a Gaussian kernel that is reflected at both ends: float64[bandwidths, cells].

    Bandwidths are on the unit interval. Each row has the sum of the counts, to a part in 2**26, and is rounded to that
    grid: the last bits of a transform depend on the processor.
    """
    spectrum = fft.dct(np.asarray(counts, np.float64), type=2)
    waves = np.pi * np.arange(len(spectrum))
    damped = spectrum * exp(-0.5 * np.outer(np.asarray(bandwidths, np.float64), waves) ** 2)
    grid = math.ldexp(1.0, math.frexp(float(spectrum[0]))[1] - 27)  # of twice the sum
    return np.asarray(np.maximum(np.rint(fft.idct(damped, type=2, axis=1) / grid), 0.0) * grid)


def likelihoods(counts: Counts, bandwidths: Floats) -> Floats:
    """Log-likelihood of each fold under the density of the others, summed over folds, for each bandwidth."""
    folds, cells = counts.shape
    total = counts.sum(axis=0)
    out = np.zeros(len(bandwidths))
    for held in range(folds):
        rest = total - counts[held]
        if not rest.sum() or not counts[held].any():
            continue
        density = smooth(rest, bandwidths) * (cells / rest.sum())
        present = np.flatnonzero(counts[held])
        out += (log(np.maximum(density[:, present], _LEAST)) * counts[held, present]).sum(axis=1)
    return out
