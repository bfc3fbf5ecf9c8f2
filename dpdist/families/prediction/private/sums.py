"""The three passes of the private variant, as operators of one pass over a table: exact sums, in any order."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dpdist.data.operators import Operator
from dpdist.families.prediction.columns import Columns
from dpdist.families.prediction.private.features import FeatureMap, cross_products, feature_products
from dpdist.families.prediction.private.mechanisms import PrivateColumn, histogram, rank_products
from dpdist.privacy.arrays import Codes, Counts

_ROWS = 1 << 13  # records whose features are in memory at a time


def marginal_operator(columns: Columns, private: Sequence[PrivateColumn]) -> Operator:
    """Histograms of all columns: a list of int64[cells], the response last."""
    return Operator(
        name="marginals",
        chunk=partial(_histograms, columns=columns, private=tuple(private)),
        combine=_add_lists,
    )


def _histograms(codes: Codes, columns: Columns, private: tuple[PrivateColumn, ...]) -> list[Counts]:
    return [
        histogram(column, column.cells_of(values))
        for column, values in zip(private, columns.values(codes), strict=True)
    ]


def _add_lists(a: list[Any], b: list[Any]) -> list[Any]:
    return [x + y for x, y in zip(a, b, strict=True)]


def rank_operator(columns: Columns, private: Sequence[PrivateColumn], tables: Sequence[Counts]) -> Operator:
    """Sums of the products of ranks of each pair of inputs."""
    return Operator(
        name="ranks",
        chunk=partial(_ranks, columns=columns, private=tuple(private), tables=tuple(tables)),
        combine=operator.add,
    )


def _ranks(codes: Codes, columns: Columns, private: tuple[PrivateColumn, ...], tables: tuple[Counts, ...]) -> Counts:
    ranks = [
        table[column.cells_of(values)]
        for column, table, values in zip(private[:-1], tables, columns.values(codes), strict=False)
    ]
    return rank_products(np.stack(ranks, axis=1))


def ridge_operator(
    columns: Columns,
    private: Sequence[PrivateColumn],
    feature: FeatureMap,
    response: PrivateColumn,
    table: Counts,
    *,
    products: bool,
) -> Operator:
    """Sums of the products of the features (where they are measured) and of the features with the response."""
    return Operator(
        name="ridge",
        chunk=partial(
            _ridge,
            columns=columns,
            private=tuple(private),
            feature=feature,
            response=response,
            table=table,
            products=products,
        ),
        combine=_add_lists,
    )


def _ridge(
    codes: Codes,
    columns: Columns,
    private: tuple[PrivateColumn, ...],
    feature: FeatureMap,
    response: PrivateColumn,
    table: Counts,
    products: bool,
) -> list[Counts]:
    values = columns.values(codes)
    cells = [column.cells_of(v) for column, v in zip(private[:-1], values, strict=False)]
    responses = table[response.cells_of(values[-1])]
    square = (feature.size, feature.size) if products else (0, 0)
    total = [np.zeros(square, np.int64), np.zeros(feature.size, np.int64)]
    for start in range(0, len(responses), _ROWS):
        rows = slice(start, start + _ROWS)
        seen = feature([column[rows] for column in cells])
        if products:
            total[0] += feature_products(seen)
        total[1] += cross_products(seen, responses[rows])
    return total
