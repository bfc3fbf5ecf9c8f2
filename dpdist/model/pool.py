"""A pool of model records, weighted to noisy tables of all pairs, and of all triples on groups of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.accuracy.tables import Attributes, Tables
from dpdist.data.count import Number
from dpdist.model.choices import EMPTY, HIGH_ROUNDS, L1_OF_NOISE, MOST_HIGH, Choices
from dpdist.model.coding import Coding, Pair
from dpdist.model.descent import TableMeasurement
from dpdist.model.draw import pool_part
from dpdist.model.evidence import sums_of
from dpdist.model.fitted import Fitted, fitted_of, units_of
from dpdist.model.grids import Grids
from dpdist.model.junction import cells_of, cliques_of
from dpdist.model.one_way import OneWay
from dpdist.model.rake import WeightedRows, block_change, rake, shrink, targets_in, threads
from dpdist.model.rounds import Learner, pick_sets
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.rules import Rules


@dataclass(frozen=True, eq=False)
class AllPairs:
    """Noisy tables of all pairs of the table's attributes, and of triples on groups of values where there are any."""

    tables: tuple[NDArray[Any], ...]  # in the order of `itertools.combinations`
    sigmas: NDArray[np.float64]
    triples: Grids | None = None

    def sharpened(self) -> AllPairs:
        """The pairs with what the triples say of their sums."""
        if self.triples is None:
            return self
        pairs = combinations(range(len(self.triples.groups)), 2)
        found = [self.triples.sharpened(*one) for one in zip(pairs, self.tables, self.sigmas.tolist(), strict=True)]
        return replace(self, tables=tuple(table for table, _ in found), sigmas=np.array([left for _, left in found]))


Told = Callable[[Pair, Floats, float], tuple[Floats, float]]
_SWEEPS = 5  # passes that bring a triple's noisy table to the tables of its pairs and attributes
_BEFORE_TRIPLES = 2  # passes of the raking to pairs alone; more follow with the triples


def with_margins(one_way: OneWay, all_pairs: AllPairs) -> OneWay:
    """One-way counts with what the tables of all pairs say of them, by precision."""
    precision = 1 / one_way.sigmas**2
    sums = [table * p for table, p in zip(one_way.counts, precision.tolist(), strict=True)]
    pairs = combinations(range(len(sums)), 2)
    for pair, table, sigma in zip(pairs, all_pairs.tables, all_pairs.sigmas.tolist(), strict=True):
        for i, other in ((pair[0], 1), (pair[1], 0)):
            of_sum = 1 / (sigma**2 * table.shape[other])
            sums[i] = sums[i] + of_sum * table.sum(other)
            precision[i] += of_sum
    counts = tuple(total / p for total, p in zip(sums, precision.tolist(), strict=True))
    return replace(one_way, counts=counts, sigmas=1 / np.sqrt(precision))


