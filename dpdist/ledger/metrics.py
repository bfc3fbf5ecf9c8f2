"""The ledger as metrics in the text format of Prometheus: what is left, what is open, what was released.

All of it is in the ledger, so nothing depends on a record beyond what the charges already cover. How long the stages of
a release take does depend on the table, so there is no such metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any, Final

from dpdist.ledger.tables import COMMITTED, OPEN, STATES

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


def exposition(rows: Sequence[Mapping[str, Any]] | None) -> str:
    """The text of what `dpdist.ledger.statement.ledger_rows` found; None where the ledger could not be read."""
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
