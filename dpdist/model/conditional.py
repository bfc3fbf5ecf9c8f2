"""Rows of a fitted model given some of their attributes: exact conditioning, for rows that are given alike at a time.

The attributes that are drawn are summed out of the model's conditionals one after another, and drawn in the reverse
order. Each factor of a sum depends on few of the given attributes: it is computed once for the rows that have the same
values of those, and only products of factors that depend on many are computed row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dpdist.model.fitted import Fitted
from dpdist.model.junction import Set
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import Mask

_CELLS = 1 << 24  # cells of the largest factor that is held for the rows of a batch, about
_AT_ONCE = 1 << 15  # cells that are multiplied and summed at a time: they stay in the cache
_LOOKED_AT = 1 << 12  # rows whose groups choose the order
_FEW = 1 << 8  # rows that admit the same codes are drawn with others where they are fewer
_MIXED = np.uint64(0x9E3779B97F4A7C15)  # groups of several factors are one number, for nearly all different


_Grouped = tuple[Counts, Floats]


@dataclass(frozen=True, eq=False)
class _Factor:
    """A table of some attributes for each group of rows that are given alike."""

    scope: Set
    table: Floats  # shape (groups, *cardinalities of the scope)
    group: Counts  # of each row

    def __getitem__(self, rows: Counts) -> _Factor:
        return _Factor(self.scope, self.table, self.group[rows])

    def along(self, axes: Set) -> _Grouped:
        """The group of each row, and the tables of the groups that have rows, for products of tables of these axes."""
        groups, group = np.unique(self.group, return_inverse=True)
        order = sorted(range(len(self.scope)), key=lambda k: axes.index(self.scope[k]))
        sizes = dict(zip(self.scope, self.table.shape[1:], strict=True))
        table = np.ascontiguousarray(self.table[groups].transpose([0, *(1 + k for k in order)]))
        return group, table.reshape(len(groups), *(sizes.get(a, 1) for a in axes))

    def within(self, kept: dict[int, Counts]) -> _Factor:
        """The factor with some codes of some attributes."""
        table = self.table
        for axis, a in enumerate(self.scope, 1):
            table = table.take(kept[a], axis=axis) if a in kept else table
        return _Factor(self.scope, table, self.group)

    def line(self, a: int, found: dict[int, Counts]) -> Floats:
        """For each row the factor of each value of an attribute, given those of the others."""
        others = tuple(found[b] for b in self.scope if b != a)
        line: Floats = np.moveaxis(self.table, 1 + self.scope.index(a), -1)[(self.group, *others)]
        return line


@dataclass(frozen=True, eq=False)
class KnownRows:
    """What is known of rows that are drawn."""

    given: Codes  # values of the table's first attributes
    # for some of the other attributes, by place, which values each row may have: bool[rows, values], one at least
    admitted: dict[int, Mask]
    groups: Sequence[Counts] = ()  # of each row, for each factor that was added to the law

    def __getitem__(self, rows: Counts) -> KnownRows:
        masks = {i: mask[rows] for i, mask in self.admitted.items()}
        return KnownRows([column[rows] for column in self.given], masks, [group[rows] for group in self.groups])


class Conditional:
    """The law of the last attributes of a table given the first `given` ones, without an adjustment. `factors` of it
    are added: the places of some of the last attributes, and a table of their codes for each group of rows. `tilts`
    are more of them, tables of the model's attributes that are in one of its conditionals (`Fitted.holds`).
    """

    def __init__(
        self,
        fitted: Fitted,
        given: int,
        factors: Sequence[tuple[Set, Floats]] = (),
        tilts: Mapping[Set, Floats] = MappingProxyType({}),
    ) -> None:
        if fitted.adjustment is not None:
            raise ValueError("a weighted pool has no conditional law: fit the model without raking")
        self.fitted, self.given = fitted, given
        cards, known = fitted.cardinalities, set(fitted.fine[:given])
        self._tables: list[tuple[Set, Set, Floats]] = []
        tables = fitted.conditionals()
        for scope, tilt in tilts.items():
            whole = next(whole for whole in tables if set(scope) <= set(whole))
            tables[whole] = tables[whole] * tilt.reshape([cards[a] if a in scope else 1 for a in whole])
        for scope, table in tables.items():
            own, drawn = ([a for a in scope if (a in known) is side] for side in (True, False))
            if drawn:
                table = table.transpose([scope.index(a) for a in (*own, *drawn)])
                table = table.reshape(prod(cards[a] for a in own), *(cards[a] for a in drawn))
                self._tables.append((tuple(own), tuple(drawn), np.ascontiguousarray(table)))
        self._factors = [(tuple(fitted.fine[i] for i in places), table) for places, table in factors]

    def draw(self, known: KnownRows, noise: Noise, name: str) -> list[Counts]:
        """A row for each row of the evidence: values of the table's other attributes. What is given and has probability
        zero says nothing; where nothing is left, a value is one of the admitted ones.
        """
        given, admitted = known.given, known.admitted
        rows, cards = len(given[0]), self.fitted.cardinalities
        codes = {self.fitted.fine[i]: self.fitted.coded(i)[0][given[i]] for i in range(self.given)}
        factors = []
        for i, mask in admitted.items():
            patterns, group = np.unique(mask, axis=0, return_inverse=True)
            factors.append(_Factor((self.fitted.fine[i],), self._shares(i, patterns), group.ravel()))
        alike = _alike(factors, rows)
        factors += [_Factor(*added, group) for added, group in zip(self._factors, known.groups, strict=True)]
        factors += [_Factor(drawn, table, _index(own, codes, cards, rows)) for own, drawn, table in self._tables]
        drawn = {a: np.zeros(rows, np.int64) for a in {a for factor in factors for a in factor.scope}}
        uniforms = {a: _uniforms(noise, f"{name}/{a}", rows) for a in drawn}
        for some, kept in alike:
            of_some = [factor.within(kept)[some] for factor in factors]
            order, largest, near = _elimination(of_some)
            for start in range(0, len(some), batch := max(_CELLS // largest, 1)):
                part = near[start : start + batch]
                found = self._drawn(order, [factor[part] for factor in of_some], uniforms, some[part])
                for a, codes_of in found.items():
                    drawn[a][some[part]] = kept[a][codes_of] if a in kept else codes_of
        return [
            self._values(i, drawn[self.fitted.fine[i]], admitted.get(i), noise, name)
            for i in range(self.given, len(self.fitted.fine))
        ]

    def _drawn(
        self, order: list[int], factors: list[_Factor], uniforms: dict[int, Floats], rows: Counts
    ) -> dict[int, Counts]:
        """Codes of the model's other attributes, for some rows."""
        buckets, found = [], dict[int, Counts]()
        for a in order:
            bucket = [factor for factor in factors if a in factor.scope]
            factors = [factor for factor in factors if a not in factor.scope]
            buckets.append(bucket)
            if any(len(factor.scope) > 1 for factor in bucket):
                factors.append(_summed(a, bucket))
        for a, bucket in zip(reversed(order), reversed(buckets), strict=True):
            line = np.ones((len(rows), 1))
            for factor in bucket:
                line = line * factor.line(a, found)
                top = line.max(1, keepdims=True)  # of many small factors, nothing would be left
                line /= np.where(top > 0, top, 1)
            if (none := line.sum(1) <= 0).any():  # where the model has nothing, what is admitted
                left = np.ones((int(none.sum()), line.shape[1]))
                for factor in bucket:  # what is admitted is the first of them
                    fewer = left * (factor[none].line(a, {b: column[none] for b, column in found.items()}) > 0)
                    left = np.where(fewer.any(1, keepdims=True), fewer, left)
                line[none] = left
            found[a] = _chosen(line, uniforms[a][rows])
        return found

    def _shares(self, i: int, masks: Mask) -> Floats:
        """The share of each code of an attribute that each mask of its values admits; shape (masks, codes)."""
        codes, within = self.fitted.coded(i)
        found = np.zeros((len(masks), len(self.fitted.values[i])))
        for value, (code, share) in enumerate(zip(codes.tolist(), within.tolist(), strict=True)):
            found[:, code] += masks[:, value] * max(share, 2.0**-60)
        return found

    def _values(self, i: int, codes: Counts, mask: Mask | None, noise: Noise, name: str) -> Counts:
        """A value for each code of one of the table's attributes."""
        values = self.fitted.values[i][codes]
        merged = np.flatnonzero(values < 0)
        if len(merged):
            rare = self.fitted.rare[i]
            weights = np.diff(self.fitted.rare_cumulative[i][0], prepend=0) + 2.0**-60
            each = np.broadcast_to(weights, (len(merged), len(rare)))
            each = each if mask is None else each * mask[merged][:, rare]
            values[merged] = rare[_chosen(each, _uniforms(noise, f"{name}/rare/{i}", len(codes))[merged])]
        return values


