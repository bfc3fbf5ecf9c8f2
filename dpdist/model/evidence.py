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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpdist.model.account import Measurements, NoisyTable
from dpdist.model.coding import Coding, Pair
from dpdist.model.drift import Chain, Drift, Estimate, Seen, differences, drift_of, spread_of
from dpdist.model.one_way import Merging, OneWay, combine, expected_counts
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


def turned(noisy: Estimate) -> Estimate:
    """A table with its attributes in the other order."""
    return noisy[0].T, noisy[1].T


def combined(*estimates: Estimate | None) -> Estimate | None:
    """The mean of independent estimates by precision; None where all are None."""
    known = [estimate for estimate in estimates if estimate is not None]
    if not known:
        return None
    total = np.sum([1 / v for _, v in known], axis=0)
    return np.sum([y / v for y, v in known], axis=0) / total, 1 / total


@dataclass(eq=False)
class Evidence:
    """Evidence as learning weighs it, with the noisy tables of this release so far; all of it public."""

    related: tuple[Related, ...]
    cardinalities: tuple[int, ...]
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
        last = self.related[-1].releases[-1].measurements
        sizes = [int(codes.max()) + 1 for codes in last.maps]
        copies: list[list[int]] = [[] for _ in self.cardinalities]
        for a, i in enumerate(last.source):
            copies[i].append(a)  # from coarse to fine
        links: dict[Pair, Any] = {}
        merging = []
        for i, own in enumerate(copies):
            for coarse, fine in pairwise(own):
                link = np.zeros((sizes[coarse], sizes[fine]), np.bool_)
                link[last.maps[coarse], last.maps[fine]] = True
                links[coarse, fine] = link
            merging.append(_merging(last.maps[own[-1]], one_way, i))
        fine_of = tuple(own[-1] for own in copies)
        return Coding(last.source, last.maps, tuple(sizes), fine_of, links, tuple(merging))

    def weigh_pairs(self, coding: Coding) -> None:
        """Take the tables of pairs on the codes of a model, each as fine as the codes allow."""
        found: dict[Pair, list[list[Estimate | None]]] = {}
        for k, related in enumerate(self.related):
            for n, release in enumerate(related.releases):
                for table in release.measurements.tables:
                    pair, estimate = _recoded(table, release.measurements, coding)
                    if pair is None:
                        continue
                    blank: list[list[Estimate | None]] = [[None] * len(r.releases) for r in self.related]
                    row = found.setdefault(pair, blank)[k]
                    row[n] = combined(row[n], estimate)
        self._tables |= {pair: found[pair] for pair in sorted(found)}
        self._factors = {a: self._moves(coding.source[a], coding.maps[a]) for a in range(len(coding.source))}
        self._join()

    def _moves(self, i: int, codes: Counts) -> list[Floats]:
        """How many times the records of each code of an attribute that each chain says there are now, as far as that
        is more than the error of what is known.
        """
        now, variance = (np.maximum(np.bincount(codes, weights=of), 0.0) for of in self.estimate((i,)))
        told = [now if one is None else np.bincount(codes, weights=one[0]) for one in self._told((i,))]
        return [(now + np.sqrt(variance)) / (np.maximum(one, 0.0) + np.sqrt(variance)) for one in told]

    def weigh_all_pairs(self, coding: Coding, tables: Mapping[Pair, tuple[Counts, float]]) -> None:
        """Take the tables of pairs, and weigh them against this release's of all pairs of the table's attributes, with
        their deviations.
        """
        self.weigh_pairs(coding)
        self._add_all(coding, self.pairs, tables)

    @classmethod
    def of_pairs(cls, coding: Coding, tables: Sequence[Counts], sigmas: Sequence[float]) -> Evidence:
        """Tables of all pairs of this release's attributes, and nothing of others."""
        sizes = tuple(len(merging.codes) for merging in coding.merging)
        found, pairs = cls((), sizes), combinations(range(len(sizes)), 2)
        of_pairs = dict(zip(pairs, zip(tables, sigmas, strict=True), strict=True))
        found._add_all(coding, list(combinations(sorted(coding.fine), 2)), of_pairs)
        return found

    def _add_all(self, coding: Coding, pairs: Sequence[Pair], tables: Mapping[Pair, tuple[Counts, float]]) -> None:
        for a, b in pairs:
            i, j = coding.source[a], coding.source[b]
            counts, sigma = tables[min(i, j), max(i, j)]
            noisy: Estimate = counts.astype(np.float64), np.full(counts.shape, sigma**2)
            for axis, k in enumerate((a, b) if i < j else (b, a)):
                noisy = (
                    grouped(noisy[0], coding.maps[k], coding.cardinalities[k], axis),
                    grouped(noisy[1], coding.maps[k], coding.cardinalities[k], axis),
                )
            self.add((a, b), *(noisy if i < j else turned(noisy)))
        self.settle()

    @property
    def pairs(self) -> list[Pair]:
        """The model's pairs that have been measured."""
        known = (s for s, chains in self._chains.items() if any(map(any, chains)) or s in self._own)
        return [(s[0], s[1]) for s in known if len(s) == 2]

    def add(self, pair: Pair, counts: NDArray[np.number], variance: float | Floats) -> None:
        """Add a noisy table of this release; `settle` follows."""
        table = counts.astype(np.float64), np.broadcast_to(np.asarray(variance, np.float64), counts.shape)
        own = combined(self._own.get(pair), table)
        if own is not None:
            self._own[pair] = own
            self._chains.setdefault(pair, [[None]] * len(self.drifts))

    def estimate(self, attributes: Set) -> Estimate:
        """The counts of a table by all that is known, and their variances. Raises KeyError: nothing is."""
        ahead, own = self._told(attributes), self._own.get(attributes)
        if own is not None:
            most = np.maximum(self._spread(attributes), spread_of(own[0], self.records))
            ahead = [None if told is None else _doubted(told, own, most) for told in ahead]
        found = combined(*ahead, own)
        if found is None:
            raise KeyError(attributes)
        return found

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
        rounded = [([round(x, 6) for x in d.persons], [round(x, 6) for x in d.steps]) for d in self.drifts]
        return [{"persons": persons, "steps": steps} for persons, steps in rounded]

    def repeated(self, published: Measurements) -> list[dict[str, Any]]:
        """The drifts that the published noisy tables of this release give."""
        steps: dict[str, list[NoisyTable]] = {}
        for table in published.tables:
            steps.setdefault(table.step, []).append(table)
        singles = [steps[name] for name in ("one-way", "one-way/again") if name in steps]
        sigmas = [np.array([table.deviation for table in own]) for own in singles]
        one_way = self.weigh_values(combine([[table.counts for table in own] for own in singles], sigmas))
        coding = self.coding(one_way)
        whole = {(t.attributes[0], t.attributes[1]): t for t in steps.get("all pairs", ())}
        if whole:
            tables = {pair: (t.counts.reshape(t.shape), t.deviation) for pair, t in whole.items()}
            self.weigh_all_pairs(coding, tables)
            return self.report()
        if self.is_far:
            return self.report()
        self.weigh_pairs(coding)
        same = len(coding.maps) == len(published.maps) and all(map(np.array_equal, coding.maps, published.maps))
        for table in published.tables if same else ():
            if table.coded:
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
        if known is None:
            raise KeyError(attributes)
        return spread_of(known[0], self.records)

    def settle(self) -> None:
        """Estimate the drifts from all tables so far."""
        known = {s: self._spread(s) for s, chains in self._chains.items() if any(map(any, chains)) or s in self._own}
        number = len(next(iter(self._chains.values())))
        self.drifts = []
        for c in range(number):
            seen = [item for s, m in known.items() for item in differences(self._chains[s][c], self._own.get(s), m)]
            self.drifts.append(drift_of(seen))


