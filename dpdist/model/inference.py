"""Exact inference on a junction tree, on probabilities: beliefs of the cliques, marginals of factors and of all pairs.

A clique's table is built up attribute by attribute, in ascending cardinality, and each factor is multiplied in where
its last attribute joins, so that few products run over the whole table. Marginals of all pairs are found by messages
P(attributes, separator) that carry the rows of many attributes at once. A row's product does not depend on the others
(`dpdist.privacy.portable.probability_product`), so that the grouping of attributes changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import prod

import numpy as np

from dpdist.data.count import marginal
from dpdist.model.junction import JunctionTree, Set
from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import probability_product

# tables with smaller sums are scaled before they are divided by: quotients stay below the largest float
_TINY = 2.0**-64


def _places(clique: Set, attributes: Set) -> tuple[int, ...]:
    return tuple(clique.index(a) for a in attributes)


_Slot = tuple[Set | int, tuple[int, ...]]  # a factor of a clique, and the shape it is broadcast with


class Inference:
    """Beliefs of the cliques from factors on sets of attributes; each of the `sets` lies in a clique."""

    def __init__(self, tree: JunctionTree, sets: Sequence[Set]) -> None:
        self.tree, self.sets = tree, tuple(sets)
        self.home = {s: tree.home(s) for s in self.sets}
        self._shape = [tuple(tree.cardinalities[a] for a in clique) for clique in tree.cliques]
        self._slots = [self._slots_of(j) for j in range(len(tree.cliques))]
        self._wanted: list[list[tuple[int, Set, tuple[int, ...]]]] = [[] for _ in tree.cliques]
        for s, j in self.home.items():
            places = _places(tree.cliques[j], s)
            self._wanted[j].append((places[-1], s, places))
        self._children = [tree.children(j) for j in range(len(tree.cliques))]
        self._own_places = [_places(c, s) for c, s in zip(tree.cliques, tree.separators, strict=True)]
        self._parent_places = [
            _places(tree.cliques[p], s) if p >= 0 else () for p, s in zip(tree.parent, tree.separators, strict=True)
        ]

    def _slots_of(self, j: int) -> list[list[_Slot]]:
        clique = self.tree.cliques[j]
        scopes: list[tuple[Set | int, Set]] = [(s, s) for s, home in self.home.items() if home == j]
        scopes += [(k, self.tree.separators[k]) for k in self.tree.children(j) if self.tree.separators[k]]
        levels: list[list[_Slot]] = [[] for _ in clique]
        for key, scope in scopes:
            level = clique.index(scope[-1])
            shape = tuple(self.tree.cardinalities[a] if a in scope else 1 for a in clique[: level + 1])
            levels[level].append((key, shape))
        for slots in levels:
            slots.sort(key=lambda slot: prod(slot[1]))
        return levels

    def _product(self, j: int, factors: Mapping[Set | int, Floats]) -> Floats:
        table: Floats = np.ones(())
        for size, slots in zip(self._shape[j], self._slots[j], strict=True):
            joined: Floats | None = None
            for key, shape in slots:
                factor = factors[key].reshape(shape)
                joined = factor if joined is None else joined * factor
            table = table[..., None] * (np.ones(size) if joined is None else joined)
        return table

    def beliefs(self, factors: Mapping[Set, Floats]) -> list[Floats] | None:
        """Probabilities of each clique; None where the factors' product vanishes in floating point."""
        tree = self.tree
        known: dict[Set | int, Floats] = dict(factors.items())
        found: list[Floats] = [np.ones(())] * len(tree.cliques)
        sums: list[Floats] = [np.ones(())] * len(tree.cliques)
        for j in reversed(tree.order):
            found[j] = self._product(j, known)
            sums[j] = marginal(found[j], self._own_places[j])
            top = sums[j].max()
            if not top > 1e-280:
                return None
            if top < _TINY:
                found[j], sums[j], top = found[j] / top, sums[j] / top, 1.0
            known[j] = sums[j] / top
        for j in tree.order:
            p = tree.parent[j]
            if p < 0 or not tree.separators[j]:
                found[j] /= found[j].sum()
                continue
            above = marginal(found[p], self._parent_places[j])
            ratio = np.divide(above, sums[j], out=np.zeros_like(above), where=sums[j] > 0)
            clique, separator = tree.cliques[j], tree.separators[j]
            found[j] *= ratio.reshape([tree.cardinalities[a] if a in separator else 1 for a in clique])
        return found

    def marginals(self, beliefs: Sequence[Floats]) -> dict[Set, Floats]:
        """The marginal of each factor's set."""
        found: dict[Set, Floats] = {}
        for j, wanted in enumerate(self._wanted):
            table = beliefs[j]
            for level in range(table.ndim - 1, -1, -1):
                here = [item for item in wanted if item[0] == level]
                for _, s, places in here:
                    found[s] = marginal(table, places)
                if not any(item[0] < level for item in wanted):
                    break
                table = marginal(table, range(level))
        return found


MESSAGE_CELLS = 1 << 19  # most cells of a message, unless one attribute has more


@dataclass(frozen=True, eq=False)
class _Message:
    """P(attribute, separator) for several attributes, whose codes are the rows one after another."""

    attributes: Set
    table: Floats


