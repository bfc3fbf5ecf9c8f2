"""The private statistic of a measured regression: its score at public coefficients, whitened, clipped, in integers.

The coefficients b* of a table are where its score is zero,

    s(b) = sum over records of x (y - f(x'b)),    f(t) = t, or 1 / (1 + e^-t) in a logistic regression,

with x the terms of a record, the constant first. Measured is ``sum of round(clip(T x (y - f(x'b))))`` with public b and
T. `clip` shortens a record's vector to the norm `GRID`, and each of its d values is rounded to an integer, which moves
the vector by at most sqrt(d)/2. So one record moves the sum by at most ``GRID + sqrt(d)/2`` in L2 norm, whatever T, b
and the record are. A record's vector depends on nothing but its codes: it is computed element by element, in an order
that does not depend on the batch, and the exponential is that of `dpdist.privacy.portable`. Sums of integers
are the same for all partitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpdist.data.operators import Operator
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.portable import exp
from dpdist.spec.conditions import Condition
from dpdist.spec.regression import Term

GRID = 1 << 20
"""The largest norm of a record's vector, in integers."""

LARGEST = 2.0**100
"""Public factors are below it, so that no product of three overflows."""

_ROWS = 1 << 14  # at a time: they stay in the cache
_STEEP = 40.0  # beyond it a logistic function is 0 or 1 to all digits that matter


def sensitivity(coefficients: int) -> int:
    """The most that one record moves the measured score of so many coefficients by, in L2 norm, rounded up.

    That is `GRID` and, for each value, an integer's step: half of it covers the rounding, the other half what floating
    point leaves of the clipping.
    """
    return GRID + math.isqrt(coefficients - 1) + 1


@dataclass(frozen=True, eq=False)
class Score:
    """What is measured of one regression in one step. Public.

    Parameters
    ----------
    is_logistic : bool
    where : Condition
        Records that do not meet it count nothing.
    outcome : Term
    terms : tuple of Term
        Without the constant.
    at : ndarray of float64, shape (d,)
        The coefficients b.
    transform : ndarray of float64, shape (d, d)
        T.

    Raises
    ------
    ValueError
        A number is not finite, or `LARGEST` or more.
    """

    is_logistic: bool
    where: Condition
    outcome: Term
    terms: tuple[Term, ...]
    at: Floats
    transform: Floats

    def __post_init__(self) -> None:
        for numbers in (self.at, self.transform, self.outcome.values, *(term.values for term in self.terms)):
            if not (np.abs(numbers) < LARGEST).all():
                raise ValueError("a public number of a score is too large")

    def vectors(self, codes: Codes) -> Floats:
        """``T x (y - f(x'b))`` of each record, coefficients x records. Confidential if the records are."""
        rows = len(codes[0])
        predicted = np.full(rows, self.at[0])
        found = np.repeat(self.transform[:, :1], rows, axis=1)
        for k, term in enumerate(self.terms, 1):
            column = codes[term.attribute]
            predicted += (self.at[k] * term.values)[column]
            found += np.take(self.transform[:, k : k + 1] * term.values, column, axis=1)
        if self.is_logistic:
            predicted = 1 / (1 + exp(-np.clip(predicted, -_STEEP, _STEEP)))
        found *= self.outcome.values[codes[self.outcome.attribute]] - predicted
        found[:, ~self.where.holds(codes)] = 0
        return found

    def contributions(self, codes: Codes) -> Counts:
        """The vectors, clipped and rounded to integers."""
        found = self.vectors(codes)
        found *= shortened(norms(found))
        return np.rint(found, out=found).astype(np.int64)

    def total(self, codes: Codes) -> Counts:
        """The sum of the contributions of some records."""
        total = np.zeros(len(self.at), np.int64)
        for start in range(0, len(codes[0]), _ROWS):
            total += self.contributions([column[start : start + _ROWS] for column in codes]).sum(1)
        return total


def norms(vectors: Floats) -> Floats:
    """The norm of each column, added in the order of the rows."""
    squares = np.zeros(vectors.shape[1])
    for row in vectors:
        squares += row * row
    return np.sqrt(squares)


def shortened(norms: Floats) -> Floats:
    """What vectors of these norms are multiplied by, so that none is longer than `GRID`."""
    return np.minimum(1.0, GRID / np.maximum(norms, 1.0))


def scores_operator(scores: Sequence[Score]) -> Operator:
    """The totals of some scores, one after another, in one pass."""
    return Operator(name="scores", chunk=partial(_totals, tuple(scores)), combine=_add)


def _totals(scores: tuple[Score, ...], codes: Codes) -> Counts:
    return np.concatenate([score.total(codes) for score in scores])


def _add(a: Counts, b: Counts) -> Counts:
    return a + b
