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

**Random splits.** A private coin sends each record to one of several disjoint splits, each with its own stage.

**Theorem.** Every record is assigned independently, to split j with probability q_j. Stage j reads split j
only, and the outputs ``y_1 .. y_{j-1}`` of the stages before it. For all values of these let stage j be
dominated by ``(A_j, B_j)`` for all alpha > 0 (`dpdist.privacy.pair`). Then the whole is dominated, for all
alpha > 0, by

    A = sum_j q_j A_j x prod_{i != j} B_i     against     B = prod_j B_j,

whose likelihood ratio under B is ``sum_j q_j L_j`` with independent ``L_j = dA_j/dB_j``. It is attained
where the pairs are (when the table without the record is empty, say).

*Proof.* Let D' = D + x. Given the coins of D, outputs have law Q on D, and ``P = sum_j q_j P_j`` on D', P_j
being the law with x in split j. H_alpha is jointly convex, so it is at most the worst over the coins of D;
fix them. Under P_j all stages but j are as under Q, so dP/dQ at y is ``sum_j q_j l_j(y_1..y_j)``, l_j the
likelihood ratio of stage j given what precedes, and the mass of P where Q has none is ``sum_j q_j
E_Q[s_j]``, ``s_j = 1 - E_Q[l_j | y_<j]``. So

    H_alpha(P || Q) = E_Q[(sum_j q_j l_j - alpha)_+] + sum_j q_j E_Q[s_j].        (1)

*Replacing one stage.* Let f be convex on [0, inf) with slope b at infinity. Then ``f(t) = f(0) + b t + int
[(t-u)_+ - t] dm(u)`` for a measure m >= 0 on (0, inf), and ``E l + s = 1``, so ``E f(l) + b s = f(0) + b +
int [E(l-u)_+ + s - 1] dm(u) = f(0) + b + int [H_u - 1] dm(u)``, where H_u is the stage's own hockey-stick
divergence. By domination it can only grow when (l, s) is replaced by ``(L, A_j(B_j = 0))``.

*Peeling.* Start at the last stage J: given y_<J, (1) is ``f(l_J) + q_J s_J`` with ``f(t) = (c + q_J t -
alpha)_+``, of slope q_J at infinity, ``c = sum_{j<J} q_j l_j``. Replace it by the independent ``L_J``,
whatever y_<J. What is left, ``c -> E(c + q_J L_J - alpha)_+ + const``, is convex in c with slope 1 at
infinity, so stage J-1 can be replaced, and so on. The end is (1) for the pairs. As alpha > 0 was arbitrary,
and ``H_alpha(Q || P) = alpha H_{1/alpha}(P || Q) + 1 - alpha``, both directions are covered. QED

By Jensen the bound is below ``sum_j q_j delta_j(epsilon)``, hence below the worst stage. A stage that costs
nothing has L = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.privacy.arrays import Floats

LARGEST_EPSILON = 700.0
"""Largest loss of a profile's side: beyond it ``e^epsilon`` is no float."""

_SIZE = 1000  # losses kept of each pair: a release costs within 0.1 % of what 3000 give


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


# --- splits and parallel parts ----------------------------------------------------------------------------------------


def split_pair(stages: Sequence[tuple[float, DominatingPair | None]]) -> DominatingPair:
    """The pair of the whole, from shares and pairs of the stages (None: the stage costs nothing).

    Losses are kept exactly while they are few, and rounded upwards (mean-preserving spreads) beyond that.

    Randomised response on a tenth of the records: amplified by sampling.

    >>> response = DominatingPair(np.log([1 / 3, 3]), np.array([0.25, 0.75]), np.array([0.75, 0.25]))
    >>> float(np.exp(split_pair([(0.1, response), (0.9, None)]).losses[-1]).round(12))
    1.2
    """
    total, mixed = 0.0, NOTHING
    for share, pair in stages:
        total += share
        mixed = _mix(NOTHING if pair is None else pair, share / total, mixed)
    return mixed


def _mix(first: DominatingPair, weight: float, second: DominatingPair) -> DominatingPair:
    """The pair with likelihood ratio ``weight L1 + (1 - weight) L2``, L1 and L2 independent under B."""
    (ratios, masses), (others, rest) = _ratios(first), _ratios(second)
    ratio = np.add.outer(weight * ratios, (1 - weight) * others).ravel()
    mass = np.multiply.outer(masses, rest).ravel()
    zero = ratio == 0
    nothing = float(mass[zero].sum())
    if nothing:
        ratio, mass = ratio[~zero], mass[~zero]
    infinite = weight * first.upper_infinite + (1 - weight) * second.upper_infinite
    return DominatingPair(np.log(ratio), ratio * mass, mass, infinite, nothing).coarse(_SIZE)


def _ratios(pair: DominatingPair) -> tuple[Floats, Floats]:
    """Values of dA/dB under B, 0 included, and their masses."""
    pair = pair.coarse(_SIZE)
    kept = pair.lower > 0
    ratios, masses = np.exp(pair.losses[kept]), pair.lower[kept]
    if pair.lower_infinite > 0:
        return np.append(0.0, ratios), np.append(pair.lower_infinite, masses)
    return ratios, masses


def parallel_pair(pairs: Sequence[DominatingPair]) -> DominatingPair:
    """The pair for parts fixed by each record's own public attributes: the largest of the profiles, at every alpha."""
    if len(pairs) < 2:
        return pairs[0] if pairs else NOTHING
    losses = np.unique(np.abs(np.concatenate([pair.coarse(_SIZE).losses for pair in pairs])))
    epsilons = np.append(0.0, losses[losses > 0])
    sides = (
        Side.from_profile(epsilons, np.max([pair.hockey_stick(epsilons, reverse=reverse) for pair in pairs], axis=0))
        for reverse in (False, True)
    )
    return DominatingPair.from_sides(*sides)


def extreme_of_split(parts: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Ends of ``ln sum_j q_j e^{l_j}``, from (share, largest loss, infinite mass) of each stage."""
    infinite = max(math.fsum(q * mass for q, _, mass in parts), math.prod(mass for _, _, mass in parts))
    if max(loss for _, loss, _ in parts) > 700:
        return math.inf, infinite
    most = math.log1p(math.fsum(q * math.expm1(loss) for q, loss, _ in parts))
    # Stages whose B has mass where A has none may contribute nothing, but not all of them at once.
    certain = math.fsum(q * math.exp(-loss) for q, loss, mass in parts if not mass)
    least = certain or min(q * math.exp(-loss) for q, loss, _ in parts)
    return max(most, -math.log(least)) * (1 + 2.0**-50), infinite
