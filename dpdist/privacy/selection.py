r"""Picks by the exponential mechanism: what one costs as a Gaussian mechanism, and candidates with certified weights.

A pick takes candidate i with probability ``P(i) ~ exp(score_i / b)``, and one record changes every score by at most
1 (`dpdist.privacy.noise.Noise.pick`). Between two neighbouring tables ``ln P(i)/P'(i)`` then lies in an interval
``[t - eta, t]`` of length ``eta = 2/b``, for some t in [0, eta]: the pick is *eta-bounded-range* [1]_.

**Claim.** An eta-bounded-range mechanism is m-GDP [2]_ with

    m = 2 Phi^-1( 1 / (1 + e^{-eta/2}) ),

and no smaller m holds for all of them. So picks add to the account of a release as Gaussian statistics do, m^2 to
mu^2, also where each is chosen after the outcome of those before.

**Proof.** (i) *One kink.* Under P' the ratio ``r = P/P'`` has mean 1 and lies in ``[e^{t-eta}, e^t]``. Among such
variables the one on the two ends has the largest mean of every convex function, hence every divergence, hence (by
Blackwell's theorem) the least trade-off function. It is that of a coin: with p the probability of the end ``e^t``
under P and q under P', ``p = e^t q`` and ``1 - p = e^{t-eta}(1 - q)``. This trade-off function is piecewise linear
from (0, 1) by its kink (q, 1 - p) to (1, 0). The trade-off function ``G_m(x) = Phi(Phi^-1(1-x) - m)`` is convex with
the same ends, so it lies below if and only if it lies below at the kink: ``Phi^-1(p) - Phi^-1(q) <= m``.

(ii) *The kinks lie on a logistic curve.* Eliminating t gives ``(1 + k q)(1 + k (1-p)) = e^eta`` with ``k = e^eta - 1``.
With ``L(z) = 1/(1 + e^{-z})`` and ``q = 1 - L(z)`` that is ``1 - p = L(z - eta)``; z runs over [0, eta] as t does.
With ``h = Phi^-1 o L``, which is odd, the left side of the condition is ``h(z) - h(z - eta)``.

(iii) *The maximum is in the middle.* Its derivative is ``h'(z) - h'(z - eta)``, and h' is even. If h' falls with
|z|, the derivative is positive for ``z < eta/2`` and negative beyond; so the maximum is at ``z = eta/2``, where the
condition reads ``2 h(eta/2) <= m``.

(iv) *h' falls with |z|*, that is, h'' < 0 for z > 0. Let ``u = h(z) > 0``, ``f = Phi'``. From ``h' = L(1-L)/f(h)``,
``h'' = h' ((1 - 2L) + h h')``, which is negative if and only if ``D(u) = f(u)(2 Phi(u) - 1) - u Phi(u)(1 - Phi(u))``
is positive. ``D(0) = 0`` and ``D -> 0`` at infinity. ``D' = 2 f^2 - Phi(1 - Phi)``, which is
``1/pi - 1/4 > 0`` at 0, tends to 0 at infinity, and has the derivative ``f(u) ((2 Phi(u) - 1) - 4 u f(u))``. The
bracket is 0 at 0, tends to 1, and has the derivative ``f(u) (4 u^2 - 2)``: it falls first and rises after, so it
is negative first and positive after. So D' falls from a positive number to below 0 and rises to 0: it changes sign
once, from plus to minus, and D rises from 0 and falls to 0: it is positive. QED.

**How exact a pick is.** Of n candidates some are drawn without replacement, k <= n of them, until one is allowed. The
weights W are floors of the true ones w, so ``0 <= w - W < 1``, and those that are left sum to at least ``2**124``
before each draw. A draw by W instead of w moves less than ``n 2**-124`` of the probability; the uniform integer of 256
bits; each weight has a whole number of them, less than ``n 2**128 / 2**256``. So the draws of a pick together, and
with them what is picked, are within ``n**2 (2**-124 + 2**-128)`` of the mechanism in total variation, for each of two
neighbouring tables. That is (epsilon, delta)-DP with ``(1 + e**epsilon)`` times as much added to delta, at most
``n**2 2**-84.9`` for an epsilon of 27 of all that is released. A keyed draw is charged ``2**-60``, a pick that of
``n**2 / 2**24`` draws, rounded upwards (`draws_of_pick`).

References
----------
.. [1] Dong, Durfee, Rogers, *Optimal differential privacy composition for exponential mechanisms*, 2020.
.. [2] Dong, Roth, Su, *Gaussian differential privacy*, 2022.
"""

from __future__ import annotations

import bisect
import itertools
import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import AccountingError
from dpdist.privacy import _thresholds
from dpdist.privacy.arrays import steps_of
from dpdist.privacy.calibrate import round_up

LARGEST_COST = 6
"""Largest m of a pick."""

_NORMAL = NormalDist()
_ERROR = 1 + 2.0**-30  # of the floating-point functions, and more
_BITS = 26  # of a cost
_LEAST_SUM = 1 << 124
_BLOCK = 256  # candidates whose weights are summed once
_KEPT = 1 << 20  # weights for earlier tops, at most


