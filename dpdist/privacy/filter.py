"""Filters: what may still be released when each release is chosen after seeing those before it.

Who sees one release chooses the next, so the composition of all of them at one delta bounds nothing: its theorem needs
a sequence that is fixed beforehand. A *filter* adds up a cost that each release gets when it is reserved and refuses
what exceeds a limit that never changes. Three kinds; each makes everything it admits ``(epsilon, delta_j)``-DP
however the releases are chosen, with a *failure* that is added up beside the cost (``delta_j = failure + the rest``):

=========  =============================  ==================================================================
kind       cost of release i              limit
=========  =============================  ==================================================================
basic      epsilon_i at delta_i           epsilon
gaussian   mu_i squared, of               the largest mu squared with delta_mu(epsilon) at most the rest
           `dpdist.privacy.gdp`
renyi      divergence of one order a,     B with ``e^(t(B - epsilon)) t^t / (t+1)^(t+1)`` equal to the rest,
           without infinite losses        ``t = a - 1``
=========  =============================  ==================================================================

The failures need a limit of their own. Letting mu grow by the rest of delta, release by release, is one
filter for each way to divide delta, at the price of one: no bound (`tests/privacy/test_filter.py` has the strategy).

**The portfolio.** A release is admitted while, after it, at least one of the filters F_1 .. F_K holds, F_j at
``(epsilon, delta_j)``. That is a filter at ``(epsilon, sum_j delta_j)``: ``docs/guarantees.md`` has the proof. So a
portfolio is near the best of its filters whatever is released: a smaller delta costs the Gaussian and the Renyi filters
a logarithm only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Floats
from dpdist.privacy.composition import Composition
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace
from dpdist.privacy.formatting import float_below, rounded_down, rounded_up
from dpdist.privacy.gdp import implies, largest_mu_squared, least_epsilon, least_mu
from dpdist.privacy.pair import DominatingPair
from dpdist.privacy.pieces import dominating_pair, extreme, flat, gaussian_parts, piece_of

Kind = Literal["basic", "gaussian", "renyi"]

SMALLEST_DELTA: Final = Fraction("1e-290")
"""With a smaller cap on delta only what is purely private is admitted."""

ORDERS: Final = (1.25, 1.75, 3.0)
"""Renyi orders of `Portfolio.standard`, as ``t epsilon / ln(1/delta)``: seeds, small samples and single counts like
different ones, and at 1 nothing is left of epsilon."""

_FAILURES: Final = 2.0 ** -np.arange(0.0, 60.0, 0.5)  # shares of a filter's failure that a release may take


@dataclass(frozen=True)
class Cost:
    """What one release, or several, take from a filter."""

    amount: Fraction | None  # the sum of the filter's kind, rounded upwards; None where no amount bounds it
    failure: Fraction  # the sum of the probabilities outside that amount

    def to_json(self) -> list[str | None]:
        """The two sums as text."""
        return [None if self.amount is None else str(self.amount), str(self.failure)]

    @classmethod
    def from_json(cls, data: list[str | None]) -> Cost:
        """The cost that `to_json` wrote."""
        amount, failure = data
        return cls(None if amount is None else Fraction(amount), Fraction(failure or 0))

    def __add__(self, other: Cost) -> Cost:
        amount = None if self.amount is None or other.amount is None else self.amount + other.amount
        return Cost(amount, self.failure + other.failure)

    def times(self, count: int) -> Cost:
        """The cost of this many releases."""
        return Cost(None if self.amount is None else self.amount * count, self.failure * count)


NOTHING_TAKEN: Final = Cost(Fraction(0), Fraction(0))
BEYOND: Final = Cost(None, Fraction(0))


@dataclass(frozen=True)
class Filter:
    """One filter of a portfolio."""

    kind: Kind
    delta: Fraction  # the delta at which it is valid
    failure: Fraction  # the part of `delta` for the failures of the releases
    limit: Fraction  # of the amounts
    order: Fraction | None = None  # of a Renyi filter, above 1

    @classmethod
    def at(cls, kind: Kind, *, epsilon: Fraction, delta: Fraction, order: Fraction | None = None) -> Filter:
        """The filter of a kind at (epsilon, delta); a quarter of delta is for failures, of a basic one all of it."""
        failure = delta if kind == "basic" else delta / 4
        match kind:
            case "basic":
                limit = epsilon
            case "gaussian":
                limit = largest_mu_squared(epsilon=epsilon, delta=delta - failure)
            case "renyi":
                if order is None or order <= 1:
                    raise AccountingError(f"a Renyi filter needs an order above 1, got {order}")
                limit = max(rounded_down(epsilon - Fraction(_excess(order, delta - failure))), Fraction(0))
        return cls(kind, delta, failure, limit, order)

    @property
    def name(self) -> str:
        """The kind, and the order."""
        return self.kind if self.order is None else f"renyi {float(self.order):g}"

    def holds(self, taken: Cost) -> bool:
        """Whether the sums are within the limits."""
        return taken.amount is not None and taken.amount <= self.limit and taken.failure <= self.failure

    def used(self, taken: Cost) -> Fraction | None:
        """The larger of the two shares of the limits that are taken; None where no amount bounds it."""
        if taken.amount is None or (taken.amount and not self.limit) or (taken.failure and not self.failure):
            return None
        shares = ((taken.amount, self.limit), (taken.failure, self.failure))
        return max(Fraction(0), *(part / whole for part, whole in shares if whole))

    def epsilon_of(self, taken: Cost) -> Fraction | None:
        """The least epsilon at which the filter, with its delta, would have admitted this; None if none exists."""
        if taken.amount is None or taken.failure > self.failure:
            return None
        rest = self.delta - self.failure
        match self.kind:
            case "basic":
                return taken.amount
            case "gaussian":
                epsilon = least_epsilon(mu_squared=taken.amount, delta=rest)
            case "renyi":
                epsilon = float(taken.amount) + _excess(self.order or Fraction(0), rest)
        return rounded_up(epsilon) if math.isfinite(epsilon) else None

    def cost(self, event: Event | DominatingPair) -> Cost:
        """What a release takes, from its event or from its dominating pair; rounded upwards."""
        match self.kind:
            case "basic":
                return self._basic(event)
            case "gaussian":
                return self._gaussian(event)
            case "renyi":
                return self._renyi(event)

    def _basic(self, event: Event | DominatingPair) -> Cost:
        if isinstance(event, DominatingPair):
            return self._best(*_profile(event))
        stated = exact_sum(event)
        if isinstance(event, ApproximateDP) and stated is not None:
            return stated
        precision, failed, rest = gaussian_parts(event)
        if precision and not rest:
            return self._basic_of_gaussian(precision, failed)
        loss, failure = extreme(event)
        amounts, failures = _profile(dominating_pair(event))
        best = self._best(np.append(amounts, loss), np.append(failures, failure))
        if 0 < best.failure < 1:
            with suppress(AccountingError):  # between two losses of the pair
                sharp = Cost(rounded_up(accountant.epsilon(event, delta=float_below(best.failure))), best.failure)
                best = min(best, sharp, key=self._preference)
        return best if stated is None else min(stated, best, key=self._preference)

    def _basic_of_gaussian(self, precision: Fraction, failed: Fraction) -> Cost:
        """Of Gaussian mechanisms that also fail: where the shares of both limits are equal, by bisection."""
        most = max(self.failure, 2 * failed)
        if not most:
            return BEYOND

        def failure_at(share: float) -> Fraction:
            return rounded_up(failed + (most - failed) * Fraction(share))

        low, high = 2.0**-60, 1.0
        for _ in range(24):
            middle = math.sqrt(low * high)
            failure = failure_at(middle)
            fair = implies(mu_squared=precision, epsilon=self.limit * failure / most, delta=failure - failed)
            low, high = (low, middle) if fair else (middle, high)
        failure = failure_at(high)
        epsilon = least_epsilon(mu_squared=precision, delta=failure - failed)
        return Cost(rounded_up(epsilon) if math.isfinite(epsilon) else None, failure)

    def _gaussian(self, event: Event | DominatingPair) -> Cost:
        failures = float(self.failure) * _FAILURES
        if isinstance(event, DominatingPair):
            tried = np.append(failures, max(event.upper_infinite, event.lower_infinite))
            return self._best(least_mu(event, tried) ** 2, tried)
        precision, failure, rest = gaussian_parts(event)
        certain = Cost(rounded_up(precision), failure)
        if not rest:
            return certain
        # The Gaussians apart, exactly; or all together, where the sum of the others is nearly Gaussian too.
        apart = certain + self._gaussian(dominating_pair(Composed(rest)))
        return min(apart, self._gaussian(dominating_pair(event)), key=self._preference) if precision else apart

    def _renyi(self, event: Event | DominatingPair) -> Cost:
        t = float(self.order - 1) if self.order else 0.0
        if isinstance(event, DominatingPair):
            moment = max(float(event.log_moment([1 + t], reverse=reverse)[0]) for reverse in (False, True))
            infinite = max(event.upper_infinite, event.lower_infinite)
            return _upwards(moment / t, infinite)
        precision, failure, rest = gaussian_parts(event)
        total = Cost(rounded_up(precision * Fraction(1 + t) / 2), failure)
        for part in rest:
            piece = piece_of(part)
            if piece.exact:
                one = self._renyi(piece.build(0.0))
                total += one.times(piece.count)
                continue
            whole = Composition([piece])
            tilts = np.array([t])
            moment = max(float(whole.cumulant(tilts, reverse)[0]) for reverse in whole.directions)
            total += _upwards(moment / t, max(whole.infinite(reverse) for reverse in (False, True)))
        return total

    def _best(self, amounts: Floats, failures: Floats) -> Cost:
        """The pair of an amount and a failure that lets most equal releases in."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = [np.where(x > 0, x / float(y), 0.0) for x, y in ((amounts, self.limit), (failures, self.failure))]
        worst = np.maximum(*shares)
        best = np.lexsort((shares[0] + shares[1], worst))[0]
        return _upwards(float(amounts[best]), float(failures[best])) if np.isfinite(amounts[best]) else BEYOND

    def _preference(self, cost: Cost) -> tuple[bool, Fraction]:
        used = self.used(cost)
        return used is None, used or Fraction(0)


