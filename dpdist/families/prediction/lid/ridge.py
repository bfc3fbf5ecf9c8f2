r"""Stage 2: kernel ridge regression.

``f = mean + sum_i a_i K(., x_i)`` with ``a = (K + n lambda I)^-1 (y - mean)``; as published, the mean is 0. We speak of
the *penalty* ``mu = n lambda``: the variance of the noise in units of the kernel's, which does not depend on n, so that
a sample can choose it.

- *exact*: one system of all rows.
- *distributed*: an estimator for each group of rows with lambda as for the full size, so a penalty ``mu m / n`` for m
  of the n rows; predictions are averaged [1]_ [2]_.
- *Nystroem*: functions spanned by a sample of landmarks, all rows in the least squares: ``(K_mn K_nm + mu K_mm) a =
  K_mn (y - mean)``.

The compactly supported kernel is Wendland's of smoothness 2, ``(1 - r)^(l+1)_+ ((l + 1) r + 1)`` with ``l =
floor(d/2) + 2``, positive definite on R^d; for three inputs it is the published ``(1 - r)^4_+ (4 r + 1)``.

Several parties have the kernel ``K((x, i), (z, j)) = k(x, z) (rho + (1 - rho) 1[i = j])``: each party's regression is a
common one plus one of its own, independent of the others, with shares rho and 1 - rho of the variance [3]_. It is
positive definite for rho from 0 (each by itself) to 1 (one for all), as the product of two such kernels. Responses of a
party are centred at ``rho mean + (1 - rho) mean of the party``: with rho 0 the parties' estimators are those of each
party by itself, with rho 1 they are that of all rows.

Responses of several columns, such as the indicators of classes, share the system, and errors are summed over them.
Width, penalty and rho are chosen by 5-fold cross-validation on a sample.

References
----------
.. [1] Zhang, Duchi, Wainwright, *Divide and conquer kernel ridge regression*, 2015.
.. [2] Lin, Guo, Zhou, *Distributed learning with regularized least squares*, 2017.
.. [3] Evgeniou, Micchelli, Pontil, *Learning multiple tasks with kernel methods*, 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Floats
from dpdist.privacy.formatting import shown
from dpdist.privacy.portable import cholesky, exp, matmul, power, solve, solve_lower, squared_distances
from dpdist.storage.stored import Stored

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


PROFILES: dict[str, Callable[[Floats, int], Floats]] = {"compact": _wendland, "gaussian": _gaussian, "matern": _matern}
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
    intercept: bool = True  # whether a constant, which is not penalised, is added to the kernel's functions

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
        """Number of each row's party, int64[n]; 0 where none exists."""
        return rows[:, -1].astype(np.int64) if self.parties else np.zeros(len(rows), np.int64)

    def apply(self, a: Floats, b: Floats, weights: Floats) -> Floats:
        """``kernel(a, b) weights`` in bounded memory, float64[n] or float64[n, columns]."""
        out = np.empty((len(a), *weights.shape[1:]))
        step = max(1, _CHUNK // max(len(b), 1))
        for start in range(0, len(a), step):
            out[start : start + step] = matmul(self(a[start : start + step], b), weights)
        return out


PENALTIES = tuple(10.0**power for power in range(-6, 3))
WIDTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Widths that are tried, in units of the median distance of two rows."""

CORRELATIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
"""Correlations of two parties' regressions that are tried."""

_FOLDS = 5
_LEAST_PENALTY = 1e-10  # a record: below it rounding decides
_JITTER = 1e-12  # a landmark, on the diagonal of their kernel


@dataclass(frozen=True, eq=False)
class KernelRidge(Stored):
    """A fitted regression: the mean of one or several kernel expansions."""

    FILE: ClassVar[str] = "model.npz"

    kernel: RadialKernel
    offset: Floats  # added to the expansions, by party: float64[parties or 1] or float64[parties or 1, columns]
    centres: tuple[Floats, ...]  # tuple of float64[m, p]
    weights: tuple[Floats, ...]  # tuple of float64[m] or float64[m, columns]

    def predict(self, inputs: Floats) -> Floats:
        """Predictions for rows of inputs, float64[n, p]: float64[n] or float64[n, columns]."""
        total = np.zeros((len(inputs), *self.offset.shape[1:]))
        for centres, weights in zip(self.centres, self.weights, strict=True):
            total += self.kernel.apply(inputs, centres, weights)
        mean: Floats = self.offset[self.kernel.codes(inputs)] + total / len(self.weights)
        return mean


@dataclass(frozen=True, kw_only=True)
class Tuning(Stored):
    """What cross-validation chose."""

    FILE: ClassVar[str] = "tuning.json"

    kernel: RadialKernel
    penalty: float  # mu
    # mean squared error in cross-validation, in the unit of the responses; None where nothing was tried
    error: float | None = None


def tune(
    inputs: Floats,
    responses: Floats,
    *,
    kernel: str = "compact",
    width: float | None = None,
    penalties: Sequence[float] = PENALTIES,
    parties: int = 0,
    correlations: Sequence[float] = (1.0,),
    intercept: bool = True,
) -> Tuning:
    """Width, penalty and correlation of the parties by cross-validation; row i is in fold ``i % 5``, so the order
    of the rows must say nothing.

    One eigendecomposition serves all penalties and folds of a width and a correlation. The kernel is one of
    `dpdist.families.prediction.lid.ridge.PROFILES`; a width is taken as it is, by default one of `WIDTHS`. Where there
    are parties, the last column of the inputs is a row's party.
    """
    places = inputs[:, :-1] if parties else inputs
    distances = np.sqrt(squared_distances(places[:500], places[:500]))
    positive = distances[np.triu(distances, 1) > 0]
    unit = (float(np.median(positive)) if positive.size else 1.0) * reach(kernel, places.shape[1])
    widths = [width] if width is not None else [factor * unit for factor in WIDTHS]
    best, least = None, math.inf
    for one in widths:
        for correlation in correlations:
            form = RadialKernel(name=kernel, width=one, parties=parties, correlation=correlation, intercept=intercept)
            for penalty, error in _fold_errors(form, inputs, responses, penalties):
                if error < least:
                    best, least = Tuning(kernel=form, penalty=penalty, error=error), error
    if best is None:
        raise ValueError("cross-validation found no finite error")
    return best


def _fold_errors(
    form: RadialKernel, inputs: Floats, responses: Floats, penalties: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """Each penalty and its mean squared error of the rows left out, to six digits: last bits decide nothing."""
    n, columns = len(inputs), (-1, *(1,) * (responses.ndim - 1))
    members = [np.arange(held, n, _FOLDS) for held in range(_FOLDS)]
    values, vectors = np.linalg.eigh(form(inputs, inputs))
    values = np.maximum(values, 0.0)
    turned = [vectors.T @ centred for centred in _centred(form, inputs, responses, members)]
    for penalty in penalties:
        # The residuals of a fold that was left out are (G_ff)^-1 (G y)_f, with G the inverse of the whole system.
        scaled = vectors / np.sqrt(values + penalty)
        error = 0.0
        for fold, seen in zip(members, turned, strict=True):
            weights = vectors @ (seen / (values + penalty).reshape(columns))
            inverse = scaled[fold] @ scaled[fold].T
            error += float(np.sum(np.linalg.solve(inverse, weights[fold]) ** 2)) / n
        yield penalty, shown(error)


def _centred(
    form: RadialKernel, inputs: Floats, responses: Floats, members: Sequence[NDArray[np.int64]]
) -> Iterator[Floats]:
    """The responses less their mean, as each fold sees them; of parties, less the offsets of the other folds."""
    codes = form.codes(inputs)
    for fold in members:
        others = np.delete(np.arange(len(inputs)), fold) if form.parties else slice(None)
        yield responses - offsets(form, codes[others], responses[others])[codes]


def offsets(form: RadialKernel, codes: NDArray[np.int64], responses: Floats) -> Floats:
    """What each party's responses are centred at, from rows of these parties."""
    return _offsets(form, *_party_totals(form, codes, responses))


def _party_totals(form: RadialKernel, codes: NDArray[np.int64], responses: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Rows and sum of the responses of each party."""
    mine = [responses[codes == party] for party in range(max(form.parties, 1))]
    return np.array([len(part) for part in mine]), np.stack([part.sum(axis=0) for part in mine])


def _offsets(form: RadialKernel, rows: NDArray[np.int64], totals: Floats) -> Floats:
    """The offsets from rows and sums; that of a party without rows is the mean of all. Zero without an intercept."""
    if not form.intercept:
        return np.zeros_like(totals)
    out = np.repeat(totals.sum(axis=0, keepdims=True) / rows.sum(), len(rows), axis=0)
    some = rows > 0
    own = totals[some] / rows[some].reshape(-1, *(1,) * (totals.ndim - 1))
    if form.correlation < 1:
        out[some] = form.correlation * out[some] + (1 - form.correlation) * own
    return out


def _solve(system: Floats, right: Floats, penalty: float) -> Floats:
    """Solution of ``(system + penalty I) a = right``; the penalty grows where rounding makes that indefinite."""
    if not np.isfinite(system).all():
        raise np.linalg.LinAlgError("the system is not finite")
    while True:
        shifted = system.copy()
        shifted.flat[:: len(system) + 1] += penalty
        try:
            return solve(shifted, right)
        except np.linalg.LinAlgError:
            penalty *= 10


def fit_exact(inputs: Floats, responses: Floats, *, kernel: RadialKernel, penalty: float) -> KernelRidge:
    """One system of all rows: inputs float64[n, p], responses float64[n] or float64[n, columns]."""
    codes = kernel.codes(inputs)
    offset = offsets(kernel, codes, responses)
    weights = _solve(kernel(inputs, inputs), responses - offset[codes], max(penalty, _LEAST_PENALTY * len(inputs)))
    return KernelRidge(kernel, offset, (inputs,), (weights,))


def average(groups: Sequence[Sequence[KernelRidge]]) -> KernelRidge:
    """The mean of groups of estimators of one kernel."""
    parts = [part for group in groups for part in group]
    offset = np.apply_along_axis(math.fsum, 0, np.stack([part.offset for part in parts])) / len(parts)
    return KernelRidge(
        parts[0].kernel,
        np.asarray(offset),
        tuple(c for part in parts for c in part.centres),
        tuple(w for part in parts for w in part.weights),
    )


@dataclass(frozen=True, eq=False)
class NystroemSums:
    """Sums over rows: ``K_mn K_nm``, ``K_mn y``, and by party ``K_mn 1``, rows and the sum of the responses."""

    products: Floats
    responses: Floats
    ones: Floats
    rows: NDArray[np.int64]
    totals: Floats

    def __add__(self, other: NystroemSums) -> NystroemSums:
        return NystroemSums(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def nystroem_sums(inputs: Floats, responses: Floats, *, landmarks: Floats, kernel: RadialKernel) -> NystroemSums:
    """Sums over some rows; they are floating point, so the order in which parts are added is fixed by the caller."""
    m = len(landmarks)
    parties, codes = max(kernel.parties, 1), kernel.codes(inputs)
    products, right, ones = np.zeros((m, m)), np.zeros((m, *responses.shape[1:])), np.zeros((parties, m))
    step = max(1, _CHUNK // max(m, 1))
    for start in range(0, len(inputs), step):
        values = kernel(inputs[start : start + step], landmarks)
        products += matmul(values.T, values)
        right += matmul(values.T, responses[start : start + step])
        owners = codes[start : start + step]
        for party in range(parties):
            ones[party] += values[owners == party].sum(axis=0)
    return NystroemSums(products, right, ones, *_party_totals(kernel, codes, responses))


def fit_nystroem(sums: NystroemSums, landmarks: Floats, *, kernel: RadialKernel, penalty: float) -> KernelRidge:
    """The Nystroem estimator from the sums over all rows; the landmarks' functions are orthonormalised first."""
    offset = _offsets(kernel, sums.rows, sums.totals)
    own = kernel(landmarks, landmarks)
    lower = cholesky(own + _JITTER * len(own) * np.eye(len(own)))
    system = solve_lower(lower, solve_lower(lower, sums.products).T)
    system = (system + system.T) / 2
    right = sums.responses
    for ones, mean in zip(sums.ones, offset, strict=True):
        right = right - np.multiply.outer(ones, mean)
    weights = _solve(system, solve_lower(lower, right), penalty)
    return KernelRidge(kernel, offset, (landmarks,), (solve_lower(lower, weights, transposed=True),))
