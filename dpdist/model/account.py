"""The one Gaussian account of a release, and the noisy tables that it has drawn.

Every step is mu_i-GDP with ``mu_i^2 = share_i mu^2``: k tables where a record changes one cell by 1 each (and
integers of sensitivity 1) cost the sum of ``1/sigma_i^2``, K picks at scale b ``K pick_cost(b)^2``
(`dpdist.privacy.selection`). Which steps follow may depend on what was released before (`docs/guarantees.md`,
*Synthesis*). The rounded Gaussian on integers is post-processing of the continuous one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import AccountingError
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import Candidates, draws_of_pick, pick_cost, pick_scale
from dpdist.storage.stored import value_of

if TYPE_CHECKING:
    from dpdist.model.coding import Coding
    from dpdist.model.grids import Grids
    from dpdist.model.sums import Sum


@dataclass(frozen=True)
class Line:
    """One step of the account: what was released and what it cost, in mu^2."""

    name: str
    spent: float


@dataclass
class GaussianAccount:
    """Draws the noise of a release and keeps its account."""

    mu: float  # the release is mu-GDP
    noise: Noise
    prefix: str = ""  # what all noise names begin with, where one key serves several accounts
    lines: list[Line] = field(default_factory=list)  # what was spent, in order
    draws: int = 0  # keyed draws so far; each may miss its distribution by `dpdist.privacy.noise.SAMPLER_DELTA`
    # the noisy tables in order: name of the step, number in it, table, deviation
    noisy: list[tuple[str, int, Counts, float]] = field(default_factory=list)
    # where no one sees exact tables: gives noisy sums by the name of the step and deviations, and what these are then
    ask: Callable[[str, Sequence[Sum], Floats], tuple[list[Counts], Floats]] | None = None
    widening: float = 1.0  # deviation of all noise in a sum over that of the noise that is charged
    least: float = 0.0  # least deviation that is charged

    def __post_init__(self) -> None:
        if not 0 < self.mu < math.inf:
            raise AccountingError(f"an account is of a finite mu above 0, got {self.mu}")

    @property
    def left(self) -> float:
        """The share of mu^2 that is not spent."""
        return max(1 - math.fsum(line.spent for line in self.lines) / self.mu**2, 0.0)

    def _spend(self, name: str, spent: float, draws: int) -> None:
        total = math.fsum([*(line.spent for line in self.lines), spent])
        if not (spent >= 0 and total <= self.mu**2):
            raise AccountingError(f"the step {name} would take the release over its account")
        if any(line.name == name for line in self.lines):
            raise AccountingError(f"the step {name} was taken already: a noise name is used once")
        self.lines.append(Line(name, spent))
        self.draws += draws

    def deviations(self, share: float, weights: Sequence[float]) -> NDArray[np.float64]:
        """Deviation of each of several statistics: ``1 / sigma_i^2 = share mu^2 weight_i / sum(weights)``. Weights are
        rounded to powers of the root of two: the sampler of each deviation takes milliseconds to set up.
        """
        rounded = np.array([math.sqrt(2.0 ** round(2 * math.log2(weight))) for weight in weights])
        portions = rounded / rounded.sum()
        sigmas: NDArray[np.float64] = 1 / (self.mu * np.sqrt(share * portions)) * ABOVE
        return np.maximum(sigmas, self.least) * self.widening

    def measure(
        self,
        name: str,
        tables: Sequence[Counts | Sum],
        *,
        share: float,
        weights: Sequence[float] | None = None,
        sensitivity: int = 1,
    ) -> tuple[list[Counts], NDArray[np.float64]]:
        """Integer tables with rounded Gaussian noise, and the deviation of each.

        `name`: noise name; table i draws from ``name/i``. `tables`: one record changes the cells of each by at most
        `sensitivity` in L2 norm. `share`: of mu^2. `weights`: equal where not given. Raises AccountingError: the
        account has not so much left, or the name was used before.
        """
        sigmas = self.deviations(share, [1.0] * len(tables) if weights is None else weights) * sensitivity
        spent = (sensitivity * self.widening) ** 2 * math.fsum((1 / sigmas**2).tolist())
        self._spend(name, spent, sum(table.size for table in tables))
        if self.ask is not None:
            noisy, sigmas = self.ask(name, cast("Sequence[Sum]", tables), sigmas)
        else:
            noisy = [
                table
                + self.noise.gaussian_integers(f"{self.prefix}{name}/{i}", table.size, sigma=sigma).reshape(table.shape)
                for i, (table, sigma) in enumerate(zip(cast("Sequence[Counts]", tables), sigmas.tolist(), strict=True))
            ]
        self.noisy += [(name, i, *pair) for i, pair in enumerate(zip(noisy, sigmas.tolist(), strict=True))]
        return noisy, sigmas

    def pick_scale(self, share: float, picks: int) -> float:
        """The scale at which this many picks cost this share together."""
        return pick_scale(cost=self.mu * math.sqrt(share / picks) / ABOVE)

    def pick(self, name: str, candidates: Candidates, *, scale: float, allowed: Callable[[int], bool]) -> int:
        """The index that the exponential mechanism picks among those allowed; a record changes a score by at most 1."""
        self._spend(name, pick_cost(scale=scale) ** 2, draws_of_pick(len(candidates)))
        return self.noise.pick(f"{self.prefix}{name}", candidates, allowed=allowed)


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """One noisy table."""

    step: str  # of the account
    attributes: tuple[int, ...]  # of the table itself, or of the model where `coded`
    coded: bool  # whether the cells are over the model's codes: rare values merged, or in coarse groups
    deviation: float  # of the Gaussian noise, before it was rounded to integers
    shape: tuple[int, ...]
    counts: Counts  # flat, in C order


@dataclass(frozen=True, eq=False)
class Measurements:
    """All noisy tables of a synthesis. Public."""

    tables: tuple[NoisyTable, ...]
    source: tuple[int, ...]  # the table's attribute that each of the model's is a function of
    maps: tuple[Counts, ...]  # the model's code of each of the source's values

    @property
    def counts(self) -> Counts:
        """The cells of all tables, one after another."""
        return np.concatenate([np.zeros(0, np.int64), *(table.counts for table in self.tables)])

    def to_json(self) -> dict[str, Any]:
        """All but the counts, as a JSON object."""
        names = ("step", "attributes", "coded", "deviation", "shape")
        tables = [{n: list(v) if isinstance(v := getattr(t, n), tuple) else v for n in names} for t in self.tables]
        return {"tables": tables, "source": list(self.source), "maps": [codes.tolist() for codes in self.maps]}

    @classmethod
    def of(cls, data: Mapping[str, Any], counts: Counts) -> Measurements:
        """What `to_json` and `counts` say; KeyError, TypeError or ValueError for anything else."""
        ends = np.cumsum([math.prod(item["shape"]) for item in data["tables"]])
        if ends[-1] != len(counts):
            raise ValueError("the tables have other cells than their shapes say")
        pairs = zip(data["tables"], np.split(counts, ends[:-1]), strict=True)
        tables = tuple(value_of(NoisyTable, {**item, "counts": "cells"}, {"cells": cells}) for item, cells in pairs)
        return cls(tables, tuple(data["source"]), tuple(np.array(codes, np.int64) for codes in data["maps"]))

    def pair_means(self) -> dict[tuple[int, int], tuple[Floats, float]]:
        """The precision-weighted means of the noisy tables of each pair of the model's attributes, and the deviations
        of their cells.
        """
        found: dict[tuple[int, int], list[NoisyTable]] = {}
        for table in self.tables:
            if table.coded and len(table.attributes) == 2:
                found.setdefault((table.attributes[0], table.attributes[1]), []).append(table)
        means = {}
        for pair, tables in found.items():
            weights = [1 / (table.deviation * table.deviation) for table in tables]
            sums = np.sum([table.counts * weight for table, weight in zip(tables, weights, strict=True)], axis=0)
            means[pair] = (sums / sum(weights)).reshape(tables[0].shape), math.sqrt(1 / sum(weights))
        return means

    def combined(self, attributes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Floats, Floats] | None:
        """The precision-weighted mean of all noisy counts of the cells of some attributes, ascending, and its
        deviation, flat: infinite where a cell was only measured together with others. None where no table is over just
        these.
        """
        weights, sums = np.zeros(shape), np.zeros(shape)
        for table in self.tables:
            sources = tuple(self.source[a] for a in table.attributes) if table.coded else table.attributes
            if not sources or tuple(sorted(sources)) != attributes:
                continue
            places = [sources.index(a) for a in attributes]
            counts = table.counts.reshape(table.shape).transpose(places)
            maps = [
                self.maps[table.attributes[k]] if table.coded else np.arange(size)
                for k, size in zip(places, shape, strict=True)
            ]
            alone = [np.bincount(codes)[codes] == 1 for codes in maps]
            weight = np.where(reduce(np.logical_and.outer, alone), table.deviation**-2, 0.0)
            weights += weight
            sums += weight * counts[np.ix_(*maps)]
        if not weights.any():
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num(sums / weights).ravel(), (1 / np.sqrt(weights)).ravel()

    def deviations_of(self, attribute: int, size: int) -> Floats:
        """Deviations of the counts of an attribute's values by all noisy tables; 0 where none tells a value apart."""
        precision = np.zeros(size)
        for table in self.tables:
            for k, a in enumerate(table.attributes):
                if (self.source[a] if table.coded else a) == attribute:
                    codes = self.maps[a] if table.coded else np.arange(size)
                    variance = table.deviation**2 * (math.prod(table.shape) / table.shape[k])
                    precision += np.where(np.bincount(codes)[codes] == 1, 1 / variance, 0.0)
        return np.divide(1.0, np.sqrt(precision), out=np.zeros(size), where=precision > 0)


