r"""Random splits: a private coin sends each record to one of several disjoint splits, each with its own stage.

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

from collections.abc import Sequence

import numpy as np

from dpdist.privacy.arrays import Floats
from dpdist.privacy.pair import NOTHING, DominatingPair, Side

_SIZE = 1000  # losses kept of each pair: a release costs within 0.1 % of what 3000 give


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
