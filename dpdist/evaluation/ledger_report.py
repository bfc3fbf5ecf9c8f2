"""The page of a ledger: what was spent on each data set, when, and under which guarantee.

One HTML file that works offline, from the ledger alone: no record and no release is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, Final

from dpdist.errors import SpecError
from dpdist.evaluation.page.page import Cell, PageAbout, PageSection, PageTable, State, render
from dpdist.privacy.formatting import downwards, number_of, upwards

GUARANTEES: Final = {
    "dp": "differential privacy",
    "dp-declared": "differential privacy, if the model is as declared",
    "pd-per-record": "differential privacy of the model, plausible deniability of each record",
    "pml": "pointwise maximal leakage",
    "lid": "no differential privacy",
}
STATES: Final = {
    "reserved": "begun",
    "drawing": "open: noise may be drawn",
    "committed": "released",
    "abandoned": "given up, spent",
    "void": "given back",
}
LOW: Final = 0.2  # share of a budget below which the page says that it is low, as the alarm does
_OPEN: Final = ("reserved", "drawing")


def ledger_page(rows: Sequence[Mapping[str, Any]], *, ledger: str, at: str) -> str:
    """The page of what `dpdist.ledger.statement.ledger_rows` found.
    Raises SpecError: Jinja is not installed.

    Parameters
    ----------
    ledger : str
        The address, without credentials.
    at : str
        When the ledger was read, ISO 8601 in UTC.
    """
    if find_spec("jinja2") is None:
        raise SpecError("the page of a ledger needs jinja2: pip install 'dpdist[evaluate]'")
    charges = [charge for row in rows for charge in row.get("charges", ())]
    facts = (
        ("read", _moment(at)),
        ("data sets", str(len(rows))),
        ("releases", str(sum(charge["state"] == "committed" for charge in charges))),
        ("open attempts", str(sum(charge["state"] in _OPEN for charge in charges))),
    )
    about = PageAbout(
        heading="Ledger",
        name=ledger,
        facts=facts,
        guarantees=(),
        summary="What is left of the budget of each data set. Every epsilon is at the delta and for the neighbouring "
        "tables that stand beside it.",
        confidential=False,
        banner="For those who decide on releases. No record was read for this page.",
        footer="Epsilon alone is that of a release by itself. Together releases take less than its sum: the filters "
        "of the data set decide. Which person began an attempt is not in the ledger.",
    )
    return render(about, [_section(number, row) for number, row in enumerate(rows, start=1)])


def _section(number: int, row: Mapping[str, Any]) -> PageSection:
    name, title = f"dataset-{number}", f"Data set {row['dataset']}"
    if "error" in row:
        return PageSection(name, title, row["error"], "bad")
    spent = "more than the cap" if row["spent_epsilon"] is None else upwards(row["spent_epsilon"])
    said = [
        *row["uncovered"],
        f"epsilon {spent} of {row['epsilon']:g} spent at delta {upwards(row['delta'])}, {row['adjacency_of']}",
    ]
    if row["pml"] is not None:
        said.append(f"leakage {upwards(row['spent_pml'])} of {row['pml']:g} nats spent")
    if row["period"] is not None:
        said.append(row["period"]["sentence"])
    still_open = sum(charge["state"] in _OPEN for charge in row["charges"])
    if still_open:
        said.append(f"{number_of(still_open, 'attempt')} open: resume or give up")
    if left_of(row) < LOW:
        said.append(f"{downwards(round(100 * left_of(row), 4))} % of the budget left")
    verdict = "; ".join(said)
    return PageSection(name, title, f"{verdict[0].upper()}{verdict[1:]}.", _state(row), (_charges(row), *_more(row)))


def _state(row: Mapping[str, Any]) -> State:
    holds = any(one["holds"] for one in row["filters"])
    if not holds and not any(charge["state"] == "committed" for charge in row["charges"]):
        return "bad"
    is_open = any(charge["state"] in _OPEN for charge in row["charges"])
    return "fair" if is_open or left_of(row) < LOW or row["uncovered"] else "info"


def left_of(row: Mapping[str, Any]) -> float:
    """The share of its limits that the filter has left which has most left: while there is one, a release may fit."""
    return max((1 - one["used"] if one["holds"] else 0.0 for one in row["filters"]), default=0.0)


def _charges(row: Mapping[str, Any]) -> PageTable:
    rows: list[tuple[Cell, ...]] = []
    for charge in reversed(row["charges"]):
        shares = [share for share in (charge["takes"] or {}).values() if share is not None]
        unit = " nats" if charge["guarantee"] == "pml" and row["pml"] is not None else ""
        rows.append(
            (
                charge["release"],
                STATES.get(charge["state"], charge["state"]),
                GUARANTEES.get(charge["guarantee"], charge["guarantee"]),
                None if charge["epsilon"] is None else f"{upwards(charge['epsilon'])}{unit}",
                f"{upwards(100 * min(shares))} %" if shares else None,
                _moment(charge["created"]),
                _moment(charge["updated"]),
                charge["attempt"][:8],
            )
        )
    columns = ("release", "state", "guarantee", "epsilon alone", "least share", "begun (UTC)", "last (UTC)", "attempt")
    note = (
        "Newest first. The least share is that of the filter from which the release takes least; one filter must hold."
    )
    return PageTable("What was spent", columns, tuple(rows), note)


def _more(row: Mapping[str, Any]) -> list[PageTable]:
    months = tuple(
        (one["month"], one["charges"], "more than the cap" if one["epsilon"] is None else upwards(one["epsilon"]))
        for one in reversed(row["months"])
    )
    left = tuple(
        (
            one["filter"],
            "none" if not one["holds"] else f"{downwards(100 * (1 - one['used']))} %",
            upwards(Fraction(one["delta"])),
        )
        for one in row["filters"]
    )
    facts: list[tuple[Cell, ...]] = [
        ("guarantees allowed", ", ".join(GUARANTEES.get(kind, kind) for kind in row["guarantees"])),
        ("signed by", row["signing_key"] or "nobody: there is no signing identity"),
        ("head of the journal", row["head"]),
    ]
    return [
        PageTable(
            "By month", ("month", "charges", "epsilon together"), months, "By the day on which a charge was reserved."
        ),
        PageTable("Filters", ("filter", "left", "delta"), left, "The ledger admits a release while one of them holds."),
        PageTable(
            "Kept",
            ("what", "value"),
            tuple(facts),
            "Keep the head elsewhere: dpdist ledger verify --receipt compares it.",
        ),
    ]


def _moment(text: str) -> str:
    return text[:19].replace("T", " ")
