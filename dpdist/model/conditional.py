"""Rows of a fitted model given some of their attributes: exact conditioning in its junction tree, row by row.

Messages over the other attributes go from the leaves of the tree to its root, for many rows at a time, and attributes
are then drawn clique by clique on the way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from dpdist.data.count import marginal
from dpdist.model.fitted import Fitted
from dpdist.model.inference import Inference
from dpdist.model.junction import JunctionTree, Set, cliques_of
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import Mask

_CELLS = 1 << 22  # cells of the largest table that is held for the rows of a batch, about

_Factor = tuple[Set, Floats | Mask]


@dataclass(frozen=True, eq=False)
class _Clique:
    """A clique with attributes that are drawn."""

    given: Set  # its given attributes, of the model
    drawn: Set  # its other attributes; those that it shares with its parent come first
    shared: int  # how many of them it shares with its parent
    # shape (configurations of the given attributes, *cardinalities of the drawn ones); probabilities given what it
    # shares with its parent
    table: Floats


class Conditional:
    """The law of the last attributes of a table given the first `given` ones, without an adjustment."""

    def __init__(self, fitted: Fitted, given: int) -> None:
        if fitted.adjustment is not None:
            raise ValueError("a weighted pool has no conditional law: fit the model without raking")
        self.fitted, self.given = fitted, given
        factors, cards = fitted.conditionals(), fitted.cardinalities
        edges = sorted({pair for scope in factors for pair in combinations(scope, 2)})
        self._tree = JunctionTree.of(cards, cliques_of(cards, edges))
        beliefs = Inference(self._tree, list(factors)).beliefs(factors)
        if beliefs is None:
            raise ValueError("the conditionals of a fitted model sum to 1")
        self._known = set(fitted.fine[:given])
        self._cliques = {j: clique for j in self._tree.order if (clique := self._clique(j, beliefs[j])).drawn}
        largest = max(prod(clique.table.shape[1:]) for clique in self._cliques.values())
        self._batch = max(_CELLS // largest, 1)

    def _clique(self, j: int, belief: Floats) -> _Clique:
        clique, separator = self._tree.cliques[j], self._tree.separators[j]
        cards = self._tree.cardinalities
        over = marginal(belief, [clique.index(a) for a in separator])
        over = over.reshape([cards[a] if a in separator else 1 for a in clique])
        table = np.divide(belief, over, out=np.zeros_like(belief), where=over > 0) if separator else belief
        given = tuple(a for a in clique if a in self._known)
        shared = tuple(a for a in clique if a in separator and a not in self._known)
        drawn = shared + tuple(a for a in clique if a not in separator and a not in self._known)
        table = np.transpose(table, [clique.index(a) for a in (*given, *drawn)])
        table = table.reshape(prod(cards[a] for a in given), *(cards[a] for a in drawn))
        return _Clique(given, drawn, len(shared), np.ascontiguousarray(table))

    def draw(self, given: Codes, admitted: dict[int, Mask], noise: Noise, name: str) -> list[Counts]:
        """A row for each of the `given` values of the table's first attributes: values of the other ones. `admitted`
        says for some of them, by place, which values each row may have: bool[rows, values], one at least. A row of
        probability zero follows the admitted values alone.
        """
        rows = len(given[0])
        codes = {self.fitted.fine[i]: self.fitted.coded(i)[0][given[i]] for i in range(self.given)}
        own = range(self.given, len(self.fitted.fine))
        found = [np.zeros(rows, np.int64) for _ in own]
        for start in range(0, rows, self._batch):
            part = slice(start, start + self._batch)
            uniforms = _Uniforms(noise, name, start, min(start + self._batch, rows))
            masks = {i: mask[part] for i, mask in admitted.items()}
            drawn = self._batch_drawn({a: column[part] for a, column in codes.items()}, masks, uniforms)
            for column, i in zip(found, own, strict=True):
                column[part] = self._values(i, drawn[self.fitted.fine[i]], masks.get(i), uniforms)
        return found

    def _batch_drawn(self, known: dict[int, Counts], masks: dict[int, Mask], uniforms: _Uniforms) -> dict[int, Counts]:
        """Codes of the model's other attributes."""
        shares = {self.fitted.fine[i]: self._shares(i, mask) for i, mask in masks.items()}
        homes = {a: self._tree.home((a,)) for a in shares}
        tables: dict[int, Floats] = {}
        messages: dict[int, Floats] = {}
        for j in reversed(self._tree.order):
            if j not in self._cliques:
                continue
            clique = self._cliques[j]
            table = clique.table[self._index(clique.given, known, uniforms.rows)]
            factors: list[_Factor] = [
                ((a,), s if homes[a] == j else s > 0) for a, s in shares.items() if a in clique.drawn
            ]
            for k in self._tree.children(j):
                if k in messages:
                    factors.append((self._cliques[k].drawn[: self._cliques[k].shared], messages[k]))
            for scope, factor in _merged(factors):
                table *= _along(factor, scope, clique.drawn)
            sums = table.sum(axis=tuple(range(1 + clique.shared, table.ndim)))
            if clique.shared:
                top = sums.reshape(len(sums), -1).max(1).reshape(-1, *[1] * clique.shared)
                messages[j] = np.divide(sums, top, out=np.ones_like(sums), where=top > 0)
            if (sums <= 0).any():  # where the model has nothing, what is admitted
                admitted = np.ones((len(table), *table.shape[1:]))
                for a, share in shares.items():
                    if a in clique.drawn:
                        admitted *= _along(share > 0, (a,), clique.drawn)
                table = np.where(sums.reshape(*sums.shape, *[1] * (table.ndim - sums.ndim)) > 0, table, admitted)
            tables[j] = table
        return self._downwards(tables, uniforms)

    def _downwards(self, tables: dict[int, Floats], uniforms: _Uniforms) -> dict[int, Counts]:
        found: dict[int, Counts] = {}
        cards = self._tree.cardinalities
        for j in self._tree.order:
            clique = self._cliques.get(j)
            if clique is None or clique.shared == len(clique.drawn):
                continue
            shape = [cards[a] for a in clique.drawn[: clique.shared]]
            table = tables[j].reshape(uniforms.rows, prod(shape), -1)
            chosen = self._index(clique.drawn[: clique.shared], found, uniforms.rows)
            flat = _chosen(table[np.arange(uniforms.rows), chosen], uniforms.next(j))
            rest = clique.drawn[clique.shared :]
            found |= zip(rest, np.unravel_index(flat, [cards[a] for a in rest]), strict=True)
        return found

    def _index(self, attributes: Set, codes: dict[int, Counts], rows: int) -> Counts:
        index = np.zeros(rows, np.int64)
        for a in attributes:
            index *= self._tree.cardinalities[a]
            index += codes[a]
        return index

    def _shares(self, i: int, mask: Mask) -> Floats:
        """The share of each code of an attribute that each row admits; shape (rows, codes)."""
        codes, within = self.fitted.coded(i)
        found = np.zeros((len(mask), len(self.fitted.values[i])))
        for value, (code, share) in enumerate(zip(codes.tolist(), within.tolist(), strict=True)):
            found[:, code] += mask[:, value] * max(share, 2.0**-60)
        return found

    def _values(self, i: int, codes: Counts, mask: Mask | None, uniforms: _Uniforms) -> Counts:
        """A value for each code of one of the table's attributes."""
        values = self.fitted.values[i][codes]
        merged = np.flatnonzero(values < 0)
        if len(merged):
            rare = self.fitted.rare[i]
            weights = np.diff(self.fitted.rare_cumulative[i][0], prepend=0) + 2.0**-60
            each = np.broadcast_to(weights, (len(merged), len(rare)))
            each = each if mask is None else each * mask[merged][:, rare]
            values[merged] = rare[_chosen(each, uniforms.next(f"rare/{i}")[merged])]
        return values