class PairMarginals:
    """Pair marginals of given beliefs of the cliques; what cliques pass on is computed once."""

    def __init__(self, tree: JunctionTree, beliefs: list[Floats]) -> None:
        self._tree, self._beliefs, self._cards = tree, beliefs, tree.cardinalities
        self._near: list[list[tuple[int, Set]]] = [[] for _ in tree.cliques]
        for j, p in enumerate(tree.parent):
            if p >= 0:
                self._near[j].append((p, tree.separators[j]))
                self._near[p].append((j, tree.separators[j]))
        self._marginal = cache(self._marginal_of)
        self._conditional = cache(self._conditional_of)

    def all(self) -> dict[tuple[int, int], Floats]:
        """The marginal of every pair (a, b), a < b, shape (cardinalities[a], cardinalities[b])."""
        found: dict[tuple[int, int], Floats] = {}
        by_cells = sorted(range(len(self._tree.cliques)), key=lambda j: (self._beliefs[j].size, j))
        for j in by_cells:
            for pair in combinations(self._tree.cliques[j], 2):
                if pair not in found:
                    found[pair] = self._marginal(j, pair)
        for group in self._groups():
            self._add(frozenset(group), found)
        return found

    def _groups(self) -> Iterator[list[int]]:
        """Attributes whose messages fit together."""
        separator = max((prod(self._cards[b] for b in s) for s in self._tree.separators), default=1)
        group: list[int] = []
        rows = 0
        for a, size in enumerate(self._cards):
            if group and (rows + size) * separator > MESSAGE_CELLS:
                yield group
                group, rows = [], 0
            group.append(a)
            rows += size
        yield group

    def _add(self, group: frozenset[int], found: dict[tuple[int, int], Floats]) -> None:
        """Pairs that share no clique, whose smaller attribute is in the group, by messages along the tree's edges."""
        messages: dict[tuple[int, int], _Message | None] = {}
        for j in reversed(self._tree.order):
            if self._tree.parent[j] >= 0:
                messages[j, self._tree.parent[j]] = self._onward(j, self._tree.parent[j], group, messages)
        for j in self._tree.order:
            for k, _ in self._near[j]:
                if k != self._tree.parent[j]:
                    messages[j, k] = self._onward(j, k, group, messages)
        for (_, k), message in messages.items():
            if message is not None:
                self._meet(k, self._separator(_, k), message, found)

    def _separator(self, j: int, k: int) -> Set:
        return self._tree.separators[j if self._tree.parent[j] == k else k]

    def _onward(
        self, j: int, k: int, group: frozenset[int], messages: dict[tuple[int, int], _Message | None]
    ) -> _Message | None:
        """P(attributes, separator of j and k), from j's belief and from what j was sent by others than k."""
        shared = self._separator(j, k)
        attributes: list[int] = []
        tables: list[Floats] = []
        for a in self._tree.cliques[j]:
            if a in group and a not in shared:
                both = tuple(sorted((a, *shared)))
                attributes.append(a)
                tables.append(np.moveaxis(self._marginal(j, both), both.index(a), 0))
        for i, separator in self._near[j]:
            message = messages[i, j] if i != k else None
            if message is not None:
                attributes += message.attributes
                tables.append(self._carry(j, separator, shared, message.table))
        return _Message(tuple(attributes), np.concatenate(tables)) if tables else None

    def _meet(self, k: int, separator: Set, message: _Message, found: dict[tuple[int, int], Floats]) -> None:
        """Pairs of the message's attributes with those that are new in clique k."""
        ends = np.cumsum([self._cards[a] for a in message.attributes])
        for b in self._tree.cliques[k]:
            if b in separator or min(message.attributes) > b:
                continue
            table = self._carry(k, separator, (b,), message.table)
            for a, end in zip(message.attributes, ends.tolist(), strict=True):
                if a < b:
                    found[a, b] = table[end - self._cards[a] : end]

    def _marginal_of(self, j: int, attributes: Set) -> Floats:
        clique = self._tree.cliques[j]
        return marginal(self._beliefs[j], [clique.index(a) for a in attributes])

    def _conditional_of(self, j: int, shared: Set, summed: Set, added: Set) -> Floats:
        """P(added | shared, summed) in clique j, shape (shared, summed, added)."""
        both = tuple(sorted((*shared, *summed, *added)))
        table = self._marginal(j, both)
        sizes = [prod(self._cards[b] for b in part) for part in (shared, summed, added)]
        joint: Floats = np.transpose(table, [both.index(b) for b in (*shared, *summed, *added)]).reshape(sizes)
        given = joint.sum(2, keepdims=True)
        conditional: Floats = np.divide(joint, given, out=np.zeros_like(joint), where=given > 0)
        return conditional

    def _carry(self, j: int, separator: Set, to: Set, message: Floats) -> Floats:
        """P(rows, to) from P(rows, separator), through clique j, which makes `to` independent of the rows."""
        cards = self._cards
        shared = tuple(b for b in separator if b in to)
        summed = tuple(b for b in separator if b not in to)
        added = tuple(b for b in to if b not in separator)
        axes = [*(1 + separator.index(b) for b in shared), 0, *(1 + separator.index(b) for b in summed)]
        sizes = [prod(cards[b] for b in shared), len(message), prod(cards[b] for b in summed)]
        moved = np.transpose(message, axes).reshape(sizes)
        result = probability_product(moved, self._conditional(j, shared, summed, added)).reshape(
            [*(cards[b] for b in shared), len(message), *(cards[b] for b in added)]
        )
        order = [*shared, -1, *added]
        return np.transpose(result, [order.index(-1), *(order.index(b) for b in to)])