def _alike(admitted: Sequence[_Factor], rows: int) -> list[tuple[Counts, dict[int, Counts]]]:
    """Rows that admit the same codes, and these codes of each attribute; few rows are with those that admit all."""
    if not admitted:
        return [(np.arange(rows), {})]
    key, groups = _paired([factor.group for factor in admitted])
    many = np.bincount(key) >= _FEW
    found: list[tuple[Counts, dict[int, Counts]]] = [(np.flatnonzero(~many[key]), {})]
    for k in np.flatnonzero(many):
        kept = {f.scope[0]: np.flatnonzero(f.table[g[k]] > 0) for f, g in zip(admitted, groups, strict=True)}
        found.append((np.flatnonzero(key == k), kept))
    return [(some, kept) for some, kept in found if len(some)]


def _elimination(factors: Sequence[_Factor]) -> tuple[list[int], int, Counts]:
    """An order of the attributes that are drawn in which they are summed out with few operations: the one that takes
    the fewest, for all groups of some of the rows, comes first. And the most cells of a sum, and an order of the rows
    in which those that are in one group of the dearest sum follow each other.
    """
    cards = {a: size for f in factors for a, size in zip(f.scope, f.table.shape[1:], strict=True)}
    left, largest = [({*f.scope}, f.group.astype(np.uint64)) for f in factors], 1
    found, done = dict[int, tuple[int, set[int], NDArray[np.uint64]]](), list[tuple[int, int, NDArray[np.uint64]]]()
    step = max(len(factors[0].group) // _LOOKED_AT, 1)
    while waiting := set[int]().union(*(scope for scope, _ in left)):
        for a in waiting - found.keys():
            scopes, groups = zip(*((scope, group) for scope, group in left if a in scope), strict=True)
            scope, key = set[int]().union(*scopes), reduce(lambda key, group: key * _MIXED + group, groups)
            found[a] = prod(cards[b] for b in scope) * len(np.unique(key[::step])), scope, key
        a = min(found, key=lambda a: (found[a][0], a))
        cost, scope, key = found.pop(a)
        left = [(others, group) for others, group in left if a not in others] + [(scope - {a}, key)]
        found = {b: cost for b, cost in found.items() if b not in scope}
        done.append((cost, a, key))
        largest = max(largest, prod(cards[b] for b in scope - {a}))
    alike = np.lexsort([key for _, _, key in sorted(done, key=lambda one: one[:2])])
    return [a for _, a, _ in done], largest, alike


def _summed(a: int, bucket: Sequence[_Factor]) -> _Factor:
    """The product of factors, summed over the values of an attribute; the largest sum of each group of rows is 1."""
    rest = sorted({b for factor in bucket for b in factor.scope} - {a})
    parts = _multiplied([factor.along((a, *rest)) for factor in bucket])
    # axes that all have come first, so that products run along the last ones
    order = sorted(range(len(rest)), key=lambda k: -sum(table.shape[2 + k] > 1 for _, table in parts))
    rest = [rest[k] for k in order]
    tables = [np.ascontiguousarray(table.transpose([0, 1, *(2 + k for k in order)])) for _, table in parts]
    group, pairs = _paired([group for group, _ in parts])
    sizes = np.broadcast_shapes(*(table.shape[1:] for table in tables))
    found, step = np.empty((len(pairs[0]), *sizes[1:])), max(_AT_ONCE // prod(sizes), 1)
    product = np.empty((step, *sizes))
    for start in range(0, len(found), step):
        some = slice(start, start + step)
        one, *others = (
            table.take(which[some], axis=0) if step > 1 else table[which[start], None]
            for which, table in zip(pairs, tables, strict=True)
        )
        for other in others:
            one = np.multiply(one, other, out=product[: len(found[some])])
        one.sum(1, out=found[some])
    top = found.reshape(len(found), -1).max(1)
    found[top <= 0] = top[top <= 0] = 1
    found /= top.reshape(-1, *[1] * len(rest))
    return _Factor(tuple(rest), found, group)


def _multiplied(parts: list[_Grouped]) -> list[_Grouped]:
    """Factors of the same product, at least two of several: those that take the fewest cells are multiplied first."""

    def cells(both: tuple[int, int]) -> int:
        (group, one), (_, other) = (parts[k] for k in both)
        return min(len(one) * len(other), len(group)) * prod(np.broadcast_shapes(one.shape[1:], other.shape[1:]))

    while len(parts) > 2:
        both = min(combinations(range(len(parts)), 2), key=cells)
        if cells(both) > _CELLS // 2:
            break
        group, pairs = _paired([parts[k][0] for k in both])
        one, other = (parts[k][1].take(which, axis=0) for k, which in zip(both, pairs, strict=True))
        parts = [part for k, part in enumerate(parts) if k not in both] + [(group, one * other)]
    return parts


def _paired(groups: Sequence[Counts]) -> tuple[Counts, list[Counts]]:
    """The group of each row by several groupings at once, and of each such group those that it is in."""
    key, rows = groups[0], np.arange(0)
    for k, group in enumerate(groups):
        if k:
            key = key * (int(group.max(initial=0)) + 1) + group
        _, rows, key = np.unique(key, return_index=True, return_inverse=True)
    return key, [group[rows] for group in groups]


def _index(attributes: Set, codes: dict[int, Counts], cards: Sequence[int], rows: int) -> Counts:
    index = np.zeros(rows, np.int64)
    for a in attributes:
        index *= cards[a]
        index += codes[a]
    return index


def _uniforms(noise: Noise, name: str, rows: int) -> Floats:
    """Uniform numbers, below 1 by 2**-40 at least."""
    return np.asarray((noise.words(name, rows) >> np.uint64(24)) * 2.0**-40, np.float64)


def _chosen(weights: Floats, uniforms: Floats) -> Counts:
    """For each row a place, with probabilities in proportion to its weights; some are positive."""
    cumulative = np.cumsum(weights, axis=1)
    below = cumulative <= (uniforms * cumulative[:, -1])[:, None]
    return np.asarray(below.sum(1), np.int64)
