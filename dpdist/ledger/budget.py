"""Does one more charge fit? Exact comparison of the sums over all charges with the limits of the filters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dpdist.errors import AccountingError, BudgetExceeded
from dpdist.ledger.account import Account, Charged
from dpdist.ledger.records import Budget, Dataset
from dpdist.privacy.filter import Cost
from dpdist.privacy.formatting import downwards, number_of, upwards
from dpdist.privacy.portfolio import Portfolio


@dataclass(frozen=True)
class Price:
    """What a release costs.

    Attributes
    ----------
    costs : tuple of Cost
        What it takes from each filter.
    epsilon : Fraction or None
        Of the release by itself at the delta cap, rounded upwards; None when it is infinite.
    """

    costs: tuple[Cost, ...]
    epsilon: Fraction | None


PriceOf = Callable[[str, Portfolio], Price]
"""``price(event, portfolio)``: the costs of a charge's event (JSON)."""


@lru_cache(maxsize=256)
def accountant_price(event: str, portfolio: Portfolio) -> Price:
    """The price of an event by dpdist's accountant.

    Raises
    ------
    AccountingError
        The event is unknown, or no epsilon bounds it at the delta cap.
    """
    from dpdist.privacy import accountant
    from dpdist.privacy.events import from_json
    from dpdist.privacy.filter import exact_sum

    read = from_json(event)
    stated = exact_sum(read)
    if stated is None or stated.amount is None or stated.failure > portfolio.delta:
        epsilon = Fraction(accountant.epsilon(read, delta=float_below(portfolio.delta)))
    else:
        epsilon = min(stated.amount, Fraction(accountant.epsilon(read, delta=float_below(portfolio.delta))))
    return Price(portfolio.costs(read), epsilon)


def budget_of(dataset: Dataset, account: Account, leakage: Sequence[str] = ()) -> Budget:
    """What an account leaves of the caps of a data set.

    Raises
    ------
    AccountingError
        The charges to the account of leakage compose to no finite leakage.
    """
    leaked = composed_leakage(leakage)
    if leaked is None:
        raise AccountingError(f"data set {dataset.name!r}: its charges compose to no finite leakage")
    spent = dataset.portfolio.epsilon_of(account.taken) if account.alone is None else account.alone
    return Budget(
        dataset.epsilon, dataset.delta, spent, account.charges, dataset.portfolio, account, dataset.pml, leaked
    )


def composed_leakage(events: Sequence[str]) -> Fraction | None:
    """Return the leakage of charges together in nats as an exact number, None when it is infinite.

    Raises
    ------
    AccountingError
        A charge is not one of leakage.
    """
    from dpdist.privacy.events import from_json
    from dpdist.privacy.leakage import composed as leak
    from dpdist.privacy.leakage import leaking_parts

    read = [leaking_parts(from_json(text)) for text in events]
    if not all(read):
        raise AccountingError("the account of leakage takes charges of histograms with a bound on their leakage only")
    total = leak([histogram for release in read for histogram in release])
    return None if total == math.inf else Fraction(total)


def admit_leakage(dataset: Dataset, events: Sequence[str], event: str, *, release: str) -> Fraction:
    """Return the leakage of `event` by itself if all events and it compose to at most the cap of the account.

    Raises
    ------
    BudgetExceeded
        They do not.
    """
    cap = dataset.pml or Fraction(0)
    alone, total = composed_leakage([event]), composed_leakage([*events, event])
    if alone is not None and total is not None and total <= cap:
        return alone
    asked, together = (
        "infinite leakage" if value is None else f"leakage of {upwards(value)} nats" for value in (alone, total)
    )
    raise BudgetExceeded(
        f"data set {dataset.name!r}: release {release!r} asks for {asked}; with "
        f"{number_of(len(events), 'charge')} before it that composes to {together}, "
        f"the cap of the account is {upwards(cap)} nats. Ask for less epsilon in the "
        "spec's privacy section"
    )


def charge_of(dataset: Dataset, account: Account, price: Price) -> Charged | None:
    """What a release is charged: its costs while a filter holds after it; None where it does not fit.

    The first release is chosen before anything was seen. So one that no filter admits may have the data set for itself
    where it is within the caps alone, and none is admitted after it.
    """
    charge = Charged(price.costs)
    if account.alone is not None:
        return None
    if dataset.portfolio.holds(account.charged(charge).taken):
        return charge
    first = not any(cost.amount != 0 or cost.failure for cost in account.taken)
    if first and price.epsilon is not None and price.epsilon <= dataset.epsilon:
        return Charged(price.costs, price.epsilon)
    return None


def admit(dataset: Dataset, account: Account, price: Price, *, release: str) -> Charged:
    """Return what a release is charged.

    Raises
    ------
    BudgetExceeded
        No filter would hold after it. The message names public numbers only.
    """
    charge = charge_of(dataset, account, price)
    if charge is not None:
        return charge
    before = budget_of(dataset, account)
    after = dataset.portfolio.epsilon_of(account.charged(Charged(price.costs)).taken)
    if account.alone is not None:
        why = "its first release took all of the cap"
    else:
        why = f"with {number_of(account.charges, 'charge')} before it that comes to {_epsilon(after)}"
    raise BudgetExceeded(
        f"data set {dataset.name!r}: release {release!r} asks for {_epsilon(price.epsilon)} at delta "
        f"{upwards(dataset.delta)}; {why}, the cap is epsilon {upwards(dataset.epsilon)}, remaining "
        f"{downwards(before.epsilon_remaining)}. Ask for less epsilon or delta in the spec's privacy section"
    )


def _epsilon(value: Fraction | None) -> str:
    return "an infinite epsilon" if value is None else f"epsilon {upwards(value)}"


def float_below(value: Fraction) -> float:
    """Return the largest float not above `value`: a delta is rounded downwards."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
