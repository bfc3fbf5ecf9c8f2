r"""Plausible deniability: the dominating pair of one released record, and the published theorem.

An attempt draws a candidate from one of n seeds, counts the seeds C in the seed's bucket (p(y) within the same power of
gamma, itself included) and passes if ``C >= k + L``, ``P(L = z) ~ exp(-epsilon0 |z|)``. A release shows the first R
that pass and nothing of those that fail: R independent draws from a law A(D). With ``pt(C) = Pr[C >= k + L]``, Z the
expected passing mass, ``D' = D + d'``, maxima over ``C >= 0`` and ``s in {C/gamma, C gamma}``, and

    h = max [ pt(C+1)(s+1) - pt(C) s ],    eta = ln(1 + h/Z):

- added, alpha >= 1: ``H_alpha(A(D') || A(D)) <= max [ pt(C+1)(s+1) - alpha pt(C) s ]_+ / Z``;
- removed: ``H_alpha(A(D) || A(D')) = 0`` for ``alpha >= e^eta``.

``docs/guarantees.md`` has the proof. Where all plausible seeds share one p (a fixed omega), s = C exactly: gamma = 1 in
the accounting.

**The pair.** In alpha that is a point ``(e^-eta, 1 - e^-eta)`` (the removed direction, read backwards) and an upper
envelope of lines for alpha >= 1. The true profile is convex and non-increasing, so the greatest convex minorant is
still a bound; it is piecewise linear: B's masses are its changes of slope, A's are alpha times those, and its last
value is A's infinite mass. Composed R times by `dpdist.privacy.accountant`.

**C is bounded.** For ``C >= k - 1``, with ``a = e^-epsilon0``, ``j = C + 1 - k``, ``g in {gamma, 1/gamma}``,
``s = g C``, the line at alpha = 1 is ``1 + a^j [g C (1-a) - a]/(1+a)``, which does not rise with C once
``C >= (1 + 1/g)/(e^epsilon0 - 1)``; and ``pt(C) s`` rises. So from ``max(k, (1 + gamma)/(e^epsilon0 - 1))`` on every
line lies below the one before it for all alpha >= 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpdist.errors import AccountingError
from dpdist.privacy.arrays import Floats
from dpdist.privacy.composition import Piece
from dpdist.privacy.event import Event, check_integer, check_number
from dpdist.privacy.formatting import shown
from dpdist.privacy.guarantee import PlausibleDeniability
from dpdist.privacy.pair import DominatingPair, lower_hull

_GAMMA_SLACK = 1e-9  # ratios of generation probabilities are compared in double precision
_MOST_LINES = 2_000_000


@dataclass(frozen=True)
class SeedRecords(Event):
    """``records`` released records, each conditional on passing the randomised plausible-deniability test.

    Attributes
    ----------
    k : int
        Threshold of the test.
    gamma : float
        Width of the buckets of generation probability; 1 where all plausible seeds have the *same* probability
        (fixed omega).
    epsilon0 : float
        Parameter of the discrete Laplace noise on the threshold, ``P(z) ~ exp(-epsilon0 |z|)``.
    passing_mass : float
        Checked lower bound of ``Z = n Pr[pass]``, for the smaller of two adjacent sets of seeds.
    records : int
        Released records R.

    Notes
    -----
    `dpdist.privacy.deniability` derives the dominating pair.
    """

    type: ClassVar[str] = "seed-records/1"
    k: int
    gamma: float
    epsilon0: float
    passing_mass: float
    records: int

    def __post_init__(self) -> None:
        check_integer(self, "k", low=1)
        check_number(self, "gamma", low=1, closed=True)
        check_number(self, "epsilon0", low=0, high=100)
        check_number(self, "passing_mass", low=0)
        check_integer(self, "records", low=1)

    def piece(self) -> Piece:
        """The pair of one record, as often as there are released ones."""
        pair = record_pair(k=self.k, gamma=self.gamma, epsilon0=self.epsilon0, passing_mass=self.passing_mass)
        return Piece.of(pair, self.records)


def pass_probability(count: ArrayLike, *, k: int, epsilon0: float) -> Floats:
    """``pt(C) = Pr[C >= k + L]``, L discrete Laplace with parameter epsilon0 (vectorised, accurate in both tails)."""
    above = np.asarray(count, dtype=np.float64) - k
    tail = np.exp(-epsilon0 * np.where(above < 0, -above, above + 1)) / (1 + math.exp(-epsilon0))
    return np.where(above < 0, tail, 1 - tail)


def _lines(k: int, gamma: float, epsilon0: float) -> tuple[Floats, Floats, Floats]:
    """Intercepts ``pt(C+1)(s+1)``, slopes ``pt(C) s``, and their differences, of all lines that can matter."""
    gamma *= 1 + _GAMMA_SLACK
    stop = max(k, math.ceil((1 + gamma) / math.expm1(epsilon0))) + 2
    if stop > _MOST_LINES:
        raise AccountingError(f"epsilon0 = {epsilon0:g} or k = {k} is out of range: use epsilon0 >= 1e-5 and k <= 1e6")
    count = np.arange(stop, dtype=np.float64)
    now, after = (pass_probability(count + i, k=k, epsilon0=epsilon0) for i in (0, 1))
    step = np.exp(-epsilon0 * np.abs(count + 1 - k)) * math.tanh(epsilon0 / 2)  # Pr[L = C + 1 - k]
    mass = np.concatenate([count / gamma, count * gamma])
    now, after, step = (np.tile(x, 2) for x in (now, after, step))
    return after * (mass + 1), now * mass, after + mass * step


def growth(*, k: int, gamma: float, epsilon0: float) -> float:
    """h: the most by which one seed raises the passing mass Z."""
    SeedRecords(k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=1.0, records=1)
    return float(_lines(k, gamma, epsilon0)[2].max())


def certain_mass(*, seeds: int, combinations: int, k: int, epsilon0: float) -> float:
    """Lower bound of the passing mass Z of *every* table with this many seeds, for a fixed omega.

    All seeds with the same kept values are plausible together, so ``Z = sum_c n_c pt(n_c)`` over the combinations c of
    kept values, ``sum_c n_c = n``, and ``n - Z <= combinations * max_C C (1 - pt(C))``. For ``C >= k`` the maximand is
    ``C e^{-epsilon0 (C + 1 - k)}`` up to a constant, which falls from ``1/epsilon0`` on.

    Parameters
    ----------
    seeds : int
        Lower bound of the number of seeds.
    combinations : int
        Of values that a candidate can keep.
    """
    SeedRecords(k=k, gamma=1.0, epsilon0=epsilon0, passing_mass=1.0, records=1)
    stop = max(k, 1 / epsilon0) + 2
    if stop > _MOST_LINES:
        raise AccountingError(f"epsilon0 = {epsilon0:g} or k = {k} is out of range: use epsilon0 >= 1e-5 and k <= 1e6")
    count = np.arange(math.ceil(stop), dtype=np.float64)
    worst = float((count * (1 - pass_probability(count, k=k, epsilon0=epsilon0))).max()) * (1 + 2.0**-40)
    if combinations * worst >= seeds if combinations < 1 << 53 else worst > 0:
        return 0.0
    return max(seeds - combinations * worst, 0.0)


@lru_cache(maxsize=256)
def record_pair(*, k: int, gamma: float, epsilon0: float, passing_mass: float) -> DominatingPair:
    """The dominating pair of one released record, A with the added seed and B without it; parameters as in
    `SeedRecords`. Raises AccountingError: a parameter is out of range.
    """
    SeedRecords(k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=passing_mass, records=1)
    intercept, slope, difference = _lines(k, gamma, epsilon0)
    h = float(difference.max())
    left, value = passing_mass / (passing_mass + h), h / (passing_mass + h)
    order = np.lexsort((-intercept, slope))
    order = order[np.concatenate([[True], np.diff(slope[order]) > 0])]
    corners = lower_hull(slope[order], -intercept[order])
    intercept, slope = intercept[order][corners], slope[order][corners]
    # Line i is on top between alphas[i] and alphas[i-1]; line 0 (C = 0) is constant.
    upper, lower = np.diff(intercept) / passing_mass, np.diff(slope) / passing_mass
    alphas = upper / lower
    count = int(np.searchsorted(-alphas, -1.0))
    upper, lower, alphas = upper[:count], lower[:count], alphas[:count]
    heights = (intercept[:count] - alphas * slope[:count]) / passing_mass
    # The convex minorant leaves (left, value) along its steepest descent to a corner.
    descent = (value - heights) / (alphas - left)
    if not count or descent.max() <= 0:
        return DominatingPair(np.log([left]), np.array([left]), np.ones(1), value)
    last = int(np.argmax(descent))
    steepest = float(descent[last])
    lower = np.append(lower[:last], max(steepest - slope[last] / passing_mass, 0.0))
    upper = np.append(upper[:last], lower[last] * alphas[last])
    return DominatingPair(
        np.append(math.log(left), np.log(alphas[last::-1])),
        np.append(left * (1 - steepest), upper[::-1]),
        np.append(1 - steepest, lower[::-1]),
        float(intercept[0] / passing_mass),
    )


# --- the published theorem ------------------------------------------------------------------------------------------


def _theorem1(k: int, gamma: float, epsilon0: float) -> tuple[Floats, Floats]:
    """epsilon(t) and delta(t) of PD Theorem 1, for t = 1 .. k-1."""
    t = np.arange(1, k, dtype=np.float64)
    return epsilon0 + np.log1p(gamma / t), np.exp(-epsilon0 * (k - t))


def theorem1(*, k: int, gamma: float, epsilon0: float, delta: float) -> PlausibleDeniability:
    """PD Theorem 1 with its best t: one released record is ``(epsilon0 + ln(1 + gamma/t), e^{-epsilon0 (k-t)})``-DP.
    Raises AccountingError: no t in 1 .. k-1 reaches delta: k or epsilon0 is too small.

    Parameters
    ----------
    delta : float
        The record's delta must not exceed it; the largest such t < k is taken.

    Examples
    --------
    >>> theorem1(k=50, gamma=4, epsilon0=1, delta=1e-12).epsilon
    1.16706
    """
    SeedRecords(k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=1.0, records=1)
    epsilons, deltas = _theorem1(k, gamma, epsilon0)
    allowed = np.flatnonzero(deltas <= delta)
    if not len(allowed):
        raise AccountingError(
            f"PD Theorem 1 gives no delta <= {delta:g} at k = {k}, epsilon0 = {epsilon0:g}: "
            f"raise k to at least {1 + math.ceil(-math.log(delta) / epsilon0) if delta > 0 else 'infinity'}"
        )
    best = int(allowed[-1])
    return PlausibleDeniability(
        k=k, gamma=gamma, epsilon0=epsilon0, epsilon=shown(float(epsilons[best])), delta=shown(float(deltas[best]))
    )


def composed_published(*, k: int, gamma: float, epsilon0: float, records: int, delta: float) -> float:
    """PD Theorem 1 over R records: the best t with basic or advanced composition; infinity where none exists.

    Advanced composition (Dwork, Rothblum, Vadhan 2010): ``eps sqrt(2 R ln(1/d)) + R eps (e^eps - 1)`` at
    ``d = delta - R delta(t)``. For comparison: nothing is charged by it.
    """
    if k < 2:
        return math.inf
    epsilons, deltas = _theorem1(k, gamma, epsilon0)
    rest = delta - records * deltas
    basic = np.where(rest >= 0, records * epsilons, math.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        root = np.sqrt(-2 * records * np.log(np.where(rest > 0, rest, 1.0)))
        advanced = np.where(rest > 0, epsilons * root + records * epsilons * np.expm1(epsilons), math.inf)
    return float(min(basic.min(), advanced.min()))
