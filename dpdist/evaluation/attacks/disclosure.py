"""Location disclosure (LID): how often does the release place a person's numbers?

A released record discloses the location of an original one if some numeric column of the two differs by at most a share
eta of its range (2SS, Section 2). The adversary pairs every released record with the nearest original one, which is the
worst that a pairing can do; the same is done with as many held-out records, for what chance explains.
"""

from __future__ import annotations

import numpy as np

from dpdist.evaluation.attacks.records import Gower, column_names, drawn, size, span, take
from dpdist.evaluation.attacks.tables import EXCESS, AttackTables, Excess, leak_state
from dpdist.evaluation.page.sections import PageSection, PageTable, does_not_apply
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.schema import Schema

NAME, TITLE = "location", "Location disclosure"
ETAS = (0.001, 0.01, 0.05)
"""Shares of the range within which a number counts as located."""


def numeric(schema: Schema) -> list[int]:
    """Places of the attributes whose values are numbers: integers without bins, and numbers."""
    return [
        i
        for i, attribute in enumerate(schema.attributes)
        if attribute.kind in ("integer", "number") and (attribute.bins is None or attribute.kind == "number")
    ]


def located(released: Codes, originals: Codes, schema: Schema, places: list[int], eta: float) -> Counts:
    """In how many of the numeric columns at `places` each released record is within eta of its original:
    int64[records]. Records are paired; eta is a share of the width of a column's domain.
    """
    near = [
        np.abs(released[i].astype(np.float64) - originals[i].astype(np.float64))
        <= eta * span(schema.attributes[i], released[i]) * (1 + 1e-12)
        for i in places
    ]
    return np.asarray(np.sum(near, axis=0))


def section(tables: AttackTables) -> PageSection:
    """Pair released records with the nearest training, and hold-out, records and compare their numbers."""
    schema, places, both = tables.schema, numeric(tables.schema), tables.comparable
    if not places:
        return does_not_apply(NAME, TITLE, "no attribute is a number.")
    if both is None:
        return tables.not_comparable(NAME, TITLE)
    rng = tables.rng(9)
    records = drawn(tables.released, tables.sizes.searched, rng)
    count, trials = min(*map(size, both), tables.sizes.compared), size(records)
    gower, pairs = Gower(schema), []
    for table in both:
        originals = drawn(table, count, rng)
        pairs.append(take(originals, gower.nearest(records, originals, places)[1]))
    kinds = {"some column": 1, "all columns": len(places)} if len(places) > 1 else {"some column": 1}
    excess: dict[tuple[float, str], Excess] = {}
    for eta in ETAS:
        within = [located(records, originals, schema, places, eta) for originals in pairs]
        for what, least in kinds.items():
            hits = [(int(np.count_nonzero(number >= least)), trials) for number in within]
            excess[eta, what] = tables.excess(*hits, among=2 * len(ETAS))
    table_ = PageTable(
        "Released records that locate the nearest original",
        ("within", "in", *EXCESS),
        tuple((*key, *one.cells) for key, one in excess.items()),
        f"{trials:,} released records, {count:,} of each table. Within: a share of the range of a column. Columns: "
        f"{column_names(schema, places)}. {tables.together}",
    )
    named = {f"{what} within {eta:g}": one.more for (eta, what), one in excess.items()}
    worst = max(named, key=lambda what: named[what].low)
    more = named[worst]
    verdict = "Released records lie no nearer to training records than to records never seen."
    if more.low > 0:
        verdict = (
            f"Released records lie nearer to training records than chance explains: {worst} of the range "
            f"{more.value:.1%} more often than to records never seen ({more.low:.1%} to {more.high:.1%})."
        )
    figures = {
        "records": trials,
        "columns": [schema.names[i] for i in places],
        "excess": {what: interval.to_json() for what, interval in named.items()},
    }
    return PageSection(NAME, TITLE, verdict, leak_state(more.low, severe=0.05), (table_,), figures=figures)
