"""The least noise within a budget: the one search of the product, for whatever the noise is and however it is charged.

The answer is the same on every processor. A cost is computed in floating point, so its last bits are not: exponentials
and logarithms differ between processors. The search therefore tries numbers of few bits only (a *grid*), and the answer
is the least of them whose cost is within the budget. An error of 1e-9 in the costs changes it with a probability of
about 1e-5, and then to a neighbour on the grid whose cost is within 1e-9 of the budget.

`dp_accounting.calibrate_dp_mechanism` is not enough here: it asks its own accountants, whose answers are not rounded
upwards and do not know all events of `dpdist.privacy.events`, and its tolerance is absolute, in units of the noise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Final

from dpdist.errors import AccountingError

BITS: Final = 12
"""Significant bits of a scale: neighbours on the grid are 1/4096 to 1/2048 apart."""

ABOVE: Final = 1 + 2.0**-40
"""Times a number that was computed by sums, products, quotients and roots: surely above the exact one."""

_OCTAVES = 50  # factors of 2 from the first scale up to the largest that is tried
_LARGEST_FACTOR = 1e12  # between the first scale and the least that is tried
_LEAST_COST = 1e-12
_MARGIN = 1e-8  # of a cost: one that is the budget itself, as many are, is above it whatever its last bits


def require_budget(*, epsilon: float, delta: float) -> None:
    """Check a budget. Raises AccountingError: epsilon is not finite and positive, or delta is not in [0,
    1).
    """
    if not 0 < epsilon < math.inf or not 0 <= delta < 1:
        raise AccountingError(f"a budget needs a finite epsilon > 0 and a delta in [0, 1), got {epsilon!r}, {delta!r}")


def round_up(value: float, *, bits: int = BITS) -> float:
    """The least number of `bits` significant bits that is not below a finite positive one. Raises AccountingError: it
    is not one.

    >>> round_up(1.0), round_up(1.0001), round_up(3000.2)
    (1.0, 1.00048828125, 3001.0)
    """
    if not 0 < value < math.inf:
        raise AccountingError(f"expected a finite number above 0, got {value!r}")
    return _number(_place(value, bits), bits)


def least_scale(
    cost: Callable[[float], float],
    *,
    epsilon: float,
    delta: float,
    start: float = 1.0,
    least: float = 0.0,
    bits: int = BITS,
) -> float:
    """Least scale on the grid of the noise whose cost is within epsilon. Raises AccountingError: the budget is not
    valid, or no scale up to 1e12 times `start` meets it.

    `cost` takes a scale to epsilon at `delta`, rounded upwards as by `dpdist.privacy.accountant.epsilon`, and falls as
    the scale grows; it may raise AccountingError where there is too little noise to account for. The search does not
    use delta, which is checked and named in errors. The answer, of this many significant bits, does not depend on
    `start`, where the search begins; no scale below `least` is tried.

    >>> least_scale(lambda scale: 3 / scale, epsilon=0.51, delta=0.0)
    5.8828125
    """
    require_budget(epsilon=epsilon, delta=delta)

    def excess(place: int) -> float:
        try:
            spent = cost(_number(place, bits))
        except (AccountingError, OverflowError):  # too little noise to account for
            return math.inf
        spent *= 1 + _MARGIN
        if not spent < math.inf:
            return math.inf
        ratio = math.log(max(spent, _LEAST_COST) / epsilon)
        return min(ratio, 0.0) if spent <= epsilon else max(ratio, sys.float_info.min)

    floor = _place(max(least, start / _LARGEST_FACTOR), bits)
    found = _bracket(excess, max(_place(start, bits), floor), floor, octave=1 << (bits - 1))
    if found is None:
        raise AccountingError(f"no amount of noise meets epsilon = {epsilon:g} at delta = {delta:g}; raise one of them")
    return _number(_false_position(excess, *found), bits)


def _place(value: float, bits: int) -> int:
    """The place on the grid of the least number on it that is not below the value."""
    mantissa, exponent = math.frexp(value)
    return (exponent - bits - 1) * (1 << (bits - 1)) + math.ceil(math.ldexp(mantissa, bits))


def _number(place: int, bits: int) -> float:
    exponent, rest = divmod(place, 1 << (bits - 1))
    return math.ldexp((1 << (bits - 1)) + rest, exponent)


Excess = Callable[[int], float]
Point = tuple[int, float]  # a place on the grid and its excess, the logarithm of cost over epsilon


def _bracket(excess: Excess, start: int, least: int, *, octave: int) -> tuple[Point, Point] | None:
    """Two places at most a factor of 2 apart: the lower one costs too much, the upper one does not. None if all cost
    too much. Where no place costs too much, the two are the same, the least.
    """
    high = low = start
    above = below = excess(start)
    while above > 0:
        low, below = high, above
        high += octave
        if high > start + _OCTAVES * octave:
            return None
        above = excess(high)
    while below <= 0:
        high, above = low, below
        if high == least:
            return (high, above), (high, above)
        low = max(low - octave, least)
        below = excess(low)
    return (low, below), (high, above)


def _false_position(excess: Excess, below: Point, above: Point) -> int:
    """The upper of the two neighbours between which the cost crosses the budget, by false position in logarithms, where
    most costs are nearly lines; an end that is kept counts half the next time.
    """
    (low, over), (high, under) = below, above
    moved = 0  # the end that moved last, and how often in a row: below or above 0
    while high - low > 1:
        share = over / (over - under) if math.isfinite(over) and over > under else 0.5
        middle = min(max(math.ceil(low + share * (high - low)), low + 1), high - 1)
        value = excess(middle)
        if value > 0:
            low, over, moved = middle, value, max(moved, 0) + 1
            under *= 0.5 if moved > 1 else 1
        else:
            high, under, moved = middle, value, min(moved, 0) - 1
            over *= 0.5 if moved < -1 else 1
    return high
