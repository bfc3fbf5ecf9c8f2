"""What a data set has left, in words and as JSON."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpdist.errors import AccountingError, DpdistError
from dpdist.formatting import downwards, number_of, upwards
from dpdist.ledger import Budget, Ledger
from dpdist.ledger.account import Charged
from dpdist.ledger.contract import kept_contract
from dpdist.privacy.events import from_json, takes_size_for_public

if TYPE_CHECKING:
    from dpdist.families.base.family import Plan


def budget_sentence(ledger: Ledger, dataset: str) -> str:
    """What no budget covers of the releases of a data set, if anything, and then what it has left, in words."""
    statement = ledger.show(dataset)
    budget = statement.budget
    live = [attempt for attempt in statement.attempts if attempt.state != "void"]
    uncovered = []
    if per_record := sum(a.guarantee == "pd-per-record" for a in live):
        uncovered.append(f"the seeds of {number_of(per_record, 'per-record release')}")
    if not_dp := sum(a.guarantee == "lid" for a in live):
        uncovered.append(f"{number_of(not_dp, 'release')} without differential privacy")
    words = [f"no budget covers {' and '.join(uncovered)}"] if uncovered else []
    words.append(
        f"epsilon {downwards(budget.epsilon_remaining)} of {downwards(budget.epsilon_cap)} left for data set {dataset} "
        f"at delta {upwards(budget.delta_cap)} (add/remove adjacency)"
    )
    if budget.pml_cap is not None:
        left = max(budget.pml_cap - budget.pml_spent, budget.pml_spent * 0)
        words.append(f"leakage of {downwards(left)} of {downwards(budget.pml_cap)} nats left (replacement)")
    if public := sum(a.event is not None and takes_size_for_public(from_json(a.event)) for a in live):
        words.append(f"{number_of(public, 'release')} under replacement took the number of records for public")
    return "; ".join(words)


def filters_sentence(budget: Budget, after: Budget | None = None) -> str:
    """What is taken from each filter, in words; with a budget after a release, what that takes and what it leaves."""
    if budget.account.alone is not None:
        return "the first release took the whole account"
    if after is not None and after.account.alone is not None:
        return "no filter admits it; as the first release it may take the whole account"
    parts = []
    for name, share in budget.used.items():
        used = share if after is None else after.used[name]
        left = "nothing" if used is None or used >= 1 else f"{_percent(1 - used, ROUND_FLOOR)} %"
        if after is None:
            parts.append(f"{name} {left}")
        else:
            taken = "all" if used is None or share is None else f"{_percent(used - share, ROUND_CEILING)} %"
            parts.append(f"{name} {taken}, {left} left")
    return f"{'left of the filters' if after is None else 'it takes from the filters'}: {'; '.join(parts)}"


def _percent(share: Fraction, rounding: str) -> Decimal:
    return (Decimal(share.numerator) * 100 / Decimal(share.denominator)).quantize(Decimal("0.01"), rounding).normalize()


def budget_after(plan: Plan) -> str:
    """What the budget is before a release and after it, in words."""
    spec = plan.spec
    try:
        ledger = Ledger.open(spec.ledger, create=False)
    except DpdistError as error:
        return f"unknown; {error}"
    try:
        before = budget_sentence(ledger, spec.dataset)
    except DpdistError as error:
        ledger.close()
        return str(error)
    try:
        now = ledger.remaining(spec.dataset)
        after = ledger.remaining(spec.dataset, event=plan.event, guarantee=plan.kind)
    except AccountingError:
        return f"{before}; too little for this release"
    finally:
        ledger.close()
    if not after.is_kept:
        return f"{before}; too little for this release"
    if plan.kind == "pml" and after.pml_cap is not None:
        return f"{before}; {downwards(after.pml_cap - after.pml_spent)} nats after this release"
    sentence = f"{before}; {downwards(after.epsilon_remaining)} after this release"
    return sentence if plan.event is None else f"{sentence}; {filters_sentence(now, after)}"


def contract_sentence(plan: Plan) -> str:
    """Whether the data set of a release has a contract, and the release keeps it."""
    spec = plan.spec
    try:
        ledger = Ledger.open(spec.ledger, create=False)
    except DpdistError:
        return "unknown, as there is no ledger to ask"
    try:
        digest = kept_contract(ledger, spec, dataset=spec.dataset, event=plan.event)
    except DpdistError as error:
        return str(error)
    finally:
        ledger.close()
    if digest is None:
        return f"data set {spec.dataset} has no contract: who writes specs may ask its table anything, at a charge"
    return "kept"


def ledger_rows(ledger: Ledger, dataset: str | None = None) -> list[dict[str, Any]]:
    """The data sets of a ledger with their charges, as JSON objects."""
    names = [dataset] if dataset else [known.name for known in ledger.datasets()]
    rows = []
    for name in names:
        statement = ledger.show(name)
        spent = statement.budget.epsilon_spent
        rows.append(
            {
                "dataset": name,
                "epsilon": float(statement.budget.epsilon_cap),
                "delta": float(statement.budget.delta_cap),
                "adjacency": "add/remove",
                "spent_epsilon": None if spent is None else float(spent),
                "remaining_epsilon": float(statement.budget.epsilon_remaining),
                "pml": None if statement.budget.pml_cap is None else float(statement.budget.pml_cap),
                "spent_pml": float(statement.budget.pml_spent),
                "filters": _filter_rows(statement.budget),
                "guarantees": list(statement.dataset.guarantees),
                "head": statement.head,
                "charges": [
                    {
                        "release": attempt.release,
                        "attempt": attempt.id,
                        "state": attempt.state,
                        "guarantee": attempt.guarantee,
                        "epsilon": None if attempt.guarantee == "lid" else float(attempt.epsilon),  # lid has none
                        "takes": _shares(statement.budget, attempt.charged),
                        "created": attempt.created,
                    }
                    for attempt in statement.attempts
                ],
            }
        )
    return rows


def _filter_rows(budget: Budget) -> list[dict[str, Any]]:
    """The filters of a data set with what is taken from each, as JSON objects; exact numbers are text."""
    rows = []
    for one, cost in zip(budget.portfolio.filters, budget.account.taken, strict=True):
        used = one.used(cost)
        rows.append(
            {
                "filter": one.name,
                "delta": str(one.delta),
                "limit": str(one.limit),
                "taken": None if cost.amount is None else str(cost.amount),
                "failure_limit": str(one.failure),
                "failure_taken": str(cost.failure),
                "used": None if used is None else float(used),
                "holds": one.holds(cost),
            }
        )
    return rows


def _shares(budget: Budget, charged: Charged | None) -> dict[str, float | None] | None:
    """The share of each filter's limits that a charge takes; None where it is not charged to filters."""
    if charged is None:
        return None
    shares = {}
    for one, cost in zip(budget.portfolio.filters, charged.costs, strict=True):
        used = one.used(cost)
        shares[one.name] = None if used is None else float(used)
    return shares
