"""Exact and near copies: does the release repeat its training records more often than records it never saw?

Popular records repeat by chance, so a count of copies says nothing by itself. Records that were held out come from the
same population: what the release repeats of *them* is chance, and the excess is memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.evaluate.attacks.intervals import Interval, difference, proportion
from dpdist.evaluate.attacks.records import Agreement, Columns, drawn, size, stacked
from dpdist.evaluate.attacks.sizes import Sizes
from dpdist.evaluate.page.sections import Section, State, Table, does_not_apply
from dpdist.schema.schema import Schema

NAME, TITLE = "copies", "Copies"


def section(
    released: Columns, training: Columns, holdout: Columns | None, schema: Schema, *, seed: int, sizes: Sizes
) -> Section:
    """Count the records of the training table, and of an equally large hold-out, that the release repeats.

    Every released record is looked at. A near copy agrees on all attributes but one at most; numbers without bins are
    equal only to the last bit, and a near copy may differ in one of them.
    """
    if holdout is None or min(size(holdout), size(training), size(released)) < sizes.least:
        return does_not_apply(
            NAME, TITLE, f"it needs {sizes.least} records in the release, its training and a hold-out."
        )
    rng = np.random.default_rng([seed, 3])
    agreement = Agreement(len(schema.attributes), seed=seed)
    count = min(size(training), size(holdout))
    sides = {"training": drawn(training, count, rng), "hold-out": drawn(holdout, count, rng)}
    everyone = stacked(training, holdout)
    kinds = ["exact", "exact, unique", *(["near"] if len(schema.attributes) > 1 else [])]
    hits: dict[str, dict[str, tuple[int, int]]] = {kind: {} for kind in kinds}
    rows: list[tuple[Any, ...]] = []
    for side, records in sides.items():
        repeated = agreement.exact(records, released) > 0
        unique = agreement.exact(records, everyone) == 1
        equal = int(np.count_nonzero(agreement.exact(released, records)))
        hits["exact"][side] = (int(repeated.sum()), count)
        hits["exact, unique"][side] = (int((repeated & unique).sum()), max(int(unique.sum()), 1))
        if "near" in kinds:
            near = (agreement.without(records, released) > 0).any(axis=0)
            hits["near"][side] = (int(near.sum()), count)
        rows.append(
            (
                "released records that equal one of them",
                side,
                equal,
                size(released),
                *_cells(proportion(equal, size(released), confidence=sizes.confidence)),
            )
        )
    names = {
        "exact": "records that the release repeats",
        "exact, unique": "records like no other that the release repeats",
        "near": "records repeated but for one attribute at most",
    }
    excess: dict[str, Interval] = {}
    together = 1 - (1 - sizes.confidence) / len(hits)
    for kind, sides_hits in hits.items():
        excess[kind] = difference(sides_hits["training"], sides_hits["hold-out"], confidence=together)
        for side, (hit, trials) in sides_hits.items():
            rows.append((names[kind], side, hit, trials, *_cells(proportion(hit, trials, confidence=sizes.confidence))))
    table = Table(
        "Repeated records",
        ("what", "table", "count", "of", "share", "low", "high"),
        tuple(rows),
        f"{size(released):,} released records against {count:,} records drawn from each table. "
        f"{sizes.confidence:.0%} "
        "intervals.",
    )
    differences = Table(
        "Excess over the hold-out",
        ("what", "training less hold-out", "low", "high"),
        tuple((names[kind], *_cells(interval)) for kind, interval in excess.items()),
        f"Above zero: the release remembers records. The intervals hold together with {sizes.confidence:.0%} "
        "confidence.",
    )
    exact, base = hits["exact"]["training"][0], hits["exact"]["hold-out"][0]
    verdict = (
        f"The release repeats {exact:,} of {count:,} training records and {base:,} of as many it never saw: "
        f"{_words(excess['exact'])}."
    )
    if excess["exact, unique"].low > 0:
        hit, trials = hits["exact, unique"]["training"]
        verdict += f" Of {trials:,} training records that are like no other it repeats {hit:,}."
    figures = {
        "compared": count,
        **{kind: {side: {"count": h, "of": n} for side, (h, n) in both.items()} for kind, both in hits.items()},
        "excess": {kind: interval.to_json() for kind, interval in excess.items()},
    }
    return Section(NAME, TITLE, verdict, _state(excess), (table, differences), figures=figures)


def _cells(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def _words(interval: Interval) -> str:
    if interval.low > 0:
        return f"{interval.value:.2%} more than chance ({interval.low:.2%} to {interval.high:.2%})"
    return "no more than chance explains"


def _state(excess: dict[str, Interval]) -> State:
    if max(interval.low for interval in excess.values()) <= 0:
        return "good"
    return "bad" if max(interval.low for interval in excess.values()) > 0.01 else "fair"
