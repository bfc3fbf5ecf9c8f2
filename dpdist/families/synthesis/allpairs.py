"""Exact marginals of all pairs of attributes of a junction tree, by messages P(attributes, separator).

A message carries the rows of many attributes at once: it is one matrix product an edge of the tree. A row's product
does not depend on the other rows (`dpdist.privacy.portable.probability_product`), so that the grouping of
attributes, which bounds the memory, changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import prod

import numpy as np

from dpdist.data.count import marginal
from dpdist.families.synthesis.junction import JunctionTree, Set
from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import probability_product

MESSAGE_CELLS = 1 << 19
"""Most cells of a message, unless one attribute has more."""


@dataclass(frozen=True, eq=False)
class _Message:
    """P(attribute, separator) for several attributes, whose codes are the rows one after another."""

    attributes: Set
    table: Floats


class PairMarginals:
    """Pair marginals of given beliefs; what cliques pass on is computed once.

    Parameters
    ----------
    tree : JunctionTree
    beliefs : list of ndarray
        Probabilities of the cliques.
    """

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
        """Pairs that share no clique, whose smaller attribute is in the group.

        The message from j to k has the attributes on j's side of the edge that k does not have.
        """
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
        """P(rows, to) from P(rows, separator), through clique j, which makes `to` independent of the rows given it.

        What the separator and `to` share is kept as a batch of products.
        """
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
