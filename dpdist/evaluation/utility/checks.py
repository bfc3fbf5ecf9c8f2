"""What is checked of the inputs and of a release: the hold-out, the rules of the schema, the intervals.

A record that is drawn from the same population is unlike all records of the table as often as a record of the table is
unlike all others. In a hold-out that holds records of the table fewer are.
"""

from __future__ import annotations

from functools import partial
from operator import add

import numpy as np

from dpdist.data.operators import Operator
from dpdist.data.released import ReleasedTable
from dpdist.evaluation.attacks.intervals import proportion
from dpdist.evaluation.page.page import PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.records import Agreement, drawn, occurrences, size
from dpdist.inference.coverage import coverage_of
from dpdist.inference.published import Published
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.rules import Rules

_GOOD, _FAIR = 0.92, 0.85  # shares of covered estimates

MARGIN = 0.05  # share of a hold-out that may be of the table before it is not used
_CONFIDENCE = 0.9999
_LARGEST = 200_000


def holdout_section(training: Codes, holdout: Codes, *, seed: int) -> PageSection | None:
    """What is wrong with a hold-out, on samples of large tables; None if nothing is."""
    rng = np.random.default_rng([seed, 11])
    agreement = Agreement(len(training), seed=seed)
    keys = agreement.keys(training)
    ours, theirs = (agreement.keys(drawn(table, _LARGEST, rng)) for table in (training, holdout))
    if not len(ours) or not len(theirs):
        return None
    own = int(np.count_nonzero(occurrences(ours, keys) == 1)), len(ours)
    fresh = int(np.count_nonzero(occurrences(theirs, keys) == 0)), len(theirs)
    most, least = proportion(*fresh, confidence=_CONFIDENCE).high, proportion(*own, confidence=_CONFIDENCE).low
    if most >= (1 - MARGIN) * least:
        return None
    rates = fresh[0] / fresh[1], own[0] / own[1]
    verdict = (
        f"Only {rates[0]:.1%} of the held-out records are unlike every record of the real table; of that table's own "
        f"records {rates[1]:.1%} are unlike every other one. So the hold-out holds records that the release was made "
        "from, or is of another population. It is not used, for what is said of it would mislead. Give a random part "
        "of the same table that the release was not made from."
    )
    table = PageTable(
        "Records unlike every other record of the real table",
        ("records", "unlike", "of", "share"),
        (("hold-out", *fresh, rates[0]), ("real", *own, rates[1])),
        f"{size(training):,} real records were searched.",
    )
    figures = {"unlike": {"hold-out": rates[0], "real": rates[1]}}
    return PageSection("holdout", "The hold-out", verdict, "bad", (table,), figures=figures)


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


def coverage_section(real: Codes, released: ReleasedTable, *, known: bool) -> list[PageSection]:
    """The section on a release with measured accuracy; `known` says that `real` are all real records."""
    release = Published(released.store, released.manifest)
    if release.errors is None:
        return []
    if not known:
        return [does_not_apply("coverage", "Intervals", "the real table was sampled, and its counts are not known.")]
    found = coverage_of(real, release)
    least = min(found, key=lambda one: one.coverage)
    state: State = "good" if least.coverage >= _GOOD else "fair" if least.coverage >= _FAIR else "bad"
    table = PageTable(
        title="Nominal 95 % intervals",
        columns=("of", "number", "held the truth", "naive intervals", "length"),
        rows=tuple((one.of, one.number, one.coverage, one.naive, one.width) for one in found),
        note="Cells above 1 % of the records. Naive intervals take the released records for a simple random sample. "
        "Lengths are medians, in lengths of the intervals of a simple random sample as large as the table.",
    )
    verdict = (
        f"95 % intervals of the release held the truth in {100 * least.coverage:.0f} % of the estimates or more "
        f"(least: {least.of}); naive ones in {100 * min(one.naive for one in found):.0f} %."
    )
    figures = {one.of: {"coverage": one.coverage, "naive": one.naive, "width": one.width} for one in found}
    return [PageSection("coverage", "Intervals", verdict, state, (table,), figures=figures)]
