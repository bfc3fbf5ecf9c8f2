"""What the private variant measures: three exact sums over the table, and the noise on each.

Every sum is an operator of a pass over the table, of integers, so the order of the records does not matter. Each noisy
statistic is a mechanism of its own; what a record changes in it is in `dpdist.families.prediction.private.mechanisms`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from dpdist.data.operators import Operator
from dpdist.families.prediction.columns import Columns
from dpdist.families.prediction.private.charge import Charge
from dpdist.families.prediction.private.features import CHUNK_ROWS, Design, cross_products, feature_products
from dpdist.families.prediction.private.mechanisms import (
    FEATURE_STEP,
    RANK_STEP,
    PrivateColumn,
    histogram,
    rank_products,
)
from dpdist.privacy.arrays import Codes, Counts
from dpdist.privacy.noise import Noise
from dpdist.storage.stored import Stored


def _add(a: list[Counts], b: list[Counts]) -> list[Counts]:
    return [x + y for x, y in zip(a, b, strict=True)]


# --- marginals --------------------------------------------------------------------------------------------------------


def marginal_operator(columns: Columns, private: Sequence[PrivateColumn]) -> Operator:
    """Histograms of all columns: a list of int64[cells], the response last."""
    return Operator(name="marginals", chunk=partial(_histograms, columns, tuple(private)), combine=_add)


def _histograms(columns: Columns, private: tuple[PrivateColumn, ...], codes: Codes) -> list[Counts]:
    pairs = zip(private, columns.values(codes), strict=True)
    return [histogram(column, column.cells_of(values)) for column, values in pairs]


@dataclass(frozen=True, eq=False)
class NoisyMarginals(Stored):
    """Histograms with noise in every cell."""

    FILE: ClassVar[str] = "marginals.npz"

    counts: list[Counts]  # list of int64[cells]: of the inputs, then of the response

    @classmethod
    def draw(cls, counts: Sequence[Counts], *, charge: Charge, noise: Noise) -> NoisyMarginals:
        """Add the noise to exact histograms."""
        return cls(
            [
                column + noise.gaussian_integers(f"prediction/marginal/{i}", len(column), sigma=charge.marginal)
                for i, column in enumerate(counts)
            ]
        )


# --- correlations -----------------------------------------------------------------------------------------------------


def rank_operator(columns: Columns, private: Sequence[PrivateColumn], tables: Sequence[Counts]) -> Operator:
    """Sums of the products of ranks of each pair of inputs: int64[pairs]."""
    return Operator(name="ranks", chunk=partial(_ranks, columns, tuple(private), tuple(tables)), combine=operator.add)


def _ranks(columns: Columns, private: tuple[PrivateColumn, ...], tables: tuple[Counts, ...], codes: Codes) -> Counts:
    inputs = zip(private[:-1], tables, columns.values(codes), strict=False)
    return rank_products(np.stack([table[column.cells_of(values)] for column, table, values in inputs], axis=1))


@dataclass(frozen=True, eq=False)
class NoisyCorrelations(Stored):
    """Products of ranks with noise."""

    FILE: ClassVar[str] = "correlations.npz"

    products: Counts  # int64[pairs of inputs]: in steps of ``RANK_STEP**2``

    @classmethod
    def draw(cls, products: Counts, *, charge: Charge, noise: Noise) -> NoisyCorrelations:
        """Add the noise to exact products."""
        sigma = charge.correlation / RANK_STEP**2
        return cls(products + noise.gaussian_integers("prediction/correlation", len(products), sigma=sigma))


# --- regression -------------------------------------------------------------------------------------------------------


def ridge_operator(columns: Columns, private: Sequence[PrivateColumn], design: Design, *, products: bool) -> Operator:
    """Sums of the products of the features (none where they are not measured) and of features and response."""
    return Operator(name="ridge", chunk=partial(_ridge, columns, tuple(private), design, products), combine=_add)


def _ridge(
    columns: Columns, private: tuple[PrivateColumn, ...], design: Design, products: bool, codes: Codes
) -> list[Counts]:
    *inputs, response = columns.values(codes)
    cells = [column.cells_of(values) for column, values in zip(private[:-1], inputs, strict=True)]
    responses = design.responses(response)
    size = design.features.size
    total = [np.zeros((size, size) if products else (0, 0), np.int64), np.zeros(size, np.int64)]
    for start in range(0, len(responses), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        seen = design.features([column[rows] for column in cells])
        if products:
            total[0] += feature_products(seen)
        total[1] += cross_products(seen, responses[rows])
    return total


@dataclass(frozen=True, eq=False)
class NoisyRegression(Stored):
    """Statistics of the ridge regression with noise, in steps of ``FEATURE_STEP**2``."""

    FILE: ClassVar[str] = "regression.npz"

    products: Counts  # int64[features, features]: symmetric; int64[0, 0] where they are not measured
    cross: Counts  # int64[features]

    @classmethod
    def draw(cls, products: Counts, cross: Counts, *, charge: Charge, noise: Noise) -> NoisyRegression:
        """Add the noise to exact sums; to products off the diagonal it is divided by ``sqrt(2)``."""
        size, sigma = len(products), charge.product / FEATURE_STEP**2
        drawn = np.zeros((size, size), np.int64)
        if size:
            upper = np.triu_indices(size, 1)
            drawn[upper] = noise.gaussian_integers(
                "prediction/products/upper", len(upper[0]), sigma=sigma / math.sqrt(2)
            )
            drawn += drawn.T
            drawn[np.diag_indices(size)] = noise.gaussian_integers("prediction/products/diagonal", size, sigma=sigma)
        across = noise.gaussian_integers("prediction/cross", len(cross), sigma=charge.cross / FEATURE_STEP**2)
        return cls(products + drawn, cross + across)
