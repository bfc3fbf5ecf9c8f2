"""How many records break the rules of the schema: no released one does, and the real ones are counted."""

from __future__ import annotations

from functools import partial
from operator import add

import numpy as np

from dpdist.data.operators import Operator
from dpdist.evaluation.page.sections import PageSection, PageTable, State
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.rules import Rules


def broken_operator(rules: Rules) -> Operator:
    """Counts of the records that break each rule."""
    return Operator(name="broken-rules", chunk=partial(_broken, rules=rules), combine=add)


def _broken(codes: Codes, rules: Rules) -> Counts:
    return np.array([np.count_nonzero(rule.broken_by(codes)) for rule in rules], np.int64)


def rules_section(rules: Rules, released: Counts, real: Counts, *, rows: tuple[int, int]) -> PageSection:
    """Records that break each rule; `rows` are the released records and the rows of the real table."""
    counted = list(zip(rules, released.tolist(), real.tolist(), strict=True))
    kept, broken = not released.any(), sum(1 for number in real.tolist() if number)
    verdict = (
        "No released record breaks a rule of the schema." if kept else "Released records break rules of the schema."
    )
    if broken:
        verdict += f" Records of the real table break {broken} of the {len(rules)} rules."
    table = PageTable(
        "Records that break a rule",
        ("rule", "released", "real"),
        tuple((rule.rule.text, ours, theirs) for rule, ours, theirs in counted),
        f"Of {rows[0]:,} released records and {rows[1]:,} rows of the real table.",
    )
    figures = {rule.rule.text: {"released": ours, "real": theirs} for rule, ours, theirs in counted}
    state: State = "bad" if not kept else "fair" if broken else "good"
    return PageSection("rules", "Rules", verdict, state, (table,), figures=figures)
