r"""Dominating pairs: the two distributions that stand for all neighbouring tables.

A mechanism M is *dominated* by the pair (A, B) when, for all tables D, all records x and **all** alpha > 0,

    H_alpha( M(D + x) || M(D) )  <=  H_alpha( A || B ),        H_alpha(P || Q) = sup_S P(S) - alpha Q(S).

As ``H_alpha(Q || P) = alpha H_{1/alpha}(P || Q) + 1 - alpha``, one pair bounds both directions: adding a
record and removing one. Only the law of the log-likelihood ratio ("loss") ``ln dA/dB`` matters, here on
finitely many values.

Adaptive composition of dominated mechanisms is dominated by the product of their pairs (Zhu, Dong, Wang
2022, Theorem 10), so the losses add, on a lattice (`dpdist.privacy.composition`). Rounding to the lattice moves
each loss to its two neighbours so that *both* masses are kept. That is a mean-preserving spread of dA/dB
under B: it can only raise the convex function alpha -> H_alpha ("connect the dots", Doroshenko et al. 2022,
Algorithm 1), so every number is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.privacy.arrays import Floats

LARGEST_EPSILON = 700.0
"""Largest loss of a profile's side: beyond it ``e^epsilon`` is no float."""


@dataclass(frozen=True, eq=False)
class DominatingPair:
    """The law of ``ln dA/dB`` under A and under B."""

    losses: Floats  # float64[n]: finite values of ``ln dA/dB``, ascending
    # upper, lower: float64[n]: mass of A and of B at each loss; ``upper = lower * exp(losses)``. Both are kept: each is
    # accurate where the other cancels
    upper: Floats
    lower: Floats
    upper_infinite: float = 0.0  # mass of A where B has none
    lower_infinite: float = 0.0  # mass of B where A has none

    @property
    def variance(self) -> float:
        """Second moment of the finite losses, the larger of the two directions."""
        square = self.losses**2  # sums of NumPy, as those of a BLAS depend on its number of threads
        return float(max((self.upper * square).sum(), (self.lower * square).sum()))

    def hockey_stick(self, epsilons: ArrayLike, *, reverse: bool = False) -> Floats:
        """``H_{e^eps}(A || B)``, or ``H_{e^eps}(B || A)`` when reversed, at any real epsilons (vectorised, exact)."""
        eps = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
        if reverse:
            losses, mass, other, infinite = -self.losses[::-1], self.lower[::-1], self.upper[::-1], self.lower_infinite
        else:
            losses, mass, other, infinite = self.losses, self.upper, self.lower, self.upper_infinite
        above = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
        below = np.append(np.cumsum(other[::-1])[::-1], 0.0)
        first = np.searchsorted(losses, eps, side="right")
        with np.errstate(over="ignore", invalid="ignore"):
            value = above[first] - np.where(below[first] > 0, np.exp(eps) * below[first], 0.0)
        return np.clip(infinite + value, 0.0, 1.0)

    def log_moment(self, orders: ArrayLike, *, reverse: bool = False) -> Floats:
        """``ln E_A[e^{t loss}]`` over the finite losses for t = order - 1 (of B's losses when reversed).

        The Renyi divergence is this over ``order - 1``, apart from the infinite mass, which is charged to delta.
        """
        losses, mass = (-self.losses, self.lower) if reverse else (self.losses, self.upper)
        kept = mass > 0
        exponents = np.multiply.outer(np.asarray(orders, dtype=np.float64) - 1, losses[kept]) + np.log(mass[kept])
        top = exponents.max(axis=-1, keepdims=True)
        return np.asarray(top[..., 0] + np.log(np.exp(exponents - top).sum(axis=-1)))

    def onto(self, nodes: Floats) -> DominatingPair:
        """The pair on the given losses (ascending), by mean-preserving spreads of dA/dB.

        A loss beyond the nodes keeps its smaller mass at the last one; what the larger mass has more is infinite.
        """
        loss = np.clip(self.losses, nodes[0], nodes[-1])
        high, low = self.losses > loss, self.losses < loss
        upper, lower = self.upper.copy(), self.lower.copy()
        upper[high] = lower[high] * np.exp(loss[high])
        lower[low] = self.upper[low] * np.exp(-loss[low])
        upper_infinite = self.upper_infinite + float(np.sum(np.maximum(self.upper - upper, 0.0)))
        lower_infinite = self.lower_infinite + float(np.sum(np.maximum(self.lower - lower, 0.0)))
        left = np.clip(np.searchsorted(nodes, loss, side="right") - 1, 0, max(len(nodes) - 2, 0))
        right = np.minimum(left + 1, len(nodes) - 1)
        rest, width = loss - nodes[left], np.append(np.diff(nodes), 0.0)
        width[width == 0] = math.inf  # nothing is spread over no distance
        share = np.minimum(np.expm1(-rest) / np.expm1(-width)[left], 1.0)
        beside = np.minimum(np.exp(rest - width[left]) * share, 1.0)  # (e^rest - 1) / (e^width - 1), without overflow

        def spread(mass: Floats, share: Floats) -> Floats:
            parts = ((left, mass * (1 - share)), (right, mass * share))
            return np.asarray(sum(np.bincount(at, part, len(nodes)) for at, part in parts), dtype=np.float64)

        return DominatingPair(nodes, spread(upper, share), spread(lower, beside), upper_infinite, lower_infinite)

    def on_lattice(self, interval: float, *, reach: float = math.inf) -> tuple[int, DominatingPair]:
        """The pair on consecutive multiples of ``interval`` within ``reach``; the first multiple, and the pair."""
        first = math.floor(max(self.losses[0], -reach) / interval)
        last = max(math.ceil(min(self.losses[-1], reach) / interval), first)
        return first, self.onto(np.arange(first, last + 1) * interval)

    def ascending(self) -> DominatingPair:
        """The pair with its losses in ascending order."""
        order = np.argsort(self.losses, kind="stable")
        return replace(self, losses=self.losses[order], upper=self.upper[order], lower=self.lower[order])

    def coarse(self, size: int) -> DominatingPair:
        """The pair on at most ``size`` losses, ascending and denser towards 0; these ones may be in any order."""
        if len(self.losses) <= size:
            return self.ascending()
        kept = self.losses[np.maximum(self.upper, self.lower) > 1e-30]
        low, high = kept.min(), kept.max()
        scale = math.sqrt(self.variance) / 8
        return self.onto(scale * np.sinh(np.linspace(math.asinh(low / scale), math.asinh(high / scale), size)))

    @classmethod
    def from_sides(cls, up: Side, down: Side) -> DominatingPair:
        """One pair from the positive losses of both directions.

        ``H_alpha(A || B)`` is set for alpha >= 1 by the positive losses of A against B (`up`), and for alpha <= 1 by
        those of B against A (`down`). Where the two differ at alpha = 1, by rounding, the smaller is raised through the
        mass of its least loss. The remaining mass has loss 0.
        """
        gap = up.variation - down.variation
        up, down = up.raised(-gap), down.raised(gap)
        upper_down, lower_up = down.mass * np.exp(-down.losses), up.mass * np.exp(-up.losses)
        middle = max(1 - up.infinite - math.fsum(up.mass) - math.fsum(upper_down), 0.0)
        return cls(
            np.concatenate([-down.losses[::-1], [0.0], up.losses]),
            np.concatenate([upper_down[::-1], [middle], up.mass]),
            np.concatenate([down.mass[::-1], [middle], lower_up]),
            up.infinite,
            down.infinite,
        )


