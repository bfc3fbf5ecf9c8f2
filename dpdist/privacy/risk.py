"""What a guarantee means for one guess about one record.

Who is right with probability p without the release is right with it on a set of outputs that the pair of the release
gives at most the probability ``inf_e (exp(e) p + delta(e))``: every term of it is a bound, and the infimum is the
trade-off curve of the pair [1]_. The guess may be about presence, an attribute or the whole record, by whoever knows
all others; p is the chance that the same guess is right where the record does not take part.

.. [1] Hayes, Balle, Mahloujifar, *Bounding training data reconstruction in DP-SGD*, NeurIPS 2023, section 3.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.event import Event
from dpdist.privacy.formatting import GUESS, shown
from dpdist.privacy.pieces import extreme

_ABOVE = 1 + 1e-9  # of `erfc` and `inv_cdf`, and more
_CLOSE = 0.02  # of epsilon
_RATIO = (math.sqrt(5) - 1) / 2
_LARGEST = 60.0


@lru_cache(maxsize=1024)
def most_right(event: Event, *, guess: float = GUESS) -> float:
    """The most that whoever guesses right with probability `guess` is right with the release, rounded upwards.

    Examples
    --------
    >>> from dpdist.privacy.events import Gaussian
    >>> most_right(Gaussian(noise_multiplier=1 / 0.182))
    0.0160026
    """
    if not 0 < guess < 1:
        raise AccountingError(f"the chance of a guess is between 0 and 1, got {guess!r}")
    precision, failed = accountant.gaussian_only(event)
    if precision:
        moved = NormalDist().inv_cdf(guess) + math.sqrt(precision)
        return min(shown(math.erfc(-moved / math.sqrt(2)) / 2 * _ABOVE + float(failed)), 1.0)
    profile = accountant.profile(event)

    def bound(epsilon: float) -> float:
        if epsilon < 0:  # the same of being wrong
            return 1 - math.exp(epsilon) * (1 - guess - profile(-epsilon))
        return math.exp(epsilon) * guess + profile(epsilon)

    low, high = -min(math.log(1 / (1 - guess)), _LARGEST), min(math.log(1 / guess), _LARGEST)
    best, (largest, _) = bound(0.0), extreme(event)
    if 0 < largest < _LARGEST:
        best = min(best, bound(largest))  # where the curve of a pure guarantee has its corner
    near, far = high - _RATIO * (high - low), low + _RATIO * (high - low)
    at_near, at_far = bound(near), bound(far)
    while high - low > _CLOSE:  # golden sections: the bound is convex, and any of its values holds
        best = min(best, at_near, at_far)
        if at_near <= at_far:
            high, far, at_far = far, near, at_near
            near = high - _RATIO * (high - low)
            at_near = bound(near)
        else:
            low, near, at_near = near, far, at_far
            far = low + _RATIO * (high - low)
            at_far = bound(far)
    return min(shown(best * _ABOVE), 1.0)