def _excess(order: Fraction, delta: Fraction) -> float:
    """How far epsilon is above the Renyi divergence of an order, at delta; rounded upwards."""
    t = float(order - 1)
    log_delta = math.log(delta.numerator) - math.log(delta.denominator)
    return (t * math.log(t / (t + 1)) - math.log(t + 1) - log_delta) / t + 1e-12 * (1 + abs(log_delta) / t)


def _profile(pair: DominatingPair) -> tuple[Floats, Floats]:
    """Epsilons, and upper bounds of delta at them, both directions."""
    epsilons = np.unique(np.append(0.0, np.abs(pair.losses)))
    deltas = np.maximum(*(pair.hockey_stick(epsilons, reverse=reverse) for reverse in (False, True)))
    # Rounding: of the masses above a loss, relative to their sum
    above = np.maximum(*(_above(pair, epsilons, reverse) for reverse in (False, True)))
    largest = epsilons == epsilons[-1]
    return epsilons, deltas + np.where(largest, 0.0, 2.0**-39 * above)


def _above(pair: DominatingPair, epsilons: Floats, reverse: bool) -> Floats:
    losses, mass = (-pair.losses[::-1], pair.lower[::-1]) if reverse else (pair.losses, pair.upper)
    return np.append(np.cumsum(mass[::-1])[::-1], 0.0)[np.searchsorted(losses, epsilons, side="right")]


