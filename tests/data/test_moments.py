"""Columns of dates and datetimes: read from each type that holds them, and released in the declared one."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

import dpdist
from dpdist.data.encode import ColumnEncoder, check_type
from dpdist.data.report import ABOVE, BELOW, MISSING, MISTYPED
from dpdist.errors import ColumnMismatch
from dpdist.publish.columns import columns
from dpdist.publish.part_format import PartFormat
from dpdist.spec.attribute import Attribute
from dpdist.spec.part import departures
from dpdist.spec.schema import Schema

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
        pc.assume_timezone(pa.array(DAYS, pa.date32()).cast(pa.timestamp("s")), "Asia/Tokyo"),
        pa.array([None if d is None else d.isoformat() for d in DAYS]),
        pa.array([None if d is None else d.isoformat() for d in DAYS]).dictionary_encode(),
        pa.array([None if d is None else f"{d} 11:12:13" for d in DAYS], pa.large_string()),
        pa.array([None if d is None else f"{d}T00:12:13.5+09:00" for d in DAYS]),
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
    ("settings", "kind"), [(DAY, pa.int32()), (DAY, pa.time32("s")), (MOMENT, pa.float64())], ids=str
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


MONTH = {"every": "month"}
MONTHS = {
    "kind": "date",
    "bounds": ["2022-01-01", "2024-12-31"],
    "bins": {"every": "month"},
    "step": {"every": "month"},
}


def stays(rows: int = 12_000) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    admitted = np.datetime64("2022-01-01") + rng.integers(0, 1_000, rows)
    left = np.minimum(admitted + rng.geometric(0.05, rows), np.datetime64("2024-12-31"))
    return pd.DataFrame({"admitted": admitted.astype("M8[s]"), "discharged": left.astype("M8[s]")})


@pytest.mark.parametrize("form", ["frame", "parquet", "csv"])
def test_no_released_record_breaks_an_order_of_dates(form: str, tmp_path: Path) -> None:
    held, settings = stays(), dict(MONTHS)
    data: Any = held
    if form == "parquet":
        data = str(tmp_path / "stays.parquet")
        pq.write_table(pa.Table.from_pandas(held, preserve_index=False), data)
    elif form == "csv":
        data, settings["format"] = str(tmp_path / "stays.csv"), "%d/%m/%Y"
        held.to_csv(data, index=False, date_format="%d/%m/%Y")
    ledger = dpdist.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create("stays", epsilon=2, delta=1e-6)
    spec = {
        "kind": "synthesis",
        "name": "stays",
        "dataset": "stays",
        "schema": {
            "attributes": [{"name": name} | settings for name in held.columns],
            "rules": [{"at_most": ["admitted", "discharged"]}],
        },
        "data": {"minimum_records": 10_000},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "model": {"rounds": 1, "balance": 0},
        "output": {"path": str(tmp_path / "released")},
    }
    found = dpdist.release(spec, data=data, ledger=ledger).to_pandas()
    assert found.dtypes.map(lambda kind: kind.kind).tolist() == ["M", "M"]
    assert (found.discharged < found.admitted).sum() == 0
    assert set(found.admitted.dt.day) == {1}
    counted = [frame.admitted.dt.to_period("M").value_counts(normalize=True) for frame in (found, held)]
    assert counted[0].sub(counted[1], fill_value=0).abs().sum() < 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": ["2022-01-02", "2024-12-31"]}, "bounds that begin with one"),
        ({"bins": {"every": "week"}}, "the same `bins`"),
        ({"heaps": ["2022-05-05"]}, "no heaps"),
        ({"bounds": [2022, 2024]}, "a date in quotes"),
        ({"kind": "integer", "bounds": [0, 9], "bins": None}, "the same `bins`"),
    ],
)
def test_steps_of_the_calendar_go_with_their_bins(settings: dict[str, Any], message: str) -> None:
    attribute(MONTHS, name="v")
    with pytest.raises(ValidationError, match=message):
        attribute(MONTHS, name="v", **settings)


def test_orders_of_bins_need_one_step() -> None:
    quarters = {every: {"every": "quarter"} for every in ("bins", "step")}
    for other in (quarters, {"step": None}):
        tree = [MONTHS | {"name": "a"}, MONTHS | other | {"name": "b"}]
        with pytest.raises(ValidationError, match="overlap"):
            Schema.model_validate({"attributes": tree, "rules": [{"at_most": ["a", "b"]}]})


def test_a_day_that_ends_a_range_of_moments_is_in_it_as_a_whole() -> None:
    read = attribute(MOMENT, bounds=["2024-01-01", "2024-12-31"], bins={"every": "day"})
    assert read.model_dump(mode="json")["bounds"] == ["2024-01-01 00:00:00", "2024-12-31 23:59:59"]
    assert attribute(read.model_dump()) == read == read.model_copy(update={"labels": None})


def test_what_a_release_may_say_of_the_dates_of_a_contract() -> None:
    """Months keep an order that days keep; another format reads other records."""

    def schema(*rules: dict[str, Any], **more: Any) -> Schema:
        days = {"kind": "date", "bounds": ["2022-01-01", "2024-12-31"]} | more
        return Schema.model_validate({"attributes": [days | {"name": "a"}, days | {"name": "b"}], "rules": rules})

    order = {"at_most": ["a", "b"]}
    assert departures(schema(order, bins=MONTH, step=MONTH), schema(order)) == []
    assert "cut through" in departures(schema(order), schema(order, bins=MONTH, step=MONTH))[0]
    assert departures(schema(format="%d.%m.%Y"), schema())[0] == "attribute 'a': its `format` is another one"
