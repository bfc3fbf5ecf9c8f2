"""Whole parents exchanged until the tables of the parents and of their members are close to what is expected.

A member is drawn given many attributes; the model knows few of their joint tables, and what several of them say alike
counts more than once. So members that are drawn one after another miss the tables that were measured (`Told`), towards
which their law is tilted (`dpdist.families.relational.draw`). Parents are drawn in excess, and one in the release is
exchanged, with all its members, for one outside of it where that brings the tables of both closer to the models and to
the margins: tables of one and two of the parents' attributes, and of the members', which are measured as well, because
a model spends most of its budget on how members depend on their parent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np

from dpdist.data.count import PairCounts
from dpdist.families.relational.layout import Layout
from dpdist.model.account import GaussianAccount, Measurements
from dpdist.model.balance import CELL_BITS, CellCosts, PairIndex, TableRows, balance
from dpdist.model.coding import Pair
from dpdist.model.evidence import sums_of
from dpdist.model.fitted import UNIT, Fitted
from dpdist.model.outside import brought
from dpdist.model.rake import shrink
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import Mask
from dpdist.storage.stored import Stored

ONE_WAY = 0.2  # share of the tables of one attribute
_CHANCE = 1 / 8  # part of the variance of a draw: small steps by several draws average it


@dataclass(frozen=True, eq=False)
class Margins:
    """Noisy tables of one attribute and of two, for some attributes of one table."""

    singles: tuple[Counts, ...]
    pairs: tuple[Counts, ...]
    deviations: Floats  # of the cells of each table

    @property
    def of_pairs(self) -> list[float]:
        """Deviations of the tables of two."""
        found: list[float] = self.deviations[len(self.singles) :].tolist()
        return found


@dataclass(frozen=True, eq=False)
class MeasuredMargins(Stored):
    """The margins of the parents and of the members after the first; drawn once, stored, read back. Public."""

    FILE: ClassVar[str] = "margins.npz"

    tables: tuple[Margins, Margins]


def own_attributes(layout: Layout) -> tuple[range, range]:
    """The parents' attributes in the first table, the members' in the second."""
    given = len(layout.given)
    return range(len(layout.parent)), range(given, given + len(layout.members))


def measure_margins(counts: PairCounts, own: range, *, mu: float, noise: Noise, name: str) -> Margins:
    """Measure the tables of one and two of some attributes. `counts`: confidential. `mu`: for one row of the table."""
    account, pairs = GaussianAccount(mu, noise, f"margins/{name}/"), list(combinations(own, 2))
    share = ONE_WAY if pairs else 1 - 2.0**-30
    singles, sigmas = account.measure("one-way", [counts.single(i) for i in own], share=share)
    if not pairs:
        return Margins(tuple(singles), (), sigmas)
    tables, more = account.measure("pairs", [counts.pair(*p) for p in pairs], share=1 - ONE_WAY - 2.0**-30)
    return Margins(tuple(singles), tuple(tables), np.concatenate([sigmas, more]))


def expected_tables(
    model: Fitted, own: range, margins: Margins, records: float, kinds: tuple[int, Mask, Floats] | None = None
) -> dict[Pair, Floats]:
    """Shares of the cells of all pairs: the model's, and where margins were measured, those shrunk towards it. `model`:
    with the expected shares of all pairs. `records`: noisy number of rows. `kinds`: an attribute, which of its values
    are of each kind, and the shares of the kinds, where they are known better.
    """
    tables, start, cards = {}, 0, model.domain
    for i, j in combinations(range(len(cards)), 2):
        cells = model.expected[start : start + cards[i] * cards[j]].reshape(cards[i], cards[j]) / UNIT
        tables[i, j], start = cells / max(float(cells.sum()), 2.0**-40), start + cells.size
    singles = one_way_of(tables, len(cards))
    for i, noisy, sigma in zip(own, margins.singles, margins.deviations.tolist(), strict=False):
        singles[i] = _estimate(noisy, singles[i], sigma, records)
    if kinds is not None:
        at, masks, shares = kinds
        singles[at] = singles[at] * (_ratio(shares, (masks * singles[at]).sum(1))[:, None] * masks).sum(0)
    for pair, noisy, sigma in zip(combinations(own, 2), margins.pairs, margins.of_pairs, strict=True):
        tables[pair] = _estimate(noisy, tables[pair], sigma, records)
    return {(i, j): brought(table, singles[i][:, None], singles[j][None]) for (i, j), table in tables.items()}


def _estimate(noisy: Counts, share: Floats, sigma: float, records: float) -> Floats:
    found = shrink(noisy.ravel().astype(np.float64), share.ravel() * records, sigma)
    total = float(found.sum())
    return (found / total).reshape(share.shape) if total > 0 else share


def one_way_of(tables: dict[Pair, Floats], number: int) -> list[Floats]:
    """The tables of one attribute that those of two have; of an attribute with the next one, and of the last."""
    return [np.asarray(tables[i, i + 1].sum(1) if i + 1 < number else tables[i - 1, i].sum(0)) for i in range(number)]


def _ratio(wanted: Floats, found: Floats) -> Floats:
    return np.divide(wanted, found, out=np.ones_like(found), where=found > 0)


ROUNDS = 600  # in which parents are exchanged
# part of the variance of the noise in the members' cells that lowers their weights: sums of cells are known better
NOISE_PART = 0.1
WEIGHT_BITS = 24  # weights of cells are in units of 2**-24


@dataclass(frozen=True, eq=False)
class Parents:
    """Parents with their members, as rows of both tables of a layout."""

    first: TableRows  # one for each parent
    others: TableRows  # those of a parent one after another
    ends: Counts  # shape (parents + 1,); where the rows of each parent begin and end

    def __len__(self) -> int:
        return len(self.first)

    def counts(self, items: Counts) -> Counts:
        """How often the parents and their members are in each cell."""
        rows, _ = self._rows(items)
        return np.concatenate([self.first.counts(items), self.others.counts(rows)])

    def costs(self, items: Counts, of_cells: CellCosts) -> Counts:
        """What the cells of each parent and of its members cost."""
        rows, ends = self._rows(items)
        cells = self.first.index.cells
        members = np.concatenate([[0], np.cumsum(self.others.costs(rows, of_cells[cells:]))])
        return self.first.costs(items, of_cells[:cells]) + np.diff(members[ends], prepend=0)

    def _rows(self, items: Counts) -> tuple[Counts, Counts]:
        """Rows of the members of some parents, and where those of each end."""
        sizes = self.ends[items + 1] - self.ends[items]
        ends = np.cumsum(sizes)
        return np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.ends[items] - ends + sizes, sizes), ends


@dataclass(frozen=True, eq=False)
class Told:
    """What a table of two columns of the members' table should be, one of a member's own at least."""

    pair: Pair  # of the model's attributes
    columns: Pair
    codes: tuple[Counts, Counts]  # of the values of either
    shares: Floats
    deviation: float  # of the noise in a share

    def drawn(self, members: Codes) -> Floats:
        """The table of some rows of the members' table."""
        rows, columns = (codes[members[i]] for i, codes in zip(self.columns, self.codes, strict=True))
        cells = np.bincount(rows * self.shares.shape[1] + columns, minlength=self.shares.size)
        return cells.reshape(self.shares.shape).astype(np.float64)

    def wanted(self, drawn: Floats) -> tuple[Floats, Floats]:
        """The table that these rows should have by the noisy one, with the margins that they have; and as far as that
        is no noise (`beyond_chance`).
        """
        sums, total = (drawn.sum(1, keepdims=True), drawn.sum(0, keepdims=True)), float(drawn.sum())
        noisy = self.shares * total
        for axis, margin in zip((1, 0), sums, strict=True):
            noisy = noisy + (margin - noisy.sum(axis, keepdims=True)) / noisy.shape[axis]
        return noisy, brought(beyond_chance(noisy, drawn, self.deviation * total), *sums)


