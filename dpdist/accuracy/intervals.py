"""From the measured accuracy of a release to standard errors and intervals of its cells.

The mean error of a cell of k attributes with share s of the records is taken as ``exp(a_k + g_k log s)``, fitted to the
noisy sums of the classes but the lowest; each class is then moved from the curve to its own mean as far as its noise
allows, and at least to two deviations of its noise below that mean. A sum within two deviations of its noise shows no
error: an upper bound takes its place in intervals. A pair's distance over what the curve expects of it gives a factor
for the pair, moved towards 1 in proportion to its noise. A table of three attributes has the mean factor of its pairs
over that of all: the size of its errors has sums of its own. Errors have tails ``P(|error| > x) = 20^(-x / (q e))``
with e the mean error and q from `_MULTIPLIERS`: the 95 % interval reaches from q e below the released count up to the
largest count whose own q e is at least its distance. Errors grow with the count, so the cell's share in the table
decides, not the released one.

Where the cell's table itself was measured with Gaussian noise of known deviation, the interval around the measurement
is taken unless the other one is shorter even with a mean error two standard deviations above its estimate. The
multipliers were chosen on Adult and ACS 2013; `tests/benchmarks/bench_coverage.py` shows how often intervals cover.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from dpdist.accuracy.measured import EDGES, Accuracy, Order, at_scale
from dpdist.accuracy.tables import Attributes
from dpdist.privacy.arrays import Counts, Floats

SMALL = 0.01  # cells with less than this share have heavier tails, and the published sentence leaves them out
_MULTIPLIERS = {1: (2.5, 3.4), 2: (2.7, 2.9), 3: (2.9, 2.9)}  # of cells above and below `SMALL`
_LEAST_SHARE = 2e-5
_ERROR_OF_CURVE = 0.3  # relative deviation of a class from the curve, before it is measured
_FACTORS = (0.4, 2.5)
_LEAST_SPREAD = 0.02  # variance of the pairs' factors, at least
_SURE = 2.0  # an interval by mean errors is taken if it is shorter even with errors this many deviations larger
_SURELY = 0.5  # deviation of the logarithm of errors that the noise hides; it grows with how far they stand out
_SHOWN = 2.0  # deviations of its noise from which on a sum shows an error; below, an upper bound takes its place
_UPPER = 1.645  # deviations of the upper bound: 95 %
_STEPS = 8  # towards the upper end of an interval; each is a contraction
_LN20 = math.log(20)


@dataclass(frozen=True)
class _Curve:
    """``exp(a + g log share)``, and the covariance of (a, g)."""

    a: float
    g: float
    covariance: Floats

    def at(self, shares: Floats) -> Floats:
        return np.asarray(np.exp(self.a + self.g * np.log(shares)))

    def relative_variance(self, shares: Floats) -> Floats:
        x = np.log(shares)
        c = self.covariance
        return np.asarray(c[0, 0] + 2 * x * c[0, 1] + x * x * c[1, 1])


def _fitted(
    means: Floats, deviations: Floats, shares: Floats, prior: tuple[float, float, float, float] | None
) -> _Curve:
    """Weighted least squares of the class means by Gauss-Newton; prior: a and g, and their deviations."""
    x = np.log(shares)
    if prior is None:
        g = 0.45
        shape = np.exp(g * x)
        precision = float((shape**2 / deviations**2).sum())
        found = float((shape * means / deviations**2).sum()) / math.sqrt(precision)
        # an error is not negative: where the noise hides it, what it is on average, and not what the noise says
        scale = _above_zero(found) / math.sqrt(precision)
        prior = (math.log(scale), g, _SURELY * (1 + max(found, 0.0) ** 4), 0.15)
    a, g = prior[:2]
    weights = np.array([1 / prior[2] ** 2, 1 / prior[3] ** 2])
    for _ in range(30):
        f = np.exp(a + g * x)
        variance = deviations**2 + (0.25 * f) ** 2
        slopes = np.stack([f, f * x], 1)
        normal = (slopes / variance[:, None]).T @ slopes + np.diag(weights)
        right = (slopes / variance[:, None]).T @ (means - f) + weights * (np.array(prior[:2]) - [a, g])
        step = np.clip(np.linalg.solve(normal, right), -0.5, 0.5)
        a, g = a + float(step[0]), min(max(g + float(step[1]), 0.0), 1.0)
    return _Curve(a, g, np.linalg.inv(normal))


def _above_zero(found: float) -> float:
    """Mean of what is above zero and was found with standard normal noise, before which nothing was known of it."""
    if found < -6:
        return -1 / found
    normal = NormalDist()
    return found + normal.pdf(found) / normal.cdf(found)


@dataclass(frozen=True, eq=False)
class _Errors:
    """Mean errors of the cells of one order, and their relative deviations: of each class, and between them."""

    shares: Floats
    means: Floats
    most: Floats  # an upper bound for classes whose sum shows no error, the mean for the others
    deviations: Floats

    def at(self, shares: Floats, *, most: bool = False) -> Floats:
        errors = np.log(self.most if most else self.means)
        return np.asarray(np.exp(np.interp(np.log(np.maximum(shares, _LEAST_SHARE)), np.log(self.shares), errors)))


def _errors(order: Order, released: int, prior: _Curve | None) -> tuple[_Errors, _Curve]:
    cells = np.array(order.cells, np.float64)
    some = cells > 0
    shares = np.maximum(np.array(order.mass)[some] / cells[some] / released, _LEAST_SHARE)
    means = np.array(order.sums)[some] / cells[some]
    deviations = np.broadcast_to(np.array(order.deviation), cells.shape)[some] / cells[some]
    # the lowest class has cells of all shares down to none: no share of the curve stands for it
    on = (np.flatnonzero(some) > 0) | ~some[1:].any()
    before = None if prior is None else _from_pairs(prior, order.attributes)
    curve = _fitted(means[on], deviations[on], shares[on], before)
    expected = curve.at(shares)
    variance = expected**2 * (_ERROR_OF_CURVE**2 + curve.relative_variance(shares))
    precision = 1 / deviations**2 + 1 / variance
    posterior = np.maximum((means / deviations**2 + expected / variance) / precision, 0.3 * expected)
    # an error of the scale itself makes intervals cover less: half of the second derivative of the tail, about
    estimated = posterior * (1 + 1 / (precision * expected**2))
    estimated = np.maximum(estimated, means - _SHOWN * deviations)  # what stands out from the curve beyond its noise
    most = estimated + np.where(means < _SHOWN * deviations, _UPPER / np.sqrt(precision), 0.0)
    return _Errors(shares, estimated, most, 1 / np.sqrt(precision) / posterior), curve


def _from_pairs(pairs: _Curve, order: int) -> tuple[float, float, float, float]:
    """What the curve of the pairs tells of that of another order."""
    if order == 3:
        return pairs.a + math.log(1.2), pairs.g + 0.03, 0.3, 0.1
    return pairs.a + math.log(0.75), max(pairs.g - 0.15, 0.0), 0.4, 0.2


def at_least(reach: Floats, known: Floats) -> Floats:
    """How far an interval reaches around a released count: it has half of its measurement's variance at least."""
    return np.where(np.isfinite(known), np.maximum(reach, known * math.sqrt(0.5)), reach)


