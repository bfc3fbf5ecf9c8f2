"""Releases of statistics: one table of counts, entropies and means instead of records."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_TEXT = pa.dictionary(pa.int32(), pa.string())

STATISTICS = pa.schema(
    [
        pa.field("statistic", _TEXT, nullable=False),
        pa.field("of", _TEXT, nullable=False),
        pa.field("cell", _TEXT, nullable=False),
        pa.field("noisy", pa.float64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("standard_error", pa.float64()),
    ]
)
"""``statistic``: count, entropy of an order, or mean. ``of``: the columns. ``cell``: a value, values of several columns
joined by a bar between blanks (a bar or backslash of a value has a backslash before it), or a time. ``noisy``: as
drawn, which carries the guarantee. ``value``: fitted to it (non-negative, consistent). ``standard_error``: of a fitted
count, before negative ones were set to zero; null where none is known."""


@dataclass(frozen=True, eq=False)
class StatisticColumn:
    """A column of a table of statistics."""

    field: pa.Field  # name and type
    non_negative: bool = False  # whether the release promises that no number is negative

    def admits(self, values: pa.Array | pa.ChunkedArray) -> bool:
        """Whether the values are of the type, present where they must be, finite and, where promised, not negative."""
        if values.type != self.field.type or (values.null_count and not self.field.nullable):
            return False
        if not pa.types.is_floating(values.type):
            return True
        if not pc.all(pc.is_finite(values), min_count=0).as_py():
            return False
        return not self.non_negative or bool(pc.all(pc.greater_equal(values, 0.0), min_count=0).as_py())


def statistic_columns(*, non_negative: bool) -> tuple[StatisticColumn, ...]:
    """The columns of a table of statistics, in order; ``value`` may be promised to be non-negative."""
    return tuple(StatisticColumn(field, non_negative and field.name == "value") for field in STATISTICS)
