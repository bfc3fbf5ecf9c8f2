"""What a data set has left, in words and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpdist.errors import AccountingError, DpdistError
from dpdist.formatting import downwards, number_of, upwards
from dpdist.ledger import Ledger
from dpdist.privacy.events import from_json, takes_size_for_public

if TYPE_CHECKING:
    from dpdist.families.base import Plan


def budget_sentence(ledger: Ledger, dataset: str) -> str:
    """What a data set has left, in words, and what its budget does not cover."""
    statement = ledger.show(dataset)
    budget = statement.budget
    live = [attempt for attempt in statement.attempts if attempt.state != "void"]
    words = [
        f"epsilon {downwards(budget.epsilon_remaining)} of {downwards(budget.epsilon_cap)} left for data set {dataset} "
        f"at delta {upwards(budget.delta_cap)} (add/remove adjacency)"
    ]
    if budget.pml_cap is not None:
        left = max(budget.pml_cap - budget.pml_spent, budget.pml_spent * 0)
        words.append(f"leakage of {downwards(left)} of {downwards(budget.pml_cap)} nats left (replacement)")
    if public := sum(a.event is not None and takes_size_for_public(from_json(a.event)) for a in live):
        words.append(f"{number_of(public, 'release')} under replacement took the number of records for public")
    if per_record := sum(a.guarantee == "pd-per-record" for a in live):
        words.append(f"without the seeds of {number_of(per_record, 'per-record release')}, which no budget covers")
    if not_dp := sum(a.guarantee == "lid" for a in live):
        words.append(f"and {number_of(not_dp, 'release')} without differential privacy, which no budget covers")
    return "; ".join(words)


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
        after = ledger.remaining(spec.dataset, event=plan.event, guarantee=plan.kind)
    except AccountingError:
        return f"{before}; too little for this release"
    finally:
        ledger.close()
    if not after.is_kept:
        return f"{before}; too little for this release"
    if plan.kind == "pml" and after.pml_cap is not None:
        return f"{before}; {downwards(after.pml_cap - after.pml_spent)} nats after this release"
    return f"{before}; {downwards(after.epsilon_remaining)} after this release"


def ledger_rows(ledger: Ledger, dataset: str | None = None) -> list[dict[str, Any]]:
    """The data sets of a ledger with their charges, as JSON objects."""
    names = [dataset] if dataset else [known.name for known in ledger.datasets()]
    rows = []
    for name in names:
        statement = ledger.show(name)
        rows.append(
            {
                "dataset": name,
                "epsilon": float(statement.budget.epsilon_cap),
                "delta": float(statement.budget.delta_cap),
                "adjacency": "add/remove",
                "spent_epsilon": float(statement.budget.epsilon_spent),
                "remaining_epsilon": float(statement.budget.epsilon_remaining),
                "pml": None if statement.budget.pml_cap is None else float(statement.budget.pml_cap),
                "spent_pml": float(statement.budget.pml_spent),
                "guarantees": list(statement.dataset.guarantees),
                "head": statement.head,
                "charges": [
                    {
                        "release": attempt.release,
                        "attempt": attempt.id,
                        "state": attempt.state,
                        "guarantee": attempt.guarantee,
                        "epsilon": None if attempt.guarantee == "lid" else float(attempt.epsilon),  # lid has none
                        "created": attempt.created,
                    }
                    for attempt in statement.attempts
                ],
            }
        )
    return rows
