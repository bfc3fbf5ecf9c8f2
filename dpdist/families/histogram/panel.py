"""Noise for tables of the same units at several times, whose values change a few times at most.

A unit's history is its cell in each period of one stay, with a bounded number of changes (kept by
`dpdist.families.base.bounding`). With x_t the counts of a cell in period t, the release measures B x, B a lower
triangular matrix of integers, with independent noise. What a unit adds to B x has the squared norm
``sum over its cells of |B u|^2``, where u says in which periods it is in the cell. Only finitely many histories differ
in this, all of them public, so the largest is computed exactly. B is chosen for the least sum of variances of levels
and of changes from one period to the next, the solutions of B x; it is a function of the number of periods and of
changes alone. By duality the best ``M = B'B`` for weights l of the histories H is that with ``M H_l M = W``; the
weights rise where a history costs more than the others.

The counts that are released are shrunk: in blocks of cells of about the same size, what each changes beyond the
middle of its block is taken in part (James and Stein), with a limit for far ones [1]_. Variances are those of empirical
Bayes [2]_, and of a far change what it was moved by.

References
----------
.. [1] Stein, *Estimation of the mean of a multivariate normal distribution*, 1981, section 4.
.. [2] Morris, *Parametric empirical Bayes inference: theory and applications*, 1983.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.formatting import Fact
from dpdist.privacy.portable import eigh, matmul

ABSENT = -1
_CELLS = ((0,), (0, 1), (0, 1, 0), (0, 1, 2))  # of a history with two changes at most, one after another
_CHANGES = 0.6  # weight of a change beside a level: over a year, with one change, 2.41 and 2.10 deviations
_STEPS = 200  # of the search: within a part in 1,000 of the optimum
_UNIT = 1 << 12  # the strategy's entries are integers in units of its inverse
_BLOCK = 32  # cells that tell by how much their changes are shrunk: more differ in size, fewer tell less
_FAR = 4  # one cell in this number of a block is far
_PAYS = 0.95  # of the deviations of independent noise: what is above is not worth the cap


@dataclass(frozen=True)
class Panel:
    """What is measured of each cell over the periods, and what a unit changes of it at most."""

    strategy: tuple[tuple[int, ...], ...]  # a row for each measurement, a column for each period; lower triangular
    squared: int  # the largest squared norm of what a unit changes
    worst: tuple[int, ...]  # a history that attains it: the cell in each period, or `ABSENT`

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, periods: int, changes: int) -> Panel:
        """The best strategy that the search finds."""
        found = histories(periods, changes)
        best = _best(periods, found)
        triangle = np.linalg.cholesky(best[::-1, ::-1])[::-1, ::-1].T  # lower triangular, B with B'B the best
        strategy = np.rint(_UNIT * triangle).astype(np.int64)
        costs = [int(((strategy @ _present(history).T) ** 2).sum()) for history in found]
        worst = int(np.argmax(costs))
        return cls(tuple(map(tuple, strategy.tolist())), costs[worst], found[worst])

    @property
    def norm(self) -> float:
        """What a unit changes at most, in L2: noise of this many deviations costs what one costs for a single count."""
        return math.sqrt(self.squared)

    @cached_property
    def covariance(self) -> Floats:
        """Of the errors of a cell's counts by period, where noise for a single count would have the variance 1."""
        inverse = self.solved(np.eye(len(self.strategy)))
        return np.asarray(self.squared * inverse @ inverse.T)

    @cached_property
    def deviations(self) -> tuple[float, float]:
        """Of a level and of a change from one period to the next, in root mean square, in the same units."""
        steps = np.diff(np.eye(len(self.strategy)), axis=0)
        both = np.diag(self.covariance), np.diag(steps @ self.covariance @ steps.T)
        level, change = (float(np.sqrt(of.mean())) for of in both)
        return level, change

    @property
    def pays(self) -> bool:
        """Whether levels and changes are enough nearer than with independent noise."""
        independent = math.sqrt(len(self.strategy))
        return sum(self.deviations) < _PAYS * (independent + math.sqrt(2) * independent)

    def fact(self, followed: str, *, changes: int, scale: float) -> Fact:
        """What following units is worth, where noise for a single count has the deviation `scale`, for people."""
        periods = len(self.strategy)
        level, change = (part * scale for part in self.deviations)
        alone = scale * math.sqrt(periods)
        text = (
            f"{followed} over {periods} periods with at most {changes} changes; later ones are not counted. Deviation "
            f"of a level {level:.4g}, of a change from one period to the next {change:.4g}; with independent noise "
            f"{alone:.4g} and {math.sqrt(2) * alone:.4g}"
        )
        return Fact("Panel", text, {"level": level, "change": change, "independent_level": alone})

    def measured(self, table: Counts) -> Counts:
        """What noise is added to, of a table whose first axis is the period: exact integers of the same shape."""
        return np.asarray(np.tensordot(np.array(self.strategy, np.int64), table, axes=1))

    def solved(self, measured: NDArray[Any]) -> Floats:
        """The counts that have these measurements; the same bits on every machine."""
        counts = measured.astype(np.float64)
        for t, row in enumerate(self.strategy):
            for s in range(t):
                counts[t] -= row[s] * counts[s]
            counts[t] /= row[t]
        return counts

    def shrunk(self, measured: Counts, deviation: float) -> tuple[Floats, Floats]:
        """The counts with less of their changes, and the deviations of their errors in parts of that of a level.

        Whatever the counts are, the expected sum of squared errors of levels and changes, weighted as the noise was
        chosen for them, is at most that of `solved`. A far change is moved no more than others of its block, and sums
        over a block are not moved.
        """
        scale = self.norm / self.deviations[0]
        table = measured.reshape(len(measured), -1) / (scale * deviation)
        level, changes = self._directions
        seen = matmul(changes.T, table)
        shift, less = np.zeros_like(seen), np.zeros_like(seen)
        order = np.argsort(matmul(level[None], table)[0], kind="stable")  # independent of what is seen of changes
        for block in np.array_split(order, max(1, len(order) // _BLOCK)):
            away = seen[:, block] - np.median(seen[:, block], 1, keepdims=True)
            inside = len(block) - len(block) // _FAR
            most = np.sort(np.abs(away), 1)[:, inside - 1 : inside]
            beyond, away = np.maximum(np.abs(away) - most, 0.0), np.clip(away, -most, most)
            part = np.minimum(1.0, max(inside - 3, 0) / np.maximum((away**2).sum(1, keepdims=True), 1.0))
            own = part * away
            shift[:, block] = own - own.mean(1, keepdims=True)
            unsure = 2 / max(inside - 3, 1) * own**2 + (part * beyond) ** 2
            less[:, block] = np.maximum(part * (1 - 1 / len(block)) - unsure, -(own**2))
        counts = self.solved((table - matmul(changes, shift)) * (scale * deviation))
        nearer = np.diag(self.covariance)[:, None] / self.squared - matmul(self.solved(changes) ** 2, less)
        return counts.reshape(measured.shape), np.sqrt(nearer) * scale

    @cached_property
    def _directions(self) -> tuple[Floats, Floats]:
        """Orthonormal directions of what is measured: of a level that stays, and of changes whose errors add up."""
        level = np.array(self.strategy, np.float64).sum(1)
        level /= np.sqrt((level**2).sum())
        periods = len(level)
        changes = self.solved(np.eye(periods) - np.outer(level, level))
        vectors = eigh(matmul(changes.T, matmul(_wanted(periods), changes)))[1]
        return level, vectors[:, 1:]  # the first is the level, whose eigenvalue is 0


def histories(periods: int, changes: int) -> list[tuple[int, ...]]:
    """All histories that may differ in their cost: a stay, the periods of changes, and which cells are the same."""
    found = []
    for own in (cells for cells in _CELLS if len(cells) <= changes + 1):
        for ends in combinations(range(periods + 1), len(own) + 1):
            stay = np.repeat(own, np.diff(ends)).tolist()
            found.append((*[ABSENT] * ends[0], *stay, *[ABSENT] * (periods - ends[-1])))
    return found


def _present(history: tuple[int, ...]) -> NDArray[np.int64]:
    """In which periods a unit is in each of its cells."""
    return np.array([[int(own == cell) for own in history] for cell in range(max(history) + 1)])


def _best(periods: int, found: list[tuple[int, ...]]) -> Floats:
    """The matrix B'B with the least sum of variances at a cost of at most 1, nearly."""
    wanted = _wanted(periods)
    shapes = np.unique([(u.T @ u).ravel() for u in map(_present, found)], axis=0).astype(np.float64)
    weights, best, least = np.full(len(shapes), 1 / len(shapes)), np.eye(periods) / periods, math.inf
    for _ in range(_STEPS):
        root = _root((weights @ shapes).reshape(periods, periods))
        inverse = np.linalg.inv(root)
        matrix = inverse @ _root(root @ wanted @ root) @ inverse
        costs = shapes @ matrix.ravel()
        total = float(costs.max() * np.trace(wanted @ np.linalg.inv(matrix)))
        if total < least:
            best, least = matrix / costs.max(), total
        weights = weights * costs
        weights /= weights.sum()
    return best


def _wanted(periods: int) -> Floats:
    """The squared errors of levels, and of changes with their weight, as a quadratic form."""
    steps = np.diff(np.eye(periods), axis=0)
    return np.asarray(np.eye(periods) + _CHANGES * steps.T @ steps)


def _root(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)
