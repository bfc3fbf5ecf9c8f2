"""What releases take from a budget: prices, sums over charges, and whether one more fits. All numbers are exact."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpdist.errors import AccountingError
from dpdist.privacy.filter import NOTHING_TAKEN, Cost, Portfolio
from dpdist.privacy.formatting import float_below


@dataclass(frozen=True)
class Price:
    """What a release costs."""

    costs: tuple[Cost, ...]  # what it takes from each filter
    epsilon: Fraction | None  # of the release by itself at the delta cap, rounded upwards; None when it is infinite


PriceOf = Callable[[str, Portfolio], Price]
"""``price(event, portfolio)``: the costs of a charge's event (JSON)."""


@dataclass(frozen=True)
class Costs:
    """What one charge takes from the filters of its data set."""

    filters: tuple[Cost, ...]  # from each filter of the portfolio
    alone: Fraction | None = None  # the epsilon of a release that no filter admits and that has the data set for itself

    def to_text(self) -> str:
        """Canonical JSON."""
        body: dict[str, Any] = {"filters": [cost.to_json() for cost in self.filters]}
        return _text(body if self.alone is None else {**body, "alone": str(self.alone)})

    @classmethod
    def from_text(cls, text: str) -> Costs:
        """What `to_text` wrote."""
        body = json.loads(text)
        alone = body.get("alone")
        return cls(tuple(map(Cost.from_json, body["filters"])), None if alone is None else Fraction(alone))


@dataclass(frozen=True)
class Account:
    """Sums over charges of a data set."""

    taken: tuple[Cost, ...]  # from each filter
    charges: int = 0  # that are spent, those to the account of leakage included
    alone: Fraction | None = None  # the epsilon of the release that has the data set for itself

    @classmethod
    def of(cls, portfolio: Portfolio, costs: Iterable[str | None]) -> Account:
        """Add up charges to the filters of `portfolio`, as `Costs.to_text` wrote them; None is one to another account.

        Most charges of a data set are alike: each kind of them is read once, and multiplied.
        """
        account = cls((NOTHING_TAKEN,) * len(portfolio.filters))
        for text, count in Counter(costs).items():
            account = account.charged(None if text is None else Costs.from_text(text), count)
        return account

    def charged(self, costs: Costs | None, count: int = 1) -> Account:
        """The account with another charge, or several that are alike; None is one to another account."""
        if costs is None:
            return Account(self.taken, self.charges + count, self.alone)
        more = zip(self.taken, costs.filters, strict=True)
        taken = tuple(before + cost.times(count) for before, cost in more)
        return Account(taken, self.charges + count, self.alone if costs.alone is None else costs.alone)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is taken from any filter."""
        return all(cost == NOTHING_TAKEN for cost in self.taken)

    def is_kept(self, portfolio: Portfolio) -> bool:
        """Whether a filter holds, or the only release is within the caps by itself."""
        return portfolio.holds(self.taken) or (self.alone is not None and self.alone <= portfolio.epsilon)

    def epsilon(self, portfolio: Portfolio) -> Fraction | None:
        """The least epsilon at which the filters would have admitted all charges; None where there is none."""
        return portfolio.epsilon_of(self.taken) if self.alone is None else self.alone

    def costs_of(self, portfolio: Portfolio, price: Price) -> Costs | None:
        """What a release is charged: its costs while a filter holds after it; None where it does not fit.

        The first release is chosen before anything was seen. So one that no filter admits may have the data set for
        itself where it is within the cap alone, and none is admitted after it.
        """
        if self.alone is not None:
            return None
        costs = Costs(price.costs)
        if portfolio.holds(self.charged(costs).taken):
            return costs
        if self.is_empty and price.epsilon is not None and price.epsilon <= portfolio.epsilon:
            return Costs(price.costs, price.epsilon)
        return None


@lru_cache(maxsize=256)
def accountant_price(event: str, portfolio: Portfolio) -> Price:
    """The price of an event by dpdist's accountant. Raises AccountingError: the event is unknown, or no epsilon bounds
    it at the delta cap.
    """
    from dpdist.privacy import accountant
    from dpdist.privacy.event import from_json
    from dpdist.privacy.filter import exact_sum

    read = from_json(event)
    stated = exact_sum(read)
    epsilon = Fraction(accountant.epsilon(read, delta=float_below(portfolio.delta)))
    if stated is not None and stated.amount is not None and stated.failure <= portfolio.delta:
        epsilon = min(stated.amount, epsilon)
    return Price(portfolio.costs(read), epsilon)


def composed_leakage(events: Sequence[str]) -> Fraction | None:
    """Return the leakage of charges together in nats as an exact number, None when it is infinite. Raises
    AccountingError: a charge is not one of leakage.
    """
    from dpdist.privacy.event import from_json
    from dpdist.privacy.leakage import composed as leak
    from dpdist.privacy.leakage import leaking_parts

    read = [leaking_parts(from_json(text)) for text in events]
    if not all(read):
        raise AccountingError("the account of leakage takes charges of histograms with a bound on their leakage only")
    total = leak([histogram for release in read for histogram in release])
    return None if total == math.inf else Fraction(total)


def portfolio_text(portfolio: Portfolio) -> str:
    """The filters of a portfolio as the column of its data set."""
    return _text(portfolio.to_json())


def portfolio_of(row: Any) -> Portfolio:
    """The portfolio of a data set's row."""
    caps = {"epsilon": Fraction(row["epsilon_cap"]), "delta": Fraction(row["delta_cap"])}
    return Portfolio.from_json(json.loads(row["filters"]), **caps)


def _text(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
