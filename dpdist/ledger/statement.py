"""What a data set has left: in words, as JSON and as metrics of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, date, datetime, time
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from dpdist.errors import AccountingError, DpdistError, LedgerError, LedgerUnavailable
from dpdist.ledger.custodian import Statement
from dpdist.ledger.ledger import Books
from dpdist.ledger.records import Account, Budget, Charge, accountant_price, canonical_event
from dpdist.ledger.signing import key_fingerprint
from dpdist.ledger.tables import COMMITTED, OPEN, STATES
from dpdist.privacy.formatting import Fact, downwards, upwards
from dpdist.spec.contract import adjacency_of, kept_contract, months_in

if TYPE_CHECKING:
    from dpdist.families.base.plan import Plan


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

METRICS: Final = {
    "dpdist_ledger_up": "Whether the ledger could be read.",
    "dpdist_dataset_damaged": "Whether the records of a data set disagree with its journal.",
    "dpdist_epsilon_cap": "Cap on epsilon over all releases, at the delta of the data set.",
    "dpdist_epsilon_remaining": "The cap minus what is spent.",
    "dpdist_delta_cap": "Cap on delta over all releases.",
    "dpdist_filter_left_ratio": "Share of a filter's limits that is left; the ledger admits while one is above 0.",
    "dpdist_leakage_cap_nats": "Cap of the account of pointwise maximal leakage.",
    "dpdist_leakage_remaining_nats": "The cap minus what is spent.",
    "dpdist_period_epsilon_cap": "Cap on epsilon of the releases of the present period.",
    "dpdist_period_epsilon_remaining": "The cap of the period minus what is spent in it.",
    "dpdist_period_end_timestamp_seconds": "When the next period begins.",
    "dpdist_attempts": "Attempts by state: committed ones are releases, reserved and drawing ones are open.",
    "dpdist_oldest_open_attempt_timestamp_seconds": "When the oldest open attempt began; absent where none is open.",
    "dpdist_last_release_timestamp_seconds": "When the newest release was committed; absent before the first.",
}
"""The metrics and what each says."""

Labels = Mapping[str, str]
Line = tuple[str, Labels, float]


def budget_sentence(ledger: Books, dataset: str) -> str:
    """What no budget covers of the releases of a data set, if anything, and then what it has left, in words."""
    return ledger.show(dataset).sentence


def account_facts(plan: Plan) -> list[Fact]:
    """What the budget is before a release and after it, what the release takes from each filter, and whether it keeps
    the contract.
    """
    try:
        ledger = Books.open(plan.spec.ledger, create=False)
    except DpdistError as error:
        return [Fact("Budget", f"unknown; {error}"), Fact("Contract", "unknown, as there is no ledger to ask")]
    with closing(ledger):
        return [*_budget_facts(plan, ledger), Fact("Contract", _contract_sentence(plan, ledger))]


def _budget_facts(plan: Plan, ledger: Books) -> list[Fact]:
    spec = plan.spec
    try:
        before = budget_sentence(ledger, spec.dataset)
        months = months_in(spec.data.paths)
        now = ledger.remaining(spec.dataset, months=months)
        after = None
        with suppress(AccountingError):  # nothing bounds it
            after = ledger.remaining(spec.dataset, event=plan.event, guarantee=plan.kind, months=months)
        period = _period_outcome(ledger, plan, now)
    except DpdistError as error:
        return [Fact("Budget", str(error))]
    facts = [Fact("Budget", f"{before}; {_outcome(plan, now, after)}{period}")]
    charged = plan.event is not None and not _is_leakage(plan, now)
    return facts + _filter_facts(now, after) if after is not None and charged else facts


def _period_outcome(ledger: Books, plan: Plan, now: Budget) -> str:
    """That the present period admits no such release, in words; empty where it does."""
    period = ledger.period(plan.spec.dataset, months_in(plan.spec.data.paths))
    if period is None or plan.event is None:
        return ""
    event = canonical_event(plan.event)
    if _is_leakage(plan, now):
        fits = period.admits_leakage(event)
    else:
        try:
            fits = period.admits(accountant_price(event, now.portfolio))
        except AccountingError:  # nothing bounds it, which was said
            return ""
    until = f"; too little for this release until {period.ends} (UTC), as a {period.policy.per} has a cap"
    return "" if fits else until


def _is_leakage(plan: Plan, budget: Budget) -> bool:
    return plan.kind == "pml" and budget.pml_cap is not None


def _outcome(plan: Plan, now: Budget, after: Budget | None) -> str:
    """Whether a release fits, and what that leaves or what cap it needs."""
    if after is None:
        return "too little for this release: no epsilon bounds it at that delta, so it needs a larger one"
    if _is_leakage(plan, after) and after.pml_cap is not None:
        left = f"{downwards(after.pml_cap - after.pml_spent)} nats after this release"
        return left if after.is_kept else "too little for this release"
    together = after.portfolio.epsilon_of(after.account.taken)
    needed = "no cap admits both" if together is None else f"a cap of about epsilon {upwards(together)} admits"
    if not after.is_kept:
        what = "it" if not now.charges else "it with those before"
        return f"too little for this release: {needed if together is None else f'{needed} {what}'}"
    if after.account.alone is not None and now.account.alone is None:
        others = "" if together is None else f" ({needed} it beside others)"
        return f"as its first and only release this one takes all of it{others}"
    return f"{downwards(after.epsilon_remaining)} after this release"


def _filter_facts(now: Budget, after: Budget) -> list[Fact]:
    """What a release takes from each filter and what it leaves."""
    facts = [Fact("Filters", "one of them must hold after the release", detail=True)]
    for name, before in now.used.items():
        used = after.used[name]
        taken = None if used is None or before is None else used - before
        share = "too much" if taken is None or taken > 1 else f"{_percent(taken, ROUND_CEILING)} %"
        left = "nothing" if used is None or used >= 1 else f"{_percent(1 - used, ROUND_FLOOR)} %"
        facts.append(Fact("Filters", f"{name}: takes {share}, leaves {left}", detail=True))
    return facts


def _percent(share: Fraction, rounding: str) -> Decimal:
    return (Decimal(share.numerator) * 100 / Decimal(share.denominator)).quantize(Decimal("0.01"), rounding)


def _contract_sentence(plan: Plan, ledger: Books) -> str:
    """Whether the data set of a release has a contract, and the release keeps it."""
    spec = plan.spec
    try:
        digest = kept_contract(ledger.dataset(spec.dataset).contract, spec, name=spec.dataset, event=plan.event)
    except DpdistError as error:
        return str(error)
    if digest is None:
        return f"data set {spec.dataset} has no contract: who writes specs may ask its table anything, at a charge"
    return "kept"


def ledger_rows(ledger: Books, dataset: str | None = None) -> list[dict[str, Any]]:
    """The data sets of a ledger with their charges, as JSON objects; of all of them, a damaged one with its error."""
    if dataset is not None:
        return [_dataset_row(ledger, dataset)]
    rows = []
    for name in ledger.datasets():
        try:
            rows.append(_dataset_row(ledger, name))
        except LedgerUnavailable:
            raise
        except LedgerError as error:
            rows.append({"dataset": name, "error": str(error)})
    return rows


def _dataset_row(ledger: Books, name: str) -> dict[str, Any]:
    statement = ledger.show(name)
    budget = statement.budget
    return {
        "dataset": name,
        "uncovered": statement.uncovered,
        "epsilon": float(budget.epsilon_cap),
        "delta": float(budget.delta_cap),
        "adjacency": "add/remove",
        "adjacency_of": adjacency_of(statement.dataset.contract),
        "spent_epsilon": _float(budget.epsilon_spent),
        "remaining_epsilon": float(budget.epsilon_remaining),
        "pml": _float(budget.pml_cap),
        "spent_pml": float(budget.pml_spent),
        "period": (period := statement.period)
        and {
            "per": period.policy.per,
            "begins": str(period.begins),
            "ends": str(period.ends),
            "epsilon": float(period.policy.epsilon),
            "spent_epsilon": _float(period.epsilon_spent),
            "remaining_epsilon": float(period.epsilon_remaining),
            "charges": period.account.charges,
            "sentence": period.sentence(),
        },
        "filters": _filter_rows(budget),
        "months": _months(statement),
        "guarantees": list(statement.dataset.guarantees),
        "head": statement.head,
        "signing_key": next(map(key_fingerprint, ledger.public_keys(name)), None),
        "charges": [
            {
                "release": attempt.release,
                "attempt": attempt.id,
                "state": attempt.state,
                "guarantee": attempt.guarantee,
                "epsilon": None if attempt.guarantee == "lid" else float(attempt.epsilon),  # lid has none
                "takes": attempt.costs
                and {name: _float(of) for name, of in budget.portfolio.used(attempt.costs.filters).items()},
                "created": attempt.created,
                "updated": attempt.updated,
            }
            for attempt in statement.attempts
        ],
    }


def _months(statement: Statement) -> list[dict[str, Any]]:
    """What the charges of each month come to by themselves at the delta of the data set, as JSON objects."""
    by_month: dict[str, list[Charge]] = {}
    for attempt in statement.attempts:
        if attempt.state != "void":
            by_month.setdefault(attempt.created[:7], []).append(attempt)
    rows, portfolio = [], statement.dataset.portfolio
    for month, charges in sorted(by_month.items()):
        account = Account.of(portfolio, (None if one.costs is None else one.costs.to_text() for one in charges))
        rows.append({"month": month, "charges": len(charges), "epsilon": _float(account.epsilon(portfolio))})
    return rows


def _filter_rows(budget: Budget) -> list[dict[str, Any]]:
    """The filters of a data set with what is taken from each, as JSON objects; exact numbers are text."""
    return [
        {
            "filter": one.name,
            "delta": str(one.delta),
            "limit": str(one.limit),
            "taken": None if cost.amount is None else str(cost.amount),
            "failure_limit": str(one.failure),
            "failure_taken": str(cost.failure),
            "used": _float(one.used(cost)),
            "holds": one.holds(cost),
        }
        for one, cost in zip(budget.portfolio.filters, budget.account.taken, strict=True)
    ]


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def exposition(rows: Sequence[Mapping[str, Any]] | None) -> str:
    """What `ledger_rows` found, in the text format of Prometheus; None where the ledger could not be read.

    Nothing in it depends on a record beyond what the charges already cover. How long the stages of a release take does
    depend on the table, so there is no such metric.
    """
    found: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in _samples(rows):
        given = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        found[name].append(f"{name}{{{given}}} {value!r}" if given else f"{name} {value!r}")
    lines = []
    for name, samples in found.items():
        if samples:
            lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge", *samples]
    return "\n".join([*lines, ""])


def _samples(rows: Sequence[Mapping[str, Any]] | None) -> Iterable[Line]:
    yield "dpdist_ledger_up", {}, float(rows is not None)
    for row in rows or ():
        labels = {"dataset": row["dataset"]}
        yield "dpdist_dataset_damaged", labels, float("error" in row)
        if "error" not in row:
            yield from _budget(row, labels)
            yield from _attempts(row, labels)


def _budget(row: Mapping[str, Any], labels: Labels) -> Iterable[Line]:
    yield "dpdist_epsilon_cap", labels, row["epsilon"]
    yield "dpdist_epsilon_remaining", labels, row["remaining_epsilon"]
    yield "dpdist_delta_cap", labels, row["delta"]
    for one in row["filters"]:
        left = max(0.0, 1 - one["used"]) if one["holds"] else 0.0
        yield "dpdist_filter_left_ratio", {**labels, "filter": one["filter"]}, left
    if row["pml"] is not None:
        yield "dpdist_leakage_cap_nats", labels, row["pml"]
        yield "dpdist_leakage_remaining_nats", labels, max(0.0, row["pml"] - row["spent_pml"])
    period = row["period"]
    if period is not None:
        ends = datetime.combine(date.fromisoformat(period["ends"]), time(), UTC)
        per = {**labels, "per": period["per"]}
        yield "dpdist_period_epsilon_cap", per, period["epsilon"]
        yield "dpdist_period_epsilon_remaining", per, period["remaining_epsilon"]
        yield "dpdist_period_end_timestamp_seconds", per, ends.timestamp()


def _attempts(row: Mapping[str, Any], labels: Labels) -> Iterable[Line]:
    charges = row["charges"]
    counts = Counter((charge["guarantee"], charge["state"]) for charge in charges)
    for kind in sorted({*row["guarantees"], *(charge["guarantee"] for charge in charges)}):
        for state in STATES:
            yield "dpdist_attempts", {**labels, "guarantee": kind, "state": state}, float(counts[kind, state])
    begun = [charge["created"] for charge in charges if charge["state"] in OPEN]
    if begun:
        yield "dpdist_oldest_open_attempt_timestamp_seconds", labels, _seconds(min(begun))
    released = [charge["updated"] for charge in charges if charge["state"] == COMMITTED]
    if released:
        yield "dpdist_last_release_timestamp_seconds", labels, _seconds(max(released))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
