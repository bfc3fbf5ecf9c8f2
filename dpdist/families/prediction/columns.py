"""Between the codes of a table and rows of the unit cube."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.families.prediction.scales import Scale, to_units
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.privacy.arrays import Codes, Floats
from dpdist.spec.schema import Attribute


@dataclass(frozen=True)
class Columns:
    """Where inputs and response stand in a table, and their scales."""

    attributes: tuple[Attribute, ...]  # all of the schema, in order
    scales: tuple[Scale, ...]  # of the inputs, in the order of the schema
    response: Scale
    place: int  # of the response in the schema

    def values(self, codes: Sequence[NDArray[np.generic]]) -> list[Floats]:
        """Values of the inputs in order, then of the response: numbers, or codes of categories and ordinals."""
        columns = [
            _values(attribute, scale, column)
            for attribute, scale, column in zip(self.attributes, self._in_order, codes, strict=True)
        ]
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
        return [
            _codes(attribute, scale, column)
            for attribute, scale, column in zip(self.attributes, self._in_order, columns, strict=True)
        ]

    @property
    def _in_order(self) -> list[Scale]:
        scales = list(self.scales)
        scales.insert(self.place, self.response)
        return scales


def _is_integer(attribute: Attribute, scale: Scale) -> bool:
    return attribute.kind == "integer" and not scale.nominal


def _values(attribute: Attribute, scale: Scale, codes: NDArray[np.generic]) -> Floats:
    values = np.asarray(codes, np.float64)
    return values + scale.low if _is_integer(attribute, scale) else values


def _codes(attribute: Attribute, scale: Scale, values: Floats) -> NDArray[np.generic]:
    if not scale.discrete:
        return values
    shifted = values - scale.low if _is_integer(attribute, scale) else values
    return np.asarray(np.rint(shifted).astype(attribute.dtype))


def columns_of(spec: TwoStageSpec) -> Columns:
    """The columns of a spec."""
    place = spec.table.names.index(spec.prediction.response)
    return Columns(spec.table.attributes, spec.inputs, spec.response, place)
