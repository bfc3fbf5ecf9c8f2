"""Does one more charge fit? Exact comparison of what the accountant composes with the caps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpdist.errors import AccountingError, BudgetExceeded
from dpdist.formatting import downwards, number_of, upwards
from dpdist.ledger.records import Budget, Dataset

Compose = Callable[[Sequence[str], Fraction], Fraction | float]
"""``compose(events, delta)``: an upper bound on the epsilon of all events (JSON) together; infinite if none."""


def composed(compose: Compose, events: Sequence[str], *, delta: Fraction) -> Fraction | None:
    """Return the composed epsilon as an exact number, None when it is infinite.

    Raises
    ------
    AccountingError
        The accountant returned no valid epsilon.
    """
    if not events:
        return Fraction(0)
    epsilon = compose(events, delta)
    if not epsilon >= 0:
        raise AccountingError("the accountant found no valid epsilon for the charges of the data set")
    return None if epsilon == math.inf else Fraction(epsilon)


def budget_of(compose: Compose, dataset: Dataset, events: Sequence[str], leakage: Sequence[str] = ()) -> Budget:
    """Compose the events of a data set, and those of its account of leakage.

    Raises
    ------
    AccountingError
        The charges compose to no finite epsilon at the data set's delta cap, or to no finite leakage.
    """
    spent = composed(compose, events, delta=dataset.delta)
    if spent is None:
        raise AccountingError(
            f"data set {dataset.name!r}: its charges compose to no finite epsilon at delta {upwards(dataset.delta)}"
        )
    leaked = composed_leakage(leakage)
    if leaked is None:
        raise AccountingError(f"data set {dataset.name!r}: its charges compose to no finite leakage")
    return Budget(dataset.epsilon, dataset.delta, spent, len(events) + len(leakage), dataset.pml, leaked)


def composed_leakage(events: Sequence[str]) -> Fraction | None:
    """Return the leakage of charges together in nats as an exact number, None when it is infinite.

    Raises
    ------
    AccountingError
        A charge is not one of leakage.
    """
    from dpdist.privacy.events import LaplaceLeakage, from_json
    from dpdist.privacy.leakage import composed as leak

    read = [from_json(text) for text in events]
    known = [event for event in read if isinstance(event, LaplaceLeakage)]
    if len(known) < len(read):
        raise AccountingError("the account of leakage takes charges of histograms with a bound on their leakage only")
    total = leak(known)
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


def admit(compose: Compose, dataset: Dataset, events: Sequence[str], event: str, *, release: str) -> Fraction:
    """Return the epsilon of `event` by itself if all events and it compose to at most the cap.

    Raises
    ------
    BudgetExceeded
        They do not. The message names public numbers only.
    """
    alone = composed(compose, [event], delta=dataset.delta)
    total = composed(compose, [*events, event], delta=dataset.delta)
    if alone is not None and total is not None and total <= dataset.epsilon:
        return alone
    before = budget_of(compose, dataset, events)
    raise BudgetExceeded(
        f"data set {dataset.name!r}: release {release!r} asks for {_epsilon(alone)} at delta "
        f"{upwards(dataset.delta)}; with {number_of(len(events), 'charge')} before it that composes to "
        f"{_epsilon(total)}, "
        f"the cap is epsilon {upwards(dataset.epsilon)}, remaining {downwards(before.epsilon_remaining)}. "
        "Ask for less epsilon or delta in the spec's privacy section"
    )


def _epsilon(value: Fraction | None) -> str:
    return "an infinite epsilon" if value is None else f"epsilon {upwards(value)}"


def accountant_epsilon(events: Sequence[str], delta: Fraction) -> Fraction | float:
    """Compose with dpdist's accountant: the smaller of the exact sum, where it applies, and its loss distribution.

    Parameters
    ----------
    events : sequence of str
        Canonical JSON of the events.
    delta : Fraction
        The delta to compose at.

    Returns
    -------
    Fraction or float
        Epsilon, rounded upwards; infinite when there is none at `delta`.
    """
    return _accountant_epsilon(tuple(events), delta)


@lru_cache(maxsize=64)
def _accountant_epsilon(events: tuple[str, ...], delta: Fraction) -> Fraction | float:
    from dpdist.privacy import accountant
    from dpdist.privacy.events import Composed, from_json

    event = Composed(tuple(from_json(text) for text in events))
    loss: float = accountant.epsilon(event, delta=float_below(delta))
    total = exact_sum(events, delta)
    return total if total is not None and total < loss else loss


def exact_sum(events: Sequence[str], delta: Fraction) -> Fraction | None:
    """Add up approximate-DP events exactly (basic composition); None when another kind is among them.

    The numbers are read as the decimals they are written as, so ten charges of 0.1 are 1.
    """
    parts = [_exact(json.loads(text, parse_float=Fraction, parse_int=Fraction)) for text in events]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or sum(part[1] for part in known) > delta:
        return None
    return sum((part[0] for part in known), Fraction(0))


def _exact(event: Mapping[str, Any]) -> tuple[Fraction, Fraction] | None:
    if event["type"] == "approximate-dp/1":
        return event["epsilon"], event["delta"]
    if event["type"] == "composed/1":
        parts = [_exact(part) for part in event["events"]]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return sum((e for e, _ in known), Fraction(0)), sum((d for _, d in known), Fraction(0))
    return None


def float_below(value: Fraction) -> float:
    """Return the largest float not above `value`: a delta is rounded downwards."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
