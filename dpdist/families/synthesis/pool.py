"""The pool of model records whose weights are raked to noisy tables: of all pairs, then of picked triples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpdist.accuracy.tables import Attributes
from dpdist.data.count import configuration_index
from dpdist.families.synthesis.account import Account
from dpdist.families.synthesis.choices import TRIPLE_CELLS, Choices
from dpdist.families.synthesis.draw import kept_part
from dpdist.families.synthesis.fitted import Fitted
from dpdist.families.synthesis.marginals import OneWay
from dpdist.families.synthesis.measure import AllPairs, measure_triples
from dpdist.families.synthesis.rake import Adjustment, block_change, rake, shrink
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.schema.rules import Rules

_SWEEPS = 5


def with_margins(one_way: OneWay, all_pairs: AllPairs) -> OneWay:
    """One-way counts with what the tables of all pairs say of them, by precision.

    A sum over the k values of the other attribute has k times the variance of a cell. On small domains the pairs tell
    more than the one-way tables themselves, which have a small share where records are raked.
    """
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


def fitting_triples(tables: Mapping[Attributes, Counts]) -> dict[Attributes, Counts]:
    """The triples whose tables are small enough to be measured."""
    return {triple: table for triple, table in tables.items() if table.size <= TRIPLE_CELLS}


@dataclass(eq=False, repr=False)
class Pool:
    """Rows of the model, and what their weights are fitted to; all of it public.

    Parameters
    ----------
    columns : list of ndarray of uint32
    cardinalities : tuple of int
        Of the table's attributes.
    choices : Choices
    records : float
        Noisy number of records.

    Attributes
    ----------
    targets : dict
        Shares, by attributes.
    adjustment : Adjustment or None
    expected : ndarray of int64
        Shares of the cells of all pairs of the weighted pool, in units of 2**-40.
    """

    columns: list[NDArray[np.uint32]]
    cardinalities: tuple[int, ...]
    choices: Choices
    records: float
    targets: dict[tuple[int, ...], Floats] = field(default_factory=dict)
    adjustment: Adjustment | None = None
    expected: Counts = field(default_factory=lambda: np.zeros(0, np.int64))

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
        parts = [kept_part(fitted, drawing, f"pool/{p}", choices.pool_rows, rules) for p in range(choices.pool_parts)]
        columns = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        return cls(columns, cardinalities, choices, records)

    def rake_to_pairs(self, one_way: OneWay, all_pairs: AllPairs) -> None:
        """Fit the weights to tables of all pairs, and to the one-way tables."""
        one_way = with_margins(one_way, all_pairs)
        pairs = combinations(range(len(self.cardinalities)), 2)
        for pair, table, sigma in zip(pairs, all_pairs.tables, all_pairs.sigmas.tolist(), strict=True):
            self._aim(pair, table, sigma)
        for i, sigma in enumerate(one_way.sigmas.tolist()):
            self._aim((i,), one_way.counts[i], sigma)
        self._rake(self.choices.sweeps)

    def rake_to_triples(self, exact: Mapping[Attributes, Counts], account: Account) -> tuple[Attributes, ...]:
        """Pick triples that the weighted pool misses, measure them, and fit the weights to them too.

        Parameters
        ----------
        exact : mapping
            Tables of the candidates, flat. Confidential.

        Returns
        -------
        tuple of (int, int, int)
            What was picked.
        """
        assert self.adjustment is not None
        weights = self.adjustment.weights(self.columns, self.cardinalities).astype(np.float64)
        expected = {triple: self._counts(triple, weights) for triple in exact}
        found = measure_triples(exact, expected, choices=self.choices, account=account)
        for triple, table in zip(found.attributes, found.tables, strict=True):
            self._aim(triple, table, found.sigma, expected[triple])
            for _ in range(_SWEEPS):  # its sums have more noise than the tables of its pairs
                self.targets[triple] *= block_change(self.targets[triple], triple, self._below(triple), 1.0)
        if found.attributes:
            self._rake(self.choices.sweeps // 2)
        return found.attributes

    def _below(self, triple: Attributes) -> dict[tuple[int, ...], Floats]:
        """The targets of a triple's pairs and attributes."""
        return {scope: share for scope, share in self.targets.items() if len(scope) < 3 and set(scope) <= set(triple)}

    def _counts(self, attributes: tuple[int, ...], weights: Floats | None = None) -> Floats:
        """The pool's counts of a table at the scale of the records, flat."""
        sizes = [self.cardinalities[i] for i in attributes]
        index = configuration_index([self.columns[i] for i in attributes], sizes)
        total = len(index) if weights is None else float(weights.sum())
        counts = np.bincount(index, weights=weights, minlength=prod(sizes)).astype(np.float64)
        return counts * (self.records / total)

    def _aim(
        self, attributes: tuple[int, ...], noisy: NDArray[np.number], sigma: float, model: Floats | None = None
    ) -> None:
        """Let a noisy table, shrunk towards the pool's, be a target."""
        shape = [self.cardinalities[i] for i in attributes]
        model = self._counts(attributes) if model is None else model
        estimate = shrink(noisy.ravel().astype(np.float64), model, sigma)
        total = float(estimate.sum())
        share = estimate / total if total > 0 else np.full(estimate.shape, 1 / estimate.size)
        self.targets[attributes] = share.reshape(shape)

    def _rake(self, sweeps: int) -> None:
        self.adjustment, self.expected = rake(
            self.columns, self.cardinalities, self.targets, sweeps=sweeps, start=self.adjustment
        )

    def fitted(self, model: Fitted) -> Fitted:
        """The model with the weights of its pool."""
        choices = self.choices
        return replace(
            model,
            adjustment=self.adjustment,
            expected=self.expected if choices.balance else model.expected,
            pool_parts=choices.pool_parts,
            pool_rows=choices.pool_rows,
        )
