"""The simulated regression: g, its inputs and its rows."""

import numpy as np
from prediction_models import Rows

from dpdist.privacy.arrays import Floats


def g(x: Floats) -> Floats:
    """Wendland's function of smoothness 4 in three dimensions."""
    r = np.linalg.norm(x, axis=1)
    return np.asarray(np.maximum(1 - r, 0) ** 6 * (35 * r * r + 18 * r + 3))


def inputs(rows: int, rng: np.random.Generator, mean: float = 0.4) -> Floats:
    """Gaussian inputs on the unit cube, with correlation 0.5."""
    cov = 0.15**2 * (0.5 + 0.5 * np.eye(3))
    return np.clip(rng.multivariate_normal([mean] * 3, cov, rows), 0, 1)


def simulated(rows: int, rng: np.random.Generator, mean: float = 0.4) -> Rows:
    """Rows of the simulated regression."""
    x = inputs(rows, rng, mean)
    return x, g(x) + rng.normal(0, np.sqrt(0.2), rows)