def _upwards(amount: float, failure: float) -> Cost:
    """A cost computed in float64, with its rounding added."""
    amounts = rounded_up(max(amount, 0.0) * (1 + 2.0**-38) + 1e-14 * (amount > 0))
    return Cost(amounts, rounded_up(failure * (1 + 2.0**-40)))


def exact_sum(event: Event) -> Cost | None:
    """Losses and failures added exactly, as the decimals they are written as; None where a loss has no end.

    >>> exact_sum(Composed((ApproximateDP(0.1, 1e-10), DiscreteLaplace(5.0)))).amount
    Fraction(3, 10)
    """
    total = NOTHING_TAKEN
    for part in flat([event]):
        match part:
            case ApproximateDP():
                total += Cost(Fraction(repr(part.epsilon)), Fraction(repr(part.delta)))
            case DiscreteLaplace():
                total += Cost(part.count * part.sensitivity / Fraction(repr(part.scale)), Fraction(0))
            case _:
                return None
    return total


@dataclass(frozen=True)
class Portfolio:
    """Filters at one epsilon, one of them to hold; their deltas add up to at most `delta`."""

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

    def used(self, taken: Sequence[Cost]) -> dict[str, Fraction | None]:
        """The share of each filter's limits that is taken, by its name; None where no amount bounds it."""
        return {one.name: one.used(cost) for one, cost in zip(self.filters, taken, strict=True)}

    def epsilon_of(self, taken: Sequence[Cost]) -> Fraction | None:
        """The least epsilon at which filters of the same deltas would have admitted this; None if none exists.

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
