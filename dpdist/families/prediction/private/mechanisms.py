"""The differentially private variant: noisy marginals, noisy rank correlations, noisy ridge statistics; alpha is 0.

Nothing original is released: inputs are drawn from a Gaussian copula with noisy marginals and noisy correlation, and
responses come from a ridge regression on random Fourier features fitted to noisy sums.

A record is reduced to public cells by comparisons. Its contribution to every statistic is a vector of integers from
tables, and depends on nothing but the record and what was released before. So sums are exact, adding a record
(add/remove) changes them by exactly that vector, and rounded Gaussian noise is post-processing of the continuous
Gaussian mechanism. ``docs/guarantees.md`` has the statistics, their norms and the proofs. The release is one Gaussian
mechanism whose squared inverse noise multiplier is the sum of those of the statistics; fixed shares divide that sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import AccountingError
from dpdist.families.base.calibration import GaussianPlan, project
from dpdist.families.prediction.columns import Scale
from dpdist.families.prediction.first_stage import Marginal, marginal_of_masses, nearest_correlation
from dpdist.privacy.arrays import LARGEST_SCALE, Counts, Floats
from dpdist.privacy.calibrate import ABOVE, round_up
from dpdist.privacy.events import Composed, Gaussian
from dpdist.privacy.portable import inner, sin_turns
from dpdist.spec.strict import OwnFields

FINE = 16
"""Fine cells, which features see, in a cell of a histogram."""

RANK_STEP = 2.0**-8
FEATURE_STEP = 2.0**-12

Cells = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PrivateColumn(OwnFields):
    """A column in public cells."""

    scale: Scale
    cells: int  # of its histogram
    fine: int  # fine cells in each of them; 1 where cells are values

    @property
    def total(self) -> int:
        """Number of fine cells."""
        return self.cells * self.fine

    @cached_property
    def edges(self) -> Floats:
        """Values between the fine cells, float64[total - 1]."""
        return self.scale.edges(self.total)

    @property
    def is_discrete(self) -> bool:
        """Whether cells are values."""
        return self.fine == 1

    def cells_of(self, values: NDArray[np.generic]) -> Cells:
        """The fine cell of each value: comparisons only."""
        return np.searchsorted(self.edges, np.asarray(values, np.float64), side="right")


def private_column(scale: Scale, *, cells: int) -> PrivateColumn:
    """A column in at most this many cells; a discrete one of no more values has one for each."""
    count = scale.count
    if count is not None and (count <= cells or scale.nominal) and not scale.log:
        return PrivateColumn(scale=scale, cells=count, fine=1)
    return PrivateColumn(scale=scale, cells=cells, fine=FINE)


def histogram(column: PrivateColumn, fine: Cells) -> Counts:
    """Records in each cell, int64[cells]."""
    return np.bincount(fine // column.fine, minlength=column.cells).astype(np.int64)


def noisy_total(histograms: Sequence[Counts]) -> float:
    """The number of records, from the noisy histograms of all columns; at least 1."""
    weights = np.array([1 / len(counts) for counts in histograms])
    totals = np.array([float(counts.sum()) for counts in histograms])
    return max(inner(weights, totals) / float(weights.sum()), 1.0)


def private_marginal(column: PrivateColumn, noisy: Counts, *, total: float) -> Marginal:
    """The marginal of a noisy histogram: post-processing."""
    return marginal_of_masses(project(noisy, total=total), discrete=column.is_discrete)


def rank_table(column: PrivateColumn, marginal: Marginal) -> Counts:
    """Rank of each fine cell less 1/2, in steps of `RANK_STEP`, int64[total]: within a half."""
    middles = (np.arange(column.total) + 0.5) / column.total
    half = round(0.5 / RANK_STEP)
    return np.clip(np.rint((marginal.cdf(middles) - 0.5) / RANK_STEP), -half, half).astype(np.int64)


def rank_products(ranks: Counts) -> Counts:
    """Sums of products of ranks (int64[n, d]) of each pair, int64[d (d - 1) / 2], in steps of ``RANK_STEP**2``."""
    upper = np.triu_indices(ranks.shape[1], 1)
    values = ranks.astype(np.float64)  # products below 2^14: sums of 2^38 records are exact
    return (values.T @ values)[upper].astype(np.int64)


def rank_sensitivity(columns: int) -> float:
    """Most that one record changes the rank products in L2 norm, in units of 1 (not of steps)."""
    return math.sqrt(columns * (columns - 1) / 2) / 4


def private_correlation(
    noisy: Counts, tables: Sequence[Counts], marginals: Sequence[Marginal], *, total: float
) -> Floats:
    """Correlation of normal scores from noisy rank products, float64[d, d]: post-processing."""
    d = len(tables)
    deviations = np.ones(d)
    for i, (table, marginal) in enumerate(zip(tables, marginals, strict=True)):
        masses = np.diff(marginal.cumulative).repeat(len(table) // marginal.cells) / (len(table) // marginal.cells)
        ranks = table * RANK_STEP
        deviations[i] = math.sqrt(max(inner(masses, np.asarray(ranks**2, np.float64)), 1e-4))
    out = np.eye(d)
    upper = np.triu_indices(d, 1)
    spearman = noisy * RANK_STEP**2 / total / (deviations[upper[0]] * deviations[upper[1]])
    out[upper] = np.clip(2 * sin_turns(np.clip(spearman, -1, 1) / 12), -0.99, 0.99)
    return nearest_correlation(out + out.T - np.eye(d), least=1e-3)


@dataclass(frozen=True, kw_only=True)
class Deviations:
    """Noise of each statistic."""

    marginal: float  # deviation of the noise on each cell of each histogram
    correlation: float  # deviation of the noise on each product of ranks, in units of 1; 0 for a single input
    # deviation of the noise on the products of the features on the diagonal, ``sqrt(2)`` times that off it; 0 where
    # they are not measured
    product: float
    cross: float  # deviation of the noise on each cross product
    event: Composed  # what is charged, the samplers' losses included

    def times(self, factor: float) -> Deviations:
        """The noise, wider or narrower."""
        names = ("marginal", "correlation", "product", "cross")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


MARGINAL_SHARE, CORRELATION_SHARE, PRODUCT_SHARE = 0.35, 0.15, 0.25
"""Shares of the budget of the marginals, the correlations, and the features' products where they are measured; the
cross products have the rest. Marginals decide how each column looks, so theirs is the largest."""


def charge(*, inputs: int, epsilon: float, delta: float, measured: bool, draws: int, unit: int = 1) -> Deviations:
    """Divide the budget of a whole release of `inputs` without the response, for units of this many records.

    Products of features may be `measured`; what is not leaves its share to the cross products. `draws` is the noise
    drawn, at most. Raises AccountingError: the budget is not valid, or too small for what the samplers lose.
    """
    correlations, products = CORRELATION_SHARE if inputs > 1 else 0.0, PRODUCT_SHARE if measured else 0.0
    shares = {"marginals": MARGINAL_SHARE, "correlations": correlations, "products": products}
    shares["cross products"] = 1 - MARGINAL_SHARE - correlations - products
    shares = {name: share for name, share in shares.items() if share > 0}
    whole = GaussianPlan.of(epsilon=epsilon, delta=delta, draws=draws, lost="samplers")
    multiplier = round_up(whole.sigma * ABOVE)
    one = {name: unit * multiplier / math.sqrt(share) for name, share in shares.items()}
    parts = (Gaussian(multiplier / math.sqrt(share), label=name) for name, share in shares.items())
    made = Deviations(
        marginal=one["marginals"] * math.sqrt(inputs + 1),
        correlation=one.get("correlations", 0.0) * rank_sensitivity(inputs),
        product=one.get("products", 0.0),
        cross=one["cross products"],
        event=Composed((*parts, whole.lost), label="two-stage"),
    )
    in_steps = (made.correlation / RANK_STEP**2, made.product / FEATURE_STEP**2, made.cross / FEATURE_STEP**2)
    if max(made.marginal, *in_steps) > LARGEST_SCALE:
        raise AccountingError(
            f"epsilon = {epsilon:g} at delta = {delta:g} needs more noise than the sums can carry; raise one of them"
        )
    return made


def cells_for(records: int, *, noise: float) -> int:
    """Cells of a marginal of this many records with this noise: about ``(records / noise)^(2/3)``, from 8 to 128."""
    return round(min(max(math.exp(2 / 3 * math.log(records / noise)), 8.0), 128.0))