def beyond_chance(wanted: Floats, drawn: Floats, deviation: float) -> Floats:
    """The table that rows should have, as far as it is further from theirs than by its own noise and by chance. Of the
    variance of the rows' counts a part is taken, as steps by several draws are added.
    """
    chance = math.sqrt(deviation * deviation + _CHANCE * float(drawn.sum()) / drawn.size)
    return shrink(wanted.ravel(), drawn.ravel(), chance).reshape(drawn.shape)


@dataclass(frozen=True, eq=False)
class Targets:
    """What the tables of the released parents, and of their members after the first, should be."""

    # first, others: shares of the cells of all pairs of columns of the first table, and of all pairs of the members'
    # attributes
    first: tuple[Floats, ...]
    others: tuple[Floats, ...]
    places: tuple[Floats, ...]  # shares of the values of each of the members' attributes, by their place
    variances: tuple[Floats, Floats]  # of the noise in the shares of each pair
    members: float  # members after the first, for each parent
    told: tuple[Told, ...]  # tables of the members that their model was fitted to

    @classmethod
    def of(
        cls,
        layout: Layout,
        models: tuple[Fitted, Fitted],
        margins: MeasuredMargins,
        records: tuple[float, float],
        deviation: float,
        measured: Measurements,
    ) -> Targets:
        """From the models, the margins, the noisy numbers of rows, the deviation of the first model's tables and the
        noisy tables of the second one.
        """
        own, numbers = own_attributes(layout), [max(n, 1.0) for n in records]
        first = expected_tables(models[0], own[0], margins.tables[0], numbers[0])
        kinds = _kinds(layout, first)
        others = expected_tables(models[1], own[1], margins.tables[1], numbers[1], kinds)
        noise = [dict(zip(combinations(own[k], 2), margins.tables[k].of_pairs, strict=True)) for k in (0, 1)]
        of_first = np.array([min(noise[0].get(pair, deviation), deviation) for pair in first]) / numbers[0]
        of_others = np.array(list(noise[1].values())) / numbers[1]
        sizes = one_way_of(first, len(layout.first.attributes))[len(layout.parent)]
        return cls(
            tuple(first.values()),
            tuple(others[pair] for pair in noise[1]),
            tuple(_by_rows(others[len(layout.parent), k]) for k in own[1]),
            (of_first**2, of_others**2 * NOISE_PART),
            _mean(sizes),
            tuple(_told(models[1], measured, others, len(layout.given), numbers[1])),
        )

    def counts(self, rows: int) -> tuple[Counts, Counts]:
        """Expected counts of the cells of this many parents, in units of 2**-10, and the weights of the cells."""
        counts, weights = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        scales = rows, rows * self.members
        for tables, scale, spread in zip((self.first, self.others), scales, self.variances, strict=True):
            for table, variance in zip(tables, (spread * scale**2).tolist(), strict=True):
                expected = np.rint(table.ravel() * (scale * (1 << CELL_BITS))).astype(np.int64)
                counts.append(expected)
                smallest = int(min(variance + 1, 2.0**40)) << CELL_BITS
                weights.append((1 << WEIGHT_BITS + CELL_BITS) // (expected + smallest))
        return np.concatenate(counts), np.concatenate(weights)


def _told(
    model: Fitted, measured: Measurements, others: dict[Pair, Floats], given: int, records: float
) -> Iterator[Told]:
    """The noisy tables of what is given and of a member's own attributes that the model holds; of two of its own what
    the margins say.
    """
    for pair, (counts, deviation) in measured.pair_means().items():
        i, j = columns = measured.source[pair[0]], measured.source[pair[1]]
        if max(columns) < given or not model.holds(pair):
            continue
        codes = measured.maps[pair[0]], measured.maps[pair[1]]
        if min(columns) < given:
            yield Told(pair, columns, codes, counts / records, deviation / records)
        else:
            table = others[i, j] if i < j else others[j, i].T
            yield Told(pair, columns, codes, sums_of(table, *codes), 0.0)


def _by_rows(table: Floats) -> Floats:
    return np.asarray(np.rint(table * _ratio(np.ones(len(table)), table.sum(1))[:, None] * UNIT) / UNIT)


def _mean(shares: Floats) -> float:
    return float((shares * np.arange(len(shares))).sum())


def _kinds(layout: Layout, first: dict[Pair, Floats]) -> tuple[int, Mask, Floats] | None:
    """The kinds of the members after the first, as the parents' table has them: the attribute and the shares."""
    if layout.kinds is None:
        return None
    singles, size = one_way_of(first, len(layout.first.cardinalities)), len(layout.parent)
    mean = [_mean(singles[size + k]) for k in range(1 + layout.counts)]
    place = layout.members.index(layout.kinds.attribute)
    firsts = (layout.kinds.masks[:-1] * singles[size + 1 + layout.counts + place]).sum(1)
    shares = np.maximum(np.array(mean[1:]) - firsts, 0) / max(mean[0], 2.0**-40)  # the size is a code: one less
    shares = np.append(shares, 1 - shares.sum())
    return len(layout.given) + place, layout.kinds.masks, np.maximum(shares, 0)


def exchanged(
    layout: Layout, targets: Targets, first: list[Counts], members: list[Counts], rows: int, noise: Noise, name: str
) -> Counts:
    """Numbers of the parents that are released, int64[rows]. `first` are the rows of the first table, `members` each
    attribute of all members, of shape (parents, places).
    """
    after = first[len(layout.parent)]  # the code of the size: one less
    ends = np.concatenate([[0], np.cumsum(after)])
    parent = np.repeat(np.arange(len(after)), after)
    place = 1 + np.arange(len(parent)) - ends[parent]
    others = [column[parent, place] for column in members]
    cards = layout.first.cardinalities, tuple(layout.schema.cardinalities[i] for i in layout.members)
    tables = [
        TableRows(np.stack(table).astype(np.int32), PairIndex.of(sizes))
        for table, sizes in zip((first, others), cards, strict=True)
    ]
    expected, weights = targets.counts(rows)
    parents = Parents(tables[0], tables[1], ends)
    return balance(parents, np.arange(rows), expected, noise, name, rounds=ROUNDS, weights=weights)
