r"""Differentially private empirical risk minimisation, as a baseline: what a model alone would have cost.

Chaudhuri, Monteleoni, Sarwate [1]_: a linear classifier that minimises
``J(f) = mean loss(y f.x) + lambda/2 |f|^2`` over records with ``|x| <= 1``, made (epsilon, 0)-DP (replacement of a
record) by noise on the result (Algorithm 1) or in the objective (Algorithm 2). The paper's Table 4 compares models
trained on released records with both, for the logistic and the Huber loss.

These models serve for comparison: they are trained, tested and thrown away, and only their accuracy is reported. So
their noise is NumPy's floating-point noise, which is no noise to publish with.

There is no well-kept library with all four: diffprivlib has the objective perturbation of the logistic loss only.

References
----------
.. [1] Chaudhuri, Monteleoni, Sarwate, *Differentially Private Empirical Risk Minimization*, JMLR 12, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Floats

HUBER = 0.5
"""Half the width of the quadratic part of the Huber loss, as in the experiments of [1]."""


@dataclass(frozen=True)
class Loss:
    """A convex loss of the margin ``y f.x`` with ``|slope| <= 1``."""

    name: str
    value: Callable[[Floats], Floats]  # value, slope: of the margins, float64[records]
    slope: Callable[[Floats], Floats]
    curvature: float  # largest second derivative, the constant c of [1]


def _huber(z: Floats) -> Floats:
    middle = (1 + HUBER - z) ** 2 / (4 * HUBER)
    return np.where(z > 1 + HUBER, 0.0, np.where(z < 1 - HUBER, 1 - z, middle))


def _huber_slope(z: Floats) -> Floats:
    return np.where(z > 1 + HUBER, 0.0, np.where(z < 1 - HUBER, -1.0, -(1 + HUBER - z) / (2 * HUBER)))


def _logistic(z: Floats) -> Floats:
    return np.asarray(np.logaddexp(0.0, -z))


def _logistic_slope(z: Floats) -> Floats:
    from scipy.special import expit

    return np.asarray(-expit(-z))


LOGISTIC = Loss("logistic regression", _logistic, _logistic_slope, 0.25)
HUBER_SVM = Loss("SVM (Huber loss)", _huber, _huber_slope, 1 / (2 * HUBER))


def unit_rows(matrix: Any) -> Any:
    """Rows with a constant appended, divided by their lengths so that ``|x| <= 1``: sparse float64[records, d + 1]."""
    from scipy.sparse import csr_array, hstack

    with_constant = hstack([matrix, np.ones((matrix.shape[0], 1))], format="csr")
    lengths = np.sqrt(np.asarray(with_constant.multiply(with_constant).sum(axis=1)).ravel())
    return csr_array(with_constant.multiply(1 / np.maximum(lengths, 1e-12)[:, None]))


def minimise(
    loss: Loss, x: Any, y: Floats, *, penalty: float, tilt: Floats | None = None, start: Floats | None = None
) -> Floats:
    """The minimiser of ``mean loss(y f.x) + penalty/2 |f|^2 + tilt.f``, float64[d], searched from `start`; x has shape
    (records, d), y is -1 or 1, float64[records].
    """
    from scipy.optimize import minimize

    n, d = x.shape
    slope = np.zeros(d) if tilt is None else tilt
    transposed = x.T.tocsr() if hasattr(x, "tocsr") else x.T

    def objective(f: Floats) -> tuple[float, Floats]:
        z = y * (x @ f)
        value = float(loss.value(z).mean() + penalty / 2 * (f @ f) + slope @ f)
        return value, np.asarray(transposed @ (loss.slope(z) * y) / n + penalty * f + slope)

    begin = np.zeros(d) if start is None else start
    found = minimize(objective, begin, jac=True, method="L-BFGS-B", options={"maxiter": 150, "ftol": 1e-9})
    return np.asarray(found.x, np.float64)


def spherical(d: int, scale: float, rng: np.random.Generator) -> Floats:
    """A vector with density proportional to ``exp(-|b| / scale)``, float64[d]."""
    direction = rng.standard_normal(d)
    return np.asarray(direction / np.linalg.norm(direction) * rng.gamma(d, scale))


def output_perturbation(
    loss: Loss, x: Any, y: Floats, *, epsilon: float, penalty: float, rng: np.random.Generator
) -> Floats:
    """Algorithm 1 of [1]: the minimiser plus noise of sensitivity ``2 / (n penalty)``, float64[d]."""
    return minimise(loss, x, y, penalty=penalty) + output_noise(x.shape, epsilon=epsilon, penalty=penalty, rng=rng)


def output_noise(shape: tuple[int, int], *, epsilon: float, penalty: float, rng: np.random.Generator) -> Floats:
    """The noise of Algorithm 1, float64[d]."""
    n, d = shape
    return spherical(d, 2 / (n * penalty * epsilon), rng)


def objective_perturbation(
    loss: Loss,
    x: Any,
    y: Floats,
    *,
    epsilon: float,
    penalty: float,
    rng: np.random.Generator,
    start: Floats | None = None,
) -> Floats:
    """Algorithm 2 of [1]: the minimiser of an objective with a random slope, float64[d]."""
    n, d = x.shape
    c = loss.curvature
    rest = epsilon - math.log(1 + 2 * c / (n * penalty) + c**2 / (n * penalty) ** 2)
    extra = 0.0
    if rest <= 0:
        extra = max(c / (n * math.expm1(epsilon / 4)) - penalty, 0.0)
        rest = epsilon / 2
    return minimise(loss, x, y, penalty=penalty + extra, tilt=spherical(d, 2 / rest, rng) / n, start=start)


def signs(labels: NDArray[Any], positive: int) -> Floats:
    """1 for the positive class and -1 for the others, float64[records]."""
    return np.where(labels == positive, 1.0, -1.0)
