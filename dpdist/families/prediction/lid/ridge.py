r"""Stage 2: kernel ridge regression.

``f = sum_i a_i K(., x_i)`` with ``a = (K + n lambda I)^-1 (y - mean)``. We speak of the *penalty* ``mu = n lambda``:
the variance of the noise in units of the kernel's, which does not depend on n, so that a sample can choose it.

- *exact*: one system of all rows.
- *distributed*: an estimator for each group of rows with lambda as for the full size, so a penalty ``mu m / n`` for m
  of the n rows; predictions are averaged [1]_ [2]_.
- *Nystroem*: functions spanned by a sample of landmarks, all rows in the least squares: ``(K_mn K_nm + mu K_mm) a =
  K_mn (y - mean)``.

Responses of several columns, such as the indicators of classes, share the system: what is said of n responses
then holds for each column, and errors are summed over them.

Width and penalty are chosen by 5-fold cross-validation on a sample.

References
----------
.. [1] Zhang, Duchi, Wainwright, *Divide and conquer kernel ridge regression*, 2015.
.. [2] Lin, Guo, Zhou, *Distributed learning with regularized least squares*, 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.spatial.distance import pdist

from dpdist.families.base.stored import Stored
from dpdist.families.prediction.kernels import Kernel, reach
from dpdist.privacy.arrays import Floats

PENALTIES = tuple(10.0**power for power in range(-6, 3))
WIDTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Widths that are tried, in units of the median distance of two rows."""

_FOLDS = 5
_LEAST_PENALTY = 1e-10  # a record: below it rounding decides


@dataclass(frozen=True, eq=False)
class KernelRidge(Stored):
    """A fitted regression: the mean of one or several kernel expansions."""

    FILE: ClassVar[str] = "model.npz"

    kernel: Kernel
    offset: Floats  # added to the expansions: ndarray of float64, shape () or (columns,)
    centres: tuple[Floats, ...]  # tuple of float64[m, p]
    weights: tuple[Floats, ...]  # tuple of float64[m] or float64[m, columns]

    def predict(self, inputs: Floats) -> Floats:
        """Predictions for rows of inputs, float64[n, p]: float64[n] or float64[n, columns]."""
        total = np.zeros((len(inputs), *self.offset.shape))
        for centres, weights in zip(self.centres, self.weights, strict=True):
            total += self.kernel.apply(inputs, centres, weights)
        mean: Floats = self.offset + total / len(self.weights)
        return mean


@dataclass(frozen=True, kw_only=True)
class Tuning(Stored):
    """What cross-validation chose."""

    FILE: ClassVar[str] = "tuning.json"

    kernel: Kernel
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
    folds: int = _FOLDS,
) -> Tuning:
    """Width and penalty by cross-validation; row i is in fold ``i % folds``, so the order of the rows must say nothing.

    One eigendecomposition serves all penalties and folds of a width. Responses are centred at the mean of the sample.
    The kernel is one of `dpdist.families.prediction.kernels.PROFILES`; a width is taken as it is, by default one of
    `WIDTHS`. Raises ValueError: there are fewer rows than folds.
    """
    n, dimension = inputs.shape
    if n < folds:
        raise ValueError(f"cross-validation needs at least {folds} rows")
    unit = _median_distance(inputs) * reach(kernel, dimension)
    widths = [width] if width is not None else [factor * unit for factor in WIDTHS]
    members = [np.arange(held, n, folds) for held in range(folds)]
    centred = responses - responses.mean(axis=0)
    columns = (-1, *(1,) * (responses.ndim - 1))
    best, least = None, math.inf
    for one in widths:
        form = Kernel(name=kernel, width=one)
        values, vectors = np.linalg.eigh(form(inputs, inputs))
        values, turned = np.maximum(values, 0.0), vectors.T @ centred
        for penalty in penalties:
            # The residuals of a fold that was left out are (G_ff)^-1 (G y)_f, with G the inverse of the whole system.
            weights = vectors @ (turned / (values + penalty).reshape(columns))
            scaled = vectors / np.sqrt(values + penalty)
            error = 0.0
            for fold in members:
                inverse = scaled[fold] @ scaled[fold].T
                error += float(np.sum(np.linalg.solve(inverse, weights[fold]) ** 2)) / n
            if error < least:
                best, least = Tuning(kernel=form, penalty=penalty, error=error), error
    if best is None:
        raise ValueError("cross-validation found no finite error")
    return best


