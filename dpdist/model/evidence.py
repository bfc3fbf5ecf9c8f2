"""Evidence: noisy tables that earlier releases published, weighed by variance against those of this release.

An earlier table differs from this release's by its noise, whose deviation is published, and by a drift: other persons,
other times (`dpdist.model.drift`). Earlier tables are filtered forwards to this release (Kalman 1960), cell by cell.

*previous*: the releases are the same population at earlier times, in order. *sum*: they are disjoint and together this
table; their drift is what the sum misses. *larger*: the same, of larger parts, such as quarters beside months. A part
that did not measure a table is taken to be as the others, with the variance that parts have. *part*: this table is a
part of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpdist.model.account import Measurements
from dpdist.model.coding import Coding, Pair, summed
from dpdist.model.drift import Chain, Drift, Estimate, Seen, differences, drift_of, spread_of
from dpdist.model.one_way import OneWay, combine, merging_of
from dpdist.privacy.arrays import Counts, Floats

if TYPE_CHECKING:
    from dpdist.model.junction import Set

RelationKind = Literal["part", "larger", "sum", "previous"]
# the last one that is there gives the coding
RELATIONS: tuple[RelationKind, ...] = ("part", "larger", "sum", "previous")
_SUMS = ("larger", "sum")
_SURELY = 2.0  # deviations
_FAR = 0.45  # part of the deviation of one-way tables above which drift leaves too much in tables of pairs
_PAIRS = 300  # of more only some are looked at


@dataclass(frozen=True, eq=False)
class Earlier:
    """An earlier release as evidence."""

    measurements: Measurements  # its noisy tables
    records: int  # its noisy number of records


@dataclass(frozen=True, eq=False)
class Related:
    """Earlier releases and what they are to this one."""

    kind: RelationKind
    releases: tuple[Earlier, ...]

    def chains(self, tables: Sequence[Estimate | None], records: float, parts: Drift) -> list[Chain]:
        """The tables of one kind of all releases, at the scale of this one, as chains in time; `parts` is what two of
        them differ by.
        """
        if self.kind in _SUMS:
            return [[self._sum(tables, parts)]]
        scaled = self.scaled(tables, records)
        return [scaled] if self.kind == "previous" else [[table] for table in scaled]

    def scaled(self, tables: Sequence[Estimate | None], records: float) -> Chain:
        """Tables at one number of records."""
        factors = [records / release.records for release in self.releases]
        return [None if t is None else (t[0] * f, t[1] * f**2) for t, f in zip(tables, factors, strict=True)]

    @property
    def mean(self) -> float:
        """Records of a release on average."""
        return sum(release.records for release in self.releases) / len(self.releases)

    def _sum(self, tables: Sequence[Estimate | None], parts: Drift) -> Estimate | None:
        """The sum of the tables; those that were not measured are taken to be as the others, as far as parts are."""
        pairs = list(zip(tables, self.releases, strict=True))
        known = [(table, release.records) for table, release in pairs if table is not None]
        if not known:
            return None
        total, measured = sum(release.records for release in self.releases), sum(records for _, records in known)
        factor = total / measured
        counts = np.sum([y for (y, _), _ in known], axis=0) * factor
        spread = spread_of(counts * self.mean / total, self.mean)
        part = parts.at(spread)[1] / 2  # of one part, where two differ by a step
        unknown = part * (total / self.mean) * (factor - 1)
        return counts, np.sum([v for (_, v), _ in known], axis=0) * factor**2 + unknown


def combined(*estimates: Estimate | None) -> Estimate:
    """The mean of independent estimates by precision. Raises KeyError: all are None."""
    known = [estimate for estimate in estimates if estimate is not None]
    if not known:
        raise KeyError("nothing is known")
    total = np.sum([1 / v for _, v in known], axis=0)
    return np.sum([y / v for y, v in known], axis=0) / total, 1 / total


@dataclass(eq=False)
class Evidence:
    """Evidence as learning weighs it, with the noisy tables of this release so far; all of it public."""

    related: tuple[Related, ...]
    records: float = math.inf  # of this release
    # by the attributes of a table: of the table itself for one, of the model for two
    _chains: dict[Set, list[Chain]] = field(default_factory=dict)
    _own: dict[Set, Estimate] = field(default_factory=dict)
    _tables: dict[Set, Sequence[Sequence[Estimate | None]]] = field(default_factory=dict)  # of earlier releases
    drifts: list[Drift] = field(default_factory=list)  # of each chain
    # of each code of a model, how many times the records there are now that each chain says
    _factors: dict[int, list[Floats]] = field(default_factory=dict)
    is_far: bool = False  # whether drift makes it worse than tables of pairs of this release

    def weigh_values(self, one_way: OneWay) -> OneWay:
        """One-way tables with what earlier releases say of them; the deviation of a table is that of a mean cell."""
        self.records = one_way.records
        for i, (counts, sigma) in enumerate(zip(one_way.counts, one_way.sigmas.tolist(), strict=True)):
            found = [[_values(r.measurements, i, len(counts)) for r in related.releases] for related in self.related]
            self._tables[(i,)] = found
            self._own[(i,)] = counts.astype(np.float64), np.full(len(counts), sigma**2)
        self._join()
        known = [self.estimate((i,)) for i in range(len(one_way.counts))]
        equal = 1 / math.sqrt(float((one_way.sigmas**-2.0).mean()))  # deviation of tables of equal weight
        self.is_far = self._apart([counts for counts, _ in known]) > _FAR * equal
        sigmas = [np.sqrt(variance.sum() / len(variance)) for _, variance in known]
        return replace(one_way, counts=tuple(counts for counts, _ in known), sigmas=np.array(sigmas))

    def _apart(self, singles: Sequence[Floats]) -> float:
        """The mean error that drift leaves in cells of pairs, of the chain that drifts least."""
        pairs = list(combinations(singles, 2))
        found, cells = np.zeros(len(self.drifts)), 0
        for a, b in pairs[:: max(1, len(pairs) // _PAIRS)]:
            spread = spread_of(np.outer(np.maximum(a, 0), np.maximum(b, 0)) / self.records, self.records)
            found += [np.sqrt(sum(drift.at(spread))).sum() for drift in self.drifts]
            cells += spread.size
        return float(found.min()) / max(cells, 1)

    @property
    def of_all_values(self) -> bool:
        """Whether the last release has tables of all pairs of values, which any codes are functions of."""
        return any(table.step == "all pairs" for table in self.related[-1].releases[-1].measurements.tables)

    def coding(self, one_way: OneWay) -> Coding:
        """The coding of the last release: noisy tables on the same codes are added cell by cell."""
        return coding_from(self.related[-1].releases[-1].measurements, one_way)

    def weigh_pairs(self, coding: Coding, *, finest: bool = False) -> None:
        """Take the tables of pairs on the codes of a model, or on its `finest` alone, so that no noise counts twice."""
        found = [
            [_recoded(one.measurements, coding, finest=finest) for one in related.releases] for related in self.related
        ]
        for pair in sorted({pair for of in found for tables in of for pair in tables}):
            self._tables[pair] = [[tables.get(pair) for tables in of] for of in found]
        self._factors = {a: self._moves(coding.source[a], coding.maps[a]) for a in range(len(coding.source))}
        self._join()

    def _moves(self, i: int, codes: Counts) -> list[Floats]:
        """How many times the records of each code of an attribute that each chain says there are now, as far as that
        is more than the error of what is known.
        """
        now, variance = (np.maximum(np.bincount(codes, weights=of), 0.0) for of in self.estimate((i,)))
        told = [now if one is None else np.bincount(codes, weights=one[0]) for one in self._told((i,))]
        return [(now + np.sqrt(variance)) / (np.maximum(one, 0.0) + np.sqrt(variance)) for one in told]

    def weigh_all_pairs(
        self, coding: Coding, tables: Sequence[Counts], sigmas: Sequence[float], *, settle: bool = True
    ) -> None:
        """Take the tables of pairs, where that is to be done, and weigh them against this release's of all pairs of the
        table's attributes, with their deviations; without `settle` drifts stay those of its tables before.
        """
        if self.related and not self.pairs:
            self.weigh_pairs(coding, finest=True)
        noisy = dict(zip(combinations(range(len(coding.fine)), 2), zip(tables, sigmas, strict=True), strict=True))
        for a, b in combinations(range(len(coding.source)), 2):
            i, j = coding.source[a], coding.source[b]
            if i == j:
                continue
            counts, sigma = noisy[min(i, j), max(i, j)]
            self._own.pop((a, b), None)
            self.add((a, b), *grouped(counts if i < j else counts.T, sigma, coding.maps[a], coding.maps[b]))
        if settle:
            self.settle()

    @property
    def pairs(self) -> list[Pair]:
        """The model's pairs that have been measured."""
        return [(s[0], s[1]) for s in self._chains if len(s) == 2]

    def add(self, pair: Pair, counts: NDArray[np.number], variance: float | Floats) -> None:
        """Add a noisy table of this release; `settle` follows."""
        table = counts.astype(np.float64), np.broadcast_to(np.asarray(variance, np.float64), counts.shape)
        self._own[pair] = combined(self._own.get(pair), table)
        self._chains.setdefault(pair, [[None]] * len(self.drifts))

    def estimate(self, attributes: Set) -> Estimate:
        """The counts of a table by all that is known, and their variances. Raises KeyError: nothing is."""
        return combined(self.earlier(attributes), self._own.get(attributes))

    def earlier(self, attributes: Set) -> Estimate | None:
        """The counts of a table by earlier releases alone, and their variances; None where none measured it."""
        known, own = [told for told in self._told(attributes) if told is not None], self._own.get(attributes)
        if own is not None:
            most = np.maximum(self._spread(attributes), spread_of(own[0], self.records))
            known = [_doubted(told, own, most) for told in known]
        return combined(*known) if known else None

    def _told(self, attributes: Set) -> list[Estimate | None]:
        """What each chain says of a table; that of a pair has the margins of now, as all pairs of an attribute would
        say the same of its margin.
        """
        spread = self._spread(attributes)
        known = zip(self._chains[attributes], self.drifts, strict=True)
        found = [_ahead(chain, *drift.at(spread)) for chain, drift in known]
        if len(attributes) == 1 or not self._factors:
            return found
        factors = [np.outer(*both) for both in zip(*(self._factors[a] for a in attributes), strict=True)]
        return [None if t is None else (t[0] * f, t[1] * f**2) for t, f in zip(found, factors, strict=True)]

    def report(self) -> list[dict[str, Any]]:
        """The drift of each chain, rounded: public numbers, estimated from public ones."""
        return [{of: [round(x, 6) for x in getattr(d, of)] for of in ("persons", "steps")} for d in self.drifts]

    def repeated(self, published: Measurements) -> list[dict[str, Any]]:
        """The drifts that the published noisy tables of this release give."""
        steps = {step: [t for t in published.tables if t.step == step] for step in ("one-way", "one-way/again")}
        singles = [own for own in steps.values() if own]
        sigmas = [np.array([table.deviation for table in own]) for own in singles]
        one_way = self.weigh_values(combine([[table.counts for table in own] for own in singles], sigmas))
        whole = [t for t in published.tables if t.step == "all pairs"]
        if whole:
            tables = [table.counts.reshape(table.shape) for table in whole]
            self.weigh_all_pairs(coding_from(published, one_way), tables, [table.deviation for table in whole])
        elif not self.is_far:
            self.weigh_pairs(coding_from(published, one_way))
            for table in published.tables:
                if table.coded and len(table.attributes) == 2:
                    pair = table.attributes[0], table.attributes[-1]
                    self.add(pair, table.counts.reshape(table.shape), table.deviation**2)
            self.settle()
        return self.report()

    def _join(self) -> None:
        """Make chains of all tables of earlier releases, and estimate their drifts."""
        parts = [_between(related, [own[k] for own in self._tables.values()]) for k, related in enumerate(self.related)]
        for attributes, tables in self._tables.items():
            found = [r.chains(own, self.records, p) for r, own, p in zip(self.related, tables, parts, strict=True)]
            self._chains[attributes] = [chain for chains in found for chain in chains]
        self.settle()

    def _spread(self, attributes: Set) -> Floats:
        """The spread of the cells of a table, about."""
        known = combined(*(e for chain in self._chains[attributes] for e in chain), self._own.get(attributes))
        return spread_of(known[0], self.records)

    def settle(self) -> None:
        """Estimate the drifts from all tables so far."""
        known = {s: (chains, self._own.get(s), self._spread(s)) for s, chains in self._chains.items()}
        number = len(next(iter(self._chains.values())))
        seen = [[item for of, own, m in known.values() for item in differences(of[c], own, m)] for c in range(number)]
        self.drifts = list(map(drift_of, seen))


