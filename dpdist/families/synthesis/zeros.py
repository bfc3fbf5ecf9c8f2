"""The rules of a table on the codes of a model: combinations that have probability zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdist.families.synthesis.junction import Set, cells_of, cliques_of, pairs_of
from dpdist.privacy.arrays import Counts, Floats
from dpdist.schema.rules import Rules

Possible = dict[Set, Floats]
"""By sets of model attributes, what part of each combination of codes the rules admit; in the model 0 or 1."""


def possible_codes(
    rules: Rules, *, fine: Sequence[int], maps: Sequence[Counts], within: Sequence[Floats] | None = None
) -> Possible:
    """What the rules admit of the combinations of codes; rules whose tables are too large are left out.

    Parameters
    ----------
    fine : sequence of int
        The model attribute that stands for each of the table's.
    maps : sequence of ndarray of int64
        Code of each value of the table's attributes.
    within : sequence of ndarray of float64, optional
        The share of each value in its code; by default a combination is possible where any of its values are.
    """
    found: Possible = {}
    for rule in rules:
        if rule.table is None:
            continue
        share = (~rule.table).astype(np.float64)
        for axis, i in enumerate(rule.attributes):
            rows = np.moveaxis(share, axis, 0)
            if within is not None:
                rows = rows * within[i].reshape([-1] + [1] * (rows.ndim - 1))
            merged = np.zeros((int(maps[i].max()) + 1, *rows.shape[1:]))
            np.add.at(merged, maps[i], rows)
            share = np.moveaxis(merged, 0, axis)
        if within is None:
            share = (share > 0).astype(np.float64)
        inside = [fine[i] for i in rule.attributes]
        order = sorted(range(len(inside)), key=inside.__getitem__)
        scope, share = tuple(inside[k] for k in order), np.transpose(share, order)
        found[scope] = found[scope] * share if scope in found else np.ascontiguousarray(share)
    return found


def fitting(
    possible: Possible, cardinalities: Sequence[int], edges: Iterable[tuple[int, int]], *, most: int
) -> Possible:
    """The sets that can be joined to cliques of a model of at most so many cells, small ones first."""
    chosen: Possible = {}
    known = list(edges)
    for scope in sorted(possible, key=lambda s: (cells_of([s], cardinalities), s)):
        more = [*known, *pairs_of(scope)]
        if cells_of(cliques_of(cardinalities, more), cardinalities) <= most:
            chosen[scope], known = possible[scope], more
    return chosen


def with_zeros(factors: Mapping[Set, NDArray[np.generic]], possible: Possible) -> dict[Set, Floats]:
    """Factors times what is possible."""
    found: dict[Set, Floats] = {s: np.asarray(table, np.float64) for s, table in factors.items()}
    for scope, share in possible.items():
        found[scope] = found[scope] * share if scope in found else share
    return found