def _median_distance(inputs: Floats) -> float:
    distances = pdist(inputs[:500])
    positive = distances[distances > 0]
    return float(np.median(positive)) if positive.size else 1.0


def _solve(system: Floats, right: Floats, penalty: float) -> Floats:
    """Solution of ``(system + penalty I) a = right``; the penalty grows where rounding makes that indefinite."""
    while True:
        shifted = system.copy()
        shifted.flat[:: len(system) + 1] += penalty
        try:
            factor = cho_factor(shifted, lower=True, check_finite=False)
            return np.asarray(cho_solve(factor, right, check_finite=False))
        except LinAlgError:
            penalty *= 10


def fit_exact(inputs: Floats, responses: Floats, *, kernel: Kernel, penalty: float) -> KernelRidge:
    """One system of all rows: inputs float64[n, p], responses float64[n] or float64[n, columns]."""
    offset = np.asarray(responses.mean(axis=0))
    weights = _solve(kernel(inputs, inputs), responses - offset, max(penalty, _LEAST_PENALTY * len(inputs)))
    return KernelRidge(kernel, offset, (inputs,), (weights,))


def fit_group(inputs: Floats, responses: Floats, *, rows: int, kernel: Kernel, penalty: float) -> KernelRidge:
    """The estimator of one group of rows, with lambda as for all `rows` of them."""
    return fit_exact(inputs, responses, kernel=kernel, penalty=penalty * len(inputs) / rows)


def average(parts: Sequence[KernelRidge]) -> KernelRidge:
    """The estimator whose predictions are the mean of those of the parts. Raises ValueError: there is none, or their
    kernels differ.
    """
    if not parts or any(part.kernel != parts[0].kernel for part in parts):
        raise ValueError("estimators of one kernel are averaged, at least one")
    offsets = np.stack([part.offset for part in parts])
    offset = np.apply_along_axis(math.fsum, 0, offsets) / len(parts)
    return KernelRidge(
        parts[0].kernel,
        np.asarray(offset),
        tuple(c for part in parts for c in part.centres),
        tuple(w for part in parts for w in part.weights),
    )


@dataclass(frozen=True, eq=False)
class NystroemSums:
    """Sums over rows: ``K_mn K_nm``, ``K_mn y``, ``K_mn 1``, the number of rows and the sum of the responses."""

    products: Floats
    responses: Floats
    ones: Floats
    rows: int
    total: Floats

    def __add__(self, other: NystroemSums) -> NystroemSums:
        return NystroemSums(
            self.products + other.products,
            self.responses + other.responses,
            self.ones + other.ones,
            self.rows + other.rows,
            self.total + other.total,
        )


def nystroem_sums(inputs: Floats, responses: Floats, *, landmarks: Floats, kernel: Kernel) -> NystroemSums:
    """Sums over some rows; they are floating point, so the order in which parts are added is fixed by the caller."""
    m = len(landmarks)
    products, right, ones = np.zeros((m, m)), np.zeros((m, *responses.shape[1:])), np.zeros(m)
    step = max(1, (1 << 22) // max(m, 1))
    for start in range(0, len(inputs), step):
        values = kernel(inputs[start : start + step], landmarks)
        products += values.T @ values
        right += values.T @ responses[start : start + step]
        ones += values.sum(axis=0)
    return NystroemSums(products, right, ones, len(inputs), np.asarray(responses.sum(axis=0)))


def fit_nystroem(sums: NystroemSums, *, landmarks: Floats, kernel: Kernel, penalty: float) -> KernelRidge:
    """The Nystroem estimator from the sums over all rows.

    The landmarks' functions are orthonormalised first, which keeps the least squares well conditioned.
    """
    offset = np.asarray(sums.total / sums.rows)
    values, vectors = np.linalg.eigh(kernel(landmarks, landmarks))
    kept = values > 1e-12 * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])
    system = basis.T @ sums.products @ basis
    system = (system + system.T) / 2
    weights = _solve(system, basis.T @ (sums.responses - np.multiply.outer(sums.ones, offset)), penalty)
    return KernelRidge(kernel, offset, (landmarks,), (basis @ weights,))
