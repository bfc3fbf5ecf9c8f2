"""Exact and near copies: does the release repeat its training records more often than records it never saw?

Popular records repeat by chance, so a count of copies says nothing by itself. Records that were held out come from the
same population: what the release repeats of *them* is chance, and the excess is memory.
"""

from __future__ import annotations

import numpy as np

from dpdist.evaluation.attacks.intervals import Estimate, difference, proportion
from dpdist.evaluation.attacks.records import Agreement, drawn, size, stacked
from dpdist.evaluation.attacks.tables import AttackTables, Hits, leak_state
from dpdist.evaluation.page.sections import PageSection, PageTable
from dpdist.privacy.arrays import Codes

NAME, TITLE = "copies", "Copies"

_EQUAL = "released records that equal one of them"
_NAMES = {
    "exact": "records that the release repeats",
    "exact, unique": "records like no other that the release repeats",
    "near": "records repeated but for one attribute at most",
}


def section(tables: AttackTables) -> PageSection:
    """Count the records of the training table, and of an equally large hold-out, that the release repeats.

    Every released record is looked at. A near copy agrees on all attributes but one at most; numbers without bins are
    equal only to the last bit, and a near copy may differ in one of them.
    """
    both = tables.comparable
    if both is None:
        return tables.not_comparable(NAME, TITLE)
    rng, count, released = tables.rng(3), min(map(size, both)), size(tables.released)
    agreement, everyone = Agreement(len(tables.schema.attributes), seed=tables.seed), stacked(*both)
    sides = {name: drawn(table, count, rng) for name, table in zip(("training", "hold-out"), both, strict=True)}
    equal = {side: int(np.count_nonzero(agreement.exact(tables.released, records))) for side, records in sides.items()}
    of = {side: _repeated(records, tables.released, everyone, agreement) for side, records in sides.items()}
    hits = {kind: {side: found[kind] for side, found in of.items()} for kind in of["training"]}
    confidence = tables.sizes.confidence
    together = 1 - (1 - confidence) / len(hits)
    excess = {
        kind: difference(found["training"], found["hold-out"], confidence=together) for kind, found in hits.items()
    }
    rows = [(_EQUAL, side, (number, released)) for side, number in equal.items()]
    rows += [(_NAMES[kind], side, found) for kind, by_side in hits.items() for side, found in by_side.items()]
    repeated = PageTable(
        "Repeated records",
        ("what", "table", "count", "of", "share", "low", "high"),
        tuple((what, side, *found, *proportion(*found, confidence=confidence).cells) for what, side, found in rows),
        f"{released:,} released records against {count:,} records drawn from each table. {confidence:.0%} intervals.",
    )
    differences = PageTable(
        "Excess over the hold-out",
        ("what", "training less hold-out", "low", "high"),
        tuple((_NAMES[kind], *interval.cells) for kind, interval in excess.items()),
        f"Above zero: the release remembers records. The intervals hold together with {confidence:.0%} confidence.",
    )
    figures = {
        "compared": count,
        **{kind: {side: {"count": h, "of": n} for side, (h, n) in found.items()} for kind, found in hits.items()},
        "excess": {kind: interval.to_json() for kind, interval in excess.items()},
    }
    state = leak_state(max(interval.low for interval in excess.values()))
    return PageSection(NAME, TITLE, _verdict(hits, excess, count), state, (repeated, differences), figures=figures)


def _repeated(records: Codes, released: Codes, everyone: Codes, agreement: Agreement) -> dict[str, Hits]:
    """How many of some records the release repeats: of all, of those like no other, and but for one attribute."""
    count, repeated = size(records), agreement.exact(records, released) > 0
    unique = agreement.exact(records, everyone) == 1
    hits = {
        "exact": (int(repeated.sum()), count),
        "exact, unique": (int((repeated & unique).sum()), max(int(unique.sum()), 1)),
    }
    if agreement.attributes > 1:
        near = (agreement.without(records, released) > 0).any(axis=0)
        hits["near"] = (int(near.sum()), count)
    return hits


def _verdict(hits: dict[str, dict[str, Hits]], excess: dict[str, Estimate], count: int) -> str:
    exact, base, more = hits["exact"]["training"][0], hits["exact"]["hold-out"][0], excess["exact"]
    words = "no more than chance explains"
    if more.low > 0:
        words = f"{more.value:.2%} more than chance ({more.low:.2%} to {more.high:.2%})"
    verdict = (
        f"The release repeats {exact:,} of {count:,} training records and {base:,} of as many it never saw: {words}."
    )
    if excess["exact, unique"].low > 0:
        hit, trials = hits["exact, unique"]["training"]
        verdict += f" Of {trials:,} training records that are like no other it repeats {hit:,}."
    return verdict
