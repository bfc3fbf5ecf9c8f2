"""Pairs outside of the junction tree: noisy tables that would make its cliques too large.

The model's table of such a pair is moved to the noisy one as far as that says more than noise, and keeps its margins.
Records are balanced to it, and rounds look for what it still misses.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.model.coding import Coding, Pair
from dpdist.model.drift import Estimate
from dpdist.model.evidence import Evidence, sums_of
from dpdist.model.grids import group_of_codes, moved
from dpdist.model.rake import shrink
from dpdist.model.sums import cells_of
from dpdist.privacy.arrays import Counts, Floats

_SWEEPS = 5  # passes that bring a table back to its margins


def with_outside(
    marginals: Mapping[Pair, Floats], outside: Mapping[Pair, Estimate], coding: Coding, records: float
) -> dict[Pair, Floats]:
    """The model's tables of all pairs (shares), with what noisy tables say of pairs outside of its tree."""
    found = dict(marginals)
    of_fine: dict[Pair, list[Pair]] = {}
    for a, b in sorted(outside, key=lambda pair: (marginals[pair].size, pair)):  # from coarse to fine
        own = sorted((coding.fine[coding.source[a]], coding.fine[coding.source[b]]))
        of_fine.setdefault((own[0], own[1]), []).append((a, b))
    for fine, pairs in of_fine.items():
        table = marginals[fine]
        margins = table.sum(1, keepdims=True), table.sum(0, keepdims=True)
        first, second = (coding.source[a] for a in fine)
        for pair in pairs:
            rows, columns, noisy = _placed(pair, first, outside[pair], coding)
            table = _moved(table, _of_fine(rows, coding), _of_fine(columns, coding), noisy, records)
        table = brought(table, *margins)
        for a, b in marginals:
            if {coding.source[a], coding.source[b]} == {first, second}:
                rows, columns = (a, b) if coding.source[a] == first else (b, a)
                sums = sums_of(table, _of_fine(rows, coding), _of_fine(columns, coding))
                found[a, b] = sums if rows == a else sums.T
    return found


def brought(table: Floats, rows: Floats, columns: Floats) -> Floats:
    """A table with these sums of its rows and columns, both of its shape but for the axis of the sum; about."""
    for _ in range(_SWEEPS):
        for axis, margin in ((1, rows), (0, columns)):
            sums = table.sum(axis, keepdims=True)
            table = table * np.divide(margin, sums, out=np.zeros_like(sums), where=sums > 0)
    return table


def told_by(evidence: Evidence, coding: Coding, pair: Pair, noisy: Floats, sigma: float) -> tuple[Floats, float]:
    """Move this release's noisy table of two attributes to what earlier releases say of its sums, by precision; return
    the deviation that is left.
    """
    known = [p for p in evidence.pairs if {coding.source[a] for a in p} == set(pair)]
    for own in sorted(known, key=lambda p: (coding.cardinalities[p[0]] * coding.cardinalities[p[1]], p)):
        if (told := evidence.earlier(own)) is not None:
            rows, columns, (counts, variance) = _placed(own, pair[0], told, coding)
            cells = cells_of([coding.maps[rows], coding.maps[columns]], counts.shape)
            noisy, sigma = moved(noisy, sigma, cells, counts, variance.ravel())
    return noisy, sigma


def _placed(pair: Pair, first: int, noisy: Estimate, coding: Coding) -> tuple[int, int, Estimate]:
    """A pair and its table, with the copy of one of the table's attributes as the rows."""
    return (*pair, noisy) if coding.source[pair[0]] == first else (pair[1], pair[0], (noisy[0].T, noisy[1].T))


def _of_fine(copy: int, coding: Coding) -> Counts:
    """The code that a copy has of each of the codes of the finest one."""
    return group_of_codes(coding.maps[coding.fine[coding.source[copy]]], coding.maps[copy])


def _moved(table: Floats, rows: Counts, columns: Counts, noisy: Estimate, records: float) -> Floats:
    """A table whose sums by rows and columns are moved to a noisy table."""
    model = sums_of(table, rows, columns)
    counts, variance = noisy
    deviation = float(np.sqrt(variance.sum() / variance.size))
    found = shrink(counts.ravel(), model.ravel() * records, deviation).reshape(model.shape) / records
    ratio = np.divide(found, model, out=np.ones_like(model), where=model > 0)
    return np.asarray(table * ratio[np.ix_(rows, columns)])