NOTHING = DominatingPair(np.zeros(1), np.ones(1), np.ones(1))  # a mechanism that reads no record


@dataclass(frozen=True, eq=False)
class Side:
    """The positive losses of one direction: all that its profile delta(epsilon), epsilon >= 0, depends on."""

    losses: Floats
    mass: Floats
    infinite: float

    @property
    def variation(self) -> float:
        """Total variation distance, delta(0)."""
        return self.infinite - float(self.mass @ np.expm1(-self.losses))

    def raised(self, by: float) -> Side:
        """The side with `by` more total variation, where that is positive."""
        if by <= 0:
            return self
        if not len(self.losses):
            return Side(self.losses, self.mass, self.infinite + by)
        mass = self.mass.copy()
        mass[0] -= by / math.expm1(-self.losses[0])
        return Side(self.losses, mass, self.infinite)

    @classmethod
    def from_profile(cls, epsilons: Floats, deltas: Floats) -> Side:
        """The side whose profile is the convex hull, in ``e^epsilon``, of points on or above the true profile:
        `epsilons`, float64[n], ascend from 0.

        `deltas` are upper bounds of a profile, which is convex and non-increasing: so is its hull, and stays above it.
        After the last point the profile keeps its value. Points whose ``e^epsilon`` is no float are left out.
        """
        epsilons, deltas = epsilons[epsilons <= LARGEST_EPSILON], deltas[epsilons <= LARGEST_EPSILON]
        apart = np.append(True, np.diff(epsilons) > 1e-12)  # coincident points would hide each other
        epsilons, deltas = epsilons[apart], np.minimum.accumulate(deltas)[apart]
        kept = lower_hull(np.exp(epsilons), deltas)
        epsilons, deltas = epsilons[kept], deltas[kept]
        rise = np.exp(epsilons[:-1]) * np.expm1(np.diff(epsilons))
        slopes = np.append(np.diff(deltas) / rise, 0.0)
        return cls(epsilons[1:], np.exp(epsilons[1:]) * np.maximum(np.diff(slopes), 0.0), float(deltas[-1]))


def lower_hull(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Indices of the lower convex hull of distinct points with ascending x.

    A point on or above the chord of two others is no corner, so all such points go at once, until none is left.
    """
    kept = np.arange(len(x))
    while len(kept) > 2:
        dx, dy = np.diff(x[kept]), np.diff(y[kept])
        corner = dy[:-1] * dx[1:] < dy[1:] * dx[:-1]
        if corner.all():
            break
        kept = kept[np.concatenate([[True], corner, [True]])]
    return kept
