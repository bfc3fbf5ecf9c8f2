"""Entropies of histograms, in bits, and their release with noise.

The sensitivity is exact (`dpdist.privacy.sensitivity`), at a public lower bound of the number of records that the run
checks. Of the published bounds Shannon's (PD eq. 9, REAEDP Theorem 3) is about twice the exact value, and Renyi's
(REAEDP eq. 17) is false, so its noise does not protect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.calibration import GaussianPlan, Mechanism, grid_noise
from dpdist.families.histogram.measurement import sampler_delta
from dpdist.families.histogram.spec import CHECK_SHARE
from dpdist.privacy import accountant
from dpdist.privacy.arrays import grid_below, round_to_grid
from dpdist.privacy.checks import CountCheck, count_check
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace, Gaussian
from dpdist.privacy.formatting import Fact
from dpdist.privacy.guarantee import Adjacency
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import exp2, log2
from dpdist.privacy.sensitivity import Bounds, bounds

_GRID = 2.0**-30  # of the sensitivity
_REACH = 2.0**-40  # of the scale of the noise, which has at most 2^45 steps
_EVALUATION = 2.0**-40  # bits: more than the rounding of two evaluations of an entropy of up to 2^26 cells


def shannon(counts: ArrayLike) -> float:
    """Shannon entropy of a histogram, in bits. Raises SpecError: a count is negative or not finite, or all are zero."""
    shares = _shares(counts)
    return float(-np.sum(shares * log2(shares)))


def renyi(counts: ArrayLike, *, order: float) -> float:
    """Renyi entropy ``log2(sum p^a) / (1 - a)``, in bits. Raises SpecError: as `shannon`, or the order is not > 0."""
    if not 0 < order < math.inf:
        raise SpecError(f"the order of a Renyi entropy is finite and above 0, got {order!r}")
    if order == 1:
        return shannon(counts)
    shares = _shares(counts)
    top = shares.max()  # powers relative to the largest share neither overflow nor vanish
    log_total = log2(exp2(order * log2(shares / top)).sum(keepdims=True))
    return float((log_total[0] + order * log2(np.array([top]))[0]) / (1 - order))


def _shares(counts: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(counts, np.float64).ravel()
    if not np.isfinite(table).all() or (table < 0).any() or not table.any():
        raise SpecError("an entropy needs finite non-negative counts that are not all zero")
    table = table[table > 0]
    result: NDArray[np.float64] = table / table.sum()
    return result


@dataclass(frozen=True, kw_only=True)
class EntropyPlan:
    """Noise on several entropies of the same records."""

    mechanism: Mechanism
    orders: tuple[float, ...]  # order of each entropy; 1 is Shannon's
    bounds: tuple[Bounds, ...]  # of each entropy
    grids: tuple[float, ...]  # of the noise of each entropy, in bits
    scales: tuple[float, ...]  # its Laplace scale or Gaussian deviation, in bits
    records: int  # the public lower bound of the number of records, which the run must check
    adjacency: Adjacency
    event: Composed  # what it costs, the sampler's delta included
    unit: int = 1  # records of a unit, at most

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviation of the noise on each entropy, in bits."""
        return tuple(scale * (math.sqrt(2) if self.mechanism == "laplace" else 1) for scale in self.scales)

    def public_parameters(self, histograms: Sequence[int]) -> list[dict[str, Any]]:
        """The public parameters of each entropy, by the numbers of their histograms, for the manifest."""
        return [
            {"histogram": number, "order": order, "mechanism": self.mechanism, "scale": scale}
            | {"sensitivity": both.sensitivity, "published_bound": both.published_bound}
            for number, order, scale, both in zip(histograms, self.orders, self.scales, self.bounds, strict=True)
        ]

    def facts(self, histograms: Sequence[int]) -> list[Fact]:
        """The noise of each entropy, by the numbers of their histograms, for people."""
        facts = []
        for number, order, sd, both in zip(histograms, self.orders, self.deviations, self.bounds, strict=True):
            name = "Shannon" if order == 1 else f"Renyi (order {order:g})"
            published = "published bound" if order == 1 else "the published bound is false:"
            text = (
                f"{name} of histogram {number}: noise {sd:.4g} bits; sensitivity {both.sensitivity:.4g} "
                f"({published} {both.published_bound:.4g})"
            )
            facts.append(Fact("Entropy", text, {"deviation": sd, "sensitivity": both.sensitivity}))
        return facts

    def with_less_noise(self, factor: float) -> EntropyPlan:
        """The same with all scales divided by `factor`, and the event to match."""
        parts: list[Event] = []
        for event in self.event.events:
            if isinstance(event, DiscreteLaplace):
                event = replace(event, scale=event.scale / factor)
            elif isinstance(event, Gaussian):
                event = replace(event, noise_multiplier=event.noise_multiplier / factor)
            parts.append(event)
        scales = tuple(scale / factor for scale in self.scales)
        return replace(self, scales=scales, event=Composed(tuple(parts)))