class _Uniforms:
    """Uniform numbers of the rows of a batch, below 1 by 2**-40 at least."""

    def __init__(self, noise: Noise, name: str, start: int, stop: int) -> None:
        self._noise, self._name, self._start, self.rows = noise, name, start, stop - start

    def next(self, what: int | str) -> Floats:
        words = self._noise.words(f"{self._name}/{what}", self.rows, start=self._start)
        return np.asarray((words >> np.uint64(24)) * 2.0**-40, np.float64)


def _chosen(weights: Floats, uniforms: Floats) -> Counts:
    """For each row a place, with probabilities in proportion to its weights; some are positive."""
    cumulative = np.cumsum(weights, axis=1)
    below = cumulative <= (uniforms * cumulative[:, -1])[:, None]
    return np.asarray(below.sum(1), np.int64)


def _merged(factors: list[_Factor]) -> list[_Factor]:
    """Factors of the same product, no two on nested attributes: few meet the largest table."""
    found: list[_Factor] = []
    for scope, factor in sorted(factors, key=lambda one: one[1].size, reverse=True):
        at = next((k for k, (other, _) in enumerate(found) if set(scope) <= set(other)), None)
        if at is None:
            found.append((scope, factor))
        else:
            found[at] = found[at][0], found[at][1] * _along(factor, scope, found[at][0])
    return found


def _along(table: Floats | Mask, of: Set, axes: Set) -> Floats | Mask:
    """A table of rows and some attributes, in the order of `of`, for products with one of rows and `axes`."""
    order = sorted(range(len(of)), key=lambda k: axes.index(of[k]))
    sizes = dict(zip(of, table.shape[1:], strict=True))
    return table.transpose([0, *(1 + k for k in order)]).reshape(len(table), *(sizes.get(a, 1) for a in axes))
