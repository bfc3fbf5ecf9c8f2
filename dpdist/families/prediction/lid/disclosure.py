r"""Local information disclosure (LID): how often a released row shows a value near the original it came from.

``LID = Pr[ some column j has |x*_j - x_j| <= eta ]``, eta as a share of the width of the column's scale.

**The closed form.** ``x* - x = (1 - alpha)(s - x)``. If s is uniform and independent of x, a column is near with
probability at most ``p = 2 eta / (1 - alpha)``, and with d independent columns ``LID <= 1 - (1 - p)^d``. Solved for
alpha: ``alpha = 1 - 2 eta / (1 - (1 - LID)^(1/d))``. (The published formula has the exponent -d, a misprint.)

**What it does not cover.** The published hybrid mixes x with its *nearest* synthetic row, which is not independent of
x; then the closed form is no bound. So a release measures LID on the rows that it would publish, for every alpha of a
grid, and takes the largest alpha within the target, at most that of the closed form; if there is none, nothing is
published.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdist.families.prediction.lid.hybrid import mix
from dpdist.families.prediction.scales import Scale, snapped
from dpdist.privacy.arrays import Floats

ALPHAS = tuple(i / 100 for i in range(101))
"""The grid on which alpha is chosen."""


def lid_bound(alpha: float, *, eta: float, columns: int) -> float:
    """LID of independent uniform columns that are mixed with independent rows, at most.

    Parameters
    ----------
    alpha : float
        From 0 to 1.
    eta : float
        Share of the width of the scale.
    columns : int
    """
    if not 0 <= alpha <= 1 or not eta > 0 or columns < 1:
        raise ValueError("expected alpha from 0 to 1, a positive eta and at least one column")
    near = 1.0 if alpha == 1 else min(2 * eta / (1 - alpha), 1.0)
    return 1 - (1 - near) ** columns


def largest_alpha(lid: float, *, eta: float, columns: int) -> float | None:
    """The alpha at which `lid_bound` is `lid`; None where even alpha = 0 discloses more."""
    if not 0 < lid <= 1 or not eta > 0 or columns < 1:
        raise ValueError("expected a LID in (0, 1], a positive eta and at least one column")
    alpha = 1 - 2 * eta / -np.expm1(np.log1p(-lid) / columns) if lid < 1 else 1.0
    return float(alpha) if alpha >= 0 else None


def near(original: Floats, released: Floats, *, eta: float, columns: Sequence[int]) -> NDArray[np.bool_]:
    """Whether a released row is within eta of its original in some of the columns.

    Parameters
    ----------
    original, released : float64[n, d]
        On the unit cube, row by row.
    eta : float
    columns : sequence of int
        The columns that are looked at.

    Returns
    -------
    bool[n]
    """
    chosen = list(columns)
    return np.asarray((np.abs(original[:, chosen] - released[:, chosen]) <= eta).any(axis=1))


def measured_lid(original: Floats, released: Floats, *, eta: float, columns: Sequence[int]) -> float:
    """Share of the rows that are `near`; 0 without rows."""
    return float(near(original, released, eta=eta, columns=columns).mean()) if len(original) else 0.0


def near_counts(
    original: Floats,
    synthetic: Floats,
    *,
    scales: Sequence[Scale],
    eta: float,
    columns: Sequence[int],
    alphas: Sequence[float] = ALPHAS,
) -> NDArray[np.int64]:
    """How many rows would be `near` for each alpha, as they would be released.

    Parameters
    ----------
    original, synthetic : float64[n, d]
        Matched: synthetic row i is mixed with original row i.
    scales : sequence of Scale
    eta : float
    columns : sequence of int
    alphas : sequence of float

    Returns
    -------
    int64[len(alphas)]
    """
    chosen = list(columns)
    mine, theirs, kept = original[:, chosen], synthetic[:, chosen], [scales[i] for i in chosen]
    mixed = np.array([not scale.nominal for scale in kept], bool)
    discrete = any(scale.discrete for scale in kept)
    counts = np.zeros(len(alphas), np.int64)
    for place, alpha in enumerate(alphas):
        released = mix(mine, theirs, alpha=alpha, mixed=mixed)
        if discrete:
            released = snapped(kept, released)
        counts[place] = np.count_nonzero((np.abs(mine - released) <= eta).any(axis=1))
    return counts


def choose_alpha(
    counts: NDArray[np.int64], rows: int, *, lid: float, most: float = 1.0, alphas: Sequence[float] = ALPHAS
) -> float | None:
    """The largest alpha of the grid, at most `most`, whose measured LID is at most `lid`; None where there is none.

    Parameters
    ----------
    counts : int64[len(alphas)]
        From `near_counts`.
    rows : int
    lid : float
    most : float
    """
    within = [alpha for alpha, count in zip(alphas, counts, strict=True) if count <= lid * rows and alpha <= most]
    return max(within, default=None)
