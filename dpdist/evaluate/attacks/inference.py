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

from dpdist.evaluate.attacks.intervals import Interval, difference, proportion
from dpdist.evaluate.attacks.neighbours import Gower, blocks
from dpdist.evaluate.attacks.records import Agreement, Columns, Keys, coarse, drawn, size, stacked, summed, take
from dpdist.evaluate.attacks.sizes import Sizes
from dpdist.evaluate.page.sections import Section, Table, does_not_apply
from dpdist.schema.schema import Schema

NAME, TITLE = "inference", "Attribute inference"


def agreeing_guesses(targets: Columns, released: Columns, agreement: Agreement) -> list[NDArray[np.int64]]:
    """For each attribute: its most frequent code among records that agree on all others, or -1 where none does.

    Parameters
    ----------
    targets, released : Columns
        Coarse codes.
    agreement : Agreement

    Returns
    -------
    list of ndarray of int64, shape (targets,)
    """
    ours, theirs = agreement.words(targets), agreement.words(released)
    first, second = summed(ours), summed(theirs)
    return [_modes(first - a, second - b, column) for a, b, column in zip(ours, theirs, released, strict=True)]


def _modes(targets: Keys, keys: Keys, values: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
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


def nearest_guesses(targets: Columns, released: Columns, schema: Schema) -> list[NDArray[np.int64]]:
    """For each attribute: the place of the released record that is nearest on all others."""
    gower, m = Gower(schema), len(targets)
    result = [np.empty(size(targets), np.int64) for _ in range(m)]
    for rows, block in blocks(targets, size(released), arrays=m + 2):
        parts = [gower.part(place, block, released) for place in range(m)]
        total = np.sum(parts, axis=0)
        for place, part in enumerate(parts):
            result[place][rows] = (total - part).argmin(axis=1)
    return result


def section(
    released: Columns, training: Columns, holdout: Columns | None, schema: Schema, *, seed: int, sizes: Sizes
) -> Section:
    """Guess each attribute in turn, of training records and, as the baseline, of held-out ones."""
    m = len(schema.attributes)
    if m < 2:
        return does_not_apply(NAME, TITLE, "a record of one attribute leaves nothing to infer from.")
    if holdout is None or min(size(released), size(training), size(holdout)) < sizes.least:
        return does_not_apply(
            NAME, TITLE, f"it needs {sizes.least} records in the release, its training and a hold-out."
        )
    rng = np.random.default_rng([seed, 8])
    count = min(size(training), size(holdout), sizes.searched)
    targets = stacked(drawn(training, count, rng), drawn(holdout, count, rng))
    records = drawn(released, sizes.compared, rng)
    known, public = coarse(targets, schema), coarse(released, schema)
    exact = agreeing_guesses(known, public, Agreement(m, seed=seed))
    nearest = nearest_guesses(targets, records, schema)
    fallback = coarse(records, schema)
    together = 1 - (1 - sizes.confidence) / m
    rows, excess = [], {}
    for place, name in enumerate(schema.names):
        guess = np.where(exact[place] >= 0, exact[place], take(fallback, nearest[place])[place])
        right = guess == known[place]
        hits = [(int(right[:count].sum()), count), (int(right[count:].sum()), count)]
        shares = [proportion(*hit, confidence=sizes.confidence) for hit in hits]
        most = float(np.bincount(public[place]).max() / size(released))
        more = excess[name] = difference(*hits, confidence=together)
        rows.append(
            (name, most, *(x for s in shares for x in (s.value, s.low, s.high)), more.value, more.low, more.high)
        )
    cut = " Numbers are guessed to one part in 32 of their bounds." if any(c.dtype.kind == "f" for c in targets) else ""
    table = Table(
        "Values guessed right",
        (
            "attribute",
            "most frequent",
            "training",
            "low",
            "high",
            "hold-out",
            "low ",
            "high ",
            "excess",
            "low  ",
            "high  ",
        ),
        tuple(rows),
        f"{count:,} targets of each table; agreeing records are looked for among {size(released):,} released ones, "
        "the "
        f"nearest among {size(records):,}.{cut} Excesses hold together with {sizes.confidence:.0%} confidence.",
    )
    worst = max(excess, key=lambda name: excess[name].low)
    figures = {"targets": count, "excess": {name: more.to_json() for name, more in excess.items()}}
    verdict, state = _verdict(worst, excess[worst])
    return Section(NAME, TITLE, verdict, state, (table,), figures=figures)  # type: ignore[arg-type]


def _verdict(name: str, more: Interval) -> tuple[str, str]:
    if more.low <= 0:
        return (
            "No attribute of the training records is guessed better than of records the release never saw.",
            "good",
        )
    return (
        f"The release gives away values of the records it was made from: {name} is guessed right {more.value:.1%} more "
        "often "
        f"than for others ({more.low:.1%} to {more.high:.1%}).",
        "bad" if more.low > 0.01 else "fair",
    )
