"""The least noise within a budget: the one search of the product, for whatever the noise is and however it is charged.

`dp_accounting.calibrate_dp_mechanism` is not enough here: it asks its own accountants, whose answers are not rounded
upwards and do not know all events of `dpdist.privacy.events`, and its tolerance is absolute, in units of the noise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Literal

from dpdist.errors import AccountingError

_LARGEST_FACTOR = 1e12  # between the first scale and any other that is tried
_LEAST_COST = 1e-12
_STEPS = 60  # of false position


def require_budget(*, epsilon: float, delta: float) -> None:
    """Refuse a budget that is none. Raises AccountingError: epsilon is not finite and positive, or delta is not in [0,
    1).
    """
    if not 0 < epsilon < math.inf or not 0 <= delta < 1:
        raise AccountingError(f"a budget needs a finite epsilon > 0 and a delta in [0, 1), got {epsilon!r}, {delta!r}")


def least_scale(
    cost: Callable[[float], float],
    *,
    epsilon: float,
    delta: float,
    start: float = 1.0,
    least: float = 0.0,
    tolerance: float = 1e-4,
    tolerance_of: Literal["epsilon", "scale"] = "epsilon",
) -> float:
    """Least scale of the noise whose cost is within epsilon; the answer errs upwards.

    Parameters
    ----------
    cost : callable
        Scale to epsilon at `delta`, rounded upwards as by `dpdist.privacy.accountant.epsilon`; falls as the scale
        grows. It may raise AccountingError where there is too little noise to account for.
    epsilon, delta : float
        The budget. The search does not use delta; it is checked and named in errors.
    start : float
        First scale to try.
    least : float
        No scale below is tried; ``start`` is a power of 2 times it.
    tolerance : float
        Relative. The cost of the answer is always within epsilon.
    tolerance_of : {"epsilon", "scale"}
        Which of them the answer may miss by the tolerance. With "epsilon", the cost of the answer is above ``epsilon *
        (1 - tolerance)``, found by false position in logarithms, where most costs are nearly lines: a third of the
        evaluations of a bisection. With "scale", the answer is at most ``1 + tolerance`` times the least scale, found
        by bisection.

    Raises
    ------
    AccountingError
        The budget is not valid, or no scale up to 1e12 times `start` meets it.

    Examples
    --------
    >>> round(least_scale(lambda scale: 3 / scale, epsilon=0.5, delta=0.0), 2)
    6.0
    """
    require_budget(epsilon=epsilon, delta=delta)

    def excess(scale: float) -> float:
        try:
            spent = cost(scale)
        except AccountingError:  # too little noise to account for
            return math.inf
        ratio = math.log(max(spent, _LEAST_COST) / epsilon)
        return max(ratio, sys.float_info.min) if spent > epsilon else min(ratio, 0.0)

    bracket = _bracket(excess, start, max(least, start / _LARGEST_FACTOR))
    if bracket is None:
        raise AccountingError(f"no amount of noise meets epsilon = {epsilon:g} at delta = {delta:g}; raise one of them")
    return (_bisection if tolerance_of == "scale" else _false_position)(excess, *bracket, tolerance)


Excess = Callable[[float], float]
Point = tuple[float, float]  # a scale and its excess, the logarithm of cost over epsilon


def _bracket(excess: Excess, start: float, least: float) -> tuple[Point, Point] | None:
    """Two scales a factor of 2 apart: the lower one costs too much, the upper one does not. None if all cost too much.

    Where no scale costs too much, the two are the same, the least that was tried.
    """
    high = low = start
    above = below = excess(start)
    while above > 0:
        low, below = high, above
        high *= 2
        above = excess(high)
        if high > _LARGEST_FACTOR * start:
            return None
    while below <= 0:
        high, above = low, below
        low /= 2
        if low < least:
            return (high, above), (high, above)
        below = excess(low)
    return (low, below), (high, above)


def _bisection(excess: Excess, below: Point, above: Point, tolerance: float) -> float:
    low, high = below[0], above[0]
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _false_position(excess: Excess, below: Point, above: Point, tolerance: float) -> float:
    (low, over), (high, under) = below, above
    for _ in range(_STEPS):
        if under > math.log1p(-tolerance) or high / low < 1 + 1e-9:
            break
        # Aim a little to the safe side of the line through both ends, and stay well inside the bracket.
        share = (under + tolerance / 2) / (under - over) if math.isfinite(over) else 0.5
        share = min(max(share, 0.02), 0.98)
        middle = math.exp(math.log(high) + share * (math.log(low) - math.log(high)))
        value = excess(middle)
        if value > 0:
            low, over = middle, value
        else:
            high, under = middle, value
    return high
