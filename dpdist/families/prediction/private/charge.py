"""What the differentially private variant costs: noise of each statistic within one Gaussian budget.

All statistics carry Gaussian noise, so the release is one Gaussian mechanism whose squared inverse noise multiplier is
the sum of those of the statistics; the shares of a spec divide that sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdist.errors import AccountingError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.prediction.private.mechanisms import FEATURE_STEP, RANK_STEP, rank_sensitivity
from dpdist.privacy.calibrate import ABOVE, round_up
from dpdist.privacy.events import Composed, Gaussian
from dpdist.privacy.grid import LARGEST_SCALE


@dataclass(frozen=True, kw_only=True)
class Charge:
    """Noise of each statistic."""

    marginal: float  # deviation of the noise on each cell of each histogram
    correlation: float  # deviation of the noise on each product of ranks, in units of 1; 0 for a single input
    # deviation of the noise on the products of the features on the diagonal, ``sqrt(2)`` times that off it; 0 where
    # they are not measured
    product: float
    cross: float  # deviation of the noise on each cross product
    event: Composed  # what is charged, the samplers' losses included


MARGINAL_SHARE, CORRELATION_SHARE, PRODUCT_SHARE = 0.35, 0.15, 0.25
"""Shares of the budget of the marginals, the correlations, and the features' products where they are measured; the
cross products have the rest. Marginals decide how each column looks, so theirs is the largest."""


def charge(
    *,
    inputs: int,
    epsilon: float,
    delta: float,
    marginal_share: float,
    correlation_share: float,
    product_share: float,
    draws: int,
    unit: int = 1,
) -> Charge:
    """Divide the budget of a whole release of so many `inputs`, the response left out, for units of so many records.

    A share is 0 where a statistic is not measured; the cross products get the rest. `draws` is the noise drawn, at
    most. Raises AccountingError: the budget is not valid, or too small for what the samplers lose.
    """
    correlation_share = correlation_share if inputs > 1 else 0.0
    rest = 1 - marginal_share - correlation_share - product_share
    shares = {"marginals": marginal_share, "correlations": correlation_share, "products": product_share}
    shares = {name: share for name, share in {**shares, "cross products": rest}.items() if share > 0}
    whole = GaussianPlan.of(epsilon=epsilon, delta=delta, draws=draws, lost="samplers")
    multiplier = round_up(whole.sigma * ABOVE)
    one = {name: unit * multiplier / math.sqrt(share) for name, share in shares.items()}
    parts = (Gaussian(multiplier / math.sqrt(share), label=name) for name, share in shares.items())
    made = Charge(
        marginal=one["marginals"] * math.sqrt(inputs + 1),
        correlation=one.get("correlations", 0.0) * rank_sensitivity(inputs),
        product=one.get("products", 0.0),
        cross=one["cross products"],
        event=Composed((*parts, whole.lost), label="two-stage"),
    )
    in_steps = (made.correlation / RANK_STEP**2, made.product / FEATURE_STEP**2, made.cross / FEATURE_STEP**2)
    if max(made.marginal, *in_steps) > LARGEST_SCALE:
        raise AccountingError(
            f"epsilon = {epsilon:g} at delta = {delta:g} needs more noise than the sums can carry; raise one of them"
        )
    return made


def cells_for(records: int, *, noise: float) -> int:
    """Cells of a marginal of so many records with this noise: about ``(records / noise)^(2/3)``, from 8 to 128."""
    return round(min(max(math.exp(2 / 3 * math.log(records / noise)), 8.0), 128.0))
