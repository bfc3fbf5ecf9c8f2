r"""Gaussian differential privacy: the Gaussian pair that a mechanism is no worse than.

A mechanism is *mu-GDP but for d* when all its neighbouring outputs are a post-processing of N(mu, 1) against N(0, 1),
seen with probability ``1 - d`` (with probability d everything is seen). By Blackwell's theorem that is so exactly when
its hockey-stick divergences, for every e of both signs, satisfy

    H_e  <=  d + (1 - d) delta_mu(e),      delta_mu(e) = Phi(mu/2 - e/mu) - e^e Phi(-mu/2 - e/mu).        (1)

Read as trade-offs between the two errors of a test, (1) says that the curve of the mechanism lies above the curve
``y = (1-d) Phi(-mu - Phi^{-1}(x / (1-d)))``, which is convex. The curve of a pair with finitely many losses is a
polygon, so its corners decide, and each of them gives its mu in closed form:

    mu  >=  - Phi^{-1}( x / (1-d) ) - Phi^{-1}( y / (1-d) )        for every corner (x, y) with x, y < 1 - d.     (2)

References
----------
.. [1] Dong, Roth, Su, *Gaussian differential privacy*, 2022: trade-off functions, and Blackwell's theorem for them.
.. [2] Balle, Wang, *Improving the Gaussian mechanism for differential privacy*, 2018, Theorem 8: delta_mu.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike

from dpdist.errors import AccountingError
from dpdist.privacy.arrays import Floats
from dpdist.privacy.balls import ball, working_precision
from dpdist.privacy.formatting import rounded_down
from dpdist.privacy.pair import DominatingPair

if TYPE_CHECKING:
    from flint import arb

_ROUNDING: Final = 2.0**-39  # of a mass: above what summing 3000 of them loses


def least_mu(pair: DominatingPair, failures: ArrayLike) -> Floats:
    """The least mu for which the pair is mu-GDP but for each of the failures d of (1), in [0, 1): float64, rounded
    upwards, infinite where the pair has more mass of infinite loss than the failure.

    Randomised response with epsilon 1 is dominated by the Gaussian mechanism of noise multiplier 0.81.

    >>> likely = 1 / (1 + np.exp(-1.0))
    >>> masses = np.array([1 - likely, likely])
    >>> float(least_mu(DominatingPair(np.array([-1.0, 1.0]), masses, masses[::-1]), 0.0).round(3))
    1.232
    """
    d = np.minimum(np.asarray(failures, dtype=np.float64), 1 - 2.0**-53)[..., None]
    upper_above = pair.upper_infinite + np.append(np.cumsum(pair.upper[::-1])[::-1], 0.0)
    lower_below = pair.lower_infinite + np.append(0.0, np.cumsum(pair.lower))
    x, y = np.append(np.cumsum(pair.lower[::-1])[::-1], 0.0), np.append(0.0, np.cumsum(pair.upper))
    first, second = _quantile(x, lower_below, d), _quantile(y, upper_above, d)
    with np.errstate(invalid="ignore"):
        needed = first + second
    # A corner beyond the failure binds nothing: its quantile is minus infinity, whatever the other one is.
    needed = np.where(np.isneginf(first) | np.isneginf(second), 0.0, needed)
    return np.asarray(np.maximum(needed.max(axis=-1), 0.0) * (1 + 2.0**-40))


def _quantile(error: Floats, complement: Floats, d: Floats) -> Floats:
    """``-Phi^{-1}(error / (1-d))``, rounded upwards; the smaller of an error and one minus it is accurate."""
    from scipy.special import ndtri

    low = error * (1 - _ROUNDING) / (1 - d)
    high = np.clip((complement * (1 + _ROUNDING) - d) / (1 - d), 0.0, 1.0)
    return np.asarray(np.where(low < 0.5, -ndtri(np.minimum(low, 1.0)), ndtri(high)))


@functools.lru_cache(maxsize=1024)  # the same budget is asked for by many statistics
def largest_mu_squared(*, epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest ``mu**2``, rounded downwards to 12 digits, at which mu-GDP implies (epsilon, delta)-DP.

    Every step is certified in ball arithmetic. Raises AccountingError: epsilon or delta is out of range.

    >>> round(float(largest_mu_squared(epsilon=Fraction(1), delta=Fraction("1e-9"))) ** 0.5, 3)
    0.182
    """
    if not 0 < epsilon <= 10**6 or not Fraction("1e-300") <= delta < 1:
        raise AccountingError("Gaussian differential privacy needs 0 < epsilon <= 10**6 and 1e-300 <= delta < 1")
    low, high = 0.0, 1.0
    while _within(high, epsilon, delta):
        low, high = high, 2 * high
    while not low or high / low > 1 + 2.0**-45:
        middle = (low + high) / 2 if low else high / 2
        if _within(middle, epsilon, delta):
            low = middle
        else:
            high = middle
    return rounded_down(Fraction(low) ** 2)


@functools.lru_cache(maxsize=1024)
def least_epsilon(*, mu_squared: Fraction, delta: Fraction) -> float:
    """The least epsilon at which mu-GDP implies (epsilon, delta)-DP, about 1e-12 above it; infinite beyond 10**7. Delta
    is in [1e-300, 1).
    """
    mu = math.sqrt(mu_squared) * (1 + 2.0**-50)
    if not mu or _within(mu, Fraction(0), delta):
        return 0.0
    low, high = 0.0, 1.0
    while not _within(mu, Fraction(high), delta):
        low, high = high, 2 * high
        if high > 1e7:
            return math.inf
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _within(mu, Fraction(middle), delta) else (middle, high)
    return high


def implies(*, mu_squared: Fraction, epsilon: Fraction, delta: Fraction) -> bool:
    """Whether mu-GDP, with mu above 0, certainly implies (epsilon, delta)-DP, for a delta in [1e-300, 1)."""
    return _within(math.sqrt(mu_squared) * (1 + 2.0**-50), epsilon, delta)


def delta_at(*, mu_squared: Fraction, epsilon: Fraction) -> float:
    """The least delta at which mu-GDP implies (epsilon, delta)-DP, for an epsilon of at least 0; rounded upwards."""
    mu = math.sqrt(mu_squared) * (1 + 2.0**-50)
    with working_precision(2048):
        return math.nextafter(float(_profile(Fraction(mu), epsilon).upper()), 1.0)


def _within(mu: float, epsilon: Fraction, delta: Fraction) -> bool:
    """Whether delta_mu(epsilon) is certainly at most delta."""
    precision = 192 + 2 * max(delta.denominator.bit_length() - delta.numerator.bit_length(), 0)
    with working_precision(precision):
        return bool(_profile(Fraction(mu), epsilon) <= ball(delta))


def _profile(mu: Fraction, epsilon: Fraction) -> arb:
    m, e, root = ball(mu), ball(epsilon), ball(Fraction(2)).sqrt()
    return (((e / m - m / 2) / root).erfc() - e.exp() * ((e / m + m / 2) / root).erfc()) / 2
