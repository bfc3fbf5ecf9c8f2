"""Whether a hold-out is one: records like those of the table that are not in it.

A record that is drawn from the same population is unlike all records of the table as often as a record of the table is
unlike all others. In a hold-out that holds records of the table (a copy under another name, rows that overlap) fewer
are. Attacks on it would find nothing, whatever the release gives away, and models tested on it would flatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluation.attacks.intervals import proportion
from dpdist.evaluation.attacks.records import Agreement, drawn, occurrences, size
from dpdist.evaluation.page.sections import PageSection, PageTable

NAME, TITLE = "holdout", "The hold-out"

MARGIN = 0.05
"""Share of a hold-out that may be of the table before it is not used."""

_CONFIDENCE = 0.9999
_LARGEST = 200_000


def holdout_section(
    training: Sequence[NDArray[Any]], holdout: Sequence[NDArray[Any]], *, seed: int
) -> PageSection | None:
    """What is wrong with a hold-out; None if nothing is. Columns are in schema order; the seed is that of the hash of
    records, and of samples of large tables.
    """
    rng = np.random.default_rng([seed, 11])
    agreement = Agreement(len(training), seed=seed)
    keys = agreement.keys(list(training))
    ours, theirs = (agreement.keys(drawn(list(table), _LARGEST, rng)) for table in (training, holdout))
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
        f"{size(list(training)):,} real records were searched.",
    )
    figures = {"unlike": {"hold-out": rates[0], "real": rates[1]}}
    return PageSection(NAME, TITLE, verdict, "bad", (table,), figures=figures)