def _values(measurements: Measurements, i: int, size: int) -> Estimate | None:
    """The one-way table of an attribute that a release measured."""
    found = measurements.combined((i,), (size,))
    return None if found is None else (found[0], found[1] ** 2)


def _merging(codes: Counts, one_way: OneWay, i: int) -> Merging:
    """How an attribute's rare values share their code, which is the last one."""
    size = int(codes.max()) + 1
    rare = np.flatnonzero(np.bincount(codes)[codes] > 1)
    expected = expected_counts(one_way.counts[i], float(one_way.sigmas[i]), records=one_way.records)
    return Merging(codes, size, rare, expected[rare])


def _recoded(table: NoisyTable, measured: Measurements, coding: Coding) -> tuple[Pair | None, Estimate]:
    """A noisy table of a pair on the finest codes of a model that are functions of its own, and their attributes."""
    nothing = None, (np.zeros(0), np.zeros(0))
    if len(table.attributes) != 2:
        return nothing
    source = [measured.source[a] if table.coded else a for a in table.attributes]
    places, counts = [], table.counts.reshape(table.shape).astype(np.float64)
    variance = np.full(table.shape, table.deviation**2)
    for axis, i in enumerate(source):
        own = measured.maps[table.attributes[axis]] if table.coded else np.arange(table.shape[axis])
        copies = sorted((a for a, of in enumerate(coding.source) if of == i), key=lambda a: -coding.cardinalities[a])
        found = [
            (a, group) for a in copies if (group := function_of(own, coding.maps[a], table.shape[axis])) is not None
        ]
        if not found:
            return nothing
        place, group = found[0]
        places.append(place)
        counts, variance = (grouped(x, group, coding.cardinalities[place], axis) for x in (counts, variance))
    if places[0] > places[1]:
        places, counts, variance = places[::-1], counts.T, variance.T
    return (places[0], places[1]), (counts, variance)


def function_of(own: Counts, codes: Counts, size: int) -> Counts | None:
    """The code of each of a table's codes; None where these are no function of them."""
    found = np.full(size, -1, np.int64)
    found[own] = codes
    return found if np.array_equal(found[own], codes) and (found >= 0).all() else None


def grouped(table: Floats, group: Counts, size: int, axis: int) -> Floats:
    """Sums of the rows or columns of each group."""
    if size == len(group) and np.array_equal(group, np.arange(size)):
        return table
    turned = np.moveaxis(table, axis, 0)
    found = np.zeros((size, *turned.shape[1:]))
    np.add.at(found, group, turned)
    return np.moveaxis(found, 0, axis)


def _between(related: Related, tables: Sequence[Sequence[Estimate | None]]) -> Drift:
    """What two parts of a sum differ by, at the scale of one; nothing is asked of other relations."""
    seen: list[Seen] = []
    for own in tables if related.kind in _SUMS else ():
        known = [table for table in related.scaled(own, related.mean) if table is not None]
        if (mean := combined(*known)) is not None:
            spread = spread_of(mean[0], related.mean)
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
