"""A linear discriminant learned from mixtures: what scores an order when orders are tried on the table itself.

A record must move no score but its own, so scores are exact: a matrix product of floats rounds a row by the rows that
stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.families.mixing.mixture import Rows, clip_rows
from dpdist.families.mixing.restore import MixtureSums
from dpdist.families.mixing.scaling import Encoding
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.grid import grid_below, round_to_grid

_RIDGE = 1e-3  # of the largest eigenvalue
_WEIGHT_STEP = 2.0**-26  # of the largest weight: rows have 2**13 steps, so products sum to far below 2**53
_SCORED = 1 << 16  # rows scored at a time


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Linear scores of classes; a row belongs to the class with the largest."""

    places: tuple[int, ...]  # of the classes
    # float64[d, classes]: rounded to a grid, so that their products with rows on a grid are exact in any order
    weights: Floats
    offsets: Floats  # float64[classes]

    def __post_init__(self) -> None:
        largest = max(float(np.abs(self.weights).max()), 2.0**-800)
        object.__setattr__(self, "weights", round_to_grid(self.weights, grid=grid_below(largest * _WEIGHT_STEP)))

    def correct(self, rows: Rows, place: int) -> int:
        """How many float32[n, d] rows of a class, from `clip_rows`, are told to be of it."""
        told = (rows.astype(np.float64) @ self.weights + self.offsets).argmax(axis=1)
        return int(np.count_nonzero(np.array(self.places)[told] == place)) if place in self.places else 0


def discriminant(sums: Mapping[int, MixtureSums], *, order: int, sigma: float) -> Discriminant:
    """The discriminant of classes whose rows have one covariance (Fisher 1936), from their mixtures.

    Mixtures of l rows have the covariance ``C / l + sigma^2 I``, C that of the rows. Classes are weighted by their
    mixtures, whose numbers are public.

    Parameters
    ----------
    sums : mapping of int to MixtureSums
        By the place of the class.
    order : int
        l.
    sigma : float
        Deviation of the noise in each coordinate of a mixture.
    """
    count = sum(one.count for one in sums.values())
    means = np.stack([one.total / one.count for one in sums.values()], axis=1)
    within = sum((one.outer - np.outer(one.total, one.total) / one.count for one in sums.values()), np.float64(0))
    values, vectors = np.linalg.eigh(np.asarray(within) / count)
    values = np.maximum(order * (values - sigma**2), 0.0)
    inverse = (vectors / (values + _RIDGE * max(float(values.max()), sigma**2))) @ vectors.T
    weights = inverse @ means
    priors = np.log([one.count / count for one in sums.values()])
    return Discriminant(tuple(sums), weights, priors - np.einsum("dk,dk->k", means, weights) / 2)


def score(codes: Sequence[Codes], encoding: Encoding, clip: float, told: Discriminant) -> int:
    """How many records a discriminant gets right, given the codes of each class; confidential."""
    right = 0
    for place, columns in enumerate(codes):
        for start in range(0, len(columns[0]), _SCORED):
            rows = encoding.encode([column[start : start + _SCORED] for column in columns])
            right += told.correct(clip_rows(rows, clip=clip), place)
    return right