def measurements_of(
    account: GaussianAccount,
    coding: Coding,
    coded: Sequence[tuple[int, ...]],
    picked_by: Mapping[str, Sequence[tuple[int, ...]]],
    triples: Grids | None = None,
) -> Measurements:
    """The noisy tables of an account; `coded`: model attributes of picked pairs; `picked_by`: by the name of a step,
    the attributes of the table that it measured. Those of `triples` are over further codes, of groups of values.
    """
    groups, m = () if triples is None else triples.groups, len(coding.fine)
    own = iter([tuple(len(coding.source) + i for i in triple) for triple in triples.sets] if triples else [])
    picked = iter(coded)
    pairs = list(combinations(range(m), 2))
    tables = []
    for name, number, noisy, sigma in account.noisy:
        attributes: tuple[int, ...]
        in_model = name.endswith("/tables") or name == "triples"
        if in_model:
            attributes = next(own if name == "triples" else picked)
        elif name.startswith("one-way"):
            attributes = (number,)
        elif name in picked_by:
            attributes = picked_by[name][number]
        else:
            attributes = pairs[number] if name == "all pairs" else ()
        shape = noisy.shape if in_model or not attributes else tuple(len(coding.merging[a].codes) for a in attributes)
        tables.append(NoisyTable(name, attributes, in_model, sigma, shape, noisy.ravel()))
    return Measurements(tuple(tables), (*coding.source, *range(len(groups))), (*coding.maps, *groups))
