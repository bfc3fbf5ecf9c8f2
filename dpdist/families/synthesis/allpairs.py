"""Exact marginals of all pairs of attributes of a junction tree, by messages P(attribute, separator)."""

from __future__ import annotations

from math import prod

import numpy as np

from dpdist.families.synthesis.inference import marginal
from dpdist.families.synthesis.junction import JunctionTree, Set
from dpdist.families.synthesis.portable import probability_product
from dpdist.privacy.arrays import Floats


class PairMarginals:
    """Pair marginals of given beliefs; what cliques pass on is computed once.

    Parameters
    ----------
    tree : JunctionTree
    beliefs : list of ndarray
        Probabilities of the cliques.
    """

    def __init__(self, tree: JunctionTree, beliefs: list[Floats]) -> None:
        self._tree, self._beliefs = tree, beliefs
        self._passes: dict[tuple[int, Set, Set], Floats] = {}
        self._near: list[list[tuple[int, Set]]] = [[] for _ in tree.cliques]
        for j, p in enumerate(tree.parent):
            if p >= 0:
                self._near[j].append((p, tree.separators[j]))
                self._near[p].append((j, tree.separators[j]))

    def all(self) -> dict[tuple[int, int], Floats]:
        """The marginal of every pair (a, b), a < b, shape (cardinalities[a], cardinalities[b])."""
        found: dict[tuple[int, int], Floats] = {}
        for a in range(len(self._tree.cardinalities)):
            found |= self._with(a)
        return found

    def _marginal(self, j: int, attributes: Set) -> Floats:
        clique = self._tree.cliques[j]
        return marginal(self._beliefs[j], [clique.index(a) for a in attributes])

    def _with(self, a: int) -> dict[tuple[int, int], Floats]:
        """P(a, b) of every b > a: messages P(a, separator) walked over the tree from a clique that holds a."""
        found: dict[tuple[int, int], Floats] = {}
        home = self._tree.home((a,))
        waiting: list[tuple[int, int, Set, Floats | None]] = [(home, -1, (), None)]
        while waiting:
            j, came, separator, message = waiting.pop()
            clique = self._tree.cliques[j]
            inside = a in clique
            for b in clique:
                if b > a and (a, b) not in found:
                    if inside:
                        found[a, b] = self._marginal(j, (a, b))
                    elif b in separator and message is not None:
                        found[a, b] = marginal(message, (0, 1 + separator.index(b)))
                    elif message is not None:
                        found[a, b] = self._carry(j, separator, (b,), message)
            for k, shared in self._near[j]:
                if k == came:
                    continue
                onward = self._from_home(j, a, shared) if inside else self._carry(j, separator, shared, message)
                waiting.append((k, j, shared, onward))
        return found

    def _from_home(self, j: int, a: int, shared: Set) -> Floats:
        """P(a, separator), on the diagonal where the separator holds a itself."""
        if a not in shared:
            both = tuple(sorted((a, *shared)))
            return np.moveaxis(self._marginal(j, both), both.index(a), 0)
        place = shared.index(a)
        table = np.moveaxis(self._marginal(j, shared), place, 0)
        full = np.zeros((len(table), *table.shape))
        full[np.arange(len(table)), np.arange(len(table))] = table
        return np.moveaxis(full, 1, 1 + place)

    def _carry(self, j: int, separator: Set, to: Set, message: Floats | None) -> Floats:
        """P(a, to) from P(a, separator), through clique j, which makes `to` independent of a given the separator.

        What the separator and `to` share is kept as a batch of products.
        """
        if message is None:
            raise ValueError("a message is carried from a separator only")
        cards = self._tree.cardinalities
        shared = [b for b in separator if b in to]
        summed = [b for b in separator if b not in to]
        added = [b for b in to if b not in separator]
        sizes = [prod(cards[b] for b in part) for part in (shared, summed, added)]
        key = (j, separator, to)
        if key not in self._passes:
            both = tuple(sorted({*separator, *to}))
            table = self._marginal(j, both)
            places = [both.index(b) for b in (*shared, *summed, *added)]
            joint = np.transpose(table, places).reshape(sizes)
            given = joint.sum(2, keepdims=True)
            self._passes[key] = np.divide(joint, given, out=np.zeros_like(joint), where=given > 0)
        axes = [*(1 + separator.index(b) for b in shared), 0, *(1 + separator.index(b) for b in summed)]
        moved = np.transpose(message, axes).reshape(sizes[0], len(message), sizes[1])
        result = probability_product(moved, self._passes[key]).reshape(
            [*(cards[b] for b in shared), len(message), *(cards[b] for b in added)]
        )
        order = [*shared, -1, *added]
        return np.transpose(result, [order.index(-1), *(order.index(b) for b in to)])
