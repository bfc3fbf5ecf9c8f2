"""Drift: what tables of several periods differ by beyond their noise.

The drift of a cell that expects k of n records has the variance ``(2 s + q l) m``, ``m = k (1 - k / n)``, between two
periods that are l apart: s for persons that differ (1 where they are independent), q for what changes from one to the
next. Both are estimated from published tables alone (empirical Bayes), overall and in classes of cells by m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import inner

Estimate = tuple[Floats, Floats]  # counts and their variances
Chain = list[Estimate | None]  # of one table, at the times of a chain; None where it was not measured

CLASSES = np.array([16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0])  # lower ends of the classes of cells by spread
_LEAST = 1.0  # spread that a cell is taken to have at least
_TOLD = 8.0  # overall drift tells a class as much as cells do that give its deviation within a half
_ROUNDS = 4  # of the estimate: weights follow from the drift


@dataclass(frozen=True)
class Drift:
    """The drift of a chain: variances over the spread of each class of cells."""

    persons: tuple[float, ...]
    steps: tuple[float, ...]
    unsure: tuple[float, ...]  # deviation of what is estimated for two periods in a row

    def at(self, spread: Floats) -> Estimate:
        """Variances of each cell: of persons, and of a step in time."""
        of_cell = np.searchsorted(CLASSES, spread, side="right")
        return np.array(self.persons)[of_cell] * spread, np.array(self.steps)[of_cell] * spread

    def at_most(self, spread: Floats) -> Estimate:
        """The same, with a deviation of the estimate more for a step."""
        persons, step = self.at(spread)
        return persons, step + np.array(self.unsure)[np.searchsorted(CLASSES, spread, side="right")] * spread

    def faster(self, chain: Chain, spread: Floats) -> float:
        """How many times as far as all tables those of one chain move in a step, at least 1; it leans on all."""
        found, told = _TOLD, _TOLD
        for excess, noise, m, apart in differences(chain, None, spread):
            persons, step = self.at(m)
            moved = apart * step
            weight = 1 / (noise + 2 * persons + moved) ** 2 / len(chain)  # all differences tell what those in a row do
            found += inner(weight * moved, excess - 2 * persons)
            told += inner(weight * moved, moved)
        return max(found / told, 1.0)


# of cells: what two tables differ by squared, less the noise; the variance of the noise; spread; steps apart
Seen = tuple[Floats, Floats, Floats, int]


def spread_of(counts: Floats, records: float) -> Floats:
    """The variance of the counts of as many independent persons: of nearly all of them that of the rest."""
    inside = np.clip(counts, 0.0, records)
    return np.maximum(inside * (1 - inside / records), _LEAST)


def differences(chain: Chain, own: Estimate | None, spread: Floats) -> list[Seen]:
    """What the tables of a chain, and this release's, differ by."""
    times = [(t, table) for t, table in enumerate([*chain, own]) if table is not None]
    return [
        (((a - b) ** 2 - v - w).ravel(), (v + w).ravel(), spread.ravel(), u - t)
        for (t, (a, v)), (u, (b, w)) in combinations(times, 2)
    ]


def drift_of(seen: Sequence[Seen]) -> Drift:
    """Weighted least squares of ``excess = (2 s + q l) m``, with s and q not negative; classes lean on all cells."""
    classes = len(CLASSES) + 1
    persons, steps, unsure = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    nearest = min((apart for *_, apart in seen), default=1)  # 1, but where no two times in a row were measured
    for _ in range(_ROUNDS if seen else 0):
        normal, right, known = np.zeros((classes, 2, 2)), np.zeros((classes, 2)), np.zeros(classes)
        for excess, noise, m, apart in seen:
            of_cell = np.searchsorted(CLASSES, m, side="right")
            weight = 0.5 / (noise + (2 * persons[of_cell] + apart * steps[of_cell]) * m) ** 2
            moments = [np.bincount(of_cell, weights=weight * x, minlength=classes) for x in (m * m, m * excess)]
            features = np.array([2.0, float(apart)])
            known += moments[0] * (nearest**2 * (apart == nearest))
            normal += moments[0][:, None, None] * np.outer(features, features)
            right += moments[1][:, None] * features
        overall = _not_negative(normal.sum(0), right.sum(0))
        told = inner(overall, (normal.sum(0) * overall).sum(1))
        part = min(1.0, _TOLD / told) if told > 0 else 1.0
        more = part * normal.sum(0), part * right.sum(0)
        found = [_not_negative(n + more[0], r + more[1]) for n, r in zip(normal, right, strict=True)]
        persons, steps = np.array([s for s, _ in found]), np.array([q for _, q in found])
        unsure = 1 / np.sqrt(known + part * known.sum())
    return Drift(tuple(persons.tolist()), tuple(steps.tolist()), tuple(unsure.tolist()))


def _not_negative(normal: Floats, right: Floats) -> Floats:
    """Least squares of two numbers that are not negative; where they cannot be distinguished, all is steps."""
    (a, b), (_, d) = normal.tolist()
    x, y = right.tolist()
    determinant = a * d - b * b
    if determinant > 1e-9 * a * d:
        s, q = (x * d - b * y) / determinant, (a * y - b * x) / determinant
        if s >= 0 and q >= 0:
            return np.array([s, q])
        alone = np.array([max(x / a, 0.0), 0.0]), np.array([0.0, max(y / d, 0.0)])
        return min(alone, key=lambda z: inner(z, (normal * z).sum(1)) - 2 * inner(z, right))
    return np.array([0.0, max(y / d, 0.0) if d > 0 else 0.0])
