"""Candidates of the exponential mechanism, with certified integer weights.

**How exact a pick is.** Of n candidates some are drawn without replacement, k <= n of them, until one is allowed. The
weights W are floors of the true ones w, so ``0 <= w - W < 1``, and those that are left sum to at least ``2**124``
before each draw. A draw by W instead of w moves less than ``n 2**-124`` of the probability; the uniform integer of 256
bits, of which each weight has a whole number, less than ``n 2**128 / 2**256``. So the draws of a pick together, and
with them what is picked, are within ``n**2 (2**-124 + 2**-128)`` of the mechanism in total variation, for each of two
neighbouring tables. That is (epsilon, delta)-DP with ``(1 + e**epsilon)`` times as much added to delta, at most
``n**2 2**-84.9`` for an epsilon of 27 of all that is released. A keyed draw is charged ``2**-60``, a pick that of
``n**2 / 2**24`` draws, rounded upwards (`draws_of_pick`).
"""

from __future__ import annotations

import bisect
import itertools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy import _thresholds
from dpdist.privacy.grid import steps_of

_LEAST_SUM = 1 << 124
_BLOCK = 256  # candidates whose weights are summed once
_KEPT = 1 << 20  # weights for earlier tops, at most


def draws_of_pick(candidates: int) -> int:
    """Keyed draws that a pick among so many candidates is charged as; the proof is above."""
    return -(-(candidates**2) >> 24)


class Candidates:
    """Weights ``floor(2**128 * exp((score - top) / scale))`` of candidates, which can be taken out and put back.

    `top` is the largest score when the weights were last computed. They are computed again where those that are left
    sum to less than 2**124, so that a weight is right to 2**-124 of the sum, and where a larger score comes back. So
    many picks from the same scores compute them a few times only. The scores are confidential; ``repr`` hides them.
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

    def __repr__(self) -> str:
        return f"Candidates(<{len(self._scores)} scores hidden>)"

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
        """The candidate at a uniform integer below 2**256, in proportion to the weights. Raises ValueError: none
        is left.
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
