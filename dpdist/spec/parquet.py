"""What a Parquet file says about its columns: the types, and of a public table also the values and ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.errors import SpecError
from dpdist.spec.described import NAMES_RECORDS, Described, text_of

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CODES = 1_000
"""Distinct integers of a public table up to which they may be codes."""

_EXACT = 1 << 53  # floats below are exact integers where they are whole


def parquet(path: Path, *, public: bool) -> Iterator[Described]:
    """The columns of a file or folder; of a public table with the values of short ones and the ranges of numbers."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        table = ds.dataset(path, format="parquet")
        types: pa.Schema = table.schema
    except (pa.ArrowException, OSError) as error:
        if "duplicate field names" in str(error):
            raise SpecError(f"{path}: two columns have the same name: rename one") from None
        raise ValueError("not Parquet") from None
    for field in types:
        column, kind = _typed(field)
        if public and not column.note.endswith(_HELD_BY_NONE):
            column = _looked_at(column, kind, table.to_table(columns=[field.name]).column(0))
        yield column


_HELD_BY_NONE = "; TODO: no attribute holds this type: convert it, or leave the column out"


def _typed(field: pa.Field) -> tuple[Described, pa.DataType]:
    """What the type of a column says, and the type of its values."""
    import pyarrow as pa

    is_a = pa.types
    kind = field.type.value_type if is_a.is_dictionary(field.type) else field.type
    is_whole = is_a.is_integer(kind) or (is_a.is_decimal(kind) and kind.scale <= 0)
    is_number = is_whole or is_a.is_floating(kind) or is_a.is_decimal(kind)
    is_named = is_a.is_boolean(kind) or is_a.is_date(kind) or is_a.is_null(kind)
    is_text = is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind)
    note = f"{field.type}" if is_number or is_named or is_text else f"{field.type}{_HELD_BY_NONE}"
    items = dict.fromkeys(("false", "true"), "") if is_a.is_boolean(kind) else None
    described = Described(
        field.name, note, items, integers=is_whole or not is_number, texts=not is_number, nullable=field.nullable
    )
    return described, kind


def _looked_at(column: Described, kind: pa.DataType, held: pa.ChunkedArray) -> Described:
    """A column of a public table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = held.cast(kind) if pa.types.is_dictionary(held.type) else held
    present = values.drop_null()
    if pa.types.is_floating(kind):
        present = present.filter(pc.invert(pc.is_nan(present)))
    column = replace(column, nullable=len(present) < len(held))
    if column.items is not None:
        return column
    if pa.types.is_floating(kind):
        present = present.filter(pc.is_finite(present)).cast(pa.float64())
        if not pc.all(pc.and_(pc.equal(present, pc.trunc(present)), pc.less(pc.abs(present), _EXACT))).as_py():
            return _ranged(column, present)
        if len(present):
            present, column = (
                present.cast(pa.int64()),
                replace(column, note=f"{column.note}, of whole numbers", integers=True),
            )
    elif not column.texts and not column.integers:
        return _ranged(column, present)
    found = sorted(present.unique().to_pylist())
    if not column.texts and not _are_codes(found, len(held)):
        column = _ranged(column, present)
    elif pa.types.is_dictionary(held.type) and held.type.ordered:
        found = held.unify_dictionaries().chunk(0).dictionary.to_pylist() if held.num_chunks else []
        column = replace(column, items=dict.fromkeys(map(str, found), ""), ordered=True)
    else:
        column = replace(column, items=dict.fromkeys(map(str, found), ""), ordered=pa.types.is_date(kind))
    if not pa.types.is_floating(kind) and len(found) > max(MOST_CODES, len(held) / 3):
        column = replace(column, note=f"{column.note}; {NAMES_RECORDS}")
    return column


def _ranged(column: Described, present: pa.ChunkedArray) -> Described:
    """With its range, which the real numbers of another table will not keep to the last digit."""
    import pyarrow.compute as pc

    ends = pc.min_max(present).as_py()
    others = "" if column.integers else "clip"
    return replace(column, low=text_of(ends["min"]), high=text_of(ends["max"]), others=others)


def _are_codes(found: list[Any], rows: int) -> bool:
    """Whether the distinct integers of a column are codes rather than a range: a few hundred of them, with gaps."""
    return len(found) <= min(MOST_CODES, rows / 10) and len(found) < 0.9 * (found[-1] - found[0] + 1 if found else 0)
