"""Attacks that count how much more often they succeed on records that the release was made from than on others.

- *Linkage*: a target is linked when the released record nearest to the first half of its attributes is also the one
  nearest to the second half ([1]_, linkability).
- *Attribute inference*: who knows all of a record but one value guesses the most frequent value among released records
  that agree with the target on everything else and, where none exists, the value of the nearest one [1]_, [2]_.
- *Location disclosure* (LID): a released record discloses the location of an original one if some numeric column of
  the two differs by at most a share eta of its range (2SS, Section 2). Every released record is paired with the
  nearest original one, which is the worst that a pairing can do.

References
----------
.. [1] Giomi, Boenisch, Wehmeyer, Tasnádi, *A Unified Framework for Quantifying Privacy Risk in Synthetic Data*, 2023,
   Section 4.
.. [2] Houssiau et al., *TAPAS: a Toolbox for Adversarial Privacy Auditing of Synthetic Data*, 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluation.attacks.intervals import EXCESS, AttackTables, Estimate, Excess, leak_state
from dpdist.evaluation.page.page import Cell, PageSection, PageTable, does_not_apply
from dpdist.evaluation.records import (
    Agreement,
    Gower,
    Keys,
    blocks,
    coarse,
    column_names,
    drawn,
    is_continuous,
    size,
    span,
    stacked,
    summed,
    take,
)
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.schema import Schema

NEAREST = (1, 5, 10)  # released records that the adversary of linkage looks at in each half
ETAS = (0.001, 0.01, 0.05)  # shares of the range within which a number counts as located


def linked(
    targets: Codes,
    released: Codes,
    schema: Schema,
    split: tuple[list[int], list[int]],
    rng: np.random.Generator,
    nearest: tuple[int, ...] = NEAREST,
) -> NDArray[np.bool_]:
    """Whether some released record is among the nearest to both halves of each target: bool[len(nearest), targets].

    `split` gives the places of the attributes of each half. Equally near records are in a random order.
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


def linkage(tables: AttackTables) -> PageSection:
    """Link halves of training records and, as the baseline, of held-out ones."""
    name, title, schema, both = "linkage", "Linkage", tables.schema, tables.comparable
    m = len(schema.attributes)
    if m < 2:
        return does_not_apply(name, title, "a record of one attribute has no halves.")
    if both is None:
        return tables.not_comparable(name, title)
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
    first = excess[NEAREST[0]].more
    return _section(
        (name, title, table),
        {str(number): one.more for number, one in excess.items()},
        "The release links its training records no better than records it never saw "
        f"(excess {first.value:.2%}, {first.low:.2%} to {first.high:.2%}).",
        lambda _, more: (
            f"The release links the records it was made from better than others: {more.value:.2%} more often "
            f"({more.low:.2%} to {more.high:.2%})."
        ),
        {
            "targets": count,
            "split": [[schema.names[i] for i in half] for half in split],
            "linked": {str(n): {"training": a, "hold-out": b} for n, a, b in zip(NEAREST, *hits, strict=True)},
        },
    )


def agreeing_guesses(targets: Codes, released: Codes, agreement: Agreement) -> list[Counts]:
    """For each attribute the most frequent code among records that agree on all others; -1 where none does."""
    ours, theirs = agreement.words(targets), agreement.words(released)
    first, second = summed(ours), summed(theirs)
    return [_modes(first - a, second - b, column) for a, b, column in zip(ours, theirs, released, strict=True)]


def _modes(targets: Keys, keys: Keys, values: NDArray[np.unsignedinteger]) -> Counts:
    """The most frequent value at each target's key (the smallest of several), or -1."""
    import pandas as pd

    wanted = np.isin(keys, targets)
    agreeing = pd.DataFrame({"key": keys[wanted], "code": values[wanted].astype(np.int64)})
    counted = agreeing.groupby(["key", "code"], sort=True).size().reset_index(name="count")
    best = counted.sort_values("count", ascending=False, kind="stable").drop_duplicates("key").set_index("key")
    return np.asarray(best["code"].reindex(targets, fill_value=-1), np.int64)


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