def pick_cost(*, scale: float) -> float:
    """m: a pick at this scale, with scores of sensitivity 1, is m-GDP. Rounded upwards to 26 bits. Raises
    AccountingError: the scale is not between 0.1 and 2**40.
    """
    if not 0.1 <= scale <= 2.0**40:
        raise AccountingError(f"the scale of a pick must be between 0.1 and 2**40, got {scale!r}")
    half = 1 / scale
    if half < 1e-4:  # h is concave above 0, so the tangent at 0 bounds it; the quantile would lose digits
        return round_up(half * math.sqrt(2 * math.pi) / 2 * _ERROR, bits=_BITS)
    return round_up(-2 * _NORMAL.inv_cdf(1 / (1 + math.exp(half))) * _ERROR, bits=_BITS)


def pick_scale(*, cost: float) -> float:
    """The least scale at which a pick is `cost`-GDP. Rounded upwards to the grid. Raises AccountingError: the cost is
    not in (0, 6], or its scale is out of range.
    """
    if not 0 < cost <= LARGEST_COST:
        raise AccountingError(f"a pick can cost more than 0 and at most {LARGEST_COST}, got {cost!r}")
    probability = 0.5 * math.erfc(cost / 2 / math.sqrt(2))  # of the worse end
    scale = round_up(1 / (math.log1p(-probability) - math.log(probability)) * (1 + 2.0**-20))
    if pick_cost(scale=scale) > cost:
        raise AccountingError(f"no scale of a pick can be computed for a cost of {cost!r}")
    return scale


def draws_of_pick(candidates: int) -> int:
    """Keyed draws that a pick among this many candidates is charged as; the proof is above."""
    return -(-(candidates**2) >> 24)


class Candidates:
    """Weights ``floor(2**128 * exp((score - top) / scale))`` of candidates, which can be taken out and put back.

    `top` is the largest score when the weights were last computed. They are computed again where those that are left
    sum to less than 2**124, so that a weight is right to 2**-124 of the sum, and where a larger score comes back. So
    many picks from the same scores compute them a few times only. The scores are confidential.
    `scores` (int64[candidates]): at least one and at most 2**26; `scale`: in units of the scores, above 0, at most
    `LARGEST_SCALE`. A float is taken as the number it is. Raises ValueError: there is no score or there are too many,
    they are not integers, or `scale` is out of range.
    """

    def __init__(self, scores: NDArray[np.int64], *, scale: float | Fraction) -> None:
        self._scale = steps_of("scale", scale)
        if scores.ndim != 1 or not 1 <= scores.size <= 1 << 26 or scores.dtype != np.int64:
            raise ValueError(f"a pick needs from 1 to 2**26 int64 scores, got {scores.dtype}[{scores.size}]")
        self._scores = scores.tolist()
        self._left = [True] * len(self._scores)
        self._weights_of: dict[int, list[int]] = {}  # by top: candidates that are put back bring earlier ones back
        self._weigh()

    def __len__(self) -> int:
        return len(self._scores)

    def _weigh(self) -> None:
        self._top = top = max(itertools.compress(self._scores, self._left))
        if top not in self._weights_of:
            while self._weights_of and (len(self._weights_of) + 1) * len(self._scores) > _KEPT:
                del self._weights_of[next(iter(self._weights_of))]
            # those above are out; their weights would not fit and are not used
            gaps = [max(top - score, 0) for score in self._scores]
            self._weights_of[top] = _thresholds.exponential_weights(gaps, self._scale)
        self._weights = self._weights_of[top]
        blocks = ((start, start + _BLOCK) for start in range(0, len(self._weights), _BLOCK))
        self._sums = [sum(itertools.compress(self._weights[a:b], self._left[a:b])) for a, b in blocks]

    def remove(self, index: int) -> None:
        """Take a candidate out that is in."""
        self._left[index] = False
        self._sums[index // _BLOCK] -= self._weights[index]

    def restore(self, index: int) -> None:
        """Put a candidate back that is out."""
        self._left[index] = True
        if self._scores[index] > self._top:
            self._weigh()
        else:
            self._sums[index // _BLOCK] += self._weights[index]

    def at(self, uniform: int) -> int:
        """The candidate at a uniform integer below 2**256, in proportion to the weights.
        Raises ValueError: none is left.
        """
        if sum(self._sums) < _LEAST_SUM:
            if not any(self._left):
                raise ValueError("no candidate is allowed")
            self._weigh()
        ends = list(itertools.accumulate(self._sums))
        place = uniform * ends[-1] >> 256
        block = bisect.bisect_right(ends, place)
        start = block * _BLOCK
        stop = start + _BLOCK
        within = [weight * left for weight, left in zip(self._weights[start:stop], self._left[start:stop], strict=True)]
        sums = list(itertools.accumulate(within))
        return start + bisect.bisect_right(sums, place - (ends[block] - self._sums[block]))
