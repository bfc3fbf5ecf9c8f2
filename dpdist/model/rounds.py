"""The rounds: distances of the pairs to the public model pick pairs, noisy tables of them refit the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import EMPTY, L1_OF_NOISE, Choices
from dpdist.model.coding import Coding, Pair, PairTables, SingleCounts, fitting, possible_codes, with_zeros
from dpdist.model.descent import FactorModel, TableMeasurement, fit
from dpdist.model.drift import Estimate
from dpdist.model.evidence import Evidence, combined
from dpdist.model.grids import Grids, group_of_codes
from dpdist.model.inference import PairMarginals
from dpdist.model.junction import Graph, JunctionTree, Paths, Set, cells_of, cliques_of
from dpdist.model.one_way import OneWay, combine, expected_counts
from dpdist.model.outside import with_outside
from dpdist.model.sums import AskedCounts
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import exp
from dpdist.privacy.selection import Candidates
from dpdist.spec.rules import Rules

# the largest weight of a pair: a distance times a weight over this moves by at most 1 with a record, rounded down
LARGEST_WEIGHT = 1 << 10

# above this part of its cells a model counts as full: only pairs that are close in the tree are still tried
FULL = 0.99
DRAWN_CELLS = 40_000  # of all cliques without what rows are drawn given: a draw sums over these for each group of rows
_PLATEAU = 0.05  # where all pairs are measured, fits may end early; those to fewer tables gain to the end
_SHARE = 2.0  # no share is larger, nor what rounding makes of one
RULES_PART = 4  # rules may take a fourth of the cells of the model
A = TypeVar("A", bound=tuple[int, ...])

# a public rule: from the sets picked in this round, whether a set may follow
Valid = Callable[[list[A]], Callable[[A], bool]]


def pick_sets(
    name: str,
    scores: NDArray[np.int64],
    sets: tuple[A, ...],
    account: GaussianAccount,
    *,
    scale: float,
    most: int,
    valid: Valid[A],
) -> list[A]:
    """Pick sets of attributes by the exponential mechanism until `most` or a stop, which has score 0."""
    picked: list[A] = []
    stop = len(sets)
    candidates = Candidates(np.append(scores, 0), scale=scale)
    while len(picked) < most:
        rule = valid(picked)

        def follows(index: int, rule: Callable[[A], bool] = rule) -> bool:
            return index == stop or rule(sets[index])

        choice = account.pick(f"{name}/pick/{len(picked)}", candidates, scale=scale, allowed=follows)
        if choice == stop:
            break
        candidates.remove(choice)
        picked.append(sets[choice])
    return picked


def best_sets(scores: NDArray[np.int64], sets: tuple[A, ...], *, most: int, valid: Valid[A]) -> list[A]:
    """Pick the sets of the largest public scores above 0, as `pick_sets` picks by private ones."""
    picked: list[A] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        if len(picked) == most or scores[index] <= 0:
            break
        if valid(picked)(sets[index]):
            picked.append(sets[index])
    return picked


@dataclass
class Learner:
    """The state of the rounds; all of it public but the exact tables. The model's `cells` grow from round to round."""

    tables: PairTables
    coding: Coding
    one_way: OneWay
    account: GaussianAccount
    choices: Choices
    rules: Rules = ()
    grids: Grids | None = None  # which pairs are picked from, where no exact table may be seen
    measurements: list[TableMeasurement] = field(default_factory=list)
    edges: list[Pair] = field(default_factory=list)  # links and measured pairs
    model: FactorModel | None = None  # None before the first fit: independent attributes
    held: dict[Set, Floats] = field(default_factory=dict)  # potentials of a public model
    zeros: dict[int, tuple[Set, Floats]] = field(default_factory=dict)  # by their numbers, rules that fit the model
    evidence: Evidence | None = None
    outside: list[Pair] = field(default_factory=list)  # pairs whose tables would make the tree too large
    told: dict[Pair, Estimate] = field(default_factory=dict)  # what this release measured of them
    picked: list[Set] = field(default_factory=list)  # what this release measured, in order: pairs, and small sets
    given: int = 0  # first attributes of the table that rows will be drawn given

    def __post_init__(self) -> None:
        self.cells = self.choices.cells
        self.any_pair = False  # whether pairs are picked for which the tree has no room
        self.edges = list(self.coding.links)
        self._join_rules()
        self._index = {pair: k for k, pair in enumerate(self.tables.pairs)}
        self._weights = self._priorities()
        self.marginals: dict[Pair, Floats] = {}
        self._public: Floats = np.zeros(0)
        self._expected_values = self._of_values()
        self.measurements = self._of_one_way()
        self._predict(self._independent())

    def _of_one_way(self) -> list[TableMeasurement]:
        """The one-way tables on the model's codes."""
        found, records = [], self.one_way.records
        for i, k in enumerate(self.coding.fine):
            merging, sigma = self.coding.merging[i], float(self.one_way.sigmas[i])
            counts = np.bincount(merging.codes, weights=self._expected_values[i], minlength=merging.cardinality)
            found.append(TableMeasurement((k,), counts / records, (records / sigma) ** 2))
        return found

    def measure_again(self, counts: PairCounts | SingleCounts | AskedCounts, share: float) -> None:
        """Measure the one-way tables with this share too. Values that were merged stay merged in the model."""
        tables = [counts.single(i) for i in range(len(counts.cardinalities))]
        weights = [math.sqrt(table.size) for table in tables]
        noisy, sigmas = self.account.measure("one-way/rest", tables, share=share, weights=weights)
        before = self.one_way.records
        self.one_way = combine([self.one_way.counts, noisy], [self.one_way.sigmas, sigmas])
        self._expected_values = self._of_values()
        rare = zip(self.coding.merging, self._expected_values, strict=True)
        merging = tuple(replace(m, weights=values[m.rare]) for m, values in rare)
        self.coding = replace(self.coding, merging=merging)
        scale = before / self.one_way.records
        pairs = [m for m in self.measurements if len(m.attributes) > 1]
        pairs = [replace(m, share=m.share * scale, weight=m.weight / scale**2) for m in pairs]
        self.measurements = self._of_one_way() + pairs

    def _of_values(self) -> tuple[Floats, ...]:
        """Expected counts of the values of each attribute."""
        return tuple(
            expected_counts(table, sigma, records=self.one_way.records)
            for table, sigma in zip(self.one_way.counts, self.one_way.sigmas.tolist(), strict=True)
        )

    def _join_rules(self) -> None:
        """Let the attributes of a rule share a clique, as long as the model stays small."""
        self.zeros = {}
        possible, cards = possible_codes(self.rules, self.coding), self.coding.cardinalities
        if possible:
            most = self.least_cells + self.choices.cells // RULES_PART
            self.zeros = {k: possible[k] for k in fitting(possible, cards, self.edges, most=most)}

    @property
    def all_edges(self) -> list[Pair]:
        """Links and measured pairs, and pairs of attributes that a rule joins."""
        return [*self.edges, *(pair for scope, _ in self.zeros.values() for pair in combinations(scope, 2))]

    @property
    def least_cells(self) -> int:
        """Cells of the model without further pairs."""
        cards = self.coding.cardinalities
        return cells_of(cliques_of(cards, self.all_edges), cards)

    def _priorities(self) -> NDArray[np.int64]:
        """Weights of the pairs in units of 2**-10 of the largest."""
        source, given = self.coding.source, {(min(a, b), max(a, b)): w for a, b, w in self.choices.priorities}
        of_pair = [given.get((min(source[a], source[b]), max(source[a], source[b])), 1.0) for a, b in self.tables.pairs]
        top = max(of_pair, default=1.0)
        return np.array([max(round(weight / top * LARGEST_WEIGHT), 1) for weight in of_pair], np.int64)

    def _independent(self) -> dict[Pair, Floats]:
        """Products of the one-way tables."""
        coding, single = self.coding, []
        for source, codes, size in zip(coding.source, coding.maps, coding.cardinalities, strict=True):
            counts = np.bincount(codes, weights=self._expected_values[source], minlength=size)
            single.append(counts / counts.sum())
        return {(a, b): np.outer(single[a], single[b]) for a, b in self.tables.pairs}

    def _predict(self, marginals: dict[Pair, Floats]) -> None:
        self.marginals = marginals
        self._public = np.concatenate([np.zeros(0), *(marginals[pair].ravel() for pair in self.tables.pairs)])

    def expected(self) -> NDArray[np.int64]:
        """The public model's counts of all pairs, rounded. Raises ValueError: a share is no number, so that a distance
        to it would overflow, and could move by more than 1 with a record.
        """
        if not (np.abs(self._public) <= _SHARE).all():
            raise ValueError("the shares of a model are no numbers")
        return np.rint(self.one_way.records * self._public).astype(np.int64)

    def round(self, name: str, *, share: float, pick_share: float, most: int, tree: bool = False) -> int:
        """One round; the number of pairs that it measured. With `tree` it joins components instead of adding any pairs.

        A pair's score is the L1 distance of its table to the model, less a part of the error that measuring it would
        leave, times its priority. The root of that error is a table's weight in the share.
        """
        sigma = float(self.account.deviations(share, [1.0] * most)[0])
        expected = self.expected()
        error = np.minimum(L1_OF_NOISE * sigma, expected + EMPTY * sigma)
        errors = np.add.reduceat(error, self.tables.starts)
        noise = np.rint(self.choices.penalty * errors).astype(np.int64)
        valid: Valid[Pair] = self._joining if tree else self._fitting
        if not tree and (self.any_pair or self.evidence is not None):
            valid = lambda picked: lambda pair: True  # noqa: E731
        if self.grids is not None:
            distances, seen = self.missed(self.grids, expected)
            scores = np.rint((distances - noise) * self._weights / LARGEST_WEIGHT).astype(np.int64)
            picked = best_sets(np.where(seen, scores, 0), self.tables.pairs, most=most, valid=valid)
        else:
            scores = (self.tables.distances(expected) - noise) * self._weights // LARGEST_WEIGHT
            scale = self.account.pick_scale(pick_share, most)
            picked = pick_sets(name, scores, self.tables.pairs, self.account, scale=scale, most=most, valid=valid)
        if picked:
            self._measure(name, picked, share, errors)
        return len(picked)

    def missed(self, grids: Grids, expected: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        """By noisy grids, about the L1 distance of each pair's table to public counts, and where noise is less."""
        source, found = self.coding.source, dict[Pair, tuple[float, bool]]()
        for pair, which, codes in self._gridded(grids):
            table = self.tables.within(expected, self._index[pair])
            found[min(which), max(which)] = grids.score(which, table, codes)
        each = [found[min(p), max(p)] for p in ((source[a], source[b]) for a, b in self.tables.pairs)]
        return np.array([score for score, _ in each]), np.array([seen for _, seen in each])

    def _gridded(self, grids: Grids) -> Iterator[tuple[Pair, Pair, list[Counts]]]:
        """Pairs of fine attributes of the model, those of the table that they are of, and their codes' groups."""
        coding, groups = self.coding, grids.groups
        for pair in combinations(sorted(coding.fine), 2):
            i, j = which = coding.source[pair[0]], coding.source[pair[1]]
            yield pair, which, [group_of_codes(coding.maps[a], groups[k]) for a, k in zip(pair, (i, j), strict=True)]

    def to_balance(self) -> dict[Pair, Floats]:
        """The model's shares of all pairs, with what noisy grids say of them: records are balanced to these."""
        if self.grids is None:
            return self.marginals
        found = dict(self.marginals)
        for pair, which, codes in self._gridded(self.grids):
            found[pair] = self.grids.adjust(which, codes, found[pair], self.one_way.records)
        return found

    def _joining(self, picked: list[Pair]) -> Callable[[Pair], bool]:
        component = list(range(len(self.coding.cardinalities)))  # of each attribute
        for a, b in (*self.edges, *picked):
            component = [component[b] if own == component[a] else own for own in component]
        fits = self._fitting(picked) if self.zeros else lambda pair: True
        return lambda pair: component[pair[0]] != component[pair[1]] and fits(pair)

    def _fitting(self, picked: list[Pair]) -> Callable[[Pair], bool]:
        """Whether the model may have a pair more; nearly full, it only looks at pairs that fit along a path."""
        cards, known, most = self.coding.cardinalities, set(self.all_edges), self.cells
        graph = Graph(cards, [*self.all_edges, *picked])
        paths = Paths(graph, cards)
        is_full = paths.cells > FULL * most
        drawn = [1 if source < self.given else size for source, size in zip(self.coding.source, cards, strict=True)]

        def fits(pair: Pair) -> bool:
            if pair in known:
                return True
            if is_full and paths.cells_with(*pair) > most:
                return False
            cliques = graph.eliminate(extra=pair, most=most)
            if cliques is None or not self.given:
                return cliques is not None
            sums = (prod(size for a, size in enumerate(drawn) if clique >> a & 1) for clique in cliques)
            return sum(sums) <= DRAWN_CELLS

        return fits

    def _measure(self, name: str, picked: list[Pair], share: float, errors: Floats) -> None:
        tables = [self.tables.table(self._index[pair]) for pair in picked]
        numbers = [self._index[pair] for pair in picked]
        weights = [math.sqrt(max(errors[k], 1.0)) * int(self._weights[k]) for k in numbers]
        drawn, sigmas = self.account.measure(f"{name}/tables", tables, share=share, weights=weights)
        noisy: list[NDArray[Any]] = list(drawn)
        if self.grids is not None:
            source, maps = self.coding.source, self.coding.maps
            noisy = [
                self.grids.sharpen((source[a], source[b]), (maps[a], maps[b]), table, sigma)
                for (a, b), table, sigma in zip(picked, drawn, sigmas.tolist(), strict=True)
            ]
        records = self.one_way.records
        measured = {measurement.attributes for measurement in self.measurements}
        self.picked += picked
        if self.evidence is not None:
            for pair, table, sigma in zip(picked, noisy, sigmas.tolist(), strict=True):
                self.evidence.add(pair, table, sigma**2)
            self.evidence.settle()
            self._take(self.evidence, [pair for pair in picked if pair not in measured and pair not in self.outside])
            return
        for pair, table, sigma in zip(picked, noisy, sigmas.tolist(), strict=True):
            if pair in self.told or (self.any_pair and pair not in self.edges and not self._fitting([])(pair)):
                one = table.astype(np.float64), np.full(table.shape, sigma**2)
                self.told[pair] = combined(self.told[pair], one) if pair in self.told else one
                continue
            known = None if pair in measured else self.marginals[pair]
            self.measurements.append(TableMeasurement(pair, table / records, (records / sigma) ** 2, known))
            self.edges += [] if pair in self.edges else [pair]

    def _take(self, evidence: Evidence, pairs: list[Pair]) -> None:
        """Weigh all tables again, with those of further pairs: in the tree as far as they fit, outside else, until it
        has room for more.
        """
        inside: list[Pair] = []
        waiting, self.outside, fits = [*self.outside, *pairs], [], self._fitting(inside)
        for pair in waiting:
            if fits(pair):
                inside.append(pair)
                fits = self._fitting(inside)
            else:
                self.outside.append(pair)
        tables = [m for m in self.measurements if len(m.attributes) == 2]
        tables += [TableMeasurement(pair, self.marginals[pair], 1.0, self.marginals[pair]) for pair in inside]
        self.measurements, records = [m for m in self.measurements if len(m.attributes) != 2], self.one_way.records
        for table in tables:
            counts, variance = evidence.estimate(table.attributes)
            mean = float(variance.sum()) / variance.size
            self.measurements.append(replace(table, share=counts / records, weight=records**2 / mean))
        self.edges += [pair for pair in inside if pair not in self.edges]

    def remember(self, evidence: Evidence, *, most: int, rounds: int, iterations: int) -> None:
        """Learn from noisy tables: in each round those that the model misses by more than their errors, the most first,
        each on the codes that show the most; in the tree as far as it then has `most` cells. Nothing private is read.
        """
        self.evidence, self.cells = evidence, max(most, self.least_cells)
        known = {m.attributes for m in self.measurements}
        left, self.outside = [pair for pair in evidence.pairs if pair not in known], []
        source = {pair: frozenset(self.coding.source[a] for a in pair) for pair in left}
        number = -(-len(set(source.values())) // max(rounds, 1))
        for _ in range(rounds):
            scores = {pair: self._missed(pair, evidence.estimate(pair)) for pair in left}
            best: dict[frozenset[int], Pair] = {}
            for pair in sorted(left, key=lambda pair: (-scores[pair], pair)):
                if scores[pair] > 0:
                    best.setdefault(source[pair], pair)
            taken = list(best.values())[:number]
            if not taken:
                break
            left = [pair for pair in left if pair not in taken]
            self._take(evidence, taken)
            self.refit(iterations)
        if self.model is None:
            self.refit(iterations)

    def _missed(self, pair: Pair, known: Estimate) -> float:
        """What the model misses of a table, beyond a part of the table's own error."""
        expected, noise = self.one_way.records * self.marginals[pair], np.sqrt(known[1])
        error = np.minimum(L1_OF_NOISE * noise, expected + EMPTY * noise)
        return float((np.abs(known[0] - expected) - L1_OF_NOISE * noise - self.choices.penalty * error).sum())

    def begin(self, prior: FactorModel, edges: list[Pair], iterations: int) -> None:
        """Start from a public model on the same coding; potentials of pairs that are not measured stay as they are."""
        self.held, self.model = dict(prior.potentials), prior
        self.edges = list(edges)
        self._join_rules()
        self.refit(iterations)

    def refit(self, iterations: int) -> FactorModel:
        """Fit the model to all measurements and predict all pairs."""
        cards = self.coding.cardinalities
        tree = JunctionTree.of(cards, cliques_of(cards, self.all_edges))
        measured, start = {m.attributes for m in self.measurements}, self.model
        factors: dict[Set, NDArray[np.generic]] = dict(self.coding.links.items())
        if self.held and start is not None:
            factors |= {s: exp(p - p.max()) for s, p in self.held.items() if s not in measured}
            start = replace(start, potentials=self.held | start.potentials)
        if self.zeros:
            factors |= with_zeros(factors, self.zeros.values())
        plateau = _PLATEAU if self.choices.rake else 0.0
        self.model = fit(tree, self.measurements, factors, iterations=iterations, plateau=plateau, start=start)
        marginals = PairMarginals(tree, self.model.beliefs).all()
        estimates = dict(self.told)
        if self.evidence is not None:
            estimates |= {pair: self.evidence.estimate(pair) for pair in self.outside}
        if estimates:
            marginals = with_outside(marginals, estimates, self.coding, self.one_way.records)
        self._predict(marginals)
        return self.model
