r"""The spread of records, restored to their mixtures: post-processing of what is released, at no cost.

A mixture of l rows varies 1/l as much as rows do, so a model trained on mixtures never sees what real records look
like, and decoded mixtures of many rows are all alike. But the mixtures of a class tell its covariance: theirs is

    S = C / l + sigma^2 I,

C that of the rows (clipped), sigma known. Along an eigenvector of S whose eigenvalue stands out of the noise, the
deviation of a mixture from the class mean is scaled so that it varies like the rows. An eigenvalue stands out above
``sigma^2 (1 + sqrt(g))^2`` and its fluctuation, g = d/T (Johnstone 2001). An eigenvalue v of S then shows in T mixtures
as ``v + g v / (v - 1)``, in units of sigma^2, which is solved for v (Baik, Ben Arous and Peche 2005). Other directions
hold no more than noise and are left out. One-hot coordinates have a known variance, p (1 - p); what is missing of it is
filled with independent noise.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dpdist.families.mixing.mixture import Rows
from dpdist.families.mixing.scaling import Encoding
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise

LARGEST_WIDTH = 1 << 12  # coordinates of mixtures whose covariance is taken, at most: a covariance then has 128 MiB
_GRID = 2.0**-10  # of the filling noise, in units of its deviation


@dataclass(frozen=True, eq=False)
class MixtureSums:
    """Number, sum and sum of outer products of some mixtures of a class; ``a + b`` is that of both."""

    count: int
    total: Floats
    outer: Floats

    def __add__(self, other: MixtureSums) -> MixtureSums:
        return MixtureSums(self.count + other.count, self.total + other.total, self.outer + other.outer)


def mixture_sums(mixtures: Rows) -> MixtureSums:
    """The sums of float32[t, d] mixtures."""
    values = mixtures.astype(np.float64)
    return MixtureSums(len(values), values.sum(axis=0), values.T @ values)


SumTree = tuple[tuple[int, int, MixtureSums], ...]
"""Sums of runs of pieces: (level, number, sums) of the ``2**level`` pieces from ``number * 2**level``, in order."""


def piece_sums(mixtures: Rows, first: int, piece: int) -> SumTree:
    """The sums of the pieces of a block, as far as they can be added yet.

    Sums of floats depend on their order: pieces are added two by two whatever the blocks. `first` is the number of the
    block's first piece in the class; a piece has `piece` mixtures.
    """
    pieces = range(0, len(mixtures), piece)
    return join_sums([((0, first + n, mixture_sums(mixtures[at : at + piece])),) for n, at in enumerate(pieces)])


def join_sums(trees: Iterable[SumTree]) -> SumTree:
    """The sums of neighbouring blocks as those of one."""
    joined: list[tuple[int, int, MixtureSums]] = []
    for tree in trees:
        for level, number, sums in tree:
            while number % 2 and joined and joined[-1][:2] == (level, number - 1):
                level, number, sums = level + 1, number // 2, joined.pop()[2] + sums
            joined.append((level, number, sums))
    return tuple(joined)


def total_sums(tree: SumTree) -> MixtureSums:
    """The sums of a whole class."""
    return reduce(operator.add, (sums for _, _, sums in tree))


@dataclass(frozen=True, eq=False)
class Restoration:
    """How the mixtures of a class become rows."""

    mean: Floats  # float64[d]: of the class
    directions: Floats  # float64[d, r]: orthonormal directions that stand out of the noise
    gains: Floats  # float64[r]: what deviations along them are multiplied by
    fill: Floats  # float64[d]: deviation of the noise that fills up the variance of one-hot coordinates

    def apply(self, mixtures: Rows, noise: Noise, *, name: str, start: int = 0) -> Rows:
        """Rows from mixtures `start` to ``start + t - 1``, float32[t, d]; `name` is the address of the filling."""
        projected = (mixtures.astype(np.float64) - self.mean) @ self.directions
        rows = self.mean + (projected * self.gains) @ self.directions.T
        filling = noise.grid_gaussian(name, rows.size, sigma=1.0, grid=_GRID, start=start * rows.shape[1])
        rows += filling.reshape(rows.shape) * self.fill
        return rows.astype(np.float32)


def restoration(sums: MixtureSums, encoding: Encoding, *, order: int, sigma: float) -> Restoration:
    """How to restore the spread of one class, from the sums of all its released mixtures, at least one."""
    width, ratio = len(sums.total), len(sums.total) / sums.count
    mean = sums.total / sums.count
    values, vectors = np.linalg.eigh(sums.outer / sums.count - np.outer(mean, mean))
    standing = values > sigma**2 * _edge(width, sums.count)
    seen, directions = values[standing], vectors[:, standing]
    half = (seen / sigma**2 + 1 - ratio) / 2
    true = sigma**2 * (half + np.sqrt(np.maximum(half**2 - seen / sigma**2, 0.0)) - 1)  # without noise
    restored = order * np.maximum(true, 0.0)
    wanted = _one_hot_variance(encoding, mean)
    missing = np.where(np.isnan(wanted), 0.0, wanted - (directions**2) @ restored)
    return Restoration(
        mean=mean,
        directions=directions,
        gains=np.sqrt(restored / seen) if len(seen) else np.zeros(0),
        fill=np.sqrt(np.maximum(missing, 0.0)) if width else np.zeros(0),
    )


def _edge(width: int, count: int) -> float:
    """Largest eigenvalue of noise alone of variance 1, exceeded about once in a thousand (Tracy and Widom)."""
    roots = np.sqrt([count, width])
    center = (1 + roots[1] / roots[0]) ** 2
    scale = roots.sum() / count * (1 / roots).sum() ** (1 / 3)
    return float(center + 3.3 * scale)


def _one_hot_variance(encoding: Encoding, mean: Floats) -> Floats:
    """Variance of one-hot coordinates with these means; NaN for ordered attributes."""
    variances = []
    at = 0
    for attribute, table in zip(encoding.attributes, encoding.tables, strict=True):
        piece = mean[at : at + table.shape[1]]
        at += table.shape[1]
        low, high = table.min(axis=0), table.max(axis=0)
        share = np.clip((piece - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        known = share * (1 - share) * (high - low) ** 2
        variances.append(known if attribute.kind == "categorical" else np.full(len(piece), np.nan))
    return np.concatenate(variances)
