"""Scores of attributes, and noisy tables of pairs as functions of pairs see them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpdist.data.count import PairCounts
from dpdist.model.account import Measurements
from dpdist.model.coding import Pair
from dpdist.privacy.arrays import Counts, Floats

_RARE = 5  # values with fewer records have no score
_LARGEST = 4.0  # score, in units of its deviation


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
        source = [measurements.source[a] for a in table.attributes] if table.coded else list(table.attributes)
        maps = (
            [measurements.maps[a] for a in table.attributes]
            if table.coded
            else [np.arange(size) for size in table.shape]
        )
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
    return distance * float((q * f * f).sum()) / size if size > 1e-9 * float(q.sum()) else 0.0


def scores_of(counts: PairCounts, a: int, numbers: Floats | None) -> Floats:
    """Scores of the values of an attribute: mean 0, variance 1, uncorrelated; a value without a number has NaN."""
    total = max(counts.total, 1)
    share = [counts.single(i) / total for i in range(len(counts.cardinalities))]
    common = [s * total >= _RARE for s in share]
    dependence = np.zeros((len(share[a]), len(share[a])))
    for b in range(len(share)):
        if b == a:
            continue
        q = (counts.pair(a, b) if a < b else counts.pair(b, a).T) / total
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
