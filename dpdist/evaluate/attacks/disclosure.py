"""Location disclosure (LID): how often does the release place a person's numbers?

A released record discloses the location of an original one if some numeric column of the two differs by at most a share
eta of its range (2SS, Section 2). The adversary pairs every released record with the nearest original one, which is the
worst that a pairing can do; the same is done with as many held-out records, for what chance explains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluate.attacks.intervals import difference, proportion
from dpdist.evaluate.attacks.neighbours import Gower
from dpdist.evaluate.attacks.records import Columns, column_names, drawn, size, span, take
from dpdist.evaluate.attacks.sizes import Sizes
from dpdist.evaluate.page.sections import Section, Table, does_not_apply
from dpdist.schema.schema import Schema

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


def located(released: Columns, originals: Columns, schema: Schema, places: list[int], eta: float) -> NDArray[np.int64]:
    """In how many numeric columns each released record is within eta of its original.

    Parameters
    ----------
    released, originals : Columns
        Paired, record by record.
    schema : Schema
    places : list of int
        The numeric columns.
    eta : float
        Share of the width of a column's domain.

    Returns
    -------
    ndarray of int64, shape (records,)
    """
    near = [
        np.abs(released[i].astype(np.float64) - originals[i].astype(np.float64))
        <= eta * span(schema.attributes[i], released[i]) * (1 + 1e-12)
        for i in places
    ]
    return np.asarray(np.sum(near, axis=0))


def section(
    released: Columns, training: Columns, holdout: Columns | None, schema: Schema, *, seed: int, sizes: Sizes
) -> Section:
    """Pair released records with the nearest training, and hold-out, records and compare their numbers."""
    places = numeric(schema)
    if not places:
        return does_not_apply(NAME, TITLE, "no attribute is a number.")
    if holdout is None or min(size(released), size(training), size(holdout)) < sizes.least:
        return does_not_apply(
            NAME, TITLE, f"it needs {sizes.least} records in the release, its training and a hold-out."
        )
    rng = np.random.default_rng([seed, 9])
    records = drawn(released, sizes.searched, rng)
    count, trials = min(size(training), size(holdout), sizes.compared), size(records)
    gower, pairs = Gower(schema), {}
    for side, table in (("training", training), ("hold-out", holdout)):
        originals = drawn(table, count, rng)
        pairs[side] = take(originals, gower.nearest(records, originals, places)[1])
    together = 1 - (1 - sizes.confidence) / (2 * len(ETAS))
    rows, excess = [], {}
    for eta in ETAS:
        within = {side: located(records, originals, schema, places, eta) for side, originals in pairs.items()}
        for what, least in (("some column", 1), ("all columns", len(places))):
            hits = [(int(np.count_nonzero(number >= least)), trials) for number in within.values()]
            shares = [proportion(*hit, confidence=sizes.confidence) for hit in hits]
            more = excess[f"{what} within {eta:g}"] = difference(*hits, confidence=together)
            rows.append(
                (eta, what, *(x for s in shares for x in (s.value, s.low, s.high)), more.value, more.low, more.high)
            )
            if len(places) == 1:
                break
    table_ = Table(
        "Released records that locate the nearest original",
        ("within", "in", "training", "low", "high", "hold-out", "low ", "high ", "excess", "low  ", "high  "),
        tuple(rows),
        f"{trials:,} released records, {count:,} of each table. Within: a share of the range of a column. Columns: "
        f"{column_names(schema, places)}. Excesses hold together with {sizes.confidence:.0%} confidence.",
    )
    worst = max(excess, key=lambda what: excess[what].low)
    more = excess[worst]
    if more.low > 0:
        verdict = (
            f"Released records lie nearer to training records than chance explains: {worst} of the range "
            f"{more.value:.1%} more "
            f"often than to records never seen ({more.low:.1%} to {more.high:.1%})."
        )
    else:
        verdict = "Released records lie no nearer to training records than to records never seen."
    figures = {
        "records": trials,
        "columns": [schema.names[i] for i in places],
        "excess": {what: interval.to_json() for what, interval in excess.items()},
    }
    state = "good" if more.low <= 0 else "bad" if more.low > 0.05 else "fair"
    return Section(NAME, TITLE, verdict, state, (table_,), figures=figures)  # type: ignore[arg-type]
