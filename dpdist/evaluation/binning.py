"""How an evaluation looks at a table: every attribute as a few codes.

Numbers are cut into bins of equal width over their public bounds, and domains of more than `LARGEST` codes into runs of
consecutive codes. All of it is read off the public schema; none of it off the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import MAX_PAIR_CELLS
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Attribute, Category, Schema

LARGEST = 256  # codes of an attribute that is compared as it is
NUMBER_BINS = 20  # bins of a number, and about the number of runs of a domain that is too large


@dataclass(frozen=True, eq=False)
class Axis:
    """One attribute as it is looked at."""

    name: str
    labels: tuple[str, ...]  # what each code stands for
    ordered: bool  # whether neighbouring codes are near each other
    missing: int | None = None  # the code of missing values
    runs: NDArray[Any] | None = None  # for each code of the schema the code here; None where they are the same
    edges: NDArray[np.float64] | None = None  # inner edges of the bins of a number

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels)

    def codes(self, column: np.ndarray) -> np.ndarray:
        """The codes here of a column of codes of the schema, or of numbers."""
        if self.edges is not None:
            return np.searchsorted(self.edges, column, side="right").astype(np.min_scalar_type(self.size - 1))
        return column if self.runs is None else self.runs.take(column)


@dataclass(frozen=True, eq=False)
class View:
    """All attributes as they are looked at."""

    axes: tuple[Axis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""
        return tuple(axis.size for axis in self.axes)

    def codes(self, columns: Sequence[np.ndarray]) -> Codes:
        """The codes here of the columns of a table, in schema order."""
        return [axis.codes(column) for axis, column in zip(self.axes, columns, strict=True)]


def view_of(schema: Schema, *, largest: int = LARGEST) -> View:
    """How the attributes of a schema are looked at; in fewer codes while there are too many pairwise cells."""
    while True:
        view = View(tuple(_axis(attribute, largest) for attribute in schema.attributes))
        total = sum(view.sizes)
        if (total * total - sum(size * size for size in view.sizes)) // 2 + total <= MAX_PAIR_CELLS or largest <= 2:
            return view
        largest //= 2


def _axis(attribute: Attribute, largest: int) -> Axis:
    if attribute.is_continuous:
        low, high = attribute.bounds or (0.0, 1.0)
        edges = np.linspace(low, high, min(NUMBER_BINS, largest) + 1)
        texts = tuple(f"{a:.6g}..{b:.6g}" for a, b in pairwise(edges.tolist()))
        return Axis(attribute.name, texts, True, edges=edges[1:-1])
    labels = code_labels(attribute)
    ordered = attribute.kind != "categorical" or attribute.cardinality == 2
    if attribute.cardinality <= largest:
        return Axis(attribute.name, labels, ordered, attribute.missing_code)
    declared = attribute.cardinality - (attribute.missing_code is not None)
    width = -(-declared // min(NUMBER_BINS, largest))
    runs = np.arange(attribute.cardinality) // width
    texts = tuple(_span(labels[s : min(s + width, declared)]) for s in range(0, declared, width))
    if attribute.missing_code is not None:
        runs[-1] = len(texts)
        texts = (*texts, labels[-1])
    missing = None if attribute.missing_code is None else len(texts) - 1
    return Axis(attribute.name, texts, ordered, missing, runs=runs.astype(np.min_scalar_type(len(texts) - 1)))


def code_labels(attribute: Attribute) -> tuple[str, ...]:
    """What each code of an attribute stands for."""
    if attribute.labels is not None:
        names = list(attribute.labels)
    elif attribute.values is not None:
        names = list(map(str, attribute.values))
    else:
        pairs = zip(*(ends.tolist() for ends in attribute.bin_ends(shown=True)), strict=True)
        form = attribute.shown if attribute.dated else "{:.10g}".format
        names = [form(low) if low >= high else f"{form(low)}..{form(high)}" for low, high in pairs]
    if isinstance(attribute.missing, Category):
        names.append(attribute.missing.category)
    return tuple(names)


def _span(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
