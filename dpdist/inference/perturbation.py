"""Errors that records may have: perturbations of their weights with the covariance that the measured accuracy gives.

A perturbation d of the weights (relative, one number for each record) has three parts, all of mean zero:

- *within one-way tables*: white noise projected on sums of functions of one attribute, as large as the errors of
  one-way cells are relative to a simple random sample of the same size;
- *all other directions*: white noise, as large as the errors of two-way cells are, and at least as that of a simple
  random sample: cells may be drawn with less, other functions of the records are not;
- *lost dependence*: for each pair of attributes, products of scores. The scores of an attribute are its values' leading
  direction in the tables with all others (correspondence analysis) and, where values are ordered, their numbers. The
  product of two scores has the deviation by which 1.96 deviations are the largest error of its mean that a table with
  as much distance as the pair may have (an upper bound) can have, less what drawing the records explains: if the error
  is proportional to the product f, ``|sum f E| = D sum q f^2 / sum q |f|``. Where the pair was measured, the deviation
  is at most that of the difference to the noisy table and of its noise. The part moves no other product's mean (a dual
  basis).

Errors of one-way cells are at most the difference to the noisy tables and their noise, likewise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import sparse

from dpdist.accuracy.intervals import SMALL, CellErrors
from dpdist.accuracy.measured import at_scale
from dpdist.data.count import PairCounts, pair_counts
from dpdist.model.account import Measurements
from dpdist.model.coding import Pair
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise

_RARE = 5  # values with fewer records have no score
_LARGEST = 4.0  # score, in units of its deviation
_LEAST_LOST = 0.1  # share of a distance that drawing records never explains


@dataclass(frozen=True, eq=False)
class NoisyPair:
    """A noisy table of a pair: which of its rows and columns each value is in."""

    rows: Counts
    columns: Counts
    shape: Pair
    counts: Counts
    deviation: float


def noisy_pairs(measurements: Measurements) -> Mapping[Pair, list[NoisyPair]]:
    """The noisy tables of each pair of the table's attributes."""
    found: dict[Pair, list[NoisyPair]] = {}
    for table in measurements.tables:
        if len(table.attributes) != 2:
            continue
        source, maps = list(table.attributes), [np.arange(size) for size in table.shape]
        if table.coded:
            source = [measurements.source[a] for a in table.attributes]
            maps = [measurements.maps[a] for a in table.attributes]
        counts, shape = table.counts.reshape(table.shape), table.shape
        if source[0] > source[1]:
            source, maps, counts, shape = source[::-1], maps[::-1], counts.T, shape[::-1]
        pair = (source[0], source[1])
        item = NoisyPair(maps[0], maps[1], (shape[0], shape[1]), counts.ravel(), table.deviation)
        found.setdefault(pair, []).append(item)
    return found


def largest_error(distance: float, f: Floats, q: Floats) -> float:
    """The largest error of the sum of a function, if the error is proportional to it and has so much distance."""
    size = float((q * np.abs(f)).sum())
    return distance * float((q * f * f).sum()) / size if size > 0 else 0.0


def not_drawn(distance: float, counts: Floats) -> float:
    """An L1 distance of cells with these counts, less what drawing as many records explains."""
    drawn = math.sqrt(2 / math.pi) * float(np.sqrt(counts).sum())
    return math.sqrt(max(distance**2 - drawn**2, (_LEAST_LOST * distance) ** 2))


def scores_of(counts: PairCounts, a: int, numbers: Floats | None) -> Floats:
    """Scores of the values of an attribute: mean 0, variance 1, uncorrelated; a value without a number has NaN."""
    total = max(counts.total, 1)
    share = [counts.single(i) / total for i in range(len(counts.cardinalities))]
    common = [s * total >= _RARE for s in share]
    dependence = np.zeros((len(share[a]), len(share[a])))
    for b in range(len(share)):
        if b == a:
            continue
        q = counts.pair(a, b) / total
        expected = np.outer(share[a], share[b])
        z = np.divide(q - expected, np.sqrt(expected), out=np.zeros_like(q), where=np.outer(common[a], common[b]))
        dependence += z @ z.T
    leading = np.asarray(np.linalg.eigh(dependence)[1][:, -1], np.float64)
    columns = [np.divide(leading, np.sqrt(share[a]), out=np.zeros_like(leading), where=common[a])]
    if numbers is not None and len(share[a]) > 2:
        counted = common[a] & ~np.isnan(numbers)
        mean = float((share[a] * np.where(counted, numbers, 0.0)).sum()) / max(float(share[a][counted].sum()), 1e-300)
        numbers = np.where(np.isnan(numbers), mean, numbers)  # of missing values, so that their score is 0
        columns.append(np.where(common[a], numbers, 0.0))
    found: list[Floats] = []
    for column in columns:
        size = math.sqrt(float((share[a] * column**2).sum()))
        for before in (common[a].astype(np.float64), *found):
            weight = float((share[a] * before**2).sum())
            column = column - before * (float((share[a] * before * column).sum()) / weight if weight else 0.0)
        left = math.sqrt(float((share[a] * column**2).sum()))
        if left > 0.03 * size and left > 0:
            column = np.clip(column / left, -_LARGEST, _LARGEST)
            found.append(column / math.sqrt(float((share[a] * column**2).sum())))
    return np.stack(found, axis=1) if found else np.zeros((len(share[a]), 0))


