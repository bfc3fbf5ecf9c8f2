"""Linkage: does the release tell that two halves of a record belong to the same person?

The adversary holds two files about the same people, with different attributes, and links them through the release: a
target is linked when the released record nearest to its first half is also the one nearest to its second half [1]_. Any
good release links more than chance, because the halves depend on each other; it leaks if it links the records it was
made from better than records that were held out.

References
----------
.. [1] Giomi, Boenisch, Wehmeyer, Tasnádi, *A Unified Framework for Quantifying Privacy Risk in Synthetic Data*, 2023,
   Section 4 (linkability).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluation.attacks.records import Gower, blocks, column_names, drawn, is_continuous, size
from dpdist.evaluation.attacks.tables import EXCESS, AttackTables, leak_state
from dpdist.evaluation.page.sections import PageSection, PageTable, does_not_apply
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

NAME, TITLE = "linkage", "Linkage"
NEAREST = (1, 5, 10)
"""Released records that the adversary looks at in each half."""


def linked(
    targets: Codes,
    released: Codes,
    schema: Schema,
    split: tuple[list[int], list[int]],
    rng: np.random.Generator,
    nearest: tuple[int, ...] = NEAREST,
) -> NDArray[np.bool_]:
    """Whether some released record is among the nearest to both halves of each target: bool[len(nearest), targets].

    `split` gives the places of the attributes of each half, `nearest` numbers of nearest records. Equally near records
    are in a random order, another one for each half, so that nothing is linked by the order of the release.
    """
    gower, count = Gower(schema), size(released)
    most = min(max(nearest), count)
    result = np.zeros((len(nearest), size(targets)), bool)
    for rows, block in blocks(targets, count, arrays=2):
        found = []
        for places in split:
            distances = gower.total(block, released, places)
            smallest = 1e-6 if any(is_continuous(released[i]) for i in places) else 1e-4  # of differences that matter
            distances += rng.random(count, np.float32) * np.float32(smallest)
            few = np.argpartition(distances, most - 1, axis=1)[:, :most]
            order = np.take_along_axis(distances, few, axis=1).argsort(axis=1)
            found.append(np.take_along_axis(few, order, axis=1))
        same = found[0][:, :, None] == found[1][:, None, :]
        for place, number in enumerate(nearest):
            result[place, rows] = same[:, :number, :number].any(axis=(1, 2))
    return result


def section(tables: AttackTables) -> PageSection:
    """Link training records and, as the baseline, held-out ones."""
    schema, both = tables.schema, tables.comparable
    m = len(schema.attributes)
    if m < 2:
        return does_not_apply(NAME, TITLE, "a record of one attribute has no halves.")
    if both is None:
        return tables.not_comparable(NAME, TITLE)
    rng = tables.rng(7)
    order = rng.permutation(m).tolist()
    split = sorted(order[: m // 2]), sorted(order[m // 2 :])
    count = min(*map(size, both), tables.sizes.linked)
    records = drawn(tables.released, tables.sizes.compared, rng)
    hits = [linked(drawn(side, count, rng), records, schema, split, rng).sum(axis=1).tolist() for side in both]
    excess = {
        number: tables.excess((ours, count), (theirs, count), among=len(NEAREST))
        for number, ours, theirs in zip(NEAREST, *hits, strict=True)
    }
    table = PageTable(
        "Halves of a record linked through the release",
        ("nearest", *EXCESS),
        tuple((number, *one.cells) for number, one in excess.items()),
        f"{count:,} targets of each table, {size(records):,} released records. Halves: "
        f"{column_names(schema, split[0])}; {column_names(schema, split[1])}. {tables.together}",
    )
    worst, first = max((one.more for one in excess.values()), key=lambda more: more.low), excess[NEAREST[0]].more
    verdict = (
        f"The release links its training records no better than records it never saw "
        f"(excess {first.value:.2%}, {first.low:.2%} to {first.high:.2%})."
    )
    if worst.low > 0:
        verdict = (
            f"The release links the records it was made from better than others: {worst.value:.2%} more often "
            f"({worst.low:.2%} to {worst.high:.2%})."
        )
    figures = {
        "targets": count,
        "split": [[schema.names[i] for i in half] for half in split],
        "excess": {str(number): one.more.to_json() for number, one in excess.items()},
        "linked": {str(n): {"training": a, "hold-out": b} for n, a, b in zip(NEAREST, *hits, strict=True)},
    }
    return PageSection(NAME, TITLE, verdict, leak_state(worst.low), (table,), figures=figures)
