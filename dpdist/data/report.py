"""Counts of the values that the policies of a schema apply to (confidential), and the refusal, which shows no count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import ColumnMismatch, OutOfDomain
from dpdist.spec.schema import Schema
from dpdist.spec.unit import WeightSpec

MISSING, BELOW, ABOVE, UNKNOWN, MISTYPED = range(5)
"""Defects of a value: absent, a number below or above the domain, otherwise outside it, or of the wrong type."""

DEFECTS = 5
OUTSIDE = [BELOW, ABOVE, UNKNOWN]


@dataclass(frozen=True, eq=False, repr=False)
class RowReport:
    """Counts of defects in a set of rows; confidential, so ``repr`` hides it. ``a + b`` is the report of the union."""

    rows: int  # rows read
    kept: int  # rows kept
    # int64[attributes, 5]: missing values, numbers below and above the domain, other values outside it, values of the
    # wrong type
    counts: NDArray[np.int64]
    broken: NDArray[np.int64]  # int64[rules]: rows that break each rule with values that no policy drops
    nameless: int = 0  # rows without the id of their unit, which are not kept
    beyond: int = 0  # rows that are not kept because their unit has too many
    frozen: int = 0  # rows of a panel that count with earlier values, because their unit has changed too often
    # of two joined tables: records whose parent has no row, parents without records, rows beyond one of a parent
    orphans: int = 0
    childless: int = 0
    repeated: int = 0
    # of a table with weights: rows without one of 0 or more, which are not used, and above the largest; rows that the
    # policies keep and that count nothing
    weightless: int = 0
    heavy: int = 0
    uncounted: int = 0

    def __repr__(self) -> str:
        return "RowReport(<counts hidden>)"

    def __add__(self, other: RowReport) -> RowReport:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return RowReport(*(ours + theirs for ours, theirs in pairs))

    @classmethod
    def empty(cls, schema: Schema, rows: int = 0) -> RowReport:
        """The report of this many rows that meet no policy."""
        defects, rules = (len(schema.attributes), DEFECTS), len(schema.rules)
        return cls(rows, rows, np.zeros(defects, np.int64), np.zeros(rules, np.int64))

    def confidential(self, schema: Schema) -> dict[str, Any]:
        """The true counts, for the operator's confidential record only."""
        found: dict[str, Any] = {"rows_read": self.rows, "rows_kept": self.kept}
        found |= {name: count for field, name in _COUNTED.items() if (count := getattr(self, field))}
        found["columns"] = {
            name: {
                "missing": int(counts[MISSING]),
                "out_of_domain": int(counts[OUTSIDE].sum()),
                "wrong_type": int(counts[MISTYPED]),
            }
            for name, counts in zip(schema.names, self.counts, strict=True)
            if counts.any()
        }
        if schema.rules:
            found["rules"] = {rule.text: int(n) for rule, n in zip(schema.rules, self.broken, strict=True) if n}
        return found


_COUNTED = {
    "nameless": "rows_without_id",
    "beyond": "rows_beyond_bound",
    "frozen": "rows_with_earlier_values",
    "orphans": "rows_without_parent",
    "childless": "parents_without_rows",
    "repeated": "repeated_parents",
    "weightless": "rows_without_weight",
    "heavy": "rows_above_largest_weight",
    "uncounted": "rows_that_count_nothing",
}


def check(report: RowReport, schema: Schema, *, rules: bool = True) -> None:
    """Refuse a table whose values the policies do not admit; called once, after a whole pass.

    A table whose records the policies all drop has no records: it is used like any other, because who chooses the
    policies could ask for a person otherwise. Raises ColumnMismatch: an integer column holds something that is no
    integer, or a number column something that is no number; OutOfDomain: broken rules, missing or out-of-domain values
    where the policy is ``refuse`` (or ``clip`` and the value has no order). Without `rules` it
    leaves these to the caller.
    """
    counted = list(zip(schema.attributes, report.counts, strict=True))
    kinds = (("integer", "an", ", or declare `kind: number`"), ("number", "a", ""))
    for kind, article, number in (*kinds, *((kind, "a", ", or say its `format`") for kind in ("date", "datetime"))):
        known = (kind,) if kind != "integer" else (kind, "categorical", "ordinal")
        mistyped = [a.name for a, counts in counted if counts[MISTYPED] and a.kind in known]
        if mistyped:
            raise ColumnMismatch(
                f"{_columns(mistyped)}: values that are no {kind}s in {article} {kind} attribute; clean them, or list "
                f"the texts that mean missing under `missing_values`{number}"
            )
    outside = "values outside the declared domain"
    found = [
        (
            [a.name for a, counts in counted if a.missing == "refuse" and counts[MISSING]],
            "missing values, and the policy is `missing: refuse`; declare `drop` or a category",
        ),
        (
            [a.name for a, counts in counted if a.out_of_domain == "refuse" and counts[OUTSIDE].any()],
            f"{outside}, and the policy is `out_of_domain: refuse`; correct the domain from public knowledge, add "
            "`aliases` for other spellings, or declare `drop`, `clip` or a category",
        ),
        (
            [a.name for a, counts in counted if a.out_of_domain == "clip" and counts[UNKNOWN]],
            f"{outside} that lie neither below nor above it, so `out_of_domain: clip` does not apply; declare `drop` "
            "or a category",
        ),
    ]
    problems = [f"{_columns(names)}: {problem}" for names, problem in found if names]
    refused = [
        f"rules.{place} ({rule.text})"
        for place, (rule, count) in enumerate(zip(schema.rules, report.broken, strict=True))
        if rules and rule.broken == "refuse" and count
    ]
    if refused:
        problems.append(
            f"{'; '.join(refused)}: records break the rule, and the policy is `broken: refuse`; correct "
            "the rules from public knowledge, or declare `broken: drop`"
        )
    if problems:
        raise OutOfDomain("\n".join(problems))


def check_weights(report: RowReport, weight: WeightSpec) -> None:
    """Refuse a table whose weights are not as declared. Raises OutOfDomain."""
    problems = []
    if report.weightless and weight.missing == "refuse":
        problems.append(
            f"column {weight.by!r}: records without a weight of 0 or more, and the policy is `missing: refuse`; "
            "correct them, or leave them out with weight.missing: drop"
        )
    if report.heavy and weight.above == "refuse":
        problems.append(
            f"column {weight.by!r}: weights above {weight.at_most:,} (weight.at_most), and the policy is "
            "`above: refuse`; correct the bound from public knowledge, or count them as the bound with "
            "weight.above: clip"
        )
    if problems:
        raise OutOfDomain("\n".join(problems))


def _columns(names: list[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