class Pool:
    """Rows of the model, and what their weights are fitted to, for a noisy number of `records`; all of it public."""

    def __init__(self, columns: Codes, cardinalities: tuple[int, ...], choices: Choices, records: float) -> None:
        self._cardinalities, self._choices, self._records = cardinalities, choices, records
        self._pairs = tuple(combinations(range(len(cardinalities)), 2))
        self._columns, self._rows = columns, WeightedRows(columns, cardinalities)
        self._targets: dict[Attributes, Floats] = {}

    @classmethod
    def drawn(
        cls,
        fitted: Fitted,
        cardinalities: tuple[int, ...],
        drawing: Noise,
        choices: Choices,
        *,
        records: float,
        rules: Rules = (),
    ) -> Pool:
        """The rows of all parts of a pool."""
        with threads(choices.pool_parts) as each:
            parts = each(lambda p: pool_part(fitted, drawing, p, choices.pool_rows, rules), range(choices.pool_parts))
            columns = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        return cls(columns, cardinalities, choices, records)

    @property
    def parts(self) -> list[Codes]:
        """The rows of each part, as they were drawn."""
        rows = self._choices.pool_rows
        return [[c[p * rows : (p + 1) * rows] for c in self._columns] for p in range(self._choices.pool_parts)]

    def rake_to_pairs(self, one_way: OneWay, all_pairs: AllPairs, told: Told = lambda pair, *noisy: noisy) -> None:
        """Fit the weights to tables of all pairs and triples, and to the one-way tables. `told` moves the noisy table
        of a pair to what else is known of it.
        """
        all_pairs = all_pairs.sharpened()
        one_way = with_margins(one_way, all_pairs)
        singles: list[Attributes] = [(i,) for i in range(len(self._cardinalities))]
        shares = self._rows.shares([*self._pairs, *singles])
        for pair, table, sigma in zip(self._pairs, all_pairs.tables, all_pairs.sigmas.tolist(), strict=True):
            self._aim(pair, *told(pair, table, sigma), shares[pair])
        for single, counts, sigma in zip(singles, one_way.counts, one_way.sigmas.tolist(), strict=True):
            self._aim(single, counts, sigma, shares[single])
        if all_pairs.triples is None:
            rake(self._rows, self._targets, sweeps=self._choices.sweeps)
        else:
            rake(self._rows, self._targets, sweeps=_BEFORE_TRIPLES, damping=())
            self._rake_to_triples(all_pairs.triples)
        # targets that contradict each other end at about geometric means, in which rare values lose
        rake(self._rows, {single: self._targets[single] for single in singles}, sweeps=1, damping=())

    def _rake_to_triples(self, triples: Grids) -> None:
        """Fit to triples on groups of values as well: tables of copies of the attributes, which follow these."""
        groups, m = triples.groups, len(self._cardinalities)
        self._rows.merge(groups)
        copies = [tuple(m + i for i in triple) for triple in triples.sets]
        self._rows.cover(copies)
        shares = self._rows.shares(copies)
        for i, j in self._pairs:
            self._targets[m + i, m + j] = sums_of(self._targets[i, j], groups[i], groups[j])
        for copy, table in zip(copies, triples.tables, strict=True):
            self._aim(copy, table, triples.sigma, shares[copy])
            below = targets_in(copy, {scope: share for scope, share in self._targets.items() if len(scope) == 2})
            for _ in range(_SWEEPS):  # its sums have more noise than the tables of its pairs
                self._targets[copy] *= block_change(self._targets[copy], below, 1.0)
        rake(self._rows, self._targets, sweeps=max(self._choices.sweeps - 1, 0))

    def missed(self, exact: Mapping[Attributes, Counts]) -> int:
        """The sum of the L1 distances of the pool to flat tables; confidential, as they are. A record changes it by at
        most their number.
        """
        return missed(exact, self._rows.shares(exact), self._records)

    def _aim(self, attributes: Attributes, noisy: NDArray[np.number], sigma: float, model: Floats) -> None:
        """Let a noisy table, shrunk towards the pool's, be a target."""
        estimate = shrink(noisy.ravel().astype(np.float64), model.ravel() * self._records, sigma)
        total = float(estimate.sum())
        share = estimate / total if total > 0 else np.full(estimate.shape, 1 / estimate.size)
        self._targets[attributes] = share.reshape(model.shape)

    def fitted(self, model: Fitted) -> Fitted:
        """The model with the weights of its pool."""
        choices, expected = self._choices, model.expected
        if choices.balance:
            shares = self._rows.shares(self._pairs)
            flat = np.concatenate([shares[pair].ravel() for pair in self._pairs])
            expected = units_of(flat)
        return replace(
            model,
            adjustment=self._rows.adjustment(),
            expected=expected,
            pool_parts=choices.pool_parts,
            pool_rows=choices.pool_rows,
        )


def missed(exact: Mapping[Attributes, Counts], shares: Mapping[Attributes, Floats], records: float) -> int:
    """The sum of the L1 distances of flat tables to public shares; confidential. A record changes it by at most the
    number of tables.
    """
    return sum(
        int(np.abs(table - np.rint(shares[of].ravel() * records).astype(np.int64)).sum()) for of, table in exact.items()
    )


_ROWS = 1 << 12, 1 << 17  # of the model, whose tables are compared with: eight times the records within these
_PUBLIC_KEY = bytes(32)  # what is drawn with it is public


