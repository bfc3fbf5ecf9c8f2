"""What the ledger speaks of: prices, accounts, data sets, charges, budgets. Frozen, exact, without secrets."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Self

from dpdist.errors import AccountingError, LedgerError
from dpdist.privacy import accountant
from dpdist.privacy.event import from_json
from dpdist.privacy.filter import NOTHING_TAKEN, Cost, Portfolio, exact_sum
from dpdist.privacy.formatting import float_below
from dpdist.privacy.leakage import composed, leaking_parts

Rational = Fraction | Decimal | int | float | str

GUARANTEES: Final = ("dp", "dp-declared", "pd-per-record", "pml", "lid")
"""Kinds of guarantee a data set's policy may allow (`docs/guarantees.md`)."""

BUDGETED: Final = ("dp", "dp-declared", "pd-per-record", "pml")
"""Kinds whose charge always carries a privacy event."""

NO_EVENT: Final = "null"
"""The event (JSON) of a charge that has none."""

_SAME: Final = (
    *("release", "state", "guarantee", "spec_hash", "input_fingerprint"),
    *("manifest_sha256", "receipt", "created", "updated"),
)


UNREADABLE: Final = (AccountingError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError)
"""What reading a row or an entry raises that somebody wrote anything into."""


def damaged(name: str, problems: Sequence[str]) -> LedgerError:
    """Return the error of a ledger whose records do not agree."""
    return LedgerError(
        f"the ledger of data set {name!r} is damaged: {'; '.join(problems[:5])}. "
        "Restore it from a backup, and charge nothing until then"
    )


def canonical(body: Any) -> str:
    """The text of a JSON value in the ledger."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


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
        return canonical(body if self.alone is None else {**body, "alone": str(self.alone)})

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
        """The account with `count` equal charges more; `costs` is None where another account pays for them."""
        if costs is None:
            return Account(self.taken, self.charges + count, self.alone)
        more = zip(self.taken, costs.filters, strict=True)
        taken = tuple(before + cost.times(count) for before, cost in more)
        return Account(taken, self.charges + count, self.alone if costs.alone is None else costs.alone)

    def is_kept(self, portfolio: Portfolio) -> bool:
        """Whether a filter holds, or the only release is within the caps by itself."""
        return portfolio.holds(self.taken) or (self.alone is not None and self.alone <= portfolio.epsilon)

    def epsilon(self, portfolio: Portfolio) -> Fraction | None:
        """The least epsilon at which the filters would have admitted all charges; None if none exists."""
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
        first = all(cost == NOTHING_TAKEN for cost in self.taken)
        if first and price.epsilon is not None and price.epsilon <= portfolio.epsilon:
            return Costs(price.costs, price.epsilon)
        return None


@lru_cache(maxsize=256)
def accountant_price(event: str, portfolio: Portfolio) -> Price:
    """The price of an event by dpdist's accountant. Raises AccountingError: the event is unknown, or no epsilon bounds
    it at the delta cap.
    """
    read = from_json(event)
    stated = exact_sum(read)
    epsilon = Fraction(repr(accountant.epsilon(read, delta=float_below(portfolio.delta))))  # the decimal it prints as
    if stated is not None and stated.amount is not None and stated.failure <= portfolio.delta:
        epsilon = min(stated.amount, epsilon)
    return Price(portfolio.costs(read), epsilon)


def composed_leakage(events: Sequence[str]) -> Fraction | None:
    """Return the leakage of charges together in nats as an exact number, None when it is infinite. Raises
    AccountingError: a charge is not one of leakage.
    """
    read = [leaking_parts(from_json(text)) for text in events]
    if not all(read):
        raise AccountingError("the account of leakage takes charges of histograms with a bound on their leakage only")
    total = composed([histogram for release in read for histogram in release])
    return None if total == math.inf else Fraction(total)


def left_of(cap: Fraction, spent: Fraction | None) -> Fraction:
    """What is left of a cap, at least 0; nothing where no number bounds what is spent."""
    return Fraction(0) if spent is None else max(cap - spent, Fraction(0))


def portfolio_text(portfolio: Portfolio) -> str:
    """The filters of a portfolio as the column of its data set."""
    return canonical(portfolio.to_json())


@dataclass(frozen=True)
class Dataset:
    """A data set in the ledger: its caps and its policy."""

    name: str
    epsilon: Fraction  # epsilon, delta: the caps on everything that is ever released about the data set
    delta: Fraction
    guarantees: tuple[str, ...]  # the kinds that the policy allows, of `GUARANTEES`
    created: str  # ISO 8601, UTC
    portfolio: Portfolio  # one of its filters must hold after every charge; fixed with the caps
    # the cap of the account of pointwise maximal leakage, in nats. With such an account, releases with the guarantee
    # ``pml`` are charged to it; without, they are charged their equal differential privacy
    pml: Fraction | None = None
    contract: str | None = None  # JSON (`dpdist.spec.contract.Contract`)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The record of a row. Raises LedgerError: the row cannot be read."""
        try:
            caps = {"epsilon": Fraction(row["epsilon_cap"]), "delta": Fraction(row["delta_cap"])}
            return cls(
                **caps,
                name=row["name"],
                guarantees=tuple(json.loads(row["guarantees"])),
                created=row["created"],
                portfolio=Portfolio.from_json(json.loads(row["filters"]), **caps),
                pml=None if row["pml_cap"] is None else Fraction(row["pml_cap"]),
                contract=row["contract"],
            )
        except UNREADABLE:
            raise damaged(row["name"], ["the data set's caps or policy were altered"]) from None

    def leaks(self, charge: Mapping[str, Any]) -> bool:
        """Whether a charge, or the request of one, goes to the account of leakage."""
        return self.pml is not None and charge["guarantee"] == "pml" and charge["event"] != NO_EVENT


