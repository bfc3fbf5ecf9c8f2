r"""Pointwise maximal leakage (PML) of histograms with Laplace noise [1]_.

Records are independent and each falls in every one of the k bins with probability at least alpha (``alpha k <= 1``).
One histogram leaks at most

    eps_PML = 2/b - ln(1 - alpha + alpha e^(2/b)),    2/b = eps_PML - ln(1 - alpha (e^eps_PML - 1) / (1 - alpha)).

Several histograms of the same records, with ``x_j = 2/b_j`` and ``X = sum x_j``, leak together at most

    X - ln(1 + sum_j alpha_j (e^(x_j) - 1)),

for adaptive releases too. A histogram without noise counts as ``x_j -> infinity``: one of them adds ``ln(1/alpha_j)``
to the others' X, and two leave no bound. In a chain from fine to coarse each histogram sums cells of the one before.
With levels l = 1 (fine) to L of one x, a chain adds ``sum_l alpha_l e^((L-l)x) (e^x - 1)`` to the sum above in place of
its histograms. ``docs/guarantees.md`` has the proofs.

References
----------
.. [1] Saeidian et al., *A Tight Context-aware Privacy Bound for Histogram Publication*, 2025.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpdist.errors import AccountingError, GuaranteeRefused
from dpdist.privacy.calibrate import least_scale, round_up
from dpdist.privacy.event import Event
from dpdist.privacy.events import Composed, LaplaceLeakage, NestedLeakage

Leaking = LaplaceLeakage | NestedLeakage
"""Events whose leakage is accounted."""

_LARGE = 700.0
_ERROR = 1 + 2.0**-40  # of the closed forms, and more


def leakage(*, scale: float, alpha: float) -> float:
    """eps_PML of Laplace noise of scale b > 0, in nats, rounded upwards; alpha, in (0, 1], is the least probability of
    every bin. Raises AccountingError: a parameter is out of range.
    """
    _check_alpha(alpha)
    if not 0 < scale < math.inf:
        raise AccountingError(f"the scale of the noise must be finite and above 0, got {scale!r}")
    x = 2 / scale
    if x < math.log(2):  # small leakages keep their digits
        return -math.log1p((1 - alpha) * math.expm1(-x)) * _ERROR
    return -math.log(alpha + (1 - alpha) * math.exp(-x)) * _ERROR


def noiseless_leakage(alpha: float) -> float:
    """``ln(1/alpha)``: the leakage of the histogram itself; no amount of noise exceeds it."""
    _check_alpha(alpha)
    return -math.log(alpha) if alpha < 1 else 0.0


def scale_for(*, epsilon: float, alpha: float) -> float:
    """Least Laplace scale with at most this leakage, rounded upwards.
    Raises AccountingError: a parameter is out of range; GuaranteeRefused: ``epsilon >= ln(1/alpha)``: no noise is
    needed, and without noise nothing but the assumption protects.

    Parameters
    ----------
    epsilon : float
        Leakage, in nats; above 0 and below ``ln(1/alpha)``.
    alpha : float
        Least probability of every bin, in (0, 1).

    Examples
    --------
    >>> round(scale_for(epsilon=0.5, alpha=0.05), 4)
    3.7402
    """
    if not 0 < epsilon < math.inf:
        raise AccountingError(f"epsilon must be finite and above 0, got {epsilon!r}")
    if epsilon >= noiseless_leakage(alpha):
        raise GuaranteeRefused(
            f"leakage of {epsilon:g} nats is not below ln(1/alpha) = {noiseless_leakage(alpha):.6g}: under the "
            "assumption no noise would be needed, and the exact counts would be released; lower epsilon, or ask for it "
            "by name with `accept_no_noise: true`"
        )
    return round_up(2 / (epsilon - math.log1p(-alpha * math.expm1(epsilon) / (1 - alpha))) * (1 + 2.0**-20))


def common_scale(*, epsilon: float, alphas: Sequence[tuple[float, ...]]) -> float:
    """Least common Laplace scale of histograms of the same records that leak at most `epsilon` nats together, rounded
    upwards. `alphas` has an entry for each chain of histograms from fine to coarse, with the least probability of the
    bins of each; a histogram by itself is a chain of one.

    The leakage of two or more grows without bound as the noise falls, so there is always noise. Raises as `scale_for`.

    >>> round(common_scale(epsilon=0.5, alphas=[(0.05,)]), 4)
    3.7402
    >>> round(common_scale(epsilon=0.5, alphas=[(0.05,), (0.05,)]), 4)
    7.5488
    >>> round(common_scale(epsilon=0.5, alphas=[(0.05, 0.25)]), 4) < 7
    True
    """
    count = sum(map(len, alphas))
    if count == 1:
        return scale_for(epsilon=epsilon, alpha=alphas[0][0])
    for alpha in (alpha for chain in alphas for alpha in chain):
        _check_alpha(alpha)

    def together(scale: float) -> float:
        return composed([chain_event(scale, chain) for chain in alphas])

    start = 2 * count / epsilon  # enough: by composition of differential privacy
    return least_scale(together, epsilon=epsilon, delta=0.0, start=start)


def chain_event(scale: float, alphas: tuple[float, ...], *, failure: float = 0.0) -> Leaking:
    """The event of a chain of histograms."""
    if len(alphas) == 1:
        return LaplaceLeakage(scale, alphas[0], failure=failure, label="histogram")
    return NestedLeakage(scale, alphas, failure=failure, label="histograms")


def leaking_parts(event: Event) -> tuple[Leaking, ...]:
    """The histograms of a release whose leakage is accounted; empty where the event has anything else."""
    parts = event.events if isinstance(event, Composed) else (event,)
    known = tuple(part for part in parts if isinstance(part, LaplaceLeakage | NestedLeakage))
    return known if len(known) == len(parts) else ()


def total_ratio(event: Leaking) -> float | None:
    """The largest log ratio of the probabilities of an output under two values of a record; None without noise."""
    if event.scale is None:
        return None
    return 2 / event.scale * (len(event.alphas) if isinstance(event, NestedLeakage) else 1)


def check_alpha(alpha: float, *, bins: int) -> None:
    """Check that all bins can have probability alpha. Raises AccountingError: ``alpha > 1 / bins``, or alpha is
    not in (0, 1].
    """
    _check_alpha(alpha)
    if bins < 1 or alpha * bins > 1 + 2.0**-50:  # a decimal 1/k such as 0.1 is not above it
        raise AccountingError(
            f"alpha = {alpha:g} is above 1/{bins}: {bins} bins cannot all have that probability; "
            f"declare an alpha of at most {1 / max(bins, 1):.6g}, or fewer bins"
        )


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise AccountingError(f"alpha must be in (0, 1], got {alpha!r}")


def account(*, epsilon: float, alpha: float) -> dict[str, Any]:
    """The noise for a bound on the leakage and its equal differential privacy, as a JSON object."""
    scale = scale_for(epsilon=epsilon, alpha=alpha)
    return {
        "epsilon": epsilon,
        "alpha": alpha,
        "scale": scale,
        "dp_epsilon": 2 / scale,
        "dp_adjacency": "replacement",
        "noiseless_epsilon": noiseless_leakage(alpha),
    }


def composed(events: Sequence[Leaking]) -> float:
    """Leakage of several histograms of the same records together, in nats, rounded upwards; infinite if unbounded.

    >>> one = LaplaceLeakage(scale=4.0, alpha=0.05)
    >>> round(composed([one]), 4), round(composed([one, one]), 4)
    (0.4681, 0.9371)
    """
    if all(isinstance(event, LaplaceLeakage) for event in events) and len(events) < 2:
        return sum(
            noiseless_leakage(e.alpha) if e.scale is None else leakage(scale=e.scale, alpha=e.alpha)
            for e in events
            if isinstance(e, LaplaceLeakage)
        )
    exact = [event.alpha for event in events if event.scale is None]
    alphas_of = [(e.scale, e.alphas if isinstance(e, NestedLeakage) else (e.alpha,)) for e in events]
    noisy = [(2 / scale, alphas) for scale, alphas in alphas_of if scale is not None]
    if len(exact) > 1:
        return math.inf
    total = math.fsum(x * len(alphas) for x, alphas in noisy)
    if exact:
        return (total + noiseless_leakage(exact[0])) * _ERROR
    if total > _LARGE:  # the exponentials would overflow: the best of the histograms alone
        alone = [(x, alpha) for x, alphas in noisy for alpha in alphas]
        return min(total - x + leakage(scale=2 / x, alpha=alpha) for x, alpha in alone) * _ERROR
    shared = math.fsum(
        alpha * math.exp((len(alphas) - 1 - level) * x) * math.expm1(x)
        for x, alphas in noisy
        for level, alpha in enumerate(alphas)
    )
    return total - math.log1p(shared) + total * (_ERROR - 1)
