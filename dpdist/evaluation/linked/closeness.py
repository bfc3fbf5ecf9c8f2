"""How like released parents are a target: by the attributes in which they differ, and by tables of two attributes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts, pair_counts
from dpdist.evaluation.binning import view_of
from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.spec.schema import Schema

BLOCK_CELLS = 1 << 20
"""Pairs of parents that are compared at a time."""


def wide(parents: ParentRecords) -> NDArray[np.unsignedinteger]:
    """A row for each parent: its attributes, and those of its members in their order, 0 where there is none."""
    linked = parents.linked
    schema, owner, places = linked.schema, parents.owner, parents.places
    columns = [parents.codes[linked.place(i)][parents.ends[:-1]].astype(np.uint32) for i in linked.parent]
    for i in map(linked.place, linked.members):
        padded = np.zeros((len(parents), linked.unit.at_most), np.uint32)
        padded[owner, places] = parents.codes[i].astype(np.uint32) + 1
        columns += list(padded.T)
    found = np.stack(columns)
    return found.astype(np.min_scalar_type(max(a.cardinality for a in schema.attributes)))


@dataclass(frozen=True, eq=False)
class Near:
    """The parents of a table that are near to each target.

    Attributes
    ----------
    least : ndarray of float64
        Attributes, of the parent and of all its members, in which the nearest one differs. A member that only one of
        both has differs in all of its attributes.
    density : ndarray of float64
        Mean of 16**-d over all, d the attributes in which each one differs.
    others : int
        Parents of the table.
    """

    least: Floats
    density: Floats
    others: int

    def __or__(self, more: Near) -> Near:
        """Those of two tables together."""
        count = self.others + more.others
        density = (self.density * self.others + more.density * more.others) / count
        return Near(np.minimum(self.least, more.least), density, count)

    @classmethod
    def of(cls, targets: ParentRecords, others: ParentRecords) -> Near:
        """Every target against every other parent."""
        ours, theirs = wide(targets), wide(others)
        weights = np.exp2(-4.0 * np.arange(len(ours) + 1))
        least, density = np.empty(len(targets)), np.empty(len(targets))
        step = max(1, BLOCK_CELLS // max(len(others), 1))
        for start in range(0, len(targets), step):
            rows = slice(start, start + step)
            differing = np.zeros((len(ours[0, rows]), len(others)), np.min_scalar_type(len(ours)))
            for a, b in zip(ours, theirs, strict=True):
                differing += a[rows, None] != b
            least[rows] = differing.min(axis=1)
            density[rows] = weights[differing].mean(axis=1)
        return cls(least, density, len(others))


@dataclass(frozen=True, eq=False)
class WithinPairTables:
    """Counts of all pairs of attributes of parents with their first members, and of members with those before them."""

    parents: PairCounts
    members: PairCounts

    @classmethod
    def of(cls, parents: ParentRecords) -> WithinPairTables:
        """Those of some parents."""
        return cls(*(pair_counts(codes, sizes) for codes, sizes in _rows(parents)[:2]))


def pair_ratio(targets: ParentRecords, released: WithinPairTables, reference: WithinPairTables) -> Floats:
    """For each target the sum, over pairs of attributes of its rows, of the log of the released over the reference's
    share of that cell.
    """
    (top, _), (rest, _), owner = _rows(targets)
    score = _row_scores(top, released.parents, reference.parents)
    return score + np.bincount(owner, _row_scores(rest, released.members, reference.members), len(targets))


def _row_scores(rows: Codes, released: PairCounts, reference: PairCounts) -> Floats:
    score = np.zeros(len(rows[0]))
    for i in range(len(rows)):
        for j in range(i):
            ours, theirs = ((of.pair(j, i) + 0.5) / (of.total + 1) for of in (released, reference))
            score += np.log(ours / theirs)[rows[j], rows[i]]
    return score


def _rows(parents: ParentRecords) -> tuple[tuple[Codes, tuple[int, ...]], tuple[Codes, tuple[int, ...]], Counts]:
    """Rows of parents with the first member; rows of later members with parent, place, first and previous member; and
    the parent of each of these.
    """
    linked = parents.linked
    top, schema = parents.top(), linked.parents_schema
    view = view_of(Schema(attributes=linked.schema.attributes))
    codes = view.codes(parents.codes)
    own = [linked.place(i) for i in linked.members]
    above = [linked.place(i) for i in linked.parent]
    firsts, owner = parents.ends[:-1], parents.owner
    later = np.flatnonzero(parents.places > 0)
    sizes = [view.sizes[i] for i in own]
    composition = top[len(above) :]
    first = [*(codes[i][firsts] for i in above), *composition, *(codes[i][firsts] for i in own)]
    first_sizes = [*(view.sizes[i] for i in above), *schema.cardinalities[len(above) :], *sizes]
    rows = [*(codes[i][later] for i in above), (parents.places[later] - 1).astype(np.uint8)]
    rows += [codes[i][at] for at in (firsts[owner[later]], later - 1, later) for i in own]
    other_sizes = [*(view.sizes[i] for i in above), linked.unit.at_most - 1, *sizes * 3]
    return (first, tuple(first_sizes)), (rows, tuple(other_sizes)), owner[later]
