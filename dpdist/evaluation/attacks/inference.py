"""Attribute inference: who knows all of a record but one value, does the release tell them the value?

A useful release predicts values from others: that is knowledge about the population, and it works just as well on
people who are not in the table. What it predicts *better* for the records it was made from is a leak [1]_. The
adversary guesses the most frequent value among released records that agree with the target on everything else and,
where there is none, the value of the nearest one.

References
----------
.. [1] Giomi et al., *A Unified Framework for Quantifying Privacy Risk in Synthetic Data*, 2023, Section 4
   (inference); Houssiau et al., *TAPAS: a Toolbox for Adversarial Privacy Auditing of Synthetic Data*, 2022.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluation.attacks.intervals import Estimate
from dpdist.evaluation.attacks.records import Agreement, Gower, Keys, blocks, coarse, drawn, size, stacked, summed, take
from dpdist.evaluation.attacks.tables import EXCESS, AttackTables, leak_state
from dpdist.evaluation.page.sections import Cell, PageSection, PageTable, does_not_apply
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.schema import Schema

NAME, TITLE = "inference", "Attribute inference"


def agreeing_guesses(targets: Codes, released: Codes, agreement: Agreement) -> list[Counts]:
    """For each attribute, int64[targets]: its most frequent code among records that agree on all others, or -1 where
    none does. The codes are coarse.
    """
    ours, theirs = agreement.words(targets), agreement.words(released)
    first, second = summed(ours), summed(theirs)
    return [_modes(first - a, second - b, column) for a, b, column in zip(ours, theirs, released, strict=True)]


def _modes(targets: Keys, keys: Keys, values: NDArray[np.unsignedinteger]) -> Counts:
    """The most frequent value at each target's key (the smallest of several), or -1."""
    wanted = np.isin(keys, targets)
    keys, codes = keys[wanted], values[wanted].astype(np.int64)
    result = np.full(len(targets), -1, np.int64)
    if not len(keys):
        return result
    order = np.lexsort((codes, keys))
    keys, codes = keys[order], codes[order]
    starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]) | (codes[1:] != codes[:-1])])
    counts = np.diff(np.r_[starts, len(keys)])
    best = np.lexsort((codes[starts], -counts, keys[starts]))
    groups = keys[starts][best]
    first = np.r_[True, groups[1:] != groups[:-1]]
    where = np.searchsorted(groups[first], targets)
    found = (where < first.sum()) & (groups[first][np.minimum(where, first.sum() - 1)] == targets)
    result[found] = codes[starts][best][first][where[found]]
    return result


def nearest_guesses(targets: Codes, released: Codes, schema: Schema) -> list[Counts]:
    """For each attribute: the place of the released record that is nearest on all others."""
    gower, m = Gower(schema), len(targets)
    result = [np.empty(size(targets), np.int64) for _ in range(m)]
    for rows, block in blocks(targets, size(released), arrays=m + 2):
        parts = [gower.part(place, block, released) for place in range(m)]
        total = np.sum(parts, axis=0)
        for place, part in enumerate(parts):
            result[place][rows] = (total - part).argmin(axis=1)
    return result


def section(tables: AttackTables) -> PageSection:
    """Guess each attribute in turn, of training records and, as the baseline, of held-out ones."""
    schema, sizes, both = tables.schema, tables.sizes, tables.comparable
    m = len(schema.attributes)
    if m < 2:
        return does_not_apply(NAME, TITLE, "a record of one attribute leaves nothing to infer from.")
    if both is None:
        return tables.not_comparable(NAME, TITLE)
    rng, count = tables.rng(8), min(*map(size, both), sizes.searched)
    targets = stacked(*(drawn(table, count, rng) for table in both))
    records = drawn(tables.released, sizes.compared, rng)
    known, public = coarse(targets, schema), coarse(tables.released, schema)
    exact = agreeing_guesses(known, public, Agreement(m, seed=tables.seed))
    nearest = nearest_guesses(targets, records, schema)
    fallback = coarse(records, schema)
    rows: list[tuple[Cell, ...]] = []
    excess: dict[str, Estimate] = {}
    for place, name in enumerate(schema.names):
        guess = np.where(exact[place] >= 0, exact[place], take(fallback, nearest[place])[place])
        right = guess == known[place]
        found = tables.excess((int(right[:count].sum()), count), (int(right[count:].sum()), count), among=m)
        rows.append((name, float(np.bincount(public[place]).max() / size(public)), *found.cells))
        excess[name] = found.more
    cut = " Numbers are guessed to one part in 32 of their bounds." if any(c.dtype.kind == "f" for c in targets) else ""
    table = PageTable(
        "Values guessed right",
        ("attribute", "most frequent", *EXCESS),
        tuple(rows),
        f"{count:,} targets of each table; agreeing records are looked for among {size(public):,} released ones, the "
        f"nearest among {size(records):,}.{cut} {tables.together}",
    )
    worst = max(excess, key=lambda name: excess[name].low)
    more = excess[worst]
    verdict = "No attribute of the training records is guessed better than of records the release never saw."
    if more.low > 0:
        verdict = (
            f"The release gives away values of the records it was made from: {worst} is guessed right {more.value:.1%} "
            f"more often than for others ({more.low:.1%} to {more.high:.1%})."
        )
    figures = {"targets": count, "excess": {name: interval.to_json() for name, interval in excess.items()}}
    return PageSection(NAME, TITLE, verdict, leak_state(more.low), (table,), figures=figures)
