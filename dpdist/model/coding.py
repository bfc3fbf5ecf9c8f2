"""The attributes of the model, the exact pair tables on their codes, and the rules on them.

Rare values are merged and large attributes have a coarse copy. Where the pair tables of a domain do not fit a worker,
one-way tables come first, and pairs of the codes that these leave are counted in a second pass (`SingleCounts`).

Rules are put on the coarsest copies of their attributes that tell apart what they tell apart, and coarse copies are
made so that they do (`code_classes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts, cells_of_pairs
from dpdist.data.operators import Operator, pair_counts_operator, table_counts_operator, through
from dpdist.model.choices import MOST_CODED_CELLS, Choices
from dpdist.model.junction import Set, cells_of, cliques_of
from dpdist.model.one_way import Merging, OneWay, merge_rare
from dpdist.model.sums import AskedCounts, Sum
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.spec.rules import Forbidden, Rules

# of each attribute, groups of its values from fine to coarse; nothing for no attribute
Levels = Sequence[Sequence[NDArray[np.integer]]]


@dataclass(frozen=True, eq=False)
class Coding:
    """The attributes of the model: the table's own with rare values merged, and coarse copies of large ones."""

    source: tuple[int, ...]  # the table's attribute that each model attribute is a function of
    maps: tuple[Counts, ...]  # model code of each of the source's values
    cardinalities: tuple[int, ...]  # model attributes are in ascending order of these
    fine: tuple[int, ...]  # the model attribute that stands for each of the table's
    links: dict[tuple[int, int], NDArray[np.bool_]]  # of a copy and its original: which combinations are possible
    merging: tuple[Merging, ...]  # of each of the table's attributes

    @classmethod
    def of(cls, source: tuple[int, ...], maps: tuple[Counts, ...], merging: tuple[Merging, ...]) -> Coding:
        """A coding, from its maps in ascending order of the number of codes."""
        sizes = tuple(int(codes.max()) + 1 for codes in maps)
        copies = [[a for a, of in enumerate(source) if of == i] for i in range(len(merging))]  # from coarse to fine
        links: dict[tuple[int, int], Any] = {}
        for fine, coarse in (pair for own in copies for pair in pairwise(reversed(own))):
            links[coarse, fine] = np.zeros((sizes[coarse], sizes[fine]), np.bool_)
            links[coarse, fine][maps[coarse], maps[fine]] = True
        return cls(source, maps, sizes, tuple(own[-1] for own in copies), links, merging)


def coding_of(
    one_way: OneWay, *, merge_below: float, coarse: Sequence[tuple[int, int]], rules: Rules = (), levels: Levels = ()
) -> Coding:
    """The coding that the noisy one-way tables give; values below `merge_below` deviations are merged.

    An attribute, or its last coarse copy, with as many codes as the first of a pair in `coarse` (falling) gets a copy
    of as many groups as the second, of about equal noisy mass, in code order; or those of the finest of its public
    `levels` with at most twice as many groups, where all merged values are one. Groups keep apart what `rules` tell
    apart, unless there were then more than twice as many.
    """
    merging = tuple(
        merge_rare(table, sigma, below=merge_below, records=one_way.records)
        for table, sigma in zip(one_way.counts, one_way.sigmas.tolist(), strict=True)
    )
    found: list[tuple[int, int, int, Counts]] = []  # cardinality, level, attribute, map
    classes = code_classes(rules, [m.codes for m in merging])
    for i, m in enumerate(merging):
        kinds, codes, cardinality, level = classes[i], m.codes, m.cardinality, 0
        found.append((cardinality, level, i, codes))
        for least, groups in coarse:
            if cardinality >= least:
                mass: Floats = np.bincount(codes, weights=one_way.counts[i], minlength=cardinality).astype(np.float64)
                group = _of_level(m, codes, levels[i] if levels else (), groups)
                group = equal_mass(mass, groups) if group is None else group
                if kinds is not None:
                    group, kinds = _split(group, kinds, most=2 * groups)
                codes, cardinality, level = group[codes], int(group.max()) + 1, level + 1
                found.append((cardinality, level, i, codes))
    found.sort(key=lambda item: (item[0], -item[1], item[2]))
    _, _, source, maps = zip(*found, strict=True)
    return Coding.of(source, maps, merging)


def _of_level(merging: Merging, codes: Counts, levels: Sequence[NDArray[np.integer]], groups: int) -> Counts | None:
    """Groups of codes by the finest level that has few enough and joins some; None if none exists."""
    number = int(codes.max()) + 1
    for level in levels:
        own: Counts = level.astype(np.int64) + 1
        own[merging.rare] = 0
        found = np.unique(np.stack([codes, own]), axis=1)
        if found.shape[1] == number and len(set(found[1])) <= min(2 * groups, number - 1):
            return np.asarray(np.unique(found[1], return_inverse=True)[1], np.int64)
    return None