def inference(tables: AttackTables) -> PageSection:
    """Guess each attribute in turn, of training records and, as the baseline, of held-out ones."""
    name, title, schema, both = "inference", "Attribute inference", tables.schema, tables.comparable
    m = len(schema.attributes)
    if m < 2:
        return does_not_apply(name, title, "a record of one attribute leaves nothing to infer from.")
    if both is None:
        return tables.not_comparable(name, title)
    rng, count = tables.rng(8), min(*map(size, both), tables.sizes.searched)
    targets = stacked(*(drawn(table, count, rng) for table in both))
    records = drawn(tables.released, tables.sizes.compared, rng)
    known, public = coarse(targets, schema), coarse(tables.released, schema)
    exact = agreeing_guesses(known, public, Agreement(m, seed=tables.seed))
    nearest = nearest_guesses(targets, records, schema)
    fallback = coarse(records, schema)
    rows: list[tuple[Cell, ...]] = []
    excess: dict[str, Estimate] = {}
    for place, attribute in enumerate(schema.names):
        guess = np.where(exact[place] >= 0, exact[place], take(fallback, nearest[place])[place])
        right = guess == known[place]
        found = tables.excess((int(right[:count].sum()), count), (int(right[count:].sum()), count), among=m)
        rows.append((attribute, float(np.bincount(public[place]).max() / size(public)), *found.cells))
        excess[attribute] = found.more
    cut = " Numbers are guessed to one part in 32 of their bounds." if any(map(is_continuous, targets)) else ""
    table = PageTable(
        "Values guessed right",
        ("attribute", "most frequent", *EXCESS),
        tuple(rows),
        f"{count:,} targets of each table; agreeing records are looked for among {size(public):,} released ones, the "
        f"nearest among {size(records):,}.{cut} {tables.together}",
    )
    return _section(
        (name, title, table),
        excess,
        "No attribute of the training records is guessed better than of records the release never saw.",
        lambda worst, more: (
            f"The release gives away values of the records it was made from: {worst} is guessed right {more.value:.1%} "
            f"more often than for others ({more.low:.1%} to {more.high:.1%})."
        ),
        {"targets": count},
    )


def numeric(schema: Schema) -> list[int]:
    """Places of the attributes whose values are numbers: integers without bins, and numbers."""
    return [
        i
        for i, attribute in enumerate(schema.attributes)
        if attribute.bounds is not None and (attribute.bins is None or attribute.kind == "number")
    ]


def located(released: Codes, originals: Codes, schema: Schema, places: list[int], eta: float) -> Counts:
    """In how many of the numeric columns at `places` each released record is within eta of its original."""
    near = [
        np.abs(released[i].astype(np.float64) - originals[i].astype(np.float64))
        <= eta * span(schema.attributes[i], released[i]) * (1 + 1e-12)
        for i in places
    ]
    return np.asarray(np.sum(near, axis=0))


def location(tables: AttackTables) -> PageSection:
    """Pair released records with the nearest training, and hold-out, records and compare their numbers."""
    name, title, schema, both = "location", "Location disclosure", tables.schema, tables.comparable
    places = numeric(schema)
    if not places:
        return does_not_apply(name, title, "no attribute is a number.")
    if both is None:
        return tables.not_comparable(name, title)
    rng = tables.rng(9)
    records = drawn(tables.released, tables.sizes.searched, rng)
    count, trials = min(*map(size, both), tables.sizes.compared), size(records)
    gower, pairs = Gower(schema), []
    for side in both:
        originals = drawn(side, count, rng)
        pairs.append(take(originals, gower.nearest(records, originals, places)[1]))
    kinds = {"some column": 1, "all columns": len(places)} if len(places) > 1 else {"some column": 1}
    excess: dict[tuple[float, str], Excess] = {}
    for eta in ETAS:
        within = [located(records, originals, schema, places, eta) for originals in pairs]
        for what, least in kinds.items():
            hits = [(int(np.count_nonzero(number >= least)), trials) for number in within]
            excess[eta, what] = tables.excess(*hits, among=2 * len(ETAS))
    table = PageTable(
        "Released records that locate the nearest original",
        ("within", "in", *EXCESS),
        tuple((*key, *one.cells) for key, one in excess.items()),
        f"{trials:,} released records, {count:,} of each table. Within: a share of the range of a column. Columns: "
        f"{column_names(schema, places)}. {tables.together}",
    )
    return _section(
        (name, title, table),
        {f"{what} within {eta:g}": one.more for (eta, what), one in excess.items()},
        "Released records lie no nearer to training records than to records never seen.",
        lambda worst, more: (
            f"Released records lie nearer to training records than chance explains: {worst} of the range "
            f"{more.value:.1%} more often than to records never seen ({more.low:.1%} to {more.high:.1%})."
        ),
        {"records": trials, "columns": [schema.names[i] for i in places]},
        severe=0.05,
    )


def _section(
    shown: tuple[str, str, PageTable],
    excess: Mapping[str, Estimate],
    nothing: str,
    leak: Callable[[str, Estimate], str],
    figures: Mapping[str, object],
    *,
    severe: float = 0.01,
) -> PageSection:
    """A section (name, title, table) that is judged by the worst excess: `nothing` or the words of `leak`."""
    name, title, table = shown
    worst, more = max(excess.items(), key=lambda item: item[1].low)
    figures = {**figures, "excess": excess}
    verdict = leak(worst, more) if more.low > 0 else nothing
    return PageSection(name, title, verdict, leak_state(more.low, severe=severe), (table,), figures=figures)
