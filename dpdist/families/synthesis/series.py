"""What a series is expected to give over a year, and the shares of its budget for stated priorities.

A table that is measured with a share s of mu^2 has noise of variance 1/s, in parts of that of a whole release. The sum
of k tables, each measured with a share s, has the variance k/s: it is worth a share s/k of a release of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.privacy.formatting import Fact, upwards
from dpdist.spec.series import SeriesSpec, Step, Steps, epsilon_of
from dpdist.spec.validation import change

_GRID = 50  # shares are multiples of this part of the budget
Shares = Mapping[Step, Fraction]


def worth(shares: Shares) -> dict[Step, Fraction]:
    """The share of mu^2 that a release of a month, a quarter and a year is worth with its months."""
    parts = {step: Fraction(int(length > 1), length) for step, length in Steps.items()}  # of a month's share
    return {step: shares[step] + part * shares["month"] for step, part in parts.items() if step in shares}


def errors_of(
    spec: WholeSynthesisSpec, series: SeriesSpec, shares: Shares, error_of: Callable[[WholeSynthesisSpec], float]
) -> dict[str, float]:
    """The expected error of two-way tables of a month, a quarter and a year, with the months of these as evidence;
    `error_of` gives that of a spec.
    """
    found: dict[str, float] = {}
    months = len(spec.data.paths)
    sizes = {"data.minimum_records": spec.data.minimum_records, "synthesis.records": spec.synthesis.records}
    for step, share in worth(shares).items():
        alone: dict[str, Any] = {"series": None, "model.evidence": {}, "privacy.limit": None}
        alone |= {name: number // months * Steps[step] for name, number in sizes.items() if number}
        alone["privacy.epsilon"] = epsilon_of(series.epsilon or 1.0, spec.privacy.delta, share)
        found[step] = error_of(change(spec, alone))
    return found


def facts_of(
    spec: WholeSynthesisSpec, series: SeriesSpec, error_of: Callable[[WholeSynthesisSpec], float]
) -> list[Fact]:
    """The year: what is charged together, errors of each kind of period, and what other divisions give."""
    shares = ", ".join(f"{step} {float(share):.3g}" for step, share in series.shares.items())
    together = (
        f"{series.period}; a record is in one period of each kind ({shares} of mu^2), so all its releases with these "
        f"settings are together ({series.epsilon:g}, {upwards(spec.privacy.delta)})-DP; a correction comes on top"
    )
    errors = errors_of(spec, series, series.shares, error_of)
    said = [f"a {step} {'alone' if step == 'month' else 'with its months'} {e:.4f}" for step, e in errors.items()]
    numbers = {**errors, "change": 2**0.5 * errors["month"]}
    said.append(f"a change from one month to the next {numbers['change']:.4f}")
    facts = [Fact("Series", together), Fact("Year", f"two-way tables within: {'; '.join(said)}", numbers)]
    for month in (Fraction(1, 2), Fraction(9, 10)) if series.roll_up else ():
        rest = (1 - month) / (1 - series.shares["month"])
        divided = {**{step: share * rest for step, share in series.shares.items()}, "month": month}
        other = errors_of(spec, series, divided, error_of)
        given = ", ".join(f"{step} {error:.4f}" for step, error in other.items())
        facts.append(Fact("Division", f"with a share of {float(month):g} for the month: {given}", detail=True))
    return facts


def best_shares(series: SeriesSpec) -> dict[Step, Fraction]:
    """The shares with the least sum of variances, each in parts of that of a whole release, by the priorities."""

    def cost(shares: Shares) -> float:
        return sum(series.priorities.get(step, 1.0) / float(share) for step, share in worth(shares).items())

    parts = (of for of in product(range(1, _GRID + 1), repeat=len(series.steps)) if sum(of) == _GRID)
    return min((dict(zip(series.steps, (Fraction(p, _GRID) for p in of), strict=True)) for of in parts), key=cost)
