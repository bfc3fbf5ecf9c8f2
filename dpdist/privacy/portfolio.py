"""The portfolio of filters: a release is admitted while, after it, at least one of them holds.

Let F_1 .. F_K be filters (`dpdist.privacy.filter`), F_j at ``(epsilon, delta_j)``. Then that rule is a filter at
``(epsilon, sum_j delta_j)``: ``docs/guarantees.md`` has the proof. So a portfolio is near the best of its filters
whatever is released: a smaller delta costs the Gaussian and the Renyi filters a logarithm only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from dpdist.errors import AccountingError
from dpdist.privacy.events import Event
from dpdist.privacy.filter import NOTHING_TAKEN, Cost, Filter
from dpdist.privacy.pair import DominatingPair

SMALLEST_DELTA: Final = Fraction("1e-290")
"""With a smaller cap on delta only what is purely private is admitted."""

ORDERS: Final = (1.25, 1.75, 3.0)
"""Renyi orders of `Portfolio.standard`, as ``t epsilon / ln(1/delta)``: seeds, small samples and single counts like
different ones, and at 1 nothing is left of epsilon."""


@dataclass(frozen=True)
class Portfolio:
    """Filters at one epsilon, of which one must hold; their deltas add up to at most `delta`."""

    epsilon: Fraction
    delta: Fraction
    filters: tuple[Filter, ...]

    def __post_init__(self) -> None:
        if not (self.filters and sum(one.delta for one in self.filters) <= self.delta):
            raise AccountingError("a portfolio needs filters, and their deltas add up to at most its own")

    @classmethod
    def standard(cls, *, epsilon: Fraction, delta: Fraction) -> Portfolio:
        """Half of delta for the Gaussian filter, a quarter for the basic one, the rest for `ORDERS` Renyi orders.

        With a delta below `SMALLEST_DELTA` (0, say) all of it is for the basic filter.
        """
        if delta < SMALLEST_DELTA:
            return cls(epsilon, delta, (Filter.at("basic", epsilon=epsilon, delta=delta),))
        unit = (math.log(delta.denominator) - math.log(delta.numerator)) / float(epsilon)
        orders = [1 + Fraction(f"{factor * unit:.3g}") for factor in ORDERS]
        filters = [
            Filter.at("basic", epsilon=epsilon, delta=delta / 4),
            Filter.at("gaussian", epsilon=epsilon, delta=delta / 2),
            *(Filter.at("renyi", epsilon=epsilon, delta=delta / 4 / len(orders), order=a) for a in orders),
        ]
        return cls(epsilon, delta, tuple(filters))

    def at(self, epsilon: Fraction) -> Portfolio:
        """The same filters at another epsilon: with their deltas and orders, so that what was taken is the same."""
        filters = (Filter.at(one.kind, epsilon=epsilon, delta=one.delta, order=one.order) for one in self.filters)
        return Portfolio(epsilon, self.delta, tuple(filters))

    def costs(self, event: Event | DominatingPair) -> tuple[Cost, ...]:
        """What a release takes from each filter."""
        return tuple(one.cost(event) for one in self.filters)

    def holds(self, taken: Sequence[Cost]) -> bool:
        """Whether any filter holds, given what is taken from each."""
        return any(one.holds(cost) for one, cost in zip(self.filters, taken, strict=True))

    def epsilon_of(self, taken: Sequence[Cost]) -> Fraction | None:
        """The least epsilon at which filters of the same deltas would have admitted this; None where there is none.

        At most the portfolio's own where one of its filters holds, above it where none does.
        """
        if all(cost == NOTHING_TAKEN for cost in taken):
            return Fraction(0)
        known = []
        for one, cost in zip(self.filters, taken, strict=True):
            epsilon = one.epsilon_of(cost)
            if epsilon is not None:
                known.append(min(epsilon, self.epsilon) if one.holds(cost) else epsilon)
        return min(known, default=None)

    def to_json(self) -> list[dict[str, str]]:
        """The filters with exact numbers, as text."""
        return [
            {"kind": one.kind, "delta": str(one.delta), "failure": str(one.failure), "limit": str(one.limit)}
            | ({} if one.order is None else {"order": str(one.order)})
            for one in self.filters
        ]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]], *, epsilon: Fraction, delta: Fraction) -> Portfolio:
        """The portfolio whose filters `to_json` wrote."""
        filters = (
            Filter(
                kind=one["kind"],
                delta=Fraction(one["delta"]),
                failure=Fraction(one["failure"]),
                limit=Fraction(one["limit"]),
                order=Fraction(one["order"]) if "order" in one else None,
            )
            for one in data
        )
        return cls(epsilon, delta, tuple(filters))
