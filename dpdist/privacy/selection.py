r"""What a pick by the exponential mechanism costs as a Gaussian mechanism.

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

References
----------
.. [1] Dong, Durfee, Rogers, *Optimal differential privacy composition for exponential mechanisms*, 2020.
.. [2] Dong, Roth, Su, *Gaussian differential privacy*, 2022.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from dpdist.errors import AccountingError
from dpdist.privacy.calibrate import round_up

LARGEST_COST = 6
"""Largest m of a pick."""

_NORMAL = NormalDist()
_ERROR = 1 + 2.0**-30  # of the floating-point functions, and more
_BITS = 26  # of a cost


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