@dataclass(frozen=True, eq=False)
class Interval:
    """Intervals of cells, as counts of the private table."""

    estimate: Floats
    low: Floats  # low, high: no end is below zero
    high: Floats


class CellErrors:
    """What the measured accuracy says of each cell of one, two or three attributes.

    Parameters
    ----------
    pair_tables : mapping
        Released counts of all pairs (i, j), i < j, flat, in the order of `itertools.combinations`; then pairs have
        factors of their own.
    """

    def __init__(self, accuracy: Accuracy, pair_tables: Mapping[tuple[int, int], Counts] = MappingProxyType({})):
        self.accuracy = accuracy
        measured = {order.attributes: order for order in accuracy.orders}
        self._errors: dict[int, _Errors] = {}
        self._factors: dict[tuple[int, int], float] = {}
        self._unsure: dict[tuple[int, int], float] = {}  # deviation of a pair's distance, relative to what is expected
        self._of_all = 1.0  # mean factor of the pairs
        curve = None
        for order in (2, 3, 1):
            if order in measured:
                self._errors[order], found = _errors(measured[order], accuracy.released, curve)
                curve = found if order == 2 else curve
            if order == 2 and pair_tables and len(accuracy.pairs) == len(pair_tables):
                self._of_pairs(pair_tables)
                curve = replace(found, a=found.a + math.log(self._of_all))

    def _of_pairs(self, tables: Mapping[tuple[int, int], Counts]) -> None:
        released, noise = self.accuracy.released, self.accuracy.pairs_deviation**2
        expected = np.array([self._errors[2].at(table / released).sum() for table in tables.values()])
        away = np.array(self.accuracy.pairs) - expected
        total, size = float((away**2).mean()), float((expected**2).mean())
        spread = max((total - noise) / size, _LEAST_SPREAD) * expected**2
        # the variance between pairs may be larger than it was found by so much
        most = max((total * (1 + math.sqrt(2 / len(away))) - noise) / size, _LEAST_SPREAD) * expected**2
        factors = np.clip(1 + spread / (spread + noise) * away / expected, *_FACTORS)
        unsure = np.sqrt(most * noise / (most + noise)) / expected
        self._factors = dict(zip(tables, factors.tolist(), strict=True))
        self._unsure = dict(zip(tables, unsure.tolist(), strict=True))
        self._of_all = float((factors * expected).sum() / expected.sum())

    @property
    def orders(self) -> tuple[int, ...]:
        """The numbers of attributes whose joint tables were measured."""
        return tuple(sorted(self._errors))

    def mean_error(self, attributes: Attributes, counts: Counts | Floats) -> Floats:
        """Expected ``|count - released count|`` of each cell of a table, at the scale of the private table.

        Parameters
        ----------
        attributes : tuple of int
            One to three, ascending.
        counts : ndarray
            The released counts of the table's cells.
        """
        return self._errors[len(attributes)].at(counts / self.accuracy.released) * self._factor(attributes)

    def distance(self, pair: tuple[int, int], counts: Counts) -> float:
        """The L1 distance of a pair's table at the scale of the private table: an upper bound, of 95 %."""
        unsure = self._unsure.get(pair, math.sqrt(_LEAST_SPREAD))
        return float(self.mean_error(pair, counts).sum()) * (1 + _UPPER * unsure / self._factor(pair))

    def _factor(self, attributes: Attributes) -> float:
        pairs = list(combinations(attributes, 2))
        found = math.fsum(self._factors.get(pair, 1.0) for pair in pairs) / len(pairs) if pairs else 1.0
        return found / self._of_all if len(pairs) > 1 else found

    def half_width(self, attributes: Attributes, counts: Counts | Floats, *, confidence: float = 0.95) -> Floats:
        """How far below its released count each cell's interval reaches."""
        large, small = _MULTIPLIERS[len(attributes)]
        multiplier = np.where(counts > SMALL * self.accuracy.released, large, small)
        errors = self._errors[len(attributes)].at(counts / self.accuracy.released, most=True)
        return errors * self._factor(attributes) * multiplier * (-math.log(1 - confidence) / _LN20)

    def reaches(
        self, attributes: Attributes, counts: Counts | Floats, *, confidence: float = 0.95
    ) -> tuple[Floats, Floats]:
        """How far below and above its released count a cell's interval reaches, as errors grow with the count."""
        below = self.half_width(attributes, counts, confidence=confidence)
        scale, above = self.accuracy.released / max(self.accuracy.records, 1), below
        for _ in range(_STEPS):
            reached = np.minimum(counts + above * scale, self.accuracy.released)
            above = np.maximum(below, self.half_width(attributes, reached, confidence=confidence))
        return below, above

    def surely(self, attributes: Attributes, counts: Counts) -> Floats:
        """Half of the length that each cell's interval has at most: a measurement with a shorter one is preferred."""
        of = self._errors[len(attributes)]
        shares = np.maximum(counts / self.accuracy.released, _LEAST_SHARE)
        unsure = np.interp(np.log(shares), np.log(of.shares), of.deviations)  # of the mean errors
        return self.half_width(attributes, counts) * (1 + _SURE * unsure)

    def interval(
        self,
        attributes: Attributes,
        counts: Counts,
        *,
        measured: tuple[Floats, Floats] | None = None,
        confidence: float = 0.95,
    ) -> Interval:
        """The interval of each cell's count in the private table.

        Parameters
        ----------
        measured : (ndarray, ndarray), optional
            A noisy count of each cell and the deviation of its Gaussian noise, infinite where it was not measured.
        """
        accuracy = self.accuracy
        estimate = at_scale(counts, records=accuracy.records, released=accuracy.released).astype(np.float64)
        below, above = self.reaches(attributes, counts, confidence=confidence)
        if measured is not None:
            noisy, sigma = measured
            known = NormalDist().inv_cdf(0.5 + confidence / 2) * sigma
            better = sigma * 1.96 < self.surely(attributes, counts)
            below, above = (np.where(better, known, at_least(side, known)) for side in (below, above))
            estimate = np.where(better, noisy, estimate)
        return Interval(estimate, np.maximum(estimate - below, 0), np.maximum(estimate + above, 0))

    def within(self, order: int) -> float:
        """The share of the table within which 95 of 100 cells above `SMALL` are; NaN where none is."""
        measured = next(item for item in self.accuracy.orders if item.attributes == order)
        large = [k for k, number in enumerate(measured.cells) if number and k and EDGES[k - 1] >= SMALL * 10_000]
        if not large:
            return math.nan
        cells = np.array(measured.cells, np.float64)[large]
        shares = np.array(measured.mass)[large] / cells / self.accuracy.released
        scale = self._errors[order].at(shares, most=True) * _MULTIPLIERS[order][0] / _LN20
        low, high = 0.0, 50 * float(scale.max())
        for _ in range(60):
            middle = (low + high) / 2
            beyond = float((cells * np.exp(-middle / scale)).sum() / cells.sum())
            low, high = (middle, high) if beyond > 0.05 else (low, middle)
        return high / self.accuracy.records


_NAMES = {1: "one-way", 2: "two-way", 3: "three-way"}


def sentence(errors: CellErrors) -> str:
    """What may be said of the accuracy of a release: one sentence; empty where no cell is large enough."""
    found = {order: errors.within(order) for order in errors.orders}
    parts = [f"{_NAMES[order]} shares within {_points(share)}" for order, share in found.items() if share == share]
    if not parts:
        return ""
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"Measured accuracy: in 95 of 100 cells above 1 % of the records, {listed} points of the table's."


def _points(share: float) -> str:
    """Points of a share, rounded upwards to two significant digits."""
    points = 100 * share
    digits = 1 - math.floor(math.log10(points)) if points > 0 else 1
    return f"{math.ceil(points * 10**digits) / 10**digits:.{max(digits, 0)}f}"