def plan_entropies(
    orders: Sequence[float],
    *,
    records: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    mechanism: Mechanism | Literal["auto"] = "auto",
    unit: int = 1,
) -> EntropyPlan:
    """The least noise for entropies of the given orders, each with the same share of the budget of all together.

    `records` is a public lower bound; records of a unit leave one by one. The mechanism ``auto`` deviates least. Raises
    AccountingError: an order, the number of records or the budget is out of range.
    """
    if mechanism == "auto":
        kinds: list[Mechanism] = ["laplace"] if delta == 0 else ["laplace", "gaussian"]
        planned = partial(plan_entropies, orders, records=records, epsilon=epsilon, delta=delta, adjacency=adjacency)
        plans = [planned(mechanism=kind, unit=unit) for kind in kinds]
        return min(plans, key=lambda plan: plan.deviations[0])
    if 1 < unit >= records:
        raise AccountingError(f"entropies for units of {unit:,} records need more in data.minimum_records than that")
    least = records - unit + 1
    known = {order: bounds(records=least, order=order, adjacency=adjacency) for order in set(orders)}
    errors = {order: 1.0 if order == 1 else max(1.0, order / abs(1 - order)) for order in known}
    charged = {order: unit * (known[order].sensitivity + _EVALUATION * errors[order]) for order in known}
    count = len(orders)
    sampler = sampler_delta(count)
    if not 0 <= delta < 1 or 0 < delta <= sampler:
        raise AccountingError(f"delta must be 0, or in ({sampler:.1e}, 1), got {delta!r}")
    rest = delta - sampler if delta else 0.0
    grids = {order: grid_below(charged[order] * max(_GRID, count / epsilon * _REACH)) for order in known}
    steps = {order: math.floor(charged[order] / grids[order]) + 1 for order in known}
    if mechanism == "gaussian":
        whole = GaussianPlan.of(epsilon=epsilon, delta=rest, count=count, label="entropies")
        relative = whole.sigma
        events: tuple[Event, ...] = (whole.event,)
    else:
        relative, events = _least_laplace([(steps[order], n) for order, n in Counter(orders).items()], epsilon, rest)
    return EntropyPlan(
        mechanism=mechanism,
        orders=tuple(orders),
        bounds=tuple(known[order] for order in orders),
        grids=tuple(grids[order] for order in orders),
        scales=tuple(relative * steps[order] * grids[order] for order in orders),
        records=records,
        adjacency=adjacency,
        event=Composed((*events, ApproximateDP(0.0, sampler, label="sampler"))),
        unit=unit,
    )


def check_of_records(records: int, epsilon: float, delta: float, unit: int) -> CountCheck:
    """The check of the declared number of records, with its share of the budget. Raises AccountingError: too few."""
    try:
        return count_check(records=records, epsilon=epsilon, delta=delta, unit=unit)
    except AccountingError as error:
        raise AccountingError(
            f"{error} ({float(CHECK_SHARE):.0%} of the budget); or choose privacy.adjacency: replacement if the number "
            "of records is public"
        ) from None


def _least_laplace(steps: Sequence[tuple[int, int]], epsilon: float, delta: float) -> tuple[float, tuple[Event, ...]]:
    """Scale in sensitivities, and events, of the least Laplace noise: sensitivities in grid steps, how often each."""

    def events(relative: float) -> tuple[Event, ...]:
        return tuple(
            DiscreteLaplace(relative * step, sensitivity=step, count=number, label="entropies")
            for step, number in steps
        )

    relative = accountant.calibrate_discrete_laplace(epsilon=epsilon, delta=0.0, count=sum(n for _, n in steps))
    if delta:
        calibrated = accountant.calibrate(lambda r: Composed(events(r)), epsilon=epsilon, delta=delta, start=relative)
        relative = min(relative, calibrated)
    return relative, events(relative)


def release_entropies(
    tables: Sequence[NDArray[np.int64]], plan: EntropyPlan, *, noise: Noise, name: str
) -> NDArray[np.float64]:
    """Noisy entropies of tables of true counts, in bits; entropy i takes draw 0 of the stream ``name/i``."""
    released = np.empty(len(plan.orders))
    for i, (table, order) in enumerate(zip(tables, plan.orders, strict=True)):
        exact = round_to_grid(renyi(table, order=order), grid=plan.grids[i])
        scale, grid = plan.scales[i], plan.grids[i]
        drawn = grid_noise(noise, f"{name}/{i}", 1, mechanism=plan.mechanism, scale=scale, grid=grid)
        released[i] = float(exact) + drawn[0]
    return released
