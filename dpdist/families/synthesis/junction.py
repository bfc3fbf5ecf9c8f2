"""Junction trees: triangulation of the graph of measured pairs, and the tree of its cliques.

Attributes are numbered in ascending order of cardinality, so the last axis of every table is its longest; sets of
attributes are ascending tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

Set = tuple[int, ...]


def cliques_of(cardinalities: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[Set]:
    """Maximal cliques of a triangulation: eliminate the attribute whose clique is smallest (ties: least degree)."""
    d = len(cardinalities)
    near: list[set[int]] = [set() for _ in range(d)]
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)

    def cost(v: int) -> tuple[int, int, int]:
        return cardinalities[v] * prod(cardinalities[u] for u in near[v]), len(near[v]), v

    costs = {v: cost(v) for v in range(d)}
    found: list[set[int]] = []
    while costs:
        v = min(costs, key=costs.__getitem__)
        del costs[v]
        clique = near[v] | {v}
        if not any(clique <= other for other in found):
            found.append(clique)
        for u in near[v]:
            near[u] |= near[v]
            near[u] -= {u, v}
        for u in near[v]:
            costs[u] = cost(u)
        near[v] = set()
    return [tuple(sorted(clique)) for clique in found]


def cells_of(cliques: Iterable[Set], cardinalities: Sequence[int]) -> int:
    """Number of cells of the tables of all cliques."""
    return sum(prod(cardinalities[a] for a in clique) for clique in cliques)


@dataclass(frozen=True, eq=False)
class JunctionTree:
    """A rooted tree over cliques with the running intersection property.

    Attributes
    ----------
    cardinalities : tuple of int
    cliques : tuple of tuple of int
    order : tuple of int
        Clique numbers, parents before children; the first is the root, the clique with the most cells.
    parent : tuple of int
        Parent of each clique; -1 for the root.
    separators : tuple of tuple of int
        What each clique shares with its parent; may be empty.
    """

    cardinalities: tuple[int, ...]
    cliques: tuple[Set, ...]
    order: tuple[int, ...]
    parent: tuple[int, ...]
    separators: tuple[Set, ...]

    @classmethod
    def of(cls, cardinalities: Sequence[int], cliques: Sequence[Set]) -> JunctionTree:
        """The maximum spanning tree on the sizes of the separators (Prim)."""
        sets = [set(clique) for clique in cliques]
        root = max(range(len(cliques)), key=lambda i: (cells_of([cliques[i]], cardinalities), -i))
        order, parent = [root], [-1] * len(cliques)
        best = {j: (len(sets[j] & sets[root]), root) for j in range(len(cliques)) if j != root}
        while best:
            j = max(best, key=lambda j: (best[j][0], -j))
            parent[j] = best.pop(j)[1]
            order.append(j)
            for k, (shared, _) in best.items():
                if len(sets[k] & sets[j]) > shared:
                    best[k] = (len(sets[k] & sets[j]), j)
        separators = [tuple(sorted(sets[j] & sets[p])) if p >= 0 else () for j, p in enumerate(parent)]
        return cls(tuple(cardinalities), tuple(cliques), tuple(order), tuple(parent), tuple(separators))

    def children(self, j: int) -> list[int]:
        """Children of a clique."""
        return [k for k in self.order if self.parent[k] == j]

    def home(self, attributes: Set) -> int:
        """The smallest clique that holds all of these attributes.

        Raises
        ------
        KeyError
            No clique does.
        """
        wanted = set(attributes)
        fitting = [j for j, clique in enumerate(self.cliques) if wanted <= set(clique)]
        if not fitting:
            raise KeyError(attributes)
        return min(fitting, key=lambda j: (cells_of([self.cliques[j]], self.cardinalities), j))

    def drawing_order(self) -> list[tuple[int, Set, int]]:
        """(clique, parents, attribute) in the order of drawing: the parents are drawn before, in the same clique."""
        done: set[int] = set()
        steps = []
        for j in self.order:
            for a in self.cliques[j]:
                if a not in done:
                    steps.append((j, tuple(b for b in self.cliques[j] if b in done), a))
                    done.add(a)
        return steps


class Components:
    """Connected components of a growing forest (union by relabelling)."""

    def __init__(self, size: int, edges: Iterable[tuple[int, int]] = ()) -> None:
        self._of = list(range(size))
        for a, b in edges:
            self.join(a, b)

    def joined(self, a: int, b: int) -> bool:
        """Whether there is a path."""
        return self._of[a] == self._of[b]

    def join(self, a: int, b: int) -> None:
        """Add an edge."""
        old, new = self._of[a], self._of[b]
        self._of = [new if label == old else label for label in self._of]


def pairs_of(clique: Set) -> list[tuple[int, int]]:
    """All pairs of a clique."""
    return list(combinations(clique, 2))
