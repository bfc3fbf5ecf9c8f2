"""The noise of one histogram whose pointwise maximal leakage is bounded (`dpdist.privacy.leakage`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdist.families.histogram.measurement import sampler_delta
from dpdist.privacy.events import LaplaceLeakage
from dpdist.privacy.guarantee import PML
from dpdist.privacy.leakage import check_alpha, noiseless_leakage, scale_for


@dataclass(frozen=True, kw_only=True)
class LeakagePlan:
    """Noise of one histogram under a bound on its leakage."""

    scale: float | None  # scale of the discrete Laplace noise; None where exact counts were asked for by name
    guarantee: PML  # with alpha, and the equal parameter of differential privacy ``2/b`` (replacement)
    # what to charge: to a PML account its leakage, else its differential privacy, which exact counts do not have
    event: LaplaceLeakage


def plan_leakage(*, epsilon: float, alpha: float, bins: int, accept_no_noise: bool = False) -> LeakagePlan:
    """The least noise for one histogram of so many bins.

    Parameters
    ----------
    epsilon : float
        Leakage, in nats.
    alpha : float
        Assumed least probability of every bin, for every record; never estimated from the data.
    bins : int
        Number of bins (cells) of the histogram.
    accept_no_noise : bool
        Release exact counts where ``epsilon >= ln(1/alpha)``.

    Raises
    ------
    AccountingError
        A parameter is out of range, or ``alpha * bins > 1``.
    GuaranteeRefused
        No noise is needed, and that was not asked for.
    """
    check_alpha(alpha, bins=bins)
    if accept_no_noise and noiseless_leakage(alpha) <= epsilon < math.inf:
        exact = LaplaceLeakage(None, alpha, label="histogram")
        return LeakagePlan(scale=None, guarantee=PML(epsilon=noiseless_leakage(alpha), alpha=alpha), event=exact)
    scale = scale_for(epsilon=epsilon, alpha=alpha)
    delta = sampler_delta(bins)
    return LeakagePlan(
        scale=scale,
        guarantee=PML(epsilon=epsilon, alpha=alpha, dp_epsilon=2 / scale, delta=delta),
        event=LaplaceLeakage(scale, alpha, failure=delta, label="histogram"),
    )
