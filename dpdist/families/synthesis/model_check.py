"""Whether the files of a published model make a model of the release's schema: somebody else wrote them.

What passes can be drawn from and asked without an error that says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from dpdist.families.synthesis.draw import LARGEST_PART
from dpdist.families.synthesis.fitted import UNIT, Fitted
from dpdist.families.synthesis.measurements import Measurements
from dpdist.limits import MODEL_VALUES


def check_model(fitted: Fitted, domain: Sequence[int]) -> None:
    """Check that a model gives records of attributes with `domain` values. Raises ValueError: it does not."""
    cards, drawn = fitted.cardinalities, set[int]()
    _require(all(card >= 1 for card in cards) and len(fitted.fine) == len(domain))
    for step in fitted.steps:
        _require(_are_places(step.parents, drawn) and step.attribute in range(len(cards)))
        _require(step.attribute not in drawn)
        drawn.add(step.attribute)
        configurations = prod(cards[parent] for parent in step.parents)
        _require_cumulative(step.cumulative, configurations, cards[step.attribute])
    _require(drawn == set(range(len(cards))) and all(a in drawn for a in fitted.fine))
    for i, size in enumerate(domain):
        values, rare = fitted.values[i], fitted.rare[i]
        plain = values[values >= 0]
        _require(values.shape == (cards[fitted.fine[i]],) and rare.ndim == 1)
        _require(len(values) - len(plain) == (len(rare) > 0))
        _require(np.array_equal(np.sort(np.concatenate([plain, rare])), np.arange(size)))
        if len(rare):
            _require_cumulative(fitted.rare_cumulative[i], 1, len(rare))
    pairs = sum(a * b for a, b in combinations(domain, 2))
    expected = fitted.expected
    _require(expected.shape in ((0,), (pairs,)) and bool(((expected >= 0) & (expected <= UNIT)).all()))
    _check_pool(fitted, domain)


def _check_pool(fitted: Fitted, domain: Sequence[int]) -> None:
    """Check the weighted pool, where there is one."""
    if fitted.adjustment is None:
        return
    _require(fitted.pool_parts >= 1 and 1 <= fitted.pool_rows <= LARGEST_PART)
    _require(fitted.pool_parts * fitted.pool_rows * len(domain) <= MODEL_VALUES)
    for block, logs in zip(fitted.adjustment.blocks, fitted.adjustment.logs, strict=True):
        _require(_are_places(block, range(len(domain))) and logs.shape == (prod(domain[i] for i in block),))


def check_measurements(measured: Measurements, domain: Sequence[int]) -> None:
    """Check that noisy tables are over attributes with `domain` values. Raises ValueError: they are not."""
    source, maps = measured.source, measured.maps
    _require(len(source) == len(maps) and all(_is_place(i, range(len(domain))) for i in source))
    sizes = []
    for i, codes in zip(source, maps, strict=True):
        _require(codes.shape == (domain[i],) and int(codes.min()) >= 0)
        sizes.append(int(codes.max()) + 1)
    for table in measured.tables:
        shape = sizes if table.coded else list(domain)
        _require(_are_places(table.attributes, range(len(shape))))
        _require(len(table.shape) == len(table.attributes) or table.attributes == ())
        _require(all(size >= shape[i] for i, size in zip(table.attributes, table.shape, strict=False)))
        _require(table.coded or all(size == shape[i] for i, size in zip(table.attributes, table.shape, strict=False)))
        _require(math.isfinite(table.deviation) and table.deviation > 0)


def _require_cumulative(cumulative: np.ndarray, rows: int, values: int) -> None:
    """Require rows of cumulative probabilities."""
    _require(cumulative.shape == (rows, values))
    _require(bool((np.diff(cumulative, axis=1, prepend=0) >= 0).all()) and bool((cumulative[:, -1] == UNIT).all()))


def _is_place(value: Any, among: Collection[int]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in among


def _are_places(values: Sequence[Any], among: Collection[int]) -> bool:
    return all(_is_place(value, among) for value in values) and len(set(values)) == len(values)


def _require(true: bool) -> None:
    if not true:
        raise ValueError("the model does not fit itself or the schema")
