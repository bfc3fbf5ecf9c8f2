"""Ball arithmetic (Arb): numbers with a certain bound of their error [1]_, and quantiles of binomial counts by it.

A comparison of balls is true only where it holds for every number in them. Where balls overlap, neither ``a <= b`` nor
``a > b`` is true, and a search takes what stays undecided for not met.

Tails of binomial counts are regularised incomplete beta functions, ``Pr[Bin(n, p) <= k] = I_{1-p}(n - k, k + 1)`` [2]_.
Double precision loses half of their digits at a hundred million records. A search begins where the normal approximation
with the first term of Cornish and Fisher puts the quantile, most often within one or two of it.

References
----------
.. [1] Johansson, *Arb: efficient arbitrary-precision midpoint-radius interval arithmetic*, 2017.
.. [2] Abramowitz, Stegun, *Handbook of mathematical functions*, 26.5.24.
"""

from __future__ import annotations

import bisect
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from threading import Lock
from typing import TYPE_CHECKING

from dpdist.errors import AccountingError

if TYPE_CHECKING:
    from flint import arb

_PRECISIONS = (64, 128, 256, 512, 1024, 2048)
_MOST_TRIALS = 10**15
_precision = Lock()  # Arb's working precision is one setting for the whole process

# A process forked while another thread computes would wait for ever for that thread, which it does not have.
os.register_at_fork(before=_precision.acquire, after_in_parent=_precision.release, after_in_child=_precision.release)


@contextmanager
def working_precision(bits: int) -> Iterator[None]:
    """Compute with this many bits; one thread at a time does, and it does not ask again inside."""
    from flint import ctx

    with _precision, ctx.workprec(bits):
        yield


def ball(value: Fraction | float | int) -> arb:
    """The number, exactly or within the working precision."""
    from flint import arb, fmpq

    exact = Fraction(value)
    return arb(fmpq(exact.numerator, exact.denominator))


@lru_cache(maxsize=256)
def lower_quantile(probability: float, *, trials: int, rate: float) -> int:
    """The least k with ``Pr[Bin(trials, rate) <= k] >= probability``.
    Raises AccountingError: the probability is not in (0, 1), the rate is not in [0, 1], or there are no trials.

    >>> lower_quantile(1e-9, trials=1000, rate=0.3)
    216
    """
    _require(probability, rate, trials)
    return _least(
        lambda k: _certainly(lambda: _at_most(k, trials, ball(rate)) - ball(probability)),
        near=_quantile_about(NormalDist().inv_cdf(probability), trials, rate),
        most=trials,
    )


@lru_cache(maxsize=256)
def upper_quantile(probability: float, *, trials: int, rate: float) -> int:
    """The least k with ``Pr[Bin(trials, rate) > k] <= probability``. Raises AccountingError as `lower_quantile`.

    >>> upper_quantile(1e-9, trials=1000, rate=0.3)
    389
    """
    _require(probability, rate, trials)
    return _least(
        lambda k: _certainly(lambda: ball(probability) - _at_most(trials - k - 1, trials, 1 - ball(rate))),
        near=_quantile_about(-NormalDist().inv_cdf(probability), trials, rate),
        most=trials,
    )


@lru_cache(maxsize=256)
def trials_needed(probability: float, *, successes: int, rate: float) -> int:
    """The least number of trials with at most this probability of fewer successes than `successes`.
    Raises AccountingError: the probability is not in (0, 1), the rate is not in (0, 1], no success is asked for, or
    more than 10**15 trials are needed.

    >>> trials_needed(1e-9, successes=300, rate=0.3)
    1323
    """
    _require(probability, rate, successes)
    if not rate:
        raise AccountingError("no number of trials has a success at a rate of 0")
    z, failing = -NormalDist().inv_cdf(probability), 1 - rate
    about = (successes + z * math.sqrt(successes * failing) + (z * z - 1) * (1 + failing) / 6) / rate
    if about > _MOST_TRIALS:
        raise AccountingError(f"at a rate of {rate:g}, {successes:,} successes need more than 10**15 trials")
    return successes + _least(
        lambda more: _certainly(lambda: ball(probability) - _at_most(successes - 1, successes + more, ball(rate))),
        near=math.ceil(about) - successes,
    )


def _require(probability: float, rate: float, count: int) -> None:
    if not 0 < probability < 1 or not 0 <= rate <= 1 or count < 1:
        raise AccountingError(
            "a binomial quantile needs a probability in (0, 1), a rate in [0, 1] and a count of at least 1, got "
            f"{probability}, {rate}, {count}"
        )


def _at_most(k: int, trials: int, rate: arb) -> arb:
    """``Pr[Bin(trials, rate) <= k]``, at the working precision."""
    if k < 0 or k >= trials:
        return ball(int(k >= trials))
    if rate < 0.5:  # the series of either tail is short where its argument is small
        return 1 - rate.beta_lower(k + 1, trials - k, True)
    return (1 - rate).beta_lower(trials - k, k + 1, True)


def _certainly(value: Callable[[], arb]) -> bool:
    """Whether a number is certainly not negative, at the first precision that tells."""
    for bits in _PRECISIONS:
        with working_precision(bits):
            found = value()
            if found >= 0 or found < 0:
                return bool(found >= 0)
    return False


def _quantile_about(z: float, trials: int, rate: float) -> int:
    """The quantile of a binomial count that is about z deviations from its mean."""
    mean, variance = trials * rate, trials * rate * (1 - rate)
    return math.floor(mean + z * math.sqrt(variance) + (z * z - 1) * (1 - 2 * rate) / 6)


def _least(holds: Callable[[int], bool], *, near: int, most: int | None = None) -> int:
    """Least integer from 0 on for which a condition holds that goes on holding. It holds at `most`, untried."""

    def met(value: int) -> bool:
        return value == most or holds(value)

    high = max(near, 0) if most is None else min(max(near, 0), most)
    low, step, found = high - 1, 1, met(high)
    while found and low >= 0 and holds(low):
        low, high, step = max(low - step, -1), low, 2 * step
    while not found:
        low, high, step = high, high + step if most is None else min(high + step, most), 2 * step
        found = met(high)
    return bisect.bisect_left(range(low + 1, high), True, key=holds) + low + 1
