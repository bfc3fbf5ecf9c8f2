"""Columns on the unit interval, by their declared domains: everything numeric happens there.

A column is *continuous* (numbers within bounds) or *discrete* (consecutive integers, or codes of a category). A
discrete column of K values maps value number i to ``(i + 1/2) / K``. A column on a logarithmic scale is taken through
``sign(v) log(1 + |v| / unit)`` first: for amounts that differ by orders of magnitude. Bounds and scales are public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.portable import expm1, log1p
from dpdist.spec.attribute import Attribute

if TYPE_CHECKING:
    from dpdist.families.prediction.spec import TwoStageSpec


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One column. Raises ValueError: no logarithmic scale fits its bounds."""

    name: str
    low: float  # low, high: smallest and largest value; of a category, code 0 and the last code
    high: float
    discrete: bool = False  # whether only integers occur
    nominal: bool = False  # whether the values have no order; then they are not mixed
    log: float = 0.0  # unit of a logarithmic scale, which is about linear below it; 0 for a linear scale

    def __post_init__(self) -> None:
        if self.log:
            with np.errstate(over="ignore"):
                low, high = self._ends
                back = self._backward(np.array([low, high]))
            if not (low < high and np.allclose(back, [self.low, self.high], rtol=1e-3, atol=1.0 * self.discrete)):
                raise ValueError(
                    f"column {self.name!r}: on a logarithmic scale with unit {self.log:g} its bounds are lost in "
                    "floating point: choose a unit nearer to its values"
                )

    @property
    def count(self) -> int | None:
        """Number of values of a discrete column."""
        return round(self.high - self.low) + 1 if self.discrete else None

    @property
    def _ends(self) -> tuple[float, float]:
        half = 0.5 if self.discrete else 0.0
        low, high = self._forward(np.array([self.low - half, self.high + half]))
        return float(low), float(high)

    def _forward(self, values: Floats) -> Floats:
        return np.sign(values) * log1p(np.abs(values) / self.log) if self.log else values

    def _backward(self, scaled: Floats) -> Floats:
        return np.sign(scaled) * self.log * expm1(np.abs(scaled)) if self.log else scaled

    def units(self, values: NDArray[np.generic]) -> Floats:
        """Values to the unit interval; values beyond the bounds are moved to them."""
        low, high = self._ends
        inside = np.clip(np.asarray(values, np.float64), self.low, self.high)
        return np.clip((self._forward(inside) - low) / (high - low), 0.0, 1.0)

    def codes(self, units: Floats) -> NDArray[np.int64]:
        """Number of each value of a discrete column without a logarithmic scale, int64[n]."""
        size = self.count or 1
        return np.clip((units * size).astype(np.int64), 0, size - 1)

    def values(self, units: Floats) -> Floats:
        """The unit interval to values within the bounds; integers of a discrete column."""
        low, high = self._ends
        scaled = low + np.clip(units, 0.0, 1.0) * (high - low)
        values = self._backward(scaled)
        return np.clip(np.rint(values) if self.discrete else values, self.low, self.high)

    def edges(self, cells: int) -> Floats:
        """Values between equal cells of the unit interval, ascending, float64[cells - 1]."""
        low, high = self._ends
        return self._backward(low + np.arange(1, cells) / cells * (high - low))

    def snap(self, units: Floats) -> Floats:
        """The units of the values that would be released."""
        return self.units(self.values(units)) if self.discrete else np.clip(units, 0.0, 1.0)


def to_units(scales: Sequence[Scale], columns: Sequence[NDArray[np.generic]]) -> Floats:
    """Columns of values, at least one, as rows on the unit cube, float64[n, d]."""
    return np.column_stack([scale.units(column) for scale, column in zip(scales, columns, strict=True)])


def snapped(scales: Sequence[Scale], units: Floats) -> Floats:
    """Rows of the unit cube moved to what would be released of them."""
    return np.column_stack([scale.snap(column) for scale, column in zip(scales, units.T, strict=True)])


@dataclass(frozen=True)
class Columns:
    """Where inputs and response stand in a table, and their scales."""

    attributes: tuple[Attribute, ...]  # all of the schema, in order
    scales: tuple[Scale, ...]  # of the inputs, in the order of the schema
    response: Scale
    place: int  # of the response in the schema

    def values(self, codes: Sequence[NDArray[np.generic]]) -> list[Floats]:
        """Values of the inputs in order, then of the response: numbers, or codes of categories and ordinals."""
        columns = [np.asarray(column, np.float64) + offset for offset, column in zip(self._offsets, codes, strict=True)]
        columns.append(columns.pop(self.place))
        return columns

    def units(self, codes: Sequence[NDArray[np.generic]]) -> tuple[Floats, Floats]:
        """Inputs, float64[n, d], and responses, float64[n], on the unit interval."""
        *inputs, response = self.values(codes)
        return to_units(self.scales, inputs), self.response.units(response)

    def codes(self, inputs: Floats, responses: Floats) -> Codes:
        """Codes of all attributes for rows of the unit cube and responses; continuous numbers as float64."""
        columns = [scale.values(inputs[:, i]) for i, scale in enumerate(self.scales)]
        columns.insert(self.place, self.response.values(responses))
        parts = zip(self.attributes, self._in_order, self._offsets, columns, strict=True)
        return [
            np.rint(column - offset).astype(attribute.dtype) if scale.discrete else column
            for attribute, scale, offset, column in parts
        ]

    @property
    def _in_order(self) -> list[Scale]:
        return [*self.scales[: self.place], self.response, *self.scales[self.place :]]

    @property
    def _offsets(self) -> list[float]:
        """The value of code 0 of each integer attribute; 0 of others."""
        pairs = zip(self.attributes, self._in_order, strict=True)
        return [scale.low if attribute.is_whole and not scale.nominal else 0.0 for attribute, scale in pairs]


def columns_of(spec: TwoStageSpec) -> Columns:
    """The columns of a spec."""
    place = spec.table.names.index(spec.prediction.response)
    return Columns(spec.table.attributes, spec.inputs, spec.response, place)
