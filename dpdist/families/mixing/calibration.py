"""The least noise within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpdist.errors import AccountingError

_STEPS = 60


def least_scale(
    cost: Callable[[float], float], *, epsilon: float, delta: float, start: float, tolerance: float
) -> float:
    """Least scale of the noise whose cost is within epsilon.

    False position in logarithms, where the cost is nearly a line: a third of the evaluations of a bisection.

    Parameters
    ----------
    cost : callable
        Scale to epsilon; falls as the scale grows. May raise AccountingError where there is too little noise.
    epsilon, delta : float
        The budget; delta is only checked.
    start : float
        First scale to try.
    tolerance : float
        The cost of the answer is from ``epsilon (1 - tolerance)`` to epsilon.

    Raises
    ------
    AccountingError
        The budget is not valid, or no scale meets it.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise AccountingError(f"a budget needs a finite epsilon > 0 and a delta in (0, 1), got {epsilon!r}, {delta!r}")

    def excess(scale: float) -> float:
        try:
            return math.log(max(cost(scale), 1e-12) / epsilon)
        except AccountingError:  # too little noise to account for
            return math.inf

    high, low = start, start
    above = below = excess(start)
    while above > 0:
        low, below = high, above
        high *= 2
        above = excess(high)
        if high > 1e12 * start:
            raise AccountingError(
                f"no amount of noise meets epsilon = {epsilon:g} at delta = {delta:g}; raise one of them"
            )
    while below <= 0:
        high, above = low, below
        low /= 2
        below = excess(low)
        if low < 1e-12 * start:
            return high
    for _ in range(_STEPS):
        if above > math.log1p(-tolerance) or high / low < 1 + 1e-9:
            break
        # Aim a little to the safe side of the line through both ends, and stay well inside the bracket.
        share = (above + tolerance / 2) / (above - below) if math.isfinite(below) else 0.5
        share = min(max(share, 0.02), 0.98)
        middle = math.exp(math.log(high) + share * (math.log(low) - math.log(high)))
        value = excess(middle)
        if value > 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return high
