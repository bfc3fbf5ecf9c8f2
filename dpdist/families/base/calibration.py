"""Noise within a budget: one Gaussian mechanism that fills it, and counts with noise in every cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.errors import CheckFailed, SpecError
from dpdist.privacy import accountant
from dpdist.privacy.arrays import AnyFloats, Counts, Floats
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.checks import CountCheck, PassCheck
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, Gaussian
from dpdist.privacy.noise import SAMPLER_DELTA, Noise

BY_CHANCE = 1e-6
"""Probability that an empty bin counts as one with records."""

_EXACT = 1e-9  # variance of a total without noise
_ERROR = 1 + 1e-9  # of `math.erfc` and `math.exp`, and more

Mechanism = Literal["laplace", "gaussian"]
"""Discrete Laplace noise, or Gaussian noise that is rounded."""


@dataclass(frozen=True, kw_only=True)
class GaussianPlan:
    """The Gaussian mechanism with the least noise within a budget; what a family measures divides its mu."""

    sigma: float  # deviation of the noise on each statistic
    sensitivity: float
    count: int
    label: str
    lost: ApproximateDP  # what the draws may miss their distributions by

    @classmethod
    def of(
        cls,
        *,
        epsilon: float,
        delta: float,
        sensitivity: float = 1.0,
        count: int = 1,
        draws: int = 0,
        label: str = "",
        lost: str = "draws",
    ) -> Self:
        """The least noise on `count` statistics of an L2 sensitivity, where this many draws lose a part of delta.

        `label` and `lost` name the mechanism and the loss in the event. Raises SpecError: the draws alone take as much
        as delta; AccountingError: the budget is not valid.
        """
        failing = ApproximateDP(0.0, draws * SAMPLER_DELTA, label=lost)
        if draws and not failing.delta < delta:
            raise SpecError(
                f"privacy.delta: the random draws for tables of these domains take up to {failing.delta:.2g} of it; "
                f"set a delta of {10 * failing.delta:.0e} or more, or coarser values"
            )
        sigma = accountant.calibrate_gaussian(
            sensitivity=sensitivity, epsilon=epsilon, delta=delta - failing.delta, count=count
        )
        return cls(sigma=sigma, sensitivity=sensitivity, count=count, label=label, lost=failing)

    @property
    def multiplier(self) -> float:
        """Deviation over the sensitivity."""
        return self.sigma / self.sensitivity

    @property
    def mu(self) -> float:
        """Each statistic is mu-GDP."""
        return 1 / self.multiplier

    @property
    def event(self) -> Event:
        """The charge."""
        noise = Gaussian(self.multiplier, count=self.count, label=self.label)
        return Composed((noise, self.lost)) if self.lost.delta else noise

    def part(self, share: float) -> float:
        """The mu of a share of its square."""
        return self.mu * math.sqrt(share) / ABOVE


def with_draws(calibrated: Callable[[int], GaussianPlan], draws: int, draws_of: Callable[[float], int]) -> GaussianPlan:
    """The plan of as many draws as its own mu needs, and `draws` at least: with less noise there may be fewer."""
    while draws < (needed := draws_of((found := calibrated(draws)).mu)):
        draws = needed
    return found


def deviation(mechanism: Mechanism, scale: float) -> float:
    """Standard deviation of one draw of noise on integers: discrete Laplace noise of this scale, or Gaussian noise of
    this deviation before rounding.
    """
    if mechanism == "gaussian":
        return math.sqrt(scale * scale + 1 / 12)
    return accountant.laplace_deviation(scale)


def add_noise(table: Counts, *, mechanism: Mechanism, scale: float, noise: Noise, name: str) -> Counts:
    """The table with noise in every cell, empty ones included: int64 of the same shape, may be negative. `mechanism`
    and `scale` are as of `deviation`; cell i in C order takes draw i of the stream `name`.
    """
    if mechanism == "gaussian":
        draws = noise.gaussian_integers(name, table.size, sigma=scale)
    else:
        draws = noise.discrete_laplace(name, table.size, scale=scale)
    return np.asarray(table + draws.reshape(table.shape))


def grid_noise(noise: Noise, name: str, count: int, *, mechanism: Mechanism, scale: float, grid: float) -> Floats:
    """`count` draws on multiples of `grid`, float64: Gaussian noise of this deviation or discrete Laplace noise of
    this scale, both in the unit of the grid; from draw 0 of the stream `name` on.
    """
    if mechanism == "gaussian":
        return noise.grid_gaussian(name, count, sigma=scale, grid=grid)
    return noise.grid_laplace(name, count, scale=scale, grid=grid)


def noisily_passes(count: int, check: CountCheck | PassCheck, *, noise: Noise, name: str) -> bool:
    """Whether a count with noise, from the stream ``checks/name``, confirms a declared public lower bound."""
    return check.passes(count + int(noise.discrete_laplace(f"checks/{name}", 1, scale=check.scale)[0]))


def confirm(count: int, check: CountCheck | PassCheck, *, noise: Noise, name: str, setting: str) -> None:
    """Compare a noisy count with the bound that a setting declares. Raises CheckFailed: it is not confirmed."""
    if not noisily_passes(count, check, noise=noise, name=name):
        raise CheckFailed(
            f"a declared public lower bound was not confirmed, so nothing is published: {setting} is more than the "
            "table supports with the noise of the check; declare less, from public knowledge, under another release "
            "name. The charge stays spent"
        )


def project(noisy: ArrayLike, *, total: float | None = None) -> Floats:
    """Nearest non-negative table with the given total (least squares over all cells), float64 of the same shape.

    The solution lowers or raises all cells by one number and cuts at zero. Cutting alone would add the positive noise
    of all empty cells to the total. `total` is public, or itself noisy; by default the table's own, or zero if that is
    negative. Raises SpecError: it is negative or not finite.
    """
    table = np.asarray(noisy, np.float64)
    total = max(float(table.sum()), 0.0) if total is None else float(total)
    if not 0 <= total < np.inf:
        raise SpecError("the total of a histogram must be finite and not negative")
    if total == 0 or table.size == 0:
        return np.zeros_like(table)
    return project_rows(table.reshape(1, -1), np.array([total])).reshape(table.shape)


def common_total(tables: Sequence[NDArray[Any]], variances: Sequence[float]) -> float:
    """Estimate of the number of records: the tables' totals, by the inverse of their variance, not below 0."""
    weights = np.array([1 / max(v * table.size, _EXACT) for table, v in zip(tables, variances, strict=True)])
    totals = np.array([float(table.sum()) for table in tables])
    return max(float(weights @ totals / weights.sum()), 0.0)


