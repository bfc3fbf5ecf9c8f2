"""The rules of a table on the codes of a model: combinations that have probability zero.

A rule is put on the coarsest copies of its attributes that tell apart what it tells apart. Coarse copies are made so
that they do (`code_classes`): a copy of an age of twenty groups and a copy of an income of twenty groups keep the rule
that nobody under 15 has an income, in a table of 400 cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdist.model.junction import Set, cells_of, cliques_of
from dpdist.privacy.arrays import Counts, Floats
from dpdist.spec.rules import Forbidden, Rules

if TYPE_CHECKING:
    from dpdist.model.coding import Coding


def admitted(rule: Forbidden, maps: Sequence[Counts], within: Sequence[Floats] | None = None) -> Floats | None:
    """What a rule admits of each combination of codes; None where its table is too large.

    `maps`: code of each value of the table's attributes. `within`: the share of each value in its code. By default a
    combination is possible where any of its values are.
    """
    if rule.table is None:
        return None
    share = (~rule.table).astype(np.float64)
    for axis, i in enumerate(rule.attributes):
        rows = np.moveaxis(share, axis, 0)
        if within is not None:
            rows = rows * within[i].reshape([-1] + [1] * (rows.ndim - 1))
        share = np.moveaxis(_summed(rows, maps[i]), 0, axis)
    return share if within is not None else (share > 0).astype(np.float64)


def _summed(rows: Floats, codes: Counts) -> Floats:
    """Sums of the rows of each code."""
    found = np.zeros((int(codes.max()) + 1, *rows.shape[1:]))
    np.add.at(found, codes, rows)
    return found


def code_classes(rules: Rules, maps: Sequence[Counts]) -> list[Counts | None]:
    """For each of the table's attributes, classes of codes that no rule tells apart; None where no rule names it."""
    labels: list[list[Counts]] = [[] for _ in maps]
    for rule in rules:
        share = admitted(rule, maps)
        for axis, i in enumerate(rule.attributes if share is not None else ()):
            labels[i].append(_alike(np.moveaxis(np.asarray(share), axis, 0)))
    return [_alike(np.stack(found, axis=1)) if found else None for found in labels]


def _alike(rows: NDArray[np.number]) -> Counts:
    """Class of each row: equal rows have one."""
    flat = rows.reshape(len(rows), -1)
    classes: Counts = np.unique(flat, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return classes


def possible_codes(rules: Rules, coding: Coding) -> dict[int, tuple[Set, Floats]]:
    """By their numbers, the rules on the codes of a model; rules whose tables are too large are left out."""
    found = {}
    for number, rule in enumerate(rules):
        share = admitted(rule, [coding.maps[a] for a in coding.fine])
        if share is None:
            continue
        inside = []
        for axis, i in enumerate(rule.attributes):
            rows = np.moveaxis(share, axis, 0)
            a, codes = _coarsest(i, _alike(rows), coding)
            inside.append(a)
            share = np.moveaxis((_summed(rows, codes) > 0).astype(np.float64), 0, axis)
        order = sorted(range(len(inside)), key=inside.__getitem__)
        found[number] = tuple(inside[k] for k in order), np.ascontiguousarray(np.transpose(share, order))
    return found


def is_kept(rule: Forbidden, coding: Coding) -> bool:
    """Whether codes that a rule admits stand for values that it admits only: no merged values are told apart."""
    maps = [coding.maps[a] for a in coding.fine]
    share = admitted(rule, maps)
    if share is None or rule.table is None:
        return False
    return not (share[np.ix_(*(maps[i] for i in rule.attributes))].astype(bool) & rule.table).any()


def _coarsest(i: int, classes: Counts, coding: Coding) -> tuple[int, Counts]:
    """The copy of an attribute with the fewest codes that keeps classes of its codes apart, and its code of each."""
    own = coding.maps[coding.fine[i]]
    for a, source in enumerate(coding.source):  # in ascending order of cardinality
        codes = np.zeros(len(classes), np.int64)
        codes[own] = coding.maps[a] if source == i else 0
        if source == i and len(np.unique(codes * (classes.max() + 1) + classes)) == len(np.unique(codes)):
            return a, codes
    raise AssertionError("the attribute itself keeps them apart")


def fitting(
    possible: Mapping[int, tuple[Set, Floats]],
    cardinalities: Sequence[int],
    edges: Iterable[tuple[int, int]],
    *,
    most: int,
) -> list[int]:
    """The rules whose attributes can share cliques of a model of at most so many cells, those of small tables first."""
    chosen = []
    known = list(edges)
    for number in sorted(possible, key=lambda k: (possible[k][1].size, k)):
        more = [*known, *combinations(possible[number][0], 2)]
        if cells_of(cliques_of(cardinalities, more), cardinalities) <= most:
            chosen.append(number)
            known = more
    return chosen


def with_zeros(factors: Mapping[Set, NDArray[Any]], possible: Iterable[tuple[Set, Floats]]) -> dict[Set, Floats]:
    """Factors times others."""
    found: dict[Set, Floats] = {s: np.asarray(table, np.float64) for s, table in factors.items()}
    for scope, share in possible:
        found[scope] = found[scope] * share if scope in found else share
    return found