def _values(measurements: Measurements, i: int, size: int) -> Estimate | None:
    """The one-way table of an attribute that a release measured."""
    found = measurements.combined((i,), (size,))
    return None if found is None else (found[0], found[1] ** 2)


def coding_from(measured: Measurements, one_way: OneWay) -> Coding:
    """The coding of a release, for the one-way tables of another."""
    source, maps = measured.source, measured.maps
    if any(table.step == "triples" for table in measured.tables):  # the last copies are groups of values, of triples
        source, maps = source[: -len(one_way.counts)], maps[: -len(one_way.counts)]
    fine = dict(zip(source, maps, strict=True))  # the last copy of each is the finest
    noisy = zip(one_way.counts, one_way.sigmas.tolist(), strict=True)
    merging = tuple(merging_of(fine[i], counts, sigma, one_way.records) for i, (counts, sigma) in enumerate(noisy))
    return Coding.of(source, maps, merging)


def _recoded(measured: Measurements, coding: Coding, *, finest: bool) -> dict[Pair, Estimate]:
    """Noisy tables of pairs on the finest codes of a model that are functions of their own. Tables of all values were
    picked on no codes: these are on all such codes, unless only the `finest` are asked for.
    """
    found: dict[Pair, Estimate] = {}
    for table in (table for table in measured.tables if len(table.attributes) == 2):
        copies: list[list[tuple[int, Counts]]] = []
        for a, size in zip(table.attributes, table.shape, strict=True):
            i, own = (measured.source[a], measured.maps[a]) if table.coded else (a, np.arange(size))
            of = (c for c in reversed(range(len(coding.source))) if coding.source[c] == i)  # from fine to coarse
            groups = ((c, function_of(own, coding.maps[c], size)) for c in of)
            known = [(c, group) for c, group in groups if group is not None]
            copies.append(known[:1] if finest or table.coded else known)
        for (first, rows), (last, columns) in product(*copies):
            noisy = grouped(table.counts.reshape(table.shape), table.deviation, rows, columns)
            pair, noisy = ((first, last), noisy) if first < last else ((last, first), (noisy[0].T, noisy[1].T))
            found[pair] = combined(found.get(pair), noisy)
    return found