def _split(group: Counts, kinds: Counts, *, most: int) -> tuple[Counts, Counts | None]:
    """Groups of codes of one kind each, and their kinds; the groups as they are where there were too many."""
    number = int(kinds.max()) + 1
    found, split = np.unique(group * number + kinds, return_inverse=True)
    return (split.reshape(-1).astype(np.int64), found % number) if len(found) <= most else (group, None)


def equal_mass(counts: Floats, groups: int) -> Counts:
    """Group number of each code, groups of about equal mass in code order."""
    mass = np.maximum(counts, 0)
    middle = (np.cumsum(mass) - mass / 2) / max(mass.sum(), 1e-300)
    numbers: Counts = np.unique(np.minimum((middle * groups).astype(np.int64), groups - 1), return_inverse=True)[1]
    return numbers


Pair = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class PairTables:
    """Counts of all pairs of the model's attributes but those of one source. Confidential."""

    cardinalities: tuple[int, ...]
    pairs: tuple[Pair, ...]  # ascending in each
    cells: NDArray[np.int64]  # the tables of the pairs, one after another, in C order

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of cells of each pair's table."""
        return np.array([self.cardinalities[a] * self.cardinalities[b] for a, b in self.pairs], np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each pair's table starts in `cells`."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def table(self, index: int) -> NDArray[np.int64]:
        """The table of pair number `index`."""
        return self.within(self.cells, index)

    def within(self, cells: NDArray[np.int64], index: int) -> NDArray[np.int64]:
        """The table of pair number `index` in cells like these."""
        a, b = self.pairs[index]
        start = int(self.starts[index])
        size = int(self.sizes[index])
        return cells[start : start + size].reshape(self.cardinalities[a], self.cardinalities[b])

    def distances(self, expected: NDArray[np.int64]) -> NDArray[np.int64]:
        """L1 distance of each pair's table to a public table of integers; one record changes each by at most 1."""
        if not self.pairs:
            return np.zeros(0, np.int64)
        return np.add.reduceat(np.abs(self.cells - expected), self.starts)


@dataclass(frozen=True, eq=False, repr=False)
class AskedTables(PairTables):
    """The same, as sums that are asked for: there are no cells."""

    coding: Coding

    def table(self, index: int) -> Sum:  # type: ignore[override]
        """The table of pair number `index`."""
        a, b = self.pairs[index]
        return Sum((self.coding.source[a], self.coding.source[b]), (self.coding.maps[a], self.coding.maps[b]))


def recode(counts: PairCounts | AskedCounts, coding: Coding) -> PairTables:
    """Sum the exact pair counts onto the codes of the model."""
    cards, source = coding.cardinalities, coding.source
    pairs = tuple(p for p in combinations(range(len(cards)), 2) if source[p[0]] != source[p[1]])
    if isinstance(counts, AskedCounts):
        return AskedTables(cards, pairs, np.zeros(0, np.int64), coding)
    spread = [
        None if np.array_equal(m, np.arange(c)) else (m[:, None] == np.arange(c)).astype(np.float64)
        for m, c in zip(coding.maps, cards, strict=True)
    ]
    pieces = []
    for a, b in pairs:
        table = counts.pair(source[a], source[b])
        left, right = spread[a], spread[b]
        if left is not None or right is not None:  # sums of integers below 2**53 are exact
            exact = table.astype(np.float64)
            exact = exact if left is None else left.T @ exact
            table = np.rint(exact if right is None else exact @ right).astype(np.int64)
        pieces.append(table.ravel())
    return PairTables(cards, pairs, np.concatenate(pieces) if pieces else np.zeros(0, np.int64))


_FARTHER = 1.5  # factor of the threshold of rare values, until the tables of all pairs fit


def single_counts_operator(cardinalities: Sequence[int]) -> Operator:
    """The one-way tables, one after another."""
    return table_counts_operator(cardinalities, [(i,) for i in range(len(cardinalities))])


@dataclass(frozen=True, eq=False, repr=False)
class SingleCounts:
    """Exact one-way counts, and the pass that counts pairs of coded values. Confidential."""

    cardinalities: tuple[int, ...]
    cells: Counts  # the one-way tables, one after another
    count: Callable[[Operator], PairCounts]  # makes a pass over the records by an operator, and returns its summary

    def single(self, i: int) -> Counts:
        """Counts of attribute `i`, shape (cardinalities[i],)."""
        start = sum(self.cardinalities[:i])
        return self.cells[start : start + self.cardinalities[i]]

    def coded(self, one_way: OneWay, choices: Choices, rules: Rules, levels: Levels) -> tuple[Coding, PairTables]:
        """The coding, with this many rare values merged that all pairs fit, and its pair tables."""
        below = choices.merge_below
        while True:
            coding = coding_of(one_way, merge_below=below, coarse=choices.coarse, rules=rules, levels=levels)
            if cells_of_pairs(coding.cardinalities) <= MOST_CODED_CELLS:
                break
            below *= _FARTHER
        counts = self.count(through(partial(model_codes, coding), pair_counts_operator(coding.cardinalities)))
        source = coding.source
        pairs = tuple(p for p in combinations(range(len(source)), 2) if source[p[0]] != source[p[1]])
        pieces = [counts.pair(*pair).ravel() for pair in pairs]
        return coding, PairTables(coding.cardinalities, pairs, np.concatenate([np.zeros(0, np.int64), *pieces]))


def model_codes(coding: Coding, codes: Codes) -> Codes:
    """The codes of the model's attributes, in the least integers that hold them."""
    found = zip(coding.source, coding.maps, coding.cardinalities, strict=True)
    return [m.astype(np.min_scalar_type(size - 1))[codes[i]] for i, m, size in found]


def admitted(rule: Forbidden, maps: Sequence[Counts], within: Sequence[Floats] | None = None) -> Floats | None:
    """What a rule admits of each combination of codes (`maps`), by the shares of values `within` their codes if given;
    None where its table is too large.
    """
    if rule.table is None:
        return None
    share = (~rule.table).astype(np.float64)
    for axis, i in enumerate(rule.attributes):
        rows = np.moveaxis(share, axis, 0)
        if within is not None:
            rows = rows * within[i].reshape([-1] + [1] * (rows.ndim - 1))
        share = np.moveaxis(summed(rows, maps[i]), 0, axis)
    return share if within is not None else (share > 0).astype(np.float64)


def summed(rows: Floats, codes: Counts) -> Floats:
    """Sums of the rows of each code."""
    found = np.zeros((int(codes.max()) + 1, *rows.shape[1:]))
    np.add.at(found, codes, rows)
    return found


def code_classes(rules: Rules, maps: Sequence[Counts]) -> list[Counts | None]:
    """For each of the table's attributes, classes of codes that no rule tells apart; None where no rule names it."""
    labels: list[list[Counts]] = [[] for _ in maps]
    for rule in rules:
        share = admitted(rule, maps)
        for axis, i in enumerate(rule.attributes if share is not None else ()):
            labels[i].append(_alike(np.moveaxis(np.asarray(share), axis, 0)))
    return [_alike(np.stack(found, axis=1)) if found else None for found in labels]


def _alike(rows: NDArray[np.number]) -> Counts:
    """Class of each row: equal rows have one."""
    flat = rows.reshape(len(rows), -1)
    classes: Counts = np.unique(flat, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return classes


def possible_codes(rules: Rules, coding: Coding) -> dict[int, tuple[Set, Floats]]:
    """By their numbers, the rules on the codes of a model; rules whose tables are too large are left out."""
    found = {}
    for number, rule in enumerate(rules):
        share = admitted(rule, [coding.maps[a] for a in coding.fine])
        if share is None:
            continue
        inside = []
        for axis, i in enumerate(rule.attributes):
            rows = np.moveaxis(share, axis, 0)
            a, codes = _coarsest(i, _alike(rows), coding)
            inside.append(a)
            share = np.moveaxis((summed(rows, codes) > 0).astype(np.float64), 0, axis)
        order = sorted(range(len(inside)), key=inside.__getitem__)
        found[number] = tuple(inside[k] for k in order), np.ascontiguousarray(np.transpose(share, order))
    return found


def is_kept(rule: Forbidden, coding: Coding) -> bool:
    """Whether codes that a rule admits stand for values that it admits only: no merged values are distinguished."""
    maps = [coding.maps[a] for a in coding.fine]
    share = admitted(rule, maps)
    if share is None or rule.table is None:
        return False
    return not (share[np.ix_(*(maps[i] for i in rule.attributes))].astype(bool) & rule.table).any()


def _coarsest(i: int, classes: Counts, coding: Coding) -> tuple[int, Counts]:
    """The copy of an attribute with the fewest codes that keeps classes of its codes apart, and its code of each."""
    own = coding.maps[coding.fine[i]]
    for a, source in enumerate(coding.source):  # in ascending order of cardinality
        codes = np.zeros(len(classes), np.int64)
        codes[own] = coding.maps[a] if source == i else 0
        if source == i and len(np.unique(codes * (classes.max() + 1) + classes)) == len(np.unique(codes)):
            return a, codes
    raise AssertionError("the attribute itself keeps them apart")


def fitting(
    possible: Mapping[int, tuple[Set, Floats]],
    cardinalities: Sequence[int],
    edges: Iterable[tuple[int, int]],
    *,
    most: int,
) -> list[int]:
    """The rules whose attributes can share cliques of at most this many cells, those of small tables first."""
    chosen = []
    known = list(edges)
    for number in sorted(possible, key=lambda k: (possible[k][1].size, k)):
        more = [*known, *combinations(possible[number][0], 2)]
        if cells_of(cliques_of(cardinalities, more), cardinalities) <= most:
            chosen.append(number)
            known = more
    return chosen


def with_zeros(factors: Mapping[Set, NDArray[Any]], possible: Iterable[tuple[Set, Floats]]) -> dict[Set, Floats]:
    """Factors times others."""
    found: dict[Set, Floats] = {s: np.asarray(table, np.float64) for s, table in factors.items()}
    for scope, share in possible:
        found[scope] = found[scope] * share if scope in found else share
    return found
