"""The account of a data set: sums over its charges, which every entry of its journal carries.

The sums are kept, not computed again: a reservation reads the newest entry of the journal. What was given back before
noise was drawn is taken off again, so a cost that nothing bounds is counted apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpdist.privacy.filter import Cost
from dpdist.privacy.portfolio import Portfolio


@dataclass(frozen=True)
class Charged:
    """What one release is charged.

    Attributes
    ----------
    costs : tuple of Cost
        For each filter of the portfolio.
    alone : Fraction or None
        The epsilon of a release that no filter admits and that has the data set for itself; None for all others.
    """

    costs: tuple[Cost, ...]
    alone: Fraction | None = None

    def to_text(self) -> str:
        """Canonical JSON."""
        body: dict[str, Any] = {"filters": [cost.to_json() for cost in self.costs]}
        return _text(body if self.alone is None else {**body, "alone": str(self.alone)})

    @classmethod
    def from_text(cls, text: str) -> Charged:
        """What `to_text` wrote."""
        body = json.loads(text)
        alone = body.get("alone")
        return cls(tuple(map(Cost.from_json, body["filters"])), None if alone is None else Fraction(alone))


@dataclass(frozen=True)
class Account:
    """Sums over the charges of a data set.

    Attributes
    ----------
    amounts, failures : tuple of Fraction
        What is taken from each filter, where an amount bounds it.
    unbounded : tuple of int
        How many of the charges no amount of the filter bounds.
    charges : int
        Charges that are spent, those to the account of leakage included.
    rows : int
        Attempts that were ever reserved.
    alone : Fraction or None
        The epsilon of the release that has the data set for itself.
    """

    amounts: tuple[Fraction, ...]
    failures: tuple[Fraction, ...]
    unbounded: tuple[int, ...]
    charges: int = 0
    rows: int = 0
    alone: Fraction | None = None

    @classmethod
    def empty(cls, portfolio: Portfolio) -> Account:
        """The account of a data set without charges."""
        size = len(portfolio.filters)
        return cls((Fraction(0),) * size, (Fraction(0),) * size, (0,) * size)

    @property
    def taken(self) -> tuple[Cost, ...]:
        """What is taken from each filter."""
        sums = zip(self.amounts, self.failures, self.unbounded, strict=True)
        return tuple(Cost(None if count else amount, failure) for amount, failure, count in sums)

    def entered(self) -> Account:
        """The account after one more attempt was reserved."""
        return replace(self, rows=self.rows + 1)

    def charged(self, charge: Charged | None, *, sign: int = 1) -> Account:
        """The account with a charge, or with one that is given back (`sign` -1); None is one to another account."""
        if charge is None:
            return replace(self, charges=self.charges + sign)
        parts = [(cost.amount or Fraction(0), cost.failure, cost.amount is None) for cost in charge.costs]
        return replace(
            self,
            amounts=tuple(a + sign * part[0] for a, part in zip(self.amounts, parts, strict=True)),
            failures=tuple(f + sign * part[1] for f, part in zip(self.failures, parts, strict=True)),
            unbounded=tuple(u + sign * part[2] for u, part in zip(self.unbounded, parts, strict=True)),
            charges=self.charges + sign,
            alone=self.alone if charge.alone is None else charge.alone if sign > 0 else None,
        )

    def is_kept(self, portfolio: Portfolio) -> bool:
        """Whether a filter holds, or the only release is within the caps by itself."""
        return portfolio.holds(self.taken) or (self.alone is not None and self.alone <= portfolio.epsilon)

    def to_json(self) -> dict[str, Any]:
        """The sums, exactly, as text."""
        return {
            "taken": [list(map(str, part)) for part in zip(self.amounts, self.failures, self.unbounded, strict=True)],
            "charges": self.charges,
            "rows": self.rows,
            "alone": None if self.alone is None else str(self.alone),
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Account:
        """The account that `to_json` wrote."""
        parts = body["taken"]
        return cls(
            tuple(Fraction(part[0]) for part in parts),
            tuple(Fraction(part[1]) for part in parts),
            tuple(int(part[2]) for part in parts),
            body["charges"],
            body["rows"],
            None if body["alone"] is None else Fraction(body["alone"]),
        )


def portfolio_text(portfolio: Portfolio) -> str:
    """The filters of a portfolio as the column of its data set."""
    return _text(portfolio.to_json())


def portfolio_of(row: Any) -> Portfolio:
    """The portfolio of a data set's row."""
    caps = {"epsilon": Fraction(row["epsilon_cap"]), "delta": Fraction(row["delta_cap"])}
    filters: Sequence[Any] = json.loads(row["filters"])
    return Portfolio.from_json(filters, **caps)


def _text(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
