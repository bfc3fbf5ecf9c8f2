"""Exact inference on a junction tree, on probabilities rather than logarithms.

Factors are exponentials of small tables. A clique's table is built up attribute by attribute, in ascending
cardinality, and each factor is multiplied in where its last attribute joins, so that few products run over the whole
table; marginals come off in the opposite order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dpdist.data.count import marginal
from dpdist.families.synthesis.junction import JunctionTree, Set
from dpdist.privacy.arrays import Floats

_TINY = 2.0**-64
"""Tables with smaller sums are scaled before they are divided by: quotients stay below the largest float."""


def _places(clique: Set, attributes: Set) -> tuple[int, ...]:
    return tuple(clique.index(a) for a in attributes)


@dataclass(frozen=True, eq=False)
class _Slot:
    """A factor of a clique: which, at which level, and the shape it is broadcast with."""

    key: Set | int
    level: int
    shape: tuple[int, ...]


class Inference:
    """Beliefs of the cliques from factors on sets of attributes.

    Parameters
    ----------
    tree : JunctionTree
    sets : sequence of tuple of int
        Scopes of the factors; each lies in a clique.
    """

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
            levels[level].append(_Slot(key, level, shape))
        for slots in levels:
            slots.sort(key=lambda slot: prod(slot.shape))
        return levels

    def _product(self, j: int, factors: Mapping[Set | int, Floats]) -> Floats:
        table: Floats = np.ones(())
        for size, slots in zip(self._shape[j], self._slots[j], strict=True):
            joined: Floats | None = None
            for slot in slots:
                factor = factors[slot.key].reshape(slot.shape)
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
