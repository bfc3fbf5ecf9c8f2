"""Junction trees: triangulation of the graph of measured pairs, and the tree of its cliques.

Attributes are numbered in ascending order of cardinality, so the last axis of every table is its longest; sets of
attributes are ascending tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise
from math import prod

Set = tuple[int, ...]


HUBS = 4  # separators of a path, those of the fewest cells, that may join all of it


class Graph:
    """Measured pairs as edges between attributes, for triangulations with an edge more."""

    def __init__(self, cardinalities: Sequence[int], edges: Iterable[tuple[int, int]]) -> None:
        self._cards = tuple(cardinalities)
        self._near = [0] * len(self._cards)  # bits of the neighbours
        for a, b in edges:
            self._near[a] |= 1 << b
            self._near[b] |= 1 << a
        self._sizes = [size * prod(self._cards[u] for u in _bits(self._near[v])) for v, size in enumerate(self._cards)]

    def eliminate(self, *, extra: tuple[int, int] | None = None, most: int | None = None) -> list[int] | None:
        """Cliques, as bits, of a triangulation with an edge `extra`; None where they have more than `most` cells. The
        attribute whose clique is smallest is eliminated first; ties: the one of least degree.
        """
        found: list[int] = []
        inside: list[list[int]] = [[] for _ in self._cards]  # the cliques found so far that hold an attribute
        cells = 0
        for v, neighbours, size in self.steps(extra):
            clique = neighbours | 1 << v
            if any(clique & ~other == 0 for other in inside[v]):
                continue
            found.append(clique)
            cells += size
            if most is not None and cells > most:
                return None
            for u in _bits(neighbours):
                inside[u].append(clique)
        return found

    def steps(self, extra: tuple[int, int] | None = None) -> Iterator[tuple[int, int, int]]:
        """The attributes in the order of elimination, each with the bits of its neighbours and its clique's cells."""
        cards, near, sizes = self._cards, self._near.copy(), self._sizes.copy()
        if extra is not None:
            for a, b in (extra, extra[::-1]):
                if not near[a] >> b & 1:
                    near[a] |= 1 << b
                    sizes[a] *= cards[b]
        waiting = [(size, near[v].bit_count(), v) for v, size in enumerate(sizes)]
        heapify(waiting)
        done = 0
        while waiting:
            size, degree, v = heappop(waiting)
            if done >> v & 1 or size != sizes[v] or degree != near[v].bit_count():
                continue  # changed since
            done |= 1 << v
            neighbours = near[v]
            yield v, neighbours, size
            for u in _bits(neighbours):
                added = neighbours & ~near[u] & ~(1 << u)
                near[u] = (near[u] | added) & ~(1 << v)
                sizes[u] //= cards[v]
                while added:
                    lowest = added & -added
                    sizes[u] *= cards[lowest.bit_length() - 1]
                    added ^= lowest
                heappush(waiting, (sizes[u], near[u].bit_count(), u))


class Paths:
    """An upper bound on the cells of a triangulation with an edge more, much faster than another elimination.

    The edge closes a cycle with a path of the elimination tree; one separator of it joins all others.
    """

    def __init__(self, graph: Graph, cardinalities: Sequence[int]) -> None:
        self._cards = tuple(cardinalities)
        self._sizes: dict[int, int] = {}
        self._place, self._separator = [0] * len(self._cards), [0] * len(self._cards)
        for place, (v, neighbours, _) in enumerate(graph.steps()):
            self._place[v], self._separator[v] = place, neighbours
        root = len(self._cards)  # above all trees
        self._parent = [min(_bits(s), key=lambda u: self._place[u], default=root) for s in self._separator]
        self._place.append(root)
        self.cells = sum(map(self._size, graph.eliminate() or []))

    def cells_with(self, a: int, b: int) -> int:
        """Cells of a triangulation with the edge (a, b)."""
        path = self._between(a, b)
        if path is None:
            return self.cells + self._cards[a] * self._cards[b]
        if not path:
            return self.cells
        path = [1 << a, *path, 1 << b]
        return self.cells + min(self._through(hub, path) for hub in sorted(path, key=self._size)[:HUBS])

    def _between(self, a: int, b: int) -> list[int] | None:
        """The separators on the path between two attributes; None if none exists."""
        left: list[int] = []
        right: list[int] = []
        while a != b:
            if self._place[a] < self._place[b]:
                if self._separator[a] >> b & 1:
                    left += [self._separator[a]] if right else []
                    break
                left.append(self._separator[a])
                a = self._parent[a]
            else:
                if self._separator[b] >> a & 1:
                    right += [self._separator[b]] if left else []
                    break
                right.append(self._separator[b])
                b = self._parent[b]
        return None if a == len(self._cards) else [s for s, _ in groupby(left + right[::-1])]

    def _through(self, hub: int, path: Sequence[int]) -> int:
        """Cells of the cliques that are new where one of the separators of a path joins all others."""
        found = self._size(hub | path[0] | path[-1])
        for one, other in pairwise(path):
            if hub & ~(one | other):
                found += self._size(hub | one | other)
        return found

    def _size(self, attributes: int) -> int:
        """Cells of the table of some attributes."""
        found = self._sizes.get(attributes)
        if found is None:
            found = self._sizes[attributes] = prod(self._cards[u] for u in _bits(attributes))
        return found


def _bits(mask: int) -> list[int]:
    """Places of the ones, ascending."""
    places = []
    while mask:
        lowest = mask & -mask
        places.append(lowest.bit_length() - 1)
        mask ^= lowest
    return places


def cliques_of(cardinalities: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[Set]:
    """Maximal cliques of the triangulation of `Graph.eliminate`."""
    return [tuple(_bits(clique)) for clique in Graph(cardinalities, edges).eliminate() or []]


def cells_of(cliques: Iterable[Set], cardinalities: Sequence[int]) -> int:
    """Number of cells of the tables of all cliques."""
    return sum(prod(cardinalities[a] for a in clique) for clique in cliques)


@dataclass(frozen=True, eq=False)
class JunctionTree:
    """A rooted tree over cliques with the running intersection property."""

    cardinalities: tuple[int, ...]
    cliques: tuple[Set, ...]
    order: tuple[int, ...]  # clique numbers, parents before children, from the root, which has the most cells
    parent: tuple[int, ...]  # parent of each clique; -1 for the root
    separators: tuple[Set, ...]  # what each clique shares with its parent; may be empty

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
        """The smallest clique that holds all of these attributes. Raises KeyError: no clique does."""
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
