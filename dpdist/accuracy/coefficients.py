"""Coefficients of least squares and of logistic regressions, for one or more columns of weights."""

from __future__ import annotations

import numpy as np

from dpdist.errors import SpecError
from dpdist.privacy.arrays import Floats

DEPENDENT = "the terms are not linearly independent in the records: leave one out"
_NEARLY_DEPENDENT = 1e10  # condition number of the normal matrix with a diagonal of ones


def linear(rows: Floats, outcome: Floats, weights: Floats) -> Floats:
    """Coefficients of weighted least squares, for each column of weights: coefficients x columns.

    Raises
    ------
    SpecError
        The terms are not linearly independent.
    """
    products = rows[:, :, None] * rows[:, None, :]
    left = np.einsum("kij,kr->rij", products, weights, optimize=True)
    right = np.einsum("ki,kr->ri", rows * outcome[:, None], weights, optimize=True)
    check_rank(left[0])
    return np.asarray(np.linalg.solve(left, right[:, :, None])[:, :, 0].T)


def logistic(rows: Floats, outcome: Floats, weights: Floats) -> Floats:
    """Coefficients of weighted logistic regression, as `linear`.

    Raises
    ------
    SpecError
        The terms are not linearly independent, or the coefficients are infinite.
    """
    scale = np.abs(rows).max(0)
    if not scale.all():
        raise SpecError(DEPENDENT)
    rows, found = rows / scale, np.zeros((rows.shape[1], weights.shape[1]))
    first = newton(rows, outcome, weights[:, 0], found[:, 0])
    for r in range(weights.shape[1]):
        found[:, r] = first if not r else newton(rows, outcome, weights[:, r], first)
    return np.asarray(found / scale[:, None])


def newton(rows: Floats, outcome: Floats, weights: Floats, start: Floats) -> Floats:
    """Coefficients of a weighted logistic regression, from a start. Raises SpecError: as `logistic`."""
    found = start.copy()
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(rows @ found, -50, 50)))
        left = (rows * (weights * p * (1 - p))[:, None]).T @ rows
        check_rank(left)
        step = np.linalg.solve(left, rows.T @ (weights * (outcome - p)))
        found += step
        if np.abs(step).max() < 1e-10:
            return np.asarray(found)
        if np.abs(found).max() > 1e4:
            break
    raise SpecError("the logistic regression has no finite coefficients: leave out a term that separates the outcome")


def check_rank(normal: Floats) -> None:
    """Refuse a normal matrix of terms that depend on each other. Raises SpecError: they do."""
    diagonal = np.sqrt(np.maximum(np.diag(normal), 1e-300))
    if not np.isfinite(normal).all() or np.linalg.cond(normal / np.outer(diagonal, diagonal)) > _NEARLY_DEPENDENT:
        raise SpecError(DEPENDENT)
