"""Pairs outside of the junction tree: noisy tables that would make its cliques too large.

The model's table of such a pair is moved to the noisy one as far as that says more than noise, and keeps its margins.
Records are balanced to it, and rounds look for what it still misses.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.model.coding import Coding, Pair
from dpdist.model.drift import Estimate
from dpdist.model.evidence import Evidence, function_of, sums_of, turned
from dpdist.model.rake import shrink
from dpdist.privacy.arrays import Floats

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
        margins = [table.sum(1, keepdims=True), table.sum(0, keepdims=True)]
        for pair in pairs:
            noisy = outside[pair] if _in_order(fine, pair, coding) else turned(outside[pair])
            table = _moved(table, *_groups(fine, pair, coding), noisy, records)
        for _ in range(_SWEEPS):
            for axis, margin in ((1, margins[0]), (0, margins[1])):
                sums = table.sum(axis, keepdims=True)
                table = table * np.divide(margin, sums, out=np.zeros_like(sums), where=sums > 0)
        for other in marginals:
            if {coding.source[a] for a in other} == {coding.source[a] for a in fine}:
                rows, columns = _groups(fine, other, coding)
                sums = sums_of(table, rows, columns)
                found[other] = sums if _in_order(fine, other, coding) else sums.T
    return found


def told_by(evidence: Evidence, coding: Coding, pair: Pair, table: Floats) -> Floats:
    """A table of two of the table's attributes (shares), moved to what earlier releases say of it, from coarse codes
    to fine ones.
    """
    known = [p for p in evidence.pairs if {coding.source[a] for a in p} == set(pair)]
    for a, b in sorted(known, key=lambda p: (coding.cardinalities[p[0]] * coding.cardinalities[p[1]], p)):
        noisy, rows, columns = evidence.estimate((a, b)), a, b
        if coding.source[a] != pair[0]:
            noisy, rows, columns = turned(noisy), b, a
        table = _moved(table, coding.maps[rows], coding.maps[columns], noisy, evidence.records)
    return table


def _in_order(fine: Pair, pair: Pair, coding: Coding) -> bool:
    return coding.source[pair[0]] == coding.source[fine[0]]


def _groups(fine: Pair, pair: Pair, coding: Coding) -> tuple[np.ndarray, np.ndarray]:
    """The codes of a pair's attributes of each of the codes of the fine ones, in their order."""
    ordered = pair if _in_order(fine, pair, coding) else (pair[1], pair[0])
    rows, columns = (
        function_of(coding.maps[f], coding.maps[a], coding.cardinalities[f]) for f, a in zip(fine, ordered, strict=True)
    )
    if rows is None or columns is None:
        raise ValueError("codes of a copy are functions of the fine ones")
    return rows, columns


def _moved(table: Floats, rows: np.ndarray, columns: np.ndarray, noisy: Estimate, records: float) -> Floats:
    """A table whose sums by rows and columns are moved to a noisy table."""
    model = sums_of(table, rows, columns)
    counts, variance = noisy
    deviation = float(np.sqrt(variance.sum() / variance.size))
    found = shrink(counts.ravel(), model.ravel() * records, deviation).reshape(model.shape) / records
    ratio = np.divide(found, model, out=np.ones_like(model), where=model > 0)
    return np.asarray(table * ratio[np.ix_(rows, columns)])
