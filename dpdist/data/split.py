"""The keyed coin that splits the records: a pure function of (key, file, row), for any partitions.

Each record draws one 64-bit word, addressed by its file and row, and gets the label whose interval contains it. The
interval ends are ``floor(2^64 * cumulative share)``, computed in exact rationals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError

if TYPE_CHECKING:
    from dpdist.ledger.keys import KeyRef
    from dpdist.privacy.noise import Noise

_WORD = 1 << 64


@dataclass(frozen=True)
class Split:
    """A random split of the records into disjoint parts. Raises SpecError: the shares are not exact, not in [0, 1] or
    do not sum to one.
    """

    key: KeyRef  # where tasks find the attempt's key; the key itself never enters a graph
    shares: tuple[Fraction, ...]  # expected share of each label 0, 1, ...; exact, at most 255, summing to one

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", exact_shares(self.shares))


def exact_shares(shares: Sequence[Fraction | int | str]) -> tuple[Fraction, ...]:
    """Check the shares of a split. Raises SpecError: a share is a float (0.1 is not one tenth) or outside [0, 1], or
    they do not sum to one.
    """
    try:
        if any(isinstance(share, float) for share in shares):
            raise ValueError
        exact = tuple(Fraction(share) for share in shares)
    except (ValueError, ZeroDivisionError, TypeError):
        raise SpecError('the shares of the split must be exact: fractions such as "1/3" or decimals as text') from None
    if not 1 <= len(exact) <= 255 or min(exact) < 0 or sum(exact) != 1:
        shown = " + ".join(map(str, exact))
        raise SpecError(f"the shares of the split must lie in [0, 1] and sum to one, not {shown} = {sum(exact)}")
    return exact


def split_labels(
    noise: Noise, *, file: int, row_start: int, count: int, shares: Sequence[Fraction | int | str]
) -> NDArray[np.uint8]:
    """Labels of consecutive rows of a file, uint8[count]; the stream is ``split/<file>``, and row r takes its word r.

    Label j has probability ``(floor(2^64 * s_j) - floor(2^64 * s_(j-1))) / 2^64``, s the cumulative shares
    (`exact_shares`).
    """
    thresholds = [int(total * _WORD) for total in accumulate(exact_shares(shares))]
    words = noise.words(f"split/{file}", count, start=row_start)
    labels = np.zeros(count, np.uint8)
    for threshold in thresholds[:-1]:
        if threshold < _WORD:
            labels += words >= np.uint64(threshold)
    return labels
