"""The two tables that are counted: parents with their first members, and every other member with what it depends on.

A row of the first has the parent's attributes, its number of members, how many of each kind, the attributes of the
first member, and number and kinds as one column. A row of the second has what is known when a member is drawn (the
parent, the member's place, how many members of each kind are left, the first and the previous member) and then the
member's own attributes. A parent is one row of the first table and at most ``at_most - 1`` of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.attribute import Attribute
from dpdist.spec.conditions import Mask
from dpdist.spec.rules import Forbidden, Rule, Rules
from dpdist.spec.schema import Schema
from dpdist.spec.strict import OwnFields

MOST_CELLS, MOST_COMPOSITIONS = 1 << 16, 128  # of sizes and kinds that may be a column: that are tried, that there are


@dataclass(frozen=True, eq=False)
class Kinds:
    """Kinds of members, which the values of one attribute tell."""

    names: tuple[str, ...]
    attribute: int
    masks: Mask  # shape (kinds + 1, values); which values are of each kind; of none in the last row

    @classmethod
    def of(cls, names: tuple[str, ...], attribute: int, masks: Sequence[Mask]) -> Kinds:
        """Kinds with what is left over. Raises ValueError: they overlap, or one has no value."""
        found = np.stack(masks)
        if (found.sum(0) > 1).any() or not found.any(1).all():
            raise ValueError("members.kinds: each kind has values, and none is of two kinds")
        rest = ~found.any(0)
        return cls(names, attribute, np.vstack([found, rest]))


@dataclass(frozen=True, eq=False)
class Layout(OwnFields):
    """Where the columns of the two tables are."""

    schema: Schema  # of the joined table: a row for each member, with the attributes of its parent
    parent: tuple[int, ...]  # parent, members: the parent's attributes and the members'
    members: tuple[int, ...]
    # context, previous: attributes of the first and of the previous member that another one depends on
    context: tuple[int, ...]
    previous: tuple[int, ...]
    # sets of attributes of the parent and of the first member, or `order` for the place of a member, whose combinations
    # are columns of what is given
    crossed: tuple[tuple[int, ...], ...]
    order: int | None  # the attribute that orders the members
    at_most: int  # members of a parent
    kinds: Kinds | None

    @property
    def counts(self) -> int:
        """Number of declared kinds."""
        return 0 if self.kinds is None else len(self.kinds.names)

    @cached_property
    def first(self) -> Schema:
        """The table of the parents: their attributes, size, kinds, first member."""
        own = self.schema.attributes
        names = () if self.kinds is None else self.kinds.names
        composition = [_integer("size", 1, self.at_most), *(_integer(f"of {n}", 0, self.at_most) for n in names)]
        whole = [_codes("(composition)", len(self.compositions))] if len(self.compositions) else []
        members = (own[i] for i in self.members)
        return Schema(attributes=(*(own[i] for i in self.parent), *composition, *members, *whole))

    @cached_property
    def compositions(self) -> Counts:
        """The sizes with numbers of each kind that there can be, each a row, where they are few: a column has their
        places. Tables of two columns do not tell which sizes and kinds go with a value of a third.
        """
        if self.kinds is None or self.at_most * (self.at_most + 1) ** self.counts > MOST_CELLS:
            return np.zeros((0, 1), np.int64)
        numbers = product(range(1, self.at_most + 1), *[range(self.at_most + 1)] * self.counts)
        found: Counts = np.array([*numbers], np.int64)
        rest = found[:, 0] - found[:, 1:].sum(1)
        found = found[rest >= 0 if self.kinds.masks[-1].any() else rest == 0]
        return found if len(found) <= MOST_COMPOSITIONS else found[:0]

    @cached_property
    def given(self) -> tuple[Attribute, ...]:
        """What is known when a member is drawn."""
        own, last = self.schema.attributes, self.at_most - 1
        names = () if self.kinds is None else self.kinds.names
        return (
            *(_codes(own[i].name, own[i].bucket_count) for i in self.parent),
            _integer("place", 2, self.at_most),
            _integer("left", 1, last),
            *(_integer(f"left of {name}", 0, last) for name in names),
            *(_codes(f"first {own[i].name}", own[i].bucket_count) for i in self.context),
            *(_codes(f"previous {own[i].name}", own[i].bucket_count + (i in self.context)) for i in self.previous),
            *(_codes(" x ".join(own[i].name for i in cross), prod(self._sizes(cross))) for cross in self.crossed),
        )

    def _sizes(self, cross: tuple[int, ...]) -> list[int]:
        """Numbers of codes of crossed attributes; of the order, those of the places."""
        return [self.at_most - 1 if i == self.order else self.schema.attributes[i].bucket_count for i in cross]

    @cached_property
    def others(self) -> Schema:
        """The table of the members after the first."""
        members = (self.schema.attributes[i] for i in self.members)
        return Schema(attributes=(*self.given, *(a.model_copy(update={"name": f"own {a.name}"}) for a in members)))

    @cached_property
    def first_rules(self) -> Rules:
        """What no row of the parents' table is: the rules of the schema, and of the composition."""
        places = {i: k for k, i in enumerate(self.parent)}
        start = len(self.parent) + 1 + self.counts
        places |= {i: start + k for k, i in enumerate(self.members)}
        return (*_moved(self.schema.forbidden, places), *self._composition(places))

    def _composition(self, places: dict[int, int]) -> Rules:
        """Kinds sum to the size at most (to the size where no value is of none), and the first member is counted."""
        if self.kinds is None:
            return ()
        size, c = len(self.parent), self.at_most
        counts = tuple(size + 1 + k for k in range(self.counts))
        sizes, rest = np.arange(1, c + 1), self.kinds.masks[-1]
        boxes = []
        for found in product(range(c + 1), repeat=self.counts):
            box = {at: np.arange(c + 1) == n for at, n in zip(counts, found, strict=True)}
            boxes.append({size: sizes < sum(found) if rest.any() else sizes != sum(found), **box})
        cards = [a.cardinality for a in self.first.attributes]
        rules = [_forbidden((size, *counts), cards, [box for box in boxes if box[size].any()])]
        at = places[self.kinds.attribute]
        for k, mask in enumerate(self.kinds.masks[:-1]):
            rules.append(_forbidden((counts[k], at), cards, [{counts[k]: np.arange(c + 1) == 0, at: mask}]))
        if rest.any():
            full = [{**box, size: sizes == sum(box[k].argmax() for k in counts), at: rest} for box in boxes]
            rules.append(_forbidden((size, *counts, at), cards, [box for box in full if box[size].any()]))
        for k, numbers in enumerate(self.compositions.T if len(self.compositions) else ()):
            whole, codes = len(cards) - 1, np.arange(cards[size + k]) + (k == 0)
            unlike = [{size + k: codes == n, whole: numbers != n} for n in np.unique(codes)]
            rules.append(_forbidden((size + k, whole), cards, unlike))
        return tuple(rules)

    def flattened(self, codes: Codes, rows: NDArray[np.intp], places: NDArray[np.intp]) -> tuple[Codes, Codes]:
        """Rows of both tables, from records in the order of `dpdist.data.keyed_ids.UnitHashes.arranged`."""
        firsts = np.flatnonzero(places == 0)
        parent = np.cumsum(places == 0) - 1
        sizes = np.diff(firsts, append=len(rows))
        kind = self.kinds_of([codes[i][rows] for i in self.members])
        of_kind = [kind == k for k in range(self.counts)]
        counts = [np.bincount(parent[mask], minlength=len(firsts)) for mask in of_kind]
        top = [codes[i][rows[firsts]] for i in self.parent]
        reference = [codes[i][rows[firsts]] for i in self.members]
        first = [*top, sizes - 1, *counts, *reference]
        if len(self.compositions):
            scale = (self.at_most + 1) ** np.arange(self.counts, -1, -1)
            first.append(np.searchsorted(self.compositions @ scale, np.stack([sizes, *counts], axis=1) @ scale))
        after = np.flatnonzero(places > 0)
        own, left = parent[after], []
        for mask, count in zip(of_kind, counts, strict=True):
            before = np.cumsum(mask) - mask
            left.append(count[own] - (before[after] - before[firsts][own]))
        given = self.context_of(
            [column[own] for column in first], places[after], left, [codes[i][rows[after - 1]] for i in self.members]
        )
        others = [*given, *(codes[i][rows[after]] for i in self.members)]
        return _typed(first, self.first), _typed(others, self.others)

    def kinds_of(self, members: Sequence[NDArray[np.integer]]) -> Counts:
        """The kind of each member; the last one for those of none."""
        if self.kinds is None:
            return np.zeros(len(members[0]), np.int64)
        kind = self.kinds.masks.argmax(0)
        return np.asarray(kind[members[self.members.index(self.kinds.attribute)]], np.int64)

    def context_of(
        self, first: Sequence[NDArray[np.integer]], places: Counts, left: Sequence[Counts], previous: Codes
    ) -> list[NDArray[np.integer]]:
        """What is known of members when they are drawn. `first`: the row of each member's parent in the first table.
        `places`: from 1: the place of each, where the first member has 0. `left`: for each kind, how many are left,
        itself among them. `previous`: the attributes of the member before.
        """
        own, parent = self.schema.attributes, len(self.parent)
        start = parent + 1 + self.counts
        found = [own[i].bucket_map[first[k]] for k, i in enumerate(self.parent)]
        found += [places - 1, first[parent] - places, *left]  # the size is a code: one less than the number
        for i in self.context:
            found.append(own[i].bucket_map[first[start + self.members.index(i)]])
        for i in self.previous:
            found.append(own[i].bucket_map[previous[self.members.index(i)]])
            if i in self.context:  # of the second member it is the first, who is given already: a code of its own
                found[-1] = np.where(places > 1, found[-1], own[i].bucket_count)
        for cross in self.crossed:
            index = np.zeros(len(places), np.int64)
            for i, size in zip(cross, self._sizes(cross), strict=True):
                if i == self.order:
                    code = places - 1
                else:
                    at = self.parent.index(i) if i in self.parent else start + self.members.index(i)
                    code = own[i].bucket_map[first[at]]
                index = index * size + code
            found.append(index)
        return found


def _typed(columns: Sequence[NDArray[np.integer]], schema: Schema) -> Codes:
    return [column.astype(a.dtype) for column, a in zip(columns, schema.attributes, strict=True)]


def _integer(name: str, low: int, high: int) -> Attribute:
    return Attribute(name=f"({name})", kind="integer", bounds=(low, high))


def _codes(name: str, size: int) -> Attribute:
    return Attribute(name=name, kind="ordinal", values=tuple(range(size)))


def _moved(rules: Rules, places: dict[int, int]) -> Rules:
    """Rules on the columns of another table."""
    found = []
    for rule in rules:
        boxes = [{places[i]: mask for i, mask in box.items()} for box in rule.boxes]
        shape = dict(zip((places[i] for i in rule.attributes), rule.shape, strict=True))
        at = tuple(sorted(shape))
        found.append(Forbidden(rule.rule, at, tuple(shape[i] for i in at), tuple(boxes)))
    return tuple(found)


def _forbidden(attributes: tuple[int, ...], cards: Sequence[int], boxes: list[dict[int, Mask]]) -> Forbidden:
    at = tuple(sorted(attributes))
    return Forbidden(Rule(impossible="composition"), at, tuple(cards[i] for i in at), tuple(boxes))
