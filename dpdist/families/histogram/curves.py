"""Function-valued means: the average of curves, released with Gaussian noise whose covariance is a kernel [1]_.

With eigenpairs (lambda_j, v_j) of the kernel and penalty rho, the noise is that of a Gaussian mechanism on the sum of
the coefficients ``A x``, ``A = diag(sqrt(lambda)/(lambda + rho)) V W``, with V the functions on the grid of times and W
its quadrature weights. Curves are clipped to ``x' W x <= tau^2``, so one of them moves the sum by at most tau times the
spectral norm of ``A W^(-1/2)``, and the c curves of a unit by c times that. Under replacement (twice the norm) the sum
is divided by the public number of curves, under add/remove by a noisy count, which takes a share of the budget;
``docs/guarantees.md`` has more.

All of it is exact: curves are clipped and cut to integers on a fine grid, towards zero; A is a matrix of integers times
a power of two; products are Python integers.

References
----------
.. [1] Mirshani, Reimherr, Slavkovic, *Formal privacy for functional data with Gaussian perturbations*, 2019.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.data.operators import Operator
from dpdist.errors import CheckFailed, ColumnMismatch, OutOfDomain, SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.histogram.kernels import Basis
from dpdist.families.histogram.measurement import changed_cells, sampler_delta
from dpdist.privacy.arrays import Counts, Floats, grid_below
from dpdist.privacy.calibrate import round_up
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, Gaussian
from dpdist.privacy.formatting import Fact
from dpdist.privacy.guarantee import Adjacency
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import matmul

MAX_CURVES = 1 << 31  # largest number of curves whose integer sums are exact
COUNT_SHARE = 0.05  # share of the budget of the number of curves, where it is private
_LEAST, _MOST = 1e-60, 1e60  # of penalties and norms, so that no product overflows or vanishes
_ROWS = 1 << 13  # curves at a time
_VALUE_BITS = 30  # a clipped value has at most this many bits
_MATRIX_BITS = 44
_FINE = 2.0**-20  # grid of the noise, of its deviation
_INSIDE = 1 - 2.0**-40  # clipping leaves room for the rounding of the norm


@dataclass(frozen=True, eq=False, repr=False)
class CurveSums:
    """Sum of clipped curves; confidential, so ``repr`` hides it. ``a + b`` is that of the union."""

    count: int  # number of curves
    totals: NDArray[np.int64]  # ndarray of int64, shape (times,): in units of `value_unit`

    def __add__(self, other: CurveSums) -> CurveSums:
        return CurveSums(self.count + other.count, self.totals + other.totals)


def value_unit(basis: Basis, *, clip: float) -> float:
    """Power of two in whose multiples clipped curves are summed."""
    return grid_below(clip / math.sqrt(basis.weights.min()) * 2.0**-_VALUE_BITS)


def sum_curves(curves: ArrayLike, basis: Basis, *, clip: float) -> CurveSums:
    """Clip curves (one per row) to the L2 norm `clip`, tau, by weights of the basis, and sum them.

    Raises ColumnMismatch: no numbers, or not at the times of the basis; OutOfDomain: a value is not finite.
    """
    table = np.asarray(curves)
    if table.dtype.kind not in "iuf":
        raise ColumnMismatch("the values of the curves are not numbers; declare numeric columns only")
    if table.ndim != 2 or table.shape[1] != basis.times.size:
        raise ColumnMismatch(f"expected curves with {basis.times.size} values each, one per declared time")
    unit = value_unit(basis, clip=clip)
    totals = np.zeros(basis.times.size, np.int64)
    for start in range(0, len(table), _ROWS):
        part = np.ascontiguousarray(table[start : start + _ROWS], np.float64)
        if not np.isfinite(part).all():
            raise OutOfDomain("the curves hold missing, NaN or infinite values; clean or leave out such curves")
        size = np.abs(part).max(axis=1)
        size[size == 0] = 1.0
        scaled = part / size[:, None]  # squares neither overflow nor vanish
        norms = np.sqrt((scaled * scaled * basis.weights).sum(axis=1))
        norms[norms == 0] = 1.0
        factors = np.minimum(size, clip * _INSIDE / norms) / unit
        totals += np.trunc(scaled * factors[:, None]).astype(np.int64).sum(axis=0)
    return CurveSums(len(table), totals)


def curve_operator(basis: Basis, *, clip: float, columns: Sequence[int]) -> Operator:
    """Sum of clipped curves, one per record: the columns of their values, in the order of the times."""
    chunk = partial(_wide, basis=basis, clip=clip, columns=tuple(columns))
    return Operator(name="curves", chunk=chunk, combine=operator.add)


def _wide(codes: Sequence[Floats], basis: Basis, clip: float, columns: tuple[int, ...]) -> CurveSums:
    return sum_curves(np.stack([codes[i] for i in columns], axis=1), basis, clip=clip)


@dataclass(frozen=True, kw_only=True, eq=False)
class CurvePlan:
    """Noise on a function-valued mean."""

    basis: Basis
    penalty: float  # penalty, clip: rho and tau
    clip: float
    adjacency: Adjacency
    curves: int  # public number of curves (replacement), or a public lower bound of it (add/remove)
    unit: int = 1  # curves of a unit, at most
    sensitivity: float  # most that one curve (or unit) moves the sum of the coefficients, in L2
    grid: float  # grid of the sum and of its noise
    sigma: float  # deviation of the noise on each coefficient of the sum
    count_sigma: float | None  # deviation of the noise on the number of curves; None where it is public
    event: Event  # what it costs, the sampler's delta included
    matrix: NDArray[np.int64] = field(repr=False)
    matrix_unit: float = field(repr=False)

    @property
    def truncation(self) -> float:
        """Most that the terms left out of the expansion could hold of a mean, in L2: ``tau lambda/(lambda + rho)``."""
        rest = self.basis.remainder
        return self.clip * rest / (rest + self.penalty)

    @property
    def expected_error(self) -> float:
        """Root mean square of the noise on the mean, in L2; the noise of a private count adds to it."""
        return self.sigma / self.curves * math.sqrt(float(self.basis.eigenvalues.sum()))

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        names = ("penalty", "clip", "truncation", "sigma", "count_sigma")
        return {name: getattr(self, name) for name in names} | {
            "clip_norm": "L2",
            "terms": self.basis.eigenvalues.size,
            "sensitivity_of_sum": self.sensitivity,
        }

    def fact(self) -> Fact:
        """The expansion and the clipping, for people."""
        text = (
            f"{self.basis.times.size} times, {self.basis.eigenvalues.size} terms (truncation at most "
            f"{self.truncation:.4g}); clipped at L2 norm {self.clip:g}"
        )
        return Fact("Curves", text, {"clip": self.clip, "truncation": self.truncation})


def plan_mean(
    basis: Basis,
    *,
    penalty: float,
    clip: float,
    curves: int,
    budget: tuple[float, float],
    adjacency: Adjacency,
    unit: int = 1,
) -> CurvePlan:
    """The least Gaussian noise for the mean of curves within a budget (epsilon, delta).

    `penalty`, rho, is above 0: a larger one smooths more and needs less noise. `clip`, tau, is in the unit of the
    curves. `curves` is public: their number (replacement), or a lower bound of it (add/remove). Under add/remove
    `COUNT_SHARE` of the budget (of ``1 / sigma^2``) goes to the number of curves. `unit` is the most curves of a unit
    (add/remove). Raises SpecError: a penalty, clip or number out of range; AccountingError: the budget is not valid
    (delta above 0).
    """
    if not _LEAST <= min(penalty, clip) <= max(penalty, clip) <= _MOST:
        allowed = f"from {_LEAST:g} to {_MOST:g}"
        raise SpecError(f"penalty and clip of curves are {allowed}, not {penalty!r} and {clip!r}: choose another unit")
    if not 1 <= curves <= MAX_CURVES:
        raise SpecError(f"the public number of curves must be from 1 to {MAX_CURVES:,}, got {curves}")
    terms = basis.eigenvalues.size
    sampler = sampler_delta(terms + 1)
    whole = GaussianPlan.of(epsilon=budget[0], delta=max(budget[1] - sampler, 0.0)).sigma
    matrix, matrix_unit = _integer_matrix(basis, penalty)
    norm = round_up(float(np.linalg.norm(matrix * matrix_unit / np.sqrt(basis.weights), 2)) * (1 + 1e-9), bits=20)
    sensitivity = changed_cells(adjacency) * clip * norm * unit
    private = adjacency == "add/remove"
    multiplier = whole / math.sqrt(1 - COUNT_SHARE) if private else whole
    grid = max(grid_below(multiplier * sensitivity * _FINE), matrix_unit * value_unit(basis, clip=clip))
    sigma = multiplier * (sensitivity + grid * math.sqrt(terms))
    events: list[Event] = [Gaussian(multiplier, label="curves")]
    if private:
        events.append(Gaussian(whole / math.sqrt(COUNT_SHARE), label="number of curves"))
    return CurvePlan(
        basis=basis,
        penalty=penalty,
        clip=clip,
        adjacency=adjacency,
        curves=curves,
        unit=unit,
        sensitivity=sensitivity,
        grid=grid,
        sigma=sigma,
        count_sigma=whole * unit / math.sqrt(COUNT_SHARE) if private else None,
        event=Composed((*events, ApproximateDP(0.0, sampler, label="sampler"))),
        matrix=matrix,
        matrix_unit=matrix_unit,
    )


def _integer_matrix(basis: Basis, penalty: float) -> tuple[Counts, float]:
    """The matrix from values to penalised coefficients, as integers and their unit."""
    factors = np.sqrt(basis.eigenvalues) / (basis.eigenvalues + penalty)
    dense = factors[:, None] * basis.functions * basis.weights
    unit = grid_below(np.abs(dense).max() * 2.0**-_MATRIX_BITS)
    return np.rint(dense / unit).astype(np.int64), unit


@dataclass(frozen=True, eq=False)
class CurveMean:
    """A released mean."""

    values: Floats  # ndarray of float64, shape (times,)
    coefficients: Floats  # ndarray of float64, shape (terms,): in the orthonormal basis of the kernel's space
    curves: int  # the number of curves it was divided by: public (replacement) or noisy (add/remove)


def coefficient_steps(sums: CurveSums, plan: CurvePlan) -> list[int]:
    """Exact coefficients of the sum, each rounded to the grid of the plan, in steps of it."""
    exact: NDArray[Any] = plan.matrix.astype(object) @ sums.totals.astype(object)
    divisor = round(plan.grid / (plan.matrix_unit * value_unit(plan.basis, clip=plan.clip)))
    return [(2 * int(value) + divisor) // (2 * divisor) for value in exact]


def confirm_number(sums: CurveSums, plan: CurvePlan) -> None:
    """Check a public number of curves. Raises CheckFailed: it is another; OutOfDomain: more than `MAX_CURVES`."""
    if sums.count > MAX_CURVES:
        raise OutOfDomain(f"more than {MAX_CURVES:,} curves; release them in groups")
    if plan.count_sigma is None and sums.count != plan.curves:
        raise CheckFailed(
            f"the number of curves is declared as {plan.curves} and public (replacement), and the table has another; "
            "declare the right one in data.minimum_records, or choose adjacency add/remove, under another release "
            "name. The charge stays spent"
        )


def release_mean(sums: CurveSums, plan: CurvePlan, *, noise: Noise, name: str) -> CurveMean:
    """Noise the sum of curves and divide by their number: ``name/coefficients``, ``name/count``. Raises as
    `confirm_number`.
    """
    confirm_number(sums, plan)
    curves = plan.curves
    if plan.count_sigma is not None:
        drawn = noise.gaussian_integers(f"{name}/count", 1, sigma=plan.count_sigma)
        curves = max(sums.count + int(drawn[0]), curves)  # a public lower bound may raise a noisy count
    steps = coefficient_steps(sums, plan)
    drawn = noise.gaussian_integers(f"{name}/coefficients", len(steps), sigma=plan.sigma / plan.grid)
    coefficients = np.array([step + int(draw) for step, draw in zip(steps, drawn, strict=True)], np.float64)
    coefficients *= plan.grid / curves
    values = matmul(plan.basis.functions.T, np.sqrt(plan.basis.eigenvalues) * coefficients)
    return CurveMean(values, coefficients, curves)
