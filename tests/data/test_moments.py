"""Columns of dates and datetimes: read from each type that holds them, and released in the declared one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpdist.data.encode import ColumnEncoder, check_type
from dpdist.data.report import ABOVE, BELOW, MISSING, MISTYPED
from dpdist.errors import ColumnMismatch
from dpdist.publish.columns import columns
from dpdist.publish.part_format import PartFormat
from dpdist.spec.schema import Attribute, Schema

DAY = {"name": "v", "kind": "date", "bounds": ["1969-12-30", "1970-01-03"], "missing": {"category": "none"}}
MOMENT = {"name": "v", "kind": "datetime", "bounds": ["1969-12-31 23:59:58", "1970-01-01 00:00:03"]}


def attribute(settings: dict[str, Any], **more: Any) -> Attribute:
    return Attribute.model_validate(settings | more)


DAYS = [dt.date(1969, 12, 30), None, dt.date(1970, 1, 3), dt.date(1970, 1, 4), dt.date(1960, 1, 1)]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(DAYS, pa.date32()),
        pa.array(DAYS, pa.date64()),
        pa.array(DAYS, pa.date32()).dictionary_encode(),
        pa.array(
            [None if d is None else dt.datetime(d.year, d.month, d.day, 23, 59) for d in DAYS], pa.timestamp("us")
        ),
        pa.array([None if d is None else d.isoformat() for d in DAYS]),
        pa.array([None if d is None else d.isoformat() for d in DAYS]).dictionary_encode(),
        pa.array([None if d is None else f"{d} 11:12:13" for d in DAYS], pa.large_string()),
    ],
    ids=lambda array: str(array.type),
)
def test_days_of_each_type(array: pa.Array) -> None:
    check_type(attribute(DAY), array.type)
    codes, dropped, counts = ColumnEncoder(attribute(DAY)).encode(array)
    assert codes.tolist() == [0, 5, 4, 0, 0]
    assert dropped is None
    assert (counts[MISSING], counts[ABOVE], counts[BELOW], counts[MISTYPED]) == (1, 1, 1, 0)


def test_texts_in_a_format_of_their_own() -> None:
    encoder = ColumnEncoder(
        attribute(DAY, format="%d/%m/%Y", missing_values=["31/12/9999", "?"]), strip=True, empty_is_missing=True
    )
    codes, _, counts = encoder.encode(pa.array([" 03/01/1970", "31/12/9999", "?", "", "1970-01-01", "30/02/1970"]))
    assert codes.tolist() == [4, 5, 5, 5, 0, 0]
    assert (counts[MISSING], counts[MISTYPED]) == (3, 2)


def test_a_day_that_means_missing() -> None:
    far = ColumnEncoder(attribute(DAY, missing_values=["9999-12-31"]))
    for array in (pa.array([dt.date(9999, 12, 31)]), pa.array(["9999-12-31"])):
        codes, _, counts = far.encode(array)
        assert (codes.tolist(), counts[MISSING]) == ([5], 1)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_are_cut_to_their_second(unit: str) -> None:
    texts = ["1969-12-31T23:59:58.9", "1970-01-01 00:00:03", "1969-12-31 23:59", "1970-01-01"]
    codes, _, counts = ColumnEncoder(attribute(MOMENT)).encode(pa.array(texts))
    assert codes.tolist() == [0, 5, 0, 2]
    assert counts[BELOW] == 1  # 23:59:00
    tenths = pa.array([-1_100_000, 3_900_000], pa.int64()).cast(pa.timestamp("us"))
    codes, _, _ = ColumnEncoder(attribute(MOMENT)).encode(tenths.cast(pa.timestamp(unit), safe=False))
    assert codes.tolist() in ([0, 5], [1, 5])  # seconds of Arrow's cast are cut towards 1970
    if unit != "s":
        assert codes.tolist() == [0, 5]


@pytest.mark.parametrize(
    ("settings", "kind"), [(DAY, pa.int32()), (DAY, pa.timestamp("us", "UTC")), (MOMENT, pa.float64())], ids=str
)
def test_types_without_days_are_refused(settings: dict[str, Any], kind: pa.DataType) -> None:
    with pytest.raises(ColumnMismatch, match="which cannot hold"):
        check_type(attribute(settings), kind)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (DAY, pa.date32()),
        (DAY | {"bins": {"every": "month"}}, pa.date32()),
        (MOMENT, pa.timestamp("us")),
        (MOMENT | {"bins": {"every": "day"}, "missing": {"category": "none"}}, pa.timestamp("us")),
    ],
)
def test_released_values_are_of_their_type_and_code(settings: dict[str, Any], kind: pa.DataType) -> None:
    schema = Schema.model_validate({"attributes": [settings]})
    (column,) = columns(schema, PartFormat())
    codes = np.arange(schema.cardinalities[0], dtype=np.uint8).repeat(50)
    values = column.decode(codes, np.random.default_rng(0).integers(0, 2**64, codes.size, np.uint64))
    assert values.type == column.field.type == kind
    assert column.admits(values)
    read, _, _ = ColumnEncoder(schema.attributes[0]).encode(values)
    np.testing.assert_array_equal(read, codes)