MOST_PRODUCTS = 2_000  # products of scores at most; with more there is one score for each attribute
MOST_ATTRIBUTES = (1 + math.isqrt(1 + 8 * MOST_PRODUCTS)) // 2  # attributes with no more pairs than that
_ROWS = 20_000  # rows at a time
_FOR_MOMENTS = 200_000  # rows from which the products' covariance is computed, at most
_AT_ONCE = 8  # perturbations at a time
_NORMAL_95 = 1.96


@dataclass(frozen=True, eq=False)
class _Products:
    """Scores of the attributes, and the pairs of scores whose products are perturbed."""

    scores: list[Floats]  # for each attribute, values x scores: mean 0, variance 1
    first: np.ndarray  # first, second: columns of the scores side by side
    second: np.ndarray
    deviations: Floats  # of the mean of each product

    def of(self, codes: Codes) -> Floats:
        """Records x products."""
        side = np.concatenate([s[column] for s, column in zip(self.scores, codes, strict=True)], axis=1)
        return np.asarray(side[:, self.first] * side[:, self.second])


class ErrorField:
    """The law of the errors of released records.

    Parameters
    ----------
    codes : Codes
        The released records.
    cardinalities : sequence of int
    errors : CellErrors
    numbers : sequence of ndarray or None
        For each attribute the number of each code where they are ordered.
    measurements : Measurements, optional
        Of the release.
    """

    def __init__(
        self,
        codes: Codes,
        cardinalities: Sequence[int],
        errors: CellErrors,
        numbers: Sequence[Floats | None],
        measurements: Measurements | None = None,
    ) -> None:
        self.codes, self.errors, self.measurements = codes, errors, measurements
        self.rows, self.records = len(codes[0]), errors.accuracy.records
        self.counts = pair_counts(codes, cardinalities)
        starts = np.append(0, np.cumsum(cardinalities))
        columns = np.stack([c.astype(np.int64) + s for c, s in zip(codes, starts[:-1], strict=True)], axis=1)
        shape = (self.rows, int(starts[-1]))
        ends = np.arange(self.rows + 1) * len(codes)
        self._values = sparse.csr_matrix((np.ones(columns.size), columns.ravel(), ends), shape=shape)
        self._inverse = np.linalg.pinv(_gram(self.counts), hermitian=True, rcond=1e-9)
        self.one_way, self.others = self._level(1), max(self._level(2), 1.0)
        self.total = self._total()
        self.products = self._products(numbers)
        self._solved = self._dual()

    def draw(self, number: int, noise: Noise) -> Iterator[Floats]:
        """Perturbations, some at a time: records x perturbations."""
        for start in range(0, number, _AT_ONCE):
            size = min(_AT_ONCE, number - start)
            white = _signs(noise, f"white/{start}", (self.rows, size))
            xi = _signs(noise, f"products/{start}", (len(self.products.first), size))
            found = self.others * white
            if xi.size:
                weights = self._solved @ (self.products.deviations[:, None] * xi)
                for low in range(0, self.rows, _ROWS):
                    part = [column[low : low + _ROWS] for column in self.codes]
                    found[low : low + _ROWS] += self.products.of(part) @ weights
            inside, other = self._projected(white), self._projected(found)
            found += self.one_way * inside - other
            found -= found.mean(0)
            yield found + self.total * _signs(noise, f"total/{start}", (1, size))

    def _projected(self, columns: Floats) -> Floats:
        """The projection on sums of functions of one attribute."""
        return np.asarray(self._values @ (self._inverse @ (self._values.T @ columns)))

    def _level(self, order: int) -> float:
        """The deviation of cells above `SMALL` beside that of a simple random sample as large as the release."""
        found, scale = [], self.rows / max(self.records, 1)
        for attributes in combinations(range(len(self.counts.cardinalities)), order):
            ours = (self.counts.single(*attributes) if order == 1 else self.counts.pair(*attributes)).ravel()
            large = (ours > SMALL * self.rows) & (ours < (1 - SMALL) * self.rows)
            squares = (self.errors.half_width(attributes, ours) / _NORMAL_95) ** 2
            known = None
            if order == 1 and self.measurements is not None:
                known = self.measurements.combined(attributes, (len(ours),))
            if known is not None:
                at = at_scale(ours, records=self.records, released=self.rows)
                sure = known[1] ** 2 < squares
                squares = np.where(sure, (at - known[0]) ** 2 + np.where(sure, known[1], 0) ** 2, squares)
            found.append((squares * scale**2 / np.maximum(ours * (1 - ours / self.rows), 1e-9))[large])
        every = np.concatenate([np.zeros(0), *found])
        return math.sqrt(float(every.mean())) if len(every) else 1.0

    def _total(self) -> float:
        """The relative deviation of the number of records, by the noise of the one-way tables."""
        tables = self.measurements.tables if self.measurements is not None else ()
        precision = math.fsum(1 / (t.counts.size * t.deviation**2) for t in tables if t.step.startswith("one-way"))
        return 1 / math.sqrt(precision) / max(self.records, 1) if precision else 0.0

    def _products(self, numbers: Sequence[Floats | None]) -> _Products:
        m = len(self.counts.cardinalities)
        scores = [scores_of(self.counts, a, number) for a, number in zip(range(m), numbers, strict=True)]
        pairs = list(combinations(range(m), 2))
        if sum(scores[a].shape[1] * scores[b].shape[1] for a, b in pairs) > MOST_PRODUCTS:
            scores = [found[:, :1] for found in scores]
        starts = np.append(0, np.cumsum([found.shape[1] for found in scores]))
        noisy = {} if self.measurements is None else noisy_pairs(self.measurements)
        first, second, deviations = [], [], []
        for a, b in pairs:
            q = self.counts.pair(a, b) / self.rows
            lost = self._lost((a, b))
            for i in range(scores[a].shape[1]):
                for j in range(scores[b].shape[1]):
                    f = np.outer(scores[a][:, i], scores[b][:, j])
                    found = largest_error(lost, f, q) / _NORMAL_95
                    known = [self._measured((a, b), f, table, lost) for table in noisy.get((a, b), ())]
                    if known and min(known)[0] < found:
                        found = math.hypot(*min(known))
                    first.append(int(starts[a]) + i)
                    second.append(int(starts[b]) + j)
                    deviations.append(found / max(self.records, 1))
        return _Products(scores, np.array(first, np.int64), np.array(second, np.int64), np.array(deviations))

    def _lost(self, pair: Pair) -> float:
        """The distance of a pair's table, less what drawing as many records explains."""
        ours = self.counts.pair(*pair).ravel()
        scaled = ours.astype(np.float64) * (self.records / max(self.rows, 1))
        return not_drawn(self.errors.distance(pair, ours), scaled)

    def _measured(self, pair: Pair, f: Floats, table: NoisyPair, lost: float) -> tuple[float, float]:
        """The sum of a function of a pair: its deviation in a noisy table, and how far the records are from that."""
        q = self.counts.pair(*pair).astype(np.float64)
        index = (table.rows[:, None] * table.shape[1] + table.columns).ravel()
        mass = np.bincount(index, weights=q.ravel(), minlength=table.counts.size)
        sums = np.bincount(index, weights=(q * f).ravel(), minlength=table.counts.size)
        mean = np.divide(sums, mass, out=np.zeros_like(sums), where=mass > 0)
        away = float((mean * (mass * self.records / max(self.rows, 1) - table.counts)).sum())
        inside = largest_error(lost, f - mean[index].reshape(f.shape), q) / _NORMAL_95
        return math.hypot(table.deviation * math.sqrt(float((mean**2).sum())), inside), away

    def _dual(self) -> Floats:
        """The inverse of the products' covariance, other than by sums of functions of one attribute."""
        size = len(self.products.first)
        if not size:
            return np.zeros((0, 0))
        step = -(-self.rows // _FOR_MOMENTS)
        taken = np.arange(0, self.rows, step)
        gram = np.zeros((size, size))
        cross = np.zeros((self._values.shape[1], size))
        for low in range(0, len(taken), _ROWS):
            part = self.products.of([column[taken[low : low + _ROWS]] for column in self.codes])
            gram += part.T @ part
            cross += self._values[taken[low : low + _ROWS]].T @ part
        scale = self.rows / len(taken)
        gram = gram * scale - (cross.T * scale**2) @ self._inverse @ cross
        gram /= self.rows
        ridge = 1e-3 * float(np.trace(gram)) / size
        return np.asarray(np.linalg.inv(gram + ridge * np.eye(size)))


def _gram(counts: PairCounts) -> Floats:
    """Numbers of records with each two values."""
    m = range(len(counts.cardinalities))
    blocks = [[np.diag(counts.single(i)) if i == j else counts.pair(i, j) for j in m] for i in m]
    return np.asarray(np.block(blocks), np.float64)


def _signs(noise: Noise, name: str, shape: tuple[int, int]) -> Floats:
    """Signs, plus and minus as likely."""
    size = shape[0] * shape[1]
    bits = np.unpackbits(noise.words(name, -(-size // 64)).view(np.uint8))[:size]
    return np.asarray(2.0 * bits.reshape(shape) - 1, np.float64)