@dataclass(frozen=True)
class Charge:
    """The charge of one attempt at a release, as the ledger had it when it was read."""

    id: str  # the attempt's, random (UUID 4). Every transition carries it, so that a stale attempt is detected
    dataset: str
    release: str
    # reserved, drawing, committed, abandoned (ended after noise was drawn: still spent) or void (before: not spent)
    state: str
    guarantee: str  # the kind, of `GUARANTEES`
    event: str | None  # the canonical JSON of a privacy event; None when the release has no DP guarantee to compose
    epsilon: Fraction  # of the charge by itself at the delta cap; of one to the account of leakage its nats
    spec_hash: str
    input_fingerprint: str
    manifest_sha256: str | None  # of a committed attempt
    receipt: str  # digest of the reservation in the data set's journal; `Books.verify` can look for it later
    created: str  # created, updated: ISO 8601, UTC
    updated: str
    costs: Costs | None = None  # what it takes from each filter; None when it is charged to none

    @classmethod
    def of(cls, row: Mapping[str, Any], dataset: str) -> Self:
        """The record of a row."""
        return cls(
            id=row["attempt"],
            dataset=dataset,
            event=None if row["event"] == NO_EVENT else row["event"],
            epsilon=Fraction(row["epsilon"]),
            costs=None if row["costs"] is None else Costs.from_text(row["costs"]),
            **{name: row[name] for name in _SAME},
        )


@dataclass(frozen=True)
class Budget:
    """What the charges of a data set take, and what its caps leave."""

    epsilon_cap: Fraction
    delta_cap: Fraction
    # the least epsilon at which the filters, with their deltas, would have admitted all charges that are not void; None
    # where none exists. A later charge may add less than it costs by itself
    epsilon_spent: Fraction | None
    charges: int  # how many, those to the account of leakage included
    portfolio: Portfolio
    account: Account  # what the charges take from each filter
    pml_cap: Fraction | None = None  # of the account of leakage, None if none exists
    pml_spent: Fraction = Fraction(0)  # what the charges to it compose to, in nats, rounded upwards

    @classmethod
    def of(cls, dataset: Dataset, account: Account, leakage: Sequence[str] = ()) -> Self:
        """What an account, and the events of leakage, leave of the caps of a data set. Raises AccountingError: the
        charges to the account of leakage compose to no finite leakage.
        """
        leaked = composed_leakage(leakage)
        if leaked is None:
            raise AccountingError(f"data set {dataset.name!r}: its charges compose to no finite leakage")
        return cls(
            epsilon_cap=dataset.epsilon,
            delta_cap=dataset.delta,
            epsilon_spent=account.epsilon(dataset.portfolio),
            charges=account.charges,
            portfolio=dataset.portfolio,
            account=account,
            pml_cap=dataset.pml,
            pml_spent=leaked,
        )

    @property
    def is_kept(self) -> bool:
        """Whether no cap is exceeded: a filter of the portfolio holds, and so does the cap on leakage."""
        return self.account.is_kept(self.portfolio) and self.pml_spent <= (self.pml_cap or 0)

    @property
    def epsilon_remaining(self) -> Fraction:
        """The cap minus what is spent, at least 0."""
        return left_of(self.epsilon_cap, self.epsilon_spent)

    @property
    def used(self) -> dict[str, Fraction | None]:
        """The share of each filter's limits that is taken, by its name; None where no amount bounds it."""
        return self.portfolio.used(self.account.taken)


def rational(value: Rational, *, setting: str) -> Fraction:
    """Read a number exactly; a float stands for the decimal it prints as (0.1 is 1/10). Raises LedgerError: `value` is
    not a finite number, or has more than 400 digits before or after the point.
    """
    try:
        if isinstance(value, float | str) and "/" not in str(value):
            value = Decimal(repr(value) if isinstance(value, float) else value)
            if value.is_finite() and abs(value.adjusted()) > 400:
                raise ValueError
        return Fraction(value)
    except (ArithmeticError, ValueError, TypeError):
        raise LedgerError(f"{setting} must be a number such as 1, 0.5, 1e-9 or 1/3") from None


def canonical_event(event: Any) -> str:
    """Return the canonical JSON of a privacy event (an object with ``to_json`` or JSON itself); ``null`` for None.
    Raises LedgerError: it is no JSON.
    """
    value = event.to_json() if hasattr(event, "to_json") else event
    try:
        if isinstance(value, str):
            value = json.loads(value)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise LedgerError("a charge's event must be a privacy event or its JSON, with finite numbers") from None


def event_json(event: Any) -> Any:
    """Return a privacy event, its JSON or its text as JSON. Raises LedgerError: it is no JSON."""
    return json.loads(canonical_event(event))


def checked_name(name: str, *, setting: str) -> str:
    """Return a name of 1 to 200 printable characters without blanks around it."""
    if not (0 < len(name) <= 200 and name.isprintable() and name == name.strip()):
        raise LedgerError(f"{setting} must be 1 to 200 printable characters, without blanks around them")
    return name
