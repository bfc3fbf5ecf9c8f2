"""Kernels of the ridge regression, as functions of the distance of two rows.

The compactly supported kernel is Wendland's of smoothness 2, ``(1 - r)^(l+1)_+ ((l + 1) r + 1)`` with ``l =
floor(d/2) + 2``, positive definite on R^d; for three inputs it is the published ``(1 - r)^4_+ (4 r + 1)``.

Several parties have the kernel ``K((x, i), (z, j)) = k(x, z) (rho + (1 - rho) 1[i = j])``: each party's regression is a
common one plus one of its own, independent of the others, with shares rho and 1 - rho of the variance [1]_. It is
positive definite for rho from 0 (each by itself) to 1 (one for all), as the product of two such kernels.

References
----------
.. [1] Evgeniou, Micchelli, Pontil, *Learning multiple tasks with kernel methods*, 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import exp, matmul, power, squared_distances

_CHUNK = 1 << 22  # kernel values at a time


def _wendland(r: Floats, dimension: int) -> Floats:
    order = dimension // 2 + 3
    r = np.minimum(r, 1.0)
    return power(1 - r, order) * (order * r + 1)


def _gaussian(r: Floats, dimension: int) -> Floats:
    return exp(-0.5 * r * r)


def _matern(r: Floats, dimension: int) -> Floats:
    s = math.sqrt(5) * r
    return np.asarray((1 + s + s * s / 3) * exp(-s))


PROFILES: dict[str, Callable[[Floats, int], Floats]] = {
    "compact": _wendland,
    "gaussian": _gaussian,
    "matern": _matern,
}
"""Kernels by name: of distances in units of the width, and the dimension. Matern has smoothness 5/2."""


def reach(name: str, dimension: int) -> float:
    """Width of a kernel whose curvature at 0 is that of the Gaussian of width 1."""
    if name == "compact":
        order = dimension // 2 + 3
        return math.sqrt(order * (order + 1))
    return math.sqrt(5 / 3) if name == "matern" else 1.0


@dataclass(frozen=True, kw_only=True)
class RadialKernel:
    """A radial kernel; of rows of several parties, one that correlates the parties' regressions."""

    name: str  # of `PROFILES`
    width: float  # distance that counts as one
    parties: int = 0  # whose number is the last column of a row; 0 where no column names a party
    correlation: float = 1.0  # rho: of the regressions of two parties

    def __post_init__(self) -> None:
        if self.name not in PROFILES or not 0 < self.width < math.inf:
            raise ValueError(f"a kernel is one of {', '.join(PROFILES)}, with a positive width")
        if not 0 <= self.correlation <= 1:
            raise ValueError("the correlation of parties is from 0 to 1")

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """Kernel of every row of a, float64[n, p], with every row of b, float64[m, p]: float64[n, m]."""
        near, far = self.places(a), self.places(b)
        values = PROFILES[self.name](np.sqrt(squared_distances(near, far)) / self.width, near.shape[1])
        if self.parties and self.correlation < 1:
            values *= np.where(np.equal.outer(self.codes(a), self.codes(b)), 1.0, self.correlation)
        return values

    def places(self, rows: Floats) -> Floats:
        """Rows without the number of the party."""
        return rows[:, :-1] if self.parties else rows

    def codes(self, rows: Floats) -> NDArray[np.int64]:
        """Number of each row's party, int64[n]; 0 where there is none."""
        return rows[:, -1].astype(np.int64) if self.parties else np.zeros(len(rows), np.int64)

    def apply(self, a: Floats, b: Floats, weights: Floats) -> Floats:
        """``kernel(a, b) weights`` in bounded memory, float64[n] or float64[n, columns]."""
        out = np.empty((len(a), *weights.shape[1:]))
        step = max(1, _CHUNK // max(len(b), 1))
        for start in range(0, len(a), step):
            out[start : start + step] = matmul(self(a[start : start + step], b), weights)
        return out
