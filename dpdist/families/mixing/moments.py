"""Means and deviations of the coordinates, from noisy sums that are charged: for scaling by what the table is like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.mixing.scaling import Encoding
from dpdist.privacy.arrays import Floats
from dpdist.privacy.events import Gaussian
from dpdist.privacy.grid import round_to_grid
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Attribute
from dpdist.storage.stored import Stored

MOMENT_GRID = 2.0**-17
"""Grid to which coordinates and squares are rounded before their sums are taken."""

LEAST_DEVIATION = 2.0**-6
"""Of an ordered attribute, whose values span [-1, 1]."""

_SUMMED = 1 << 20  # continuous numbers summed at a time


@dataclass(frozen=True, eq=False)
class Moments(Stored):
    """Noisy moments of the coordinates of a declared encoding: drawn once, stored, read back."""

    FILE: ClassVar[str] = "moments.npz"

    mean: Floats  # mean, variance: float64[d]
    variance: Floats
    # float64[d]: what standardised coordinates are divided by: 1 but for the values of ordered attributes
    deviation: Floats

    def norm(self, *, divide: bool) -> float:
        """Root mean square norm of a scaled record, by these moments: a sensible clipping norm."""
        scaled = self.variance / self.deviation**2 if divide else self.variance
        return math.sqrt(max(float(scaled.sum()), LEAST_DEVIATION**2))

    def scaled(self, encoding: Encoding, *, divide: bool) -> Encoding:
        """A declared encoding centred at the means; with `divide`, by the deviations of ordered attributes, too."""
        tables, at = [], 0
        for table in encoding.tables:
            place = slice(at, at + table.shape[1])
            tables.append((table - self.mean[place]) / (self.deviation[place] if divide else 1.0))
            at = place.stop
        return replace(encoding, tables=tuple(tables))


@dataclass(frozen=True, kw_only=True)
class MomentPlan:
    """Noise on the number of records, the sums of all coordinates, and the sums of squares of ordered attributes.

    A record adds one vector ``(1, x, x**2)`` to these sums, rounded to `MOMENT_GRID` value by value; `sensitivity` is
    the largest norm of such a vector (add/remove), or of the sum of a unit's. The sums are exact.
    """

    sigma: float  # deviation of the noise on each sum, before rounding
    sensitivity: float

    @property
    def event(self) -> Gaussian:
        """The charge."""
        return Gaussian(noise_multiplier=self.sigma / self.sensitivity, label="means and deviations")


def moment_plan(encoding: Encoding, *, epsilon: float, delta: float, unit: int = 1) -> MomentPlan:
    """The noise of the moments of the declared encoding within a budget, for at most `unit` records of a unit. Raises
    AccountingError: the budget is not valid.
    """
    largest = 1 + sum(float((table**2).sum(axis=1).max()) for table in _moment_tables(encoding))
    sensitivity = unit * math.sqrt(largest) * (1 + 2.0**-40)
    sigma = GaussianPlan.of(sensitivity=sensitivity, epsilon=epsilon, delta=delta).sigma
    return MomentPlan(sigma=sigma, sensitivity=sensitivity)


def moment_sums(encoding: Encoding, place: int, column: NDArray[Any]) -> NDArray[np.int64]:
    """Sums over records of the coordinates of the attribute at `place` and, if it is ordered, of the squares of its
    values.

    `column` holds n codes, or continuous numbers. Returns int64[coordinates (+ 1)] in steps of `MOMENT_GRID`, to which
    every value is rounded; exact.
    """
    attribute, table = encoding.attributes[place], encoding.tables[place]
    if attribute.is_continuous:
        total = np.zeros(2, np.int64)
        for start in range(0, len(column), _SUMMED):
            values = np.interp(column[start : start + _SUMMED], attribute.bounds or (), table[:, 0])
            total += [int(np.rint(power / MOMENT_GRID).sum()) for power in (values, values**2)]
        return total
    steps = np.rint(_with_squares(attribute, table) / MOMENT_GRID).astype(np.int64)
    return np.asarray(np.bincount(column, minlength=attribute.cardinality).astype(np.int64) @ steps)


def noisy_moments(
    noise: Noise,
    encoding: Encoding,
    records: int,
    sums: Sequence[NDArray[np.int64]],
    plan: MomentPlan,
    *,
    minimum: int,
    name: str = "mixing/moments",
) -> Moments:
    """Means and deviations of the table, with noise at the address `name`.

    `records`, their number, and `sums` of each attribute but the class (`moment_sums`) are confidential; `minimum` is a
    public lower bound to which the noisy number is raised.
    """
    exact = np.append(float(records), np.concatenate(sums) * MOMENT_GRID)
    noisy = exact + noise.grid_gaussian(name, len(exact), sigma=plan.sigma, grid=MOMENT_GRID)
    averages = np.clip(noisy[1:] / max(noisy[0], minimum), -1.0, 1.0)
    means, deviations, variances = [], [], []
    at = 0
    for attribute, table in zip(encoding.attributes, encoding.tables, strict=True):
        mean = averages[at : at + table.shape[1]]
        deviation, variance = np.ones(len(mean)), np.maximum(mean * (1 - mean), 0.0)
        at += len(mean)
        if attribute.kind != "categorical":
            variance[0] = max(averages[at] - mean[0] ** 2, 0.0)
            deviation[0] = math.sqrt(max(variance[0], LEAST_DEVIATION**2))
            at += 1
        means.append(mean)
        deviations.append(deviation)
        variances.append(variance)
    return Moments(np.concatenate(means), np.concatenate(variances), np.concatenate(deviations))


def _moment_tables(encoding: Encoding) -> list[Floats]:
    """The tables with the squares of the values of ordered attributes beside them, on the grid."""
    return [
        round_to_grid(_with_squares(attribute, table), grid=MOMENT_GRID)
        for attribute, table in zip(encoding.attributes, encoding.tables, strict=True)
    ]


def _with_squares(attribute: Attribute, table: Floats) -> Floats:
    return table if attribute.kind == "categorical" else np.column_stack([table, table[:, 0] ** 2])
