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

import math

from dpdist.privacy.formatting import shown

ALPHAS = tuple(i / 100 for i in range(101))
"""The grid on which alpha is chosen."""


def largest_alpha(lid: float, *, eta: float, columns: int) -> float | None:
    """The alpha at which the closed form bounds the disclosure by `lid` (above 0, at most 1); None where even alpha = 0
    discloses more. `eta` is a share of the width of the scale.
    """
    if not 0 < lid <= 1 or not eta > 0 or columns < 1:
        raise ValueError("expected a LID in (0, 1], a positive eta and at least one column")
    alpha = 1 - 2 * eta * shown(-1 / math.expm1(math.log1p(-lid) / columns)) if lid < 1 else 1.0
    return alpha if alpha >= 0 else None
