"""Tables of all pairs, or triples, on groups of values: what picks pairs where no exact distance may be seen.

The codes of each attribute fall into a few groups of about equal noisy mass. The grids of groups of all sets are
measured once. Of any later model ``|r|^2 - k sigma^2`` is an unbiased estimate of the squared distance, with r the
difference of a noisy grid of k cells to the model's, at no further cost. A grid also makes a noisy table of the same
attributes more precise, as its cells are sums of the table's; grids of triples do that to all of their pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from dpdist.accuracy.tables import Attributes, Tables, halves_of
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import Choices
from dpdist.model.coding import Coding, equal_mass
from dpdist.model.one_way import OneWay
from dpdist.model.rake import shrink
from dpdist.model.sums import Sum, cells_of
from dpdist.privacy.arrays import Counts, Floats

GROUPS = 5  # of each attribute, in grids of pairs
_NOTHING = 1e-9  # records of a model below which a sum of cells is not scaled
SEEN = 1.0  # deviations of its noise that a squared distance exceeds where a set is picked


@dataclass(frozen=True, eq=False)
class Grids:
    """Noisy grids of sets of attributes. Public."""

    sets: tuple[Attributes, ...]
    groups: tuple[Counts, ...]  # group of each value of each attribute
    tables: tuple[Counts, ...]
    sigma: float
    places: dict[Attributes, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", {s: k for k, s in enumerate(self.sets)})

    @classmethod
    def measured(
        cls,
        name: str,
        sets: Sequence[Attributes],
        groups: tuple[Counts, ...],
        account: GaussianAccount,
        share: float,
        tables: Tables | None = None,
    ) -> Grids:
        """Measure the grids with a share of the account, from confidential tables where it asks for no sums."""
        sums = [Sum(s, tuple(groups[i] for i in s)) for s in sets]
        exact = sums if tables is None else [one.of(tables) for one in sums]
        noisy, sigmas = account.measure(name, exact, share=share)
        return cls(tuple(sets), groups, tuple(noisy), float(sigmas[0]))

    def _grid(self, which: Attributes) -> Counts:
        """The grid of a set, in this order of its attributes."""
        return self.tables[self.places[which]] if which in self.places else self.tables[self.places[which[::-1]]].T

    def score(self, which: Attributes, expected: Counts, codes: Sequence[Counts]) -> tuple[float, bool]:
        """Estimate the L1 distance of a set's table to a model's, whose codes are in these groups, and say whether
        it is more than noise.
        """
        grid = self._grid(which)
        away = grid.ravel() - summed(expected, cells_of(codes, grid.shape), grid.shape)
        squared = float((away * away).sum()) - away.size * self.sigma**2
        seen = squared > SEEN * self.sigma**2 * math.sqrt(2 * away.size)
        return math.sqrt(away.size * max(squared, 0.0)), seen

    def adjust(self, which: Attributes, codes: Sequence[Counts], shares: Floats, records: float) -> Floats:
        """Move a model's shares of a set's table to what its grid says of their sums, as far as that is not noise."""
        grid = self._grid(which)
        cells = cells_of(codes, grid.shape)
        model = np.bincount(cells, weights=shares.ravel() * records, minlength=grid.size).astype(np.float64)
        target = shrink(grid.ravel().astype(np.float64), model, self.sigma)
        change = np.divide(target, model, out=np.ones_like(model), where=model > _NOTHING)
        found: Floats = shares * change[cells].reshape(shares.shape)
        return np.asarray(found * (shares.sum() / found.sum()))

    def sharpen(self, which: Attributes, maps: Sequence[Counts], noisy: Counts, sigma: float) -> Floats:
        """Move the cells of a noisy table, over codes of the set's values, to what its grid says of their sums."""
        grid = self._grid(which)
        cells = cells_of([group_of_codes(c, self.groups[i]) for i, c in zip(which, maps, strict=True)], grid.shape)
        return moved(noisy, sigma, cells, grid, self.sigma**2)[0]

    def sharpened(self, pair: Attributes, noisy: Counts, sigma: float) -> tuple[Floats, float]:
        """Move a pair's noisy table to what the grids of triples say of its sums; return the deviation that is left."""
        sums, precision = np.zeros(()), 0.0
        for triple, table in zip(self.sets, self.tables, strict=True):
            if set(pair) <= set(triple):
                (axis,) = (k for k, i in enumerate(triple) if i not in pair)
                of_sum = 1 / (table.shape[axis] * self.sigma**2)
                sums, precision = sums + of_sum * table.sum(axis), precision + of_sum
        if not precision:
            return noisy.astype(np.float64), sigma
        cells = cells_of([self.groups[i] for i in pair], sums.shape)
        return moved(noisy, sigma, cells, sums / precision, 1 / precision)


def moved(
    noisy: Counts | Floats, sigma: float, cells: Counts, sums: Counts | Floats, variance: float | Floats
) -> tuple[Floats, float]:
    """Move the cells of a noisy table to other noisy numbers of their sums, by precision; with the root of the mean
    variance that is left of the cells.
    """
    number = np.maximum(np.bincount(cells, minlength=sums.size), 1)
    weight = sigma**2 / (number * sigma**2 + variance)
    away = sums.ravel() - np.bincount(cells, weights=noisy.ravel(), minlength=sums.size)
    left = sigma**2 * (1 - float(weight[cells].mean()))
    return np.asarray(noisy + (weight * away)[cells].reshape(noisy.shape)), math.sqrt(left)


def group_of_codes(codes: Counts, groups: Counts) -> Counts:
    """The group of each code, by the code and the group of each value."""
    found = np.zeros(int(codes.max()) + 1, np.int64)
    found[codes] = groups
    return found


def summed(counts: Counts, cells: Counts, shape: Sequence[int]) -> Counts:
    """Sums of whole numbers below 2**53 by the cells that they are in."""
    return np.rint(np.bincount(cells, weights=counts.ravel(), minlength=math.prod(shape))).astype(np.int64)


def pair_grids(coding: Coding, one_way: OneWay, account: GaussianAccount, share: float) -> Grids:
    """Measure the grids of all pairs of the table's attributes; codes of the coarsest copies are in one group each."""
    groups = []
    for i, counts in enumerate(one_way.counts):
        codes = coding.maps[coding.source.index(i)]  # copies come before their originals
        mass = np.bincount(codes, weights=counts).astype(np.float64)
        groups.append(equal_mass(mass, GROUPS)[codes])
    sets = list(combinations(range(len(groups)), 2))
    return Grids.measured("grids", sets, tuple(groups), account, share)


def triple_grids(one_way: OneWay, tables: Tables | None, choices: Choices, account: GaussianAccount) -> Grids:
    """Measure the grids of triples, from confidential tables where the account asks for no sums."""
    groups = tuple(equal_mass(counts, choices.triple_groups) for counts in one_way.counts)
    sets, _ = halves_of([len(counts) for counts in one_way.counts])
    return Grids.measured("triples", sets, groups, account, choices.triples, tables)