def measure_small_sets(
    learner: Learner, number: int, exact: dict[Attributes, Counts], share: float
) -> tuple[dict[Attributes, Counts], float]:
    """Before one of the last rounds, pick sets of attributes whose tables (`exact`, confidential) the model misses by
    more than noise and sampling, and fit it to their noisy tables, too. Returns what is left of the round's share, and
    the tables that may follow in the next: none after a round that picked none.

    A set's score is as a pair's (`Learner.round`), less what a sample of the model's own would be off; a set that
    shares three attributes with one that was picked says the same.
    """
    choices, account, coding, records = learner.choices, learner.account, learner.coding, learner.one_way.records
    if not exact or number < choices.rounds - HIGH_ROUNDS:
        return exact, share
    fitted = fitted_of(learner.model or learner.refit(choices.iterations[0]), coding, None)
    cards, rows = tuple(len(m.codes) for m in coding.merging), int(min(max(8 * records, _ROWS[0]), _ROWS[1]))
    drawn = Tables.counted(pool_part(fitted, Noise(_PUBLIC_KEY), 0, rows, learner.rules), cards, small=True).small()
    expected = {of: np.asarray(drawn[of].ravel() * (records / rows), np.float64) for of in exact}
    sigma = float(account.deviations(choices.high, [1.0] * MOST_HIGH)[0])
    scale, before = account.pick_scale(choices.high_picks, MOST_HIGH), account.left
    scores = set_scores(exact, expected, sigma=sigma, spread=1 + records / rows)
    scores -= round(scale * len(exact).bit_length())  # what a pick from all of them adds to the largest
    places = {of: tuple(sorted(coding.fine[i] for i in of)) for of in exact}

    def valid(picked: list[Attributes]) -> Callable[[Attributes], bool]:
        def follows(of: Attributes) -> bool:
            edges = [*learner.all_edges, *(pair for one in (*picked, of) for pair in combinations(places[one], 2))]
            small = cells_of(cliques_of(coding.cardinalities, edges), coding.cardinalities) <= learner.cells
            return small and all(len(set(of) & set(one)) < 3 for one in picked)

        return follows

    name, sets = f"high/{number}", tuple(exact)
    if picked := pick_sets(name, scores, sets, account, scale=scale, most=MOST_HIGH, valid=valid):
        tables = [_coded(coding, of, exact[of]) for of in picked]
        noisy, sigmas = account.measure(f"{name}/tables", tables, share=choices.high * len(picked) / MOST_HIGH)
        for of, table, weight in zip(picked, noisy, ((records / sigmas) ** 2).tolist(), strict=True):
            known: Floats = _coded(coding, of, expected[of]) / records
            learner.measurements.append(TableMeasurement(places[of], table / records, weight, known))
            learner.edges += [(a, b) for a, b in combinations(places[of], 2) if (a, b) not in learner.edges]
            learner.picked.append(places[of])
        learner.refit(choices.iterations[-1])
    return exact if picked else {}, share - (before - account.left)


def set_scores(
    exact: Mapping[Attributes, Counts], expected: Mapping[Attributes, Floats], *, sigma: float, spread: float
) -> Counts:
    """Scores of small sets; one record changes each by at most 1. Confidential.

    Distances to the model, less what noise of this deviation would leave of the tables, and what samples of the model
    are off: of a cell by the root of `spread` times its count.
    """
    scores = []
    for of, table in exact.items():
        model = np.rint(expected[of]).astype(np.int64)
        unclear = np.minimum(L1_OF_NOISE * (sigma + np.sqrt(spread * model)), 2 * model + EMPTY * sigma)
        scores.append(int(np.abs(table.ravel() - model).sum()) - round(float(unclear.sum())))
    return np.array(scores, np.int64)


def _coded(coding: Coding, attributes: Attributes, table: NDArray[Number]) -> NDArray[Number]:
    """A table over values, summed onto the model's codes, with the model's attributes ascending."""
    merging = [coding.merging[i] for i in attributes]
    found = np.zeros([m.cardinality for m in merging], table.dtype)
    np.add.at(found, np.ix_(*(m.codes for m in merging)), table.reshape([len(m.codes) for m in merging]))
    return np.ascontiguousarray(found.transpose(np.argsort([coding.fine[i] for i in attributes])))