def function_of(own: Counts, codes: Counts, size: int) -> Counts | None:
    """The code of each of a table's codes; None where these are no function of them."""
    found = np.full(size, -1, np.int64)
    found[own] = codes
    return found if np.array_equal(found[own], codes) and (found >= 0).all() else None


def grouped(table: NDArray[np.number], sigma: float, rows: Counts, columns: Counts) -> Estimate:
    """Sums of the rows and of the columns of each group, of a table whose cells have this deviation."""
    return sums_of(table, rows, columns), np.multiply.outer(np.bincount(rows) * sigma**2, np.bincount(columns))


def sums_of(table: NDArray[np.number], rows: Counts, columns: Counts) -> Floats:
    """Sums of the rows and of the columns of each group."""
    found = table.astype(np.float64)
    for axis, group in enumerate((rows, columns)):
        if not np.array_equal(group, np.arange(found.shape[axis])):
            found = np.moveaxis(summed(np.moveaxis(found, axis, 0), group), 0, axis)
    return found


def _between(related: Related, tables: Sequence[Sequence[Estimate | None]]) -> Drift:
    """What two parts of a sum differ by, at the scale of one; nothing is asked of other relations."""
    seen: list[Seen] = []
    for own in tables if related.kind in _SUMS else ():
        known = [table for table in related.scaled(own, related.mean) if table is not None]
        if known:
            spread = spread_of(combined(*known)[0], related.mean)
            seen += [item for one, other in pairwise(known) for item in differences([one], other, spread)]
    return drift_of(seen)


def _doubted(told: Estimate, own: Estimate, spread: Floats) -> Estimate:
    """What earlier releases say of a table, with more variance where this release's surely contradicts them: one table
    may change of a sudden, where the others do not.
    """
    noise, away = told[1] + own[1], (told[0] - own[0]) ** 2
    excess = float((away - noise).sum())
    surprise = float((away / noise - 1).sum()) / math.sqrt(2 * noise.size)
    return told if surprise <= _SURELY or excess <= 0 else (told[0], told[1] + excess / float(spread.sum()) * spread)


def _ahead(chain: Chain, persons: Floats, step: Floats) -> Estimate | None:
    """What a chain says of the next table, and the variance of that."""
    found: Estimate | None = None
    for table in chain:
        if found is not None:
            found = found[0], found[1] + step
        if table is not None:
            found = combined(found, (table[0], table[1] + persons))
    return None if found is None else (found[0], found[1] + step + persons)
