"""What a synthesis measured, as it was drawn: the noisy tables with their deviations, and the codes they are over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from dpdist.model.account import GaussianAccount
from dpdist.model.coding import Coding
from dpdist.privacy.arrays import Counts, Floats


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
        return {
            "tables": [
                {n: list(v) if isinstance(v := getattr(t, n), tuple) else v for n in names} for t in self.tables
            ],
            "source": list(self.source),
            "maps": [codes.tolist() for codes in self.maps],
        }

    @classmethod
    def of(cls, data: Mapping[str, Any], counts: Counts) -> Measurements:
        """What `to_json` and `counts` say; KeyError, TypeError or ValueError for anything else."""
        tables, start = [], 0
        for item in data["tables"]:
            shape = tuple(int(size) for size in item["shape"])
            stop = start + int(np.prod(shape))
            tables.append(
                NoisyTable(
                    str(item["step"]),
                    tuple(item["attributes"]),
                    bool(item["coded"]),
                    float(item["deviation"]),
                    shape,
                    counts[start:stop],
                )
            )
            start = stop
        if start != len(counts):
            raise ValueError("the tables have other cells than their shapes say")
        return cls(tuple(tables), tuple(data["source"]), tuple(np.array(codes, np.int64) for codes in data["maps"]))

    def combined(self, attributes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Floats, Floats] | None:
        """The precision-weighted mean of all noisy counts of the cells of some attributes, and its deviation, flat.

        The deviation is infinite where a cell was only measured together with others. None where no table is over just
        these attributes.

        `attributes`: of the table, ascending. `shape`: number of their values.
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


def measurements_of(
    account: GaussianAccount, coding: Coding, coded: Sequence[tuple[int, ...]], triples: Sequence[tuple[int, ...]] = ()
) -> Measurements:
    """The noisy tables that an account has drawn.

    `coded`: the model's attributes of the tables that were picked in rounds, in their order. `triples`: the table's
    attributes of the picked triples.
    """
    picked, m = iter(coded), len(coding.fine)
    pairs = list(combinations(range(m), 2))
    tables = []
    for name, number, noisy, sigma in account.noisy:
        attributes: tuple[int, ...]
        in_model = name.endswith("/tables")
        if in_model:
            attributes = next(picked)
        elif name.startswith("one-way"):
            attributes = (number,)
        elif name == "triples":
            attributes = triples[number]
        else:
            attributes = pairs[number] if name == "all pairs" else ()
        shape = noisy.shape if in_model or not attributes else tuple(len(coding.merging[a].codes) for a in attributes)
        tables.append(NoisyTable(name, attributes, in_model, sigma, shape, noisy.ravel()))
    return Measurements(tuple(tables), coding.source, coding.maps)
