"""Noise for many histograms that share one budget.

One record changes one cell of a table by one (add/remove: L1 = L2 = 1), or takes one from a cell and adds it to another
(replacement: L1 = 2, L2 = sqrt 2). The c records of a unit may all be in one cell, and no unit changes a table by more
than c in L1 norm: noise for units is c times as large. So a table with discrete Laplace noise of scale b costs 1/b or
2/b, for units c/b, and m tables over the same records compose. A *share* divides what composes additively: epsilon for
Laplace noise, 1/sigma^2 for Gaussian noise. The accountant then finds the least common noise; for Laplace, never more
than by basic composition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Literal

import numpy as np

from dpdist.errors import AccountingError
from dpdist.families.base.calibration import GaussianPlan, Mechanism, deviation
from dpdist.families.histogram.postprocess import largest_remainder
from dpdist.privacy import accountant
from dpdist.privacy.arrays import LARGEST_SCALE
from dpdist.privacy.calibrate import least_scale
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace, Gaussian, LaplaceLeakage
from dpdist.privacy.formatting import shown
from dpdist.privacy.guarantee import PML, Adjacency
from dpdist.privacy.leakage import chain_event, check_alpha, common_scale, composed, noiseless_leakage
from dpdist.privacy.noise import SAMPLER_DELTA

Shares = Literal["equal", "optimal"] | Sequence[Fraction]

_SHARE_UNIT = 1 << 20  # optimal shares are multiples of 2^-20


def changed_cells(adjacency: Adjacency) -> int:
    """Cells of one table that a record changes, each by one: 1 (add/remove) or 2 (replacement)."""
    return 1 if adjacency == "add/remove" else 2


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Noise on the tables of a release."""

    mechanism: Mechanism  # discrete Laplace, or rounded Gaussian
    scales: tuple[float, ...]  # of each table: Laplace scale, or deviation of Gaussian noise before rounding
    adjacency: Adjacency  # what `event` is about
    shares: tuple[Fraction, ...]  # share of each table in the budget; exact, they sum to one
    event: Composed  # what it costs; its last part is the sampler's delta
    unit: int = 1  # records of a unit, at most

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviation of the noise in each cell, for each table."""
        return tuple(deviation(self.mechanism, scale) for scale in self.scales)

    def with_less_noise(self, factor: float) -> Measurement:
        """The same with all scales divided by `factor`, and the event to match."""
        scales = tuple(scale / factor for scale in self.scales)
        parts = _events(self.mechanism, scales, changed_cells(self.adjacency), self.unit)
        return replace(self, scales=scales, event=Composed((*parts, self.event.events[-1])))


def for_clients(planned: Measurement, draws: int, *, least: float) -> Measurement:
    """The same where clients draw the noise, this often together, of a deviation of at least `least`."""
    scales = tuple(max(scale, least) for scale in planned.scales)
    lost = ApproximateDP(0.0, sampler_delta(draws), label="sampler")
    return replace(planned, scales=scales, event=Composed((*_events("gaussian", scales, 1, planned.unit), lost)))


def plan_measurement(
    cells: Sequence[int],
    *,
    mechanism: Mechanism | Literal["auto"],
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    shares: Shares = "equal",
    unit: int = 1,
) -> Measurement:
    """The least noise for tables of this many cells each, within (epsilon, delta) for all together.

    The mechanism ``auto`` has the smaller total expected squared error. At ``delta = 0`` noise is Laplace. Shares are
    `resolve_shares`'. `unit` is the most records of a unit. Raises
    AccountingError: the budget is not valid, or smaller than what the sampler costs.
    """
    if mechanism == "auto":
        return _of_least_error(cells, epsilon=epsilon, delta=delta, adjacency=adjacency, shares=shares, unit=unit)
    changed = changed_cells(adjacency)
    exact = resolve_shares(shares, cells, mechanism=mechanism)
    sampler = sampler_delta(sum(cells))
    if not 0 <= delta < 1 or 0 < delta <= sampler:
        raise AccountingError(f"delta must be 0, or in ({sampler:.1e}, 1) for this many cells, got {delta!r}")
    rest = delta - sampler if delta else 0.0
    if mechanism == "gaussian":
        whole = GaussianPlan.of(sensitivity=float(unit), epsilon=epsilon, delta=rest, count=changed).sigma
        scales = tuple(whole / math.sqrt(share) for share in exact)
    else:
        whole = _laplace_unit(exact, changed=changed, epsilon=epsilon, delta=rest, unit=unit)
        scales = tuple(whole / float(share) for share in exact)
    if max(scales) > LARGEST_SCALE:
        raise AccountingError(
            f"a histogram would need noise of scale {max(scales):.3g}, above 2^45: raise privacy.epsilon or its share"
        )
    event = Composed((*_events(mechanism, scales, changed, unit), ApproximateDP(0.0, sampler, label="sampler")))
    return Measurement(mechanism=mechanism, scales=scales, adjacency=adjacency, shares=exact, event=event, unit=unit)


def _of_least_error(
    cells: Sequence[int], *, epsilon: float, delta: float, adjacency: Adjacency, shares: Shares, unit: int
) -> Measurement:
    """The measurement by the mechanism that errs less."""
    made = partial(plan_measurement, cells, epsilon=epsilon, delta=delta, adjacency=adjacency, shares=shares, unit=unit)
    if delta == 0:
        return made(mechanism="laplace")
    gaussian = made(mechanism="gaussian")
    error = _error(cells, "gaussian", gaussian.scales)
    weights = [float(share) for share in resolve_shares(shares, cells, mechanism="laplace")]
    whole = _unit_of_error(cells, weights, error=error)  # Laplace noise that errs as much must fit the budget
    even = _events("laplace", [whole / weight for weight in weights], changed_cells(adjacency), unit)
    if not accountant.epsilon(Composed(even), delta=delta) <= epsilon:
        return gaussian
    laplace = made(mechanism="laplace")
    return laplace if _error(cells, "laplace", laplace.scales) <= error else gaussian


def _error(cells: Sequence[int], mechanism: Mechanism, scales: Sequence[float]) -> float:
    """Total expected squared error over all cells."""
    return math.fsum(c * deviation(mechanism, scale) ** 2 for c, scale in zip(cells, scales, strict=True))


def _unit_of_error(cells: Sequence[int], weights: Sequence[float], *, error: float) -> float:
    """Scale of a table with the whole budget at which Laplace noise has this total squared error."""

    def precision(unit: float) -> float:
        return 1 / max(_error(cells, "laplace", [unit / weight for weight in weights]), 1e-300)

    return least_scale(precision, epsilon=1 / error, delta=0.0)


def _laplace_unit(shares: Sequence[Fraction], *, changed: int, epsilon: float, delta: float, unit: int) -> float:
    """Scale of a table with the whole budget: by basic composition, or less where delta allows."""
    basic = accountant.calibrate_discrete_laplace(epsilon=epsilon, delta=0.0, sensitivity=unit, count=changed)
    if delta == 0:
        return basic
    weights = [float(share) for share in shares]
    calibrated = accountant.calibrate(
        lambda whole: Composed(_events("laplace", [whole / weight for weight in weights], changed, unit)),
        epsilon=epsilon,
        delta=delta,
        start=basic,
    )
    return min(basic, calibrated)


def _events(mechanism: Mechanism, scales: Sequence[float], changed: int, unit: int) -> tuple[Event, ...]:
    """One event per distinct scale."""
    tables = Counter(scales)
    if mechanism == "gaussian":
        return tuple(Gaussian(s / (unit * math.sqrt(changed)), count=m, label="histograms") for s, m in tables.items())
    return tuple(DiscreteLaplace(s, unit, count=m * changed, label="histograms") for s, m in tables.items())


def sampler_delta(draws: int) -> float:
    """What this many draws of noise add to delta, as the sampler is not perfect."""
    return draws * SAMPLER_DELTA


def resolve_shares(shares: Shares, cells: Sequence[int], *, mechanism: Mechanism) -> tuple[Fraction, ...]:
    """Exact shares, one per table, that sum to one.

    ``optimal`` minimises the total expected squared error: for Laplace noise ``sum cells / epsilon_i^2`` at a given sum
    of epsilon_i, hence shares as the cube root of the cells; for Gaussian noise ``sum cells sigma_i^2`` at a given sum
    of ``1 / sigma_i^2``, hence as the square root.
    """
    if isinstance(shares, str):
        if shares == "equal":
            return (Fraction(1, len(cells)),) * len(cells)
        weights = np.asarray(cells, np.float64) ** (1 / 3 if mechanism == "laplace" else 1 / 2)
        units = 1 + largest_remainder(weights, total=_SHARE_UNIT * len(cells))
        return tuple(Fraction(int(unit), int(units.sum())) for unit in units)
    return tuple(Fraction(share) for share in shares)


@dataclass(frozen=True, kw_only=True)
class LeakagePlan:
    """Noise of histograms under a bound on what they leak together."""

    scale: float | None  # of the discrete Laplace noise; None where exact counts were asked for by name
    histograms: int
    guarantee: PML  # with alpha, and the equal parameter of differential privacy, ``2/b`` each (replacement)
    event: Event  # the charge: to a PML account its leakage, else its differential privacy


def plan_leakage(
    *,
    epsilon: float,
    alpha: float,
    bins: Sequence[int],
    chains: Sequence[tuple[tuple[int, int], ...]] = (),
    accept_no_noise: bool = False,
) -> LeakagePlan:
    """The least common noise for histograms of this many bins, for a leakage of `epsilon` nats together.

    `alpha` is the assumed least probability of every bin. `chains` lists histograms from fine to coarse, as (number,
    fewest cells of the finest in one of its cells). Raises AccountingError: a parameter is out of range;
    GuaranteeRefused: no noise is needed, and that was not asked for (`accept_no_noise`, of one histogram).
    """
    count = len(bins)
    check_alpha(alpha, bins=max(bins))
    if count == 1 and accept_no_noise and noiseless_leakage(alpha) <= epsilon < math.inf:
        exact = LaplaceLeakage(None, alpha, label="histogram")
        guarantee = PML(epsilon=shown(noiseless_leakage(alpha)), alpha=alpha)
        return LeakagePlan(scale=None, histograms=1, guarantee=guarantee, event=exact)
    chained = {number for chain in chains for number, _ in chain}
    every = [*chains, *(((number, 1),) for number in range(count) if number not in chained)]
    alphas = [tuple(min(alpha * cells, 1.0) for _, cells in chain) for chain in every]
    scale = common_scale(epsilon=epsilon, alphas=alphas)
    failures = [math.fsum(sampler_delta(bins[number]) for number, _ in chain) for chain in every]
    events = tuple(chain_event(scale, chain, failure=failure) for chain, failure in zip(alphas, failures, strict=True))
    leaked = epsilon if count == 1 else shown(composed(events))
    guarantee = PML(epsilon=leaked, alpha=alpha, dp_epsilon=count * 2 / scale, delta=math.fsum(failures))
    event = events[0] if len(events) == 1 else Composed(events)
    return LeakagePlan(scale=scale, histograms=count, guarantee=guarantee, event=event)