def project_rows(values: AnyFloats, totals: AnyFloats) -> Floats:
    """The nearest non-negative rows with the given positive sums, in Euclidean distance: float64[rows, n]. Each entry
    becomes ``max(0, value - tau)`` with the row's own tau (Held, Wolfe, Crowder 1974; Duchi et al. 2008).
    """
    ordered = -np.sort(-values, axis=1)
    tau = (np.cumsum(ordered, axis=1) - totals[:, None]) / np.arange(1, values.shape[1] + 1)
    last = np.maximum((ordered > tau).sum(axis=1), 1) - 1
    return np.asarray(np.maximum(values - tau[np.arange(len(values)), last][:, None], 0.0))


def tail(mechanism: Mechanism, scale: float, count: int) -> float:
    """Probability that the noise is at least `count`, which is positive; rounded upwards."""
    if mechanism == "gaussian":  # the nearest integer to a normal draw
        return _ERROR * math.erfc((count - 0.5) / scale / math.sqrt(2)) / 2
    return _ERROR * math.exp(-count / scale) / (1 + math.exp(-1 / scale))


def least_above(above: Callable[[int], float], probability: float) -> int:
    """Least positive count that noise reaches with this probability at most."""
    high = 1
    while above(high) > probability:
        high *= 2
    low = high // 2  # reached with a larger probability, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if above(middle) > probability else (low, middle)
    return high
