"""Kernels on [0, 1] and their eigenpairs on a grid of times.

The Wiener kernel ``min(s, t)`` has the eigenpairs ``1 / w_j^2`` and ``sqrt(2) sin(w_j t)``, ``w_j = (j - 1/2) pi``.
They are used where they are orthonormal on the grid, that is where its times are equidistant from 0 to 1. Other kernels
and grids have theirs from the matrix of the kernel on the grid, weighted by the quadrature (Nystrom's method).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpdist.errors import SpecError
from dpdist.families.histogram.spec import KernelSpec
from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import eigh, exp, sin_turns

MAX_TIMES = 2048  # largest grid of times: its eigenpairs take seconds, and its matrices 32 MB each
PORTABLE_TIMES = 256  # beyond, eigenpairs are those of LAPACK, whose last bits depend on the processor

_NEGLIGIBLE = 1e-12  # of the largest eigenvalue: what rounding leaves of zero


def covariance(kernel: KernelSpec, s: ArrayLike, t: ArrayLike) -> Floats:
    """Covariance of every s with every t on [0, 1], float64[s, t]."""
    first, second = np.asarray(s, np.float64)[:, None], np.asarray(t, np.float64)[None, :]
    if kernel.name == "wiener":
        return np.minimum(first, second)
    distance = np.abs(first - second) / kernel.length
    if kernel.name == "gaussian":
        return np.asarray(exp(-(distance**2) / 2))
    distance = math.sqrt(3) * distance  # Matern 3/2
    return np.asarray(exp(-distance) * (1 + distance))


@dataclass(frozen=True, eq=False)
class Basis:
    """Eigenpairs of a kernel on a grid."""

    times: Floats  # ndarray of float64, shape (times,): ascending, in [0, 1]
    weights: Floats  # ndarray of float64, shape (times,): quadrature weights, which sum to one
    eigenvalues: Floats  # ndarray of float64, shape (terms,): descending
    functions: Floats  # shape (terms, times): ``functions * weights @ functions.T`` is the identity
    remainder: float  # the largest eigenvalue that was left out; 0 if none that counts was


def quadrature(times: Floats) -> Floats:
    """Trapezoidal weights of the times on [0, 1]. Raises SpecError: fewer than two times, or not ascending there."""
    if times.ndim != 1 or not 2 <= times.size <= MAX_TIMES:
        raise SpecError(f"curves need from 2 to {MAX_TIMES} times")
    if not (np.isfinite(times).all() and (np.diff(times) > 0).all() and times[0] >= 0 and times[-1] <= 1):
        raise SpecError("the times of curves must be ascending and in the declared domain")
    edges = np.concatenate([[0.0], (times[1:] + times[:-1]) / 2, [1.0]])
    return np.diff(edges)


def eigenbasis(kernel: KernelSpec, times: ArrayLike, *, terms: int | None = None) -> Basis:
    """Eigenpairs on a grid of ascending times in [0, 1]. Raises SpecError: no grid, or it has fewer than `terms`."""
    grid = np.asarray(times, np.float64)
    weights = quadrature(grid)
    pairs = _wiener(grid) if kernel.name == "wiener" else None
    if pairs is None or not np.allclose(pairs[1] * weights @ pairs[1].T, np.eye(len(pairs[1])), atol=1e-9):
        pairs = _nystrom(kernel, grid, weights)
    eigenvalues, functions = pairs
    most = len(functions)
    terms = most if terms is None else terms
    if not 1 <= terms <= most:
        raise SpecError(f"the number of terms must be from 1 to {most} on this grid of times, got {terms}")
    return Basis(grid, weights, eigenvalues[:terms], functions[:terms], float(eigenvalues[terms]))


def _wiener(grid: Floats) -> tuple[Floats, Floats]:
    """Closed form: as many functions as there are times above 0, and one eigenvalue more."""
    frequencies = (np.arange(1, (grid > 0).sum() + 2) - 0.5) * np.pi
    return 1 / frequencies**2, math.sqrt(2) * sin_turns(np.outer(frequencies[:-1], grid) / (2 * np.pi))


def _nystrom(kernel: KernelSpec, grid: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Eigenpairs of the weighted matrix; one eigenvalue, 0, more than functions."""
    root = np.sqrt(weights)
    matrix = root[:, None] * covariance(kernel, grid, grid) * root
    ascending, vectors = eigh(matrix) if len(grid) <= PORTABLE_TIMES else np.linalg.eigh(matrix)
    eigenvalues, functions = ascending[::-1], vectors.T[::-1] / root
    most = int((eigenvalues > _NEGLIGIBLE * eigenvalues[0]).sum())
    return np.append(eigenvalues[:most], 0.0), functions[:most]
