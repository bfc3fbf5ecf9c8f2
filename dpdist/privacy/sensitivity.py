r"""How much one record moves a statistic: entropies and counts.

Entropies are in bits, of the empirical distribution of one column (or of a joint one) of ``n`` records,
``n`` being the *larger* of the two adjacent sizes. ``n`` is private: noise is scaled with a checked lower
bound. Shannon's sensitivity falls as ``n`` grows (from 2 on), so its value at the bound will do. Renyi's
does not always fall (order 10, add/remove: 0.474 at n = 4, 0.577 at n = 7): `renyi_from` takes the largest
value from the bound on.

**Shannon.** Exactly ``(1/n) [log2 n + (n-1) log2(n/(n-1))]``, for replacement and for add/remove, attained
by one record alone in its bin against all others in one bin.

**Renyi, order a.** Write the counts as ``c_1, ..., c_m`` and ``S = sum c_i^a``, so ``H = (log2 S - a log2
n)/(1-a)``.

*Replacement* moves one record from a bin to another. For a > 1 the worst case is a bin that grows from
``c`` to ``c + 1`` while all others hold one record: with ``T(c) = c^a + n - c`` the change is ``max_c
[g(c+1) - g(c)] / (a-1)``, ``g = log2 T``. For a < 1 it is one record that leaves the common bin:
``log2(((n-1)^a + 1)/n^a) / (1-a)``.

*Add/remove*, n-1 -> n, with ``r = a log2(n/(n-1))`` and ``U(c) = log2(((c+1)^a + n-1-c)/(c^a + n-1-c))``:
for a > 1 the larger of ``max_c U(c) - r`` and ``r - log2(1 + (n-1)^-a)``, over (a-1); for a < 1 the larger
of ``log2(1 + (n-1)^-a) - r`` and ``r - min_c U(c)``, over (1-a).

**The extremum over c has one hump**, so a search finds it for any n.

- *a > 1, replacement.* ``T^2 (ln T)'' c^(2-a) = K(c) = -a c^a + a(3-a) c + a(a-1) n - c^(2-a)``. For c >=
  1, K falls: ``K'(1) = -2(a-1)^2 < 0``, and K' falls too for 1 < a < 3 (for a < 2 because ``K'' = (a-1)
  c^-a [2 - a - a^2 c^(2a-2)] < 0``), while for a >= 3 ``K' <= -a^2 - a(a-3) + a-2 = -2(a-1)^2``. So ``ln
  T`` is convex, then concave, and its forward difference rises, then falls. (At c = 0 the difference is 0.)
- *a > 1, add/remove.* ``U = log2(1 + M/D)``, ``M = (c+1)^a - c^a``, ``D = c^a + n-1-c``. M is log-concave
  (the integral of a log-concave function). Where ``ln D`` is convex, ``ln M - ln D`` is concave. Where K <=
  0, ``c^a >= (a-1)(n-1) - (a-2) c``, which is ``(ln D)' >= (a-1)/c >= (ln M)'``: there M/D falls.
- *a < 1, add/remove.* M is log-convex (an integral of log-convex functions) and D is concave, so ``ln M -
  ln D`` is convex: one valley."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import AccountingError, SpecError
from dpdist.privacy.calibrate import ABOVE, round_up
from dpdist.privacy.formatting import shown
from dpdist.privacy.guarantee import Adjacency


def _up(value: float, order: float) -> float:
    """Rounded upwards; differences that are small with |order - 1| lose as many digits."""
    return value * (1 + 2.0**-40 / min(1.0, abs(order - 1))) / abs(order - 1)


def _size(n: int) -> int:
    if n < 1:
        raise AccountingError(f"the number of records must be at least 1, got {n}; declare a positive minimum")
    return max(int(n), 2)  # two neighbouring tables of at most one record have entropy 0


def shannon(n: int) -> float:
    """Exact sensitivity of the Shannon entropy, in bits, for add/remove and for replacement.

    Parameters
    ----------
    n : int
        Lower bound of the larger of the two adjacent numbers of records.

    Returns
    -------
    float
        Rounded upwards.

    Examples
    --------
    >>> round(shannon(10_000), 6)
    0.001473
    """
    n = _size(n)
    return ABOVE * (math.log2(n) + (n - 1) * math.log1p(1 / (n - 1)) / math.log(2)) / n


def shannon_published(n: int) -> float:
    """The bound of PD equation 9 and REAEDP Theorem 3, about twice the exact value."""
    n = _size(n)
    return (2 + 1 / math.log(2) + 2 * math.log2(n)) / n


def renyi_published(n: int, *, order: float) -> float:
    """REAEDP equation 17, **which is false**: the true change exceeds it. For comparison only, never for noise.

    Its proof takes ``sum p^a >= 1`` for a > 1 (it is at most 1) and ``xi^(a-1) <= 1`` for a < 1 (it is at least 1).
    """
    return 2 * order / (abs(1 - order) * math.log(2) * _size(n))


def renyi(n: int, *, order: float, adjacency: Adjacency = "add/remove") -> float:
    """Exact sensitivity of the Renyi entropy of the given order, in bits.
    Raises AccountingError: the order is not positive, too near to 1 or above 64.

    Parameters
    ----------
    n : int
        Lower bound of the larger of the two adjacent numbers of records; up to 1e9 and beyond.
    order : float
        Positive; 1 is the Shannon entropy. Orders within 1e-6 of 1, but not 1, are refused: they are ill-conditioned.

    Returns
    -------
    float
        Rounded upwards.

    Examples
    --------
    >>> round(renyi(10_000, order=2, adjacency="replacement"), 4)
    0.0144
    """
    if adjacency not in get_args(Adjacency):
        raise SpecError(f"adjacency must be one of {', '.join(get_args(Adjacency))}, got {adjacency!r}")
    if order == 1:
        return shannon(n)
    if not 0 < order <= 64 or abs(order - 1) < 1e-6:
        raise AccountingError(
            f"the order of a Renyi entropy must be 1, or in (0, 64] and not within 1e-6 of 1, got {order}"
        )
    n, a = _size(n), float(order)
    if adjacency == "replacement":
        if a < 1:  # (1 - 1/n)^a + n^-a
            return _up(_log2_1p(math.expm1(a * math.log1p(-1 / n)) + n**-a), a)
        return _up(_peak(lambda c: _relative_growth(c, a, n, moved=True), n - 1), a)
    return _up(max(_added(a, n - 1, n - 1)), a)


def _added(a: float, low: int, high: float) -> tuple[float, float]:
    """Both candidates of the add/remove change times |1 - a|, as upper bounds over smaller sizes low .. high.

    They are exact for ``low == high``. All of r, ``log2(1 + m^-a)``, ``U_m(c)`` and, as the ratio ((m+1)/m)^a of the
    one new choice ``c = m`` falls, ``max_c U_m(c)``, fall as m grows.
    """
    r_low, r_high = (a * _log2_1p(1 / m) for m in (low, high))
    if a > 1:
        return _peak(lambda c: _relative_growth(c, a, low), low) - r_high, r_low - _log2_1p(float(low) ** -a)
    alone = _log2_1p(float(low) ** -a) - r_low
    if math.isinf(high):
        return alone, r_low
    return alone, r_low + _peak(lambda c: -_relative_growth(c, a, int(high)), int(high))


def renyi_from(n: int, *, order: float, adjacency: Adjacency = "add/remove") -> float:
    """Largest `renyi` sensitivity over all sizes from ``n`` on: what the noise needs, as the size itself is private.

    Parameters and errors are those of `renyi`. Found by branch and bound, to 1e-9. Under replacement (and for
    Shannon) the sensitivity falls with the size, so that this is `renyi` itself: with c fixed ``T(c+1)/T(c)`` falls in
    n, and so does the value of the one new choice, ``c = n - 1``.
    """
    best = renyi(n, order=order, adjacency=adjacency)
    if order == 1 or adjacency == "replacement":
        return best
    ranges: list[tuple[int, float]] = [(_size(n) - 1, math.inf)]
    while ranges:
        low, high = ranges.pop()
        best = max(best, renyi(low + 1, order=order, adjacency=adjacency))
        if low == high or _up(max(_added(order, low, high)), order) <= best * (1 + 1e-9):
            continue
        middle = 2 * low if math.isinf(high) else low + (int(high) - low) // 2
        ranges += [(middle + 1, high), (low, middle)]
    return best


def _log2_1p(x: float) -> float:
    return math.log1p(x) / math.log(2)


def _relative_growth(c: NDArray[np.float64], a: float, n: int, *, moved: bool = False) -> NDArray[np.float64]:
    """log2 of the growth of ``c^a + (n - c)`` when one record joins the bin of c, coming from outside or moved."""
    # Everything relative to (c+1)^a, so that no power overflows.
    with np.errstate(divide="ignore"):
        log_ratio = -a * np.log1p(1 / c)
    shrink = np.exp(-a * np.log1p(c))
    before = np.exp(log_ratio) + (n - c) * shrink
    step = -np.expm1(log_ratio) - (shrink if moved else 0.0)
    return np.asarray(np.log1p(step / before) / np.log(2))


def _peak(function: Callable[[NDArray[np.float64]], NDArray[np.float64]], stop: int) -> float:
    """Largest value of a one-hump function on the integers 0 .. stop, by repeated refinement."""
    low, high = 0, stop
    while high - low > 4096:
        spread = np.geomspace(1, high - low + 1, 1024) - 1
        grid = np.unique(np.concatenate([low + spread, np.linspace(low, high, 1024)]).round())
        best = int(np.argmax(function(grid)))
        low, high = int(grid[max(best - 1, 0)]), int(grid[min(best + 1, len(grid) - 1)])
    return float(np.max(function(np.arange(low, high + 1, dtype=np.float64))))


BITS: Final = 20
"""Significant bits of a sensitivity that logarithms decide."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much one record moves an entropy of at least this many records, in bits."""

    sensitivity: float  # exact, rounded upwards to 20 bits; what the noise is scaled with
    published_bound: float  # of the papers: about twice the exact value for order 1, and false for any other


@lru_cache(maxsize=256)
def bounds(*, records: int, order: float, adjacency: Adjacency) -> Bounds:
    """Exact sensitivity and published bound of the entropy of the given order (1: Shannon).

    `records` is a lower bound of those of the larger of two neighbouring tables. Raises SpecError: unknown adjacency;
    AccountingError: the number of records or the order is out of range.

    >>> both = bounds(records=10_000, order=2, adjacency="replacement")
    >>> round(both.sensitivity, 4), round(both.published_bound, 5)
    (0.0144, 0.00058)
    """
    published = shannon_published(records) if order == 1 else renyi_published(records, order=order)
    exact = renyi_from(records, order=order, adjacency=adjacency)
    return Bounds(sensitivity=round_up(exact, bits=BITS), published_bound=shown(published))


def account(*, records: int, order: float, adjacency: Adjacency) -> dict[str, Any]:
    """The bounds as a JSON object, and whether the published one holds."""
    both = bounds(records=records, order=order, adjacency=adjacency)
    return {
        "records": records,
        "order": order,
        "adjacency": adjacency,
        **asdict(both),
        "published_bound_holds": both.published_bound >= both.sensitivity,
    }
