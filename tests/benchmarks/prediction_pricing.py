"""Prices from synthetic sales: elasticities, mark-ups and profits of brands with log-log demand.

The own-price elasticity beta < -1 of a brand gives its *optimal mark-up* over marginal cost, ``OMU = -1 / (1 + beta)``,
and the *optimal profit ratio*: the profit at the price that an estimated elasticity suggests, over the profit at the
price of the true one. ``MAPD`` is the mean absolute percentage deviation of elasticities.
"""

import numpy as np
from numpy.typing import ArrayLike

from dpdist.privacy.arrays import Floats


def optimal_markup(elasticity: ArrayLike) -> Floats:
    """Optimal mark-up over marginal cost, ``-1 / (1 + beta)``; NaN where demand is not elastic (beta >= -1)."""
    beta = np.asarray(elasticity, np.float64)
    elastic = beta < -1
    return np.where(elastic, -1 / np.where(elastic, 1 + beta, -1.0), np.nan)


def optimal_profit_ratio(true: ArrayLike, estimated: ArrayLike) -> Floats:
    """Profit at the estimated elasticity's price over the profit at the true one's; NaN where one is not elastic.

    With constant marginal cost c and demand ``p^beta`` the profit is ``(p - c) p^beta`` at ``p = c (1 + OMU)``.
    """
    beta, guess = np.asarray(true, np.float64), np.asarray(estimated, np.float64)
    best, chosen = optimal_markup(beta), optimal_markup(guess)
    return np.asarray((chosen / best) * ((1 + chosen) / (1 + best)) ** beta)


def mean_absolute_percentage_deviation(true: ArrayLike, estimated: ArrayLike) -> float:
    """Mean of ``|estimated - true| / |true|``."""
    beta, guess = np.asarray(true, np.float64), np.asarray(estimated, np.float64)
    return float(np.mean(np.abs(guess - beta) / np.abs(beta)))
