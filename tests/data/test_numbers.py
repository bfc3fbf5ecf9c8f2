"""Number columns: every type, policies, infinite values and NaN, against one value at a time in plain Python."""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.cluster.cluster import Cluster
from dpdist.data.encode import TableEncoder, check_type
from dpdist.data.numbers import _NUMBER, NumberEncoder
from dpdist.data.operators import gather_operator
from dpdist.data.report import check
from dpdist.data.source import TableSource
from dpdist.data.split import Split
from dpdist.data.table import open_table
from dpdist.errors import ColumnMismatch, DataError, OutOfDomain
from dpdist.families.base.graph import encoded_partitions, locate, located_table, partition_codes, run_pass, table_pass
from dpdist.ledger.keys import KeyRef
from dpdist.spec.data import CsvSpec
from dpdist.spec.groups import Edges
from dpdist.spec.schema import Attribute, Category, Count, Schema

MISSING, BELOW, ABOVE, UNKNOWN, MISTYPED = range(5)
SENTINEL = "-99"


def number(low: float = 0, high: float = 2, **more: Any) -> Attribute:
    return Attribute(name="x", kind="number", bounds=(low, high), **more)


def encode(attribute: Attribute, array: pa.Array, **options: Any) -> tuple[list[float], list[int], list[int]]:
    codes, dropped, counts = NumberEncoder(attribute, **options).encode(array)
    assert codes.dtype == attribute.dtype
    assert len(codes) == len(array)
    return codes.tolist(), [] if dropped is None else np.flatnonzero(dropped).tolist(), counts.tolist()


def reference(attribute: Attribute, values: list[Any]) -> tuple[list[float], list[int], list[int]]:
    """Codes, rows that are dropped, and troubles: one value at a time."""
    low, high = attribute.bounds or ()
    ends = [*attribute.bin_edges.tolist(), high] if attribute.is_binned else []
    codes: list[float] = []
    dropped: list[int] = []
    counts = [0] * 5

    def coded(value: float) -> float:
        if not ends:
            return value
        return max(i for i in range(len(ends) - 1) if ends[i] <= value)

    for row, value in enumerate(values):
        policy, code = "", coded(low)
        if value is None or math.isnan(value) or value == float(SENTINEL):
            counts[MISSING] += 1
            policy = attribute.missing
        elif not low <= value <= high:
            counts[BELOW if value < low else ABOVE] += 1
            policy = attribute.out_of_domain
        else:
            code = coded(value)
        if policy == "drop":
            dropped.append(row)
        elif policy == "clip":
            code = coded(low if value < low else high)
        elif isinstance(policy, Category):
            code = attribute.missing_code
        codes.append(code)
    return codes, dropped, counts


@st.composite
def attributes(draw: st.DrawFn) -> Attribute:
    low, width = draw(st.sampled_from([(0.0, 1.0), (-2.0, 3.0), (0.1, 0.3), (-1e300, 1e300), (1e-310, 1e-309)]))
    bins = draw(st.sampled_from([None, Count(count=1), Count(count=7), Edges(edges=(low, low + width / 4))]))
    missing: list[Any] = ["refuse", "drop"]
    outside: list[Any] = ["refuse", "drop", "clip"]
    if bins is not None:
        missing.append(Category(category="none"))
    policy = draw(st.sampled_from(missing))
    if isinstance(policy, Category):
        outside.append(policy)
    return number(
        low,
        low + width,
        bins=bins,
        missing=policy,
        missing_values=(SENTINEL, "nothing"),
        out_of_domain=draw(st.sampled_from(outside)),
    )


def values_of(attribute: Attribute) -> st.SearchStrategy[float | None]:
    low, high = attribute.bounds or ()
    edges = attribute.bin_edges.tolist() if attribute.is_binned else []
    special = [None, math.nan, math.inf, -math.inf, float(SENTINEL), low, high, -0.0, *edges]
    near = [float(np.nextafter(e, side)) for e in (low, high, *edges) for side in (-math.inf, math.inf)]
    return st.one_of(st.sampled_from([*special, *near]), st.floats(low, high), st.floats())


TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_values_in_any_type_by_any_policy(data: st.DataObject) -> None:
    attribute = data.draw(attributes())
    values = data.draw(st.lists(values_of(attribute), max_size=25))
    kind = data.draw(st.sampled_from([pa.float64(), pa.dictionary(pa.int16(), pa.float64()), *TEXTS]))
    if kind in TEXTS:
        written = ["nothing" if v is None and i % 2 else None if v is None else repr(v) for i, v in enumerate(values)]
        array = pa.array(written, pa.string())
        array = array.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else array.cast(kind)
    else:
        array = pa.array(values, pa.float64(), from_pandas=False)
        array = array.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else array
    expected = reference(attribute, values)
    assert encode(attribute, array) == expected
    cut = data.draw(st.integers(0, len(values)))
    first, second = encode(attribute, array.slice(0, cut)), encode(attribute, array.slice(cut))
    assert first[0] + second[0] == expected[0]
    assert first[1] + [row + cut for row in second[1]] == expected[1]
    assert [a + b for a, b in zip(first[2], second[2], strict=True)] == expected[2]


@pytest.mark.parametrize(
    "kind",
    [
        *(getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 16, 32, 64)),
        *(pa.float16(), pa.float32(), pa.float64()),
        *(pa.decimal32(7, 1), pa.decimal64(12, 1), pa.decimal128(21, 1), pa.decimal256(50, 1)),
        *(pa.string(), pa.large_string(), pa.string_view()),
        *(pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int32(), pa.string())),
    ],
    ids=str,
)
def test_every_type_holds_numbers(kind: pa.DataType) -> None:
    attribute = number(1, 5, bins=Count(count=8), missing=Category(category="none"), out_of_domain="clip")
    check_type(attribute, kind)
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    numbers = [1, 5, None, 3, 9, 0, None]
    array = pa.array(numbers, pa.int8())
    array = array.cast(pa.string()).cast(inner) if pa.types.is_string_view(inner) else array.cast(inner)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_encode().cast(kind)
    for piece in (array, pa.concat_arrays([array, array]).slice(7)):
        assert encode(attribute, piece) == ([0, 7, 8, 4, 7, 0, 8], [], [2, 1, 1, 0, 0])
    assert encode(attribute, array.slice(0, 0)) == ([], [], [0] * 5)


def test_halves_of_every_fractional_type() -> None:
    for array in (
        *(pa.array([0.5, 1.5], kind) for kind in (pa.float32(), pa.float64())),
        pa.array(np.array([0.5, 1.5], np.float16)),
        pa.array([Decimal("0.5"), Decimal("1.5")]),
        pa.array(["5e-1", " +1.50"]),
        pa.array([".5", "1.5"]),
    ):
        assert encode(number(), array, strip=True) == ([0.5, 1.5], [], [0] * 5)
    with pytest.raises(ColumnMismatch, match="bool"):
        encode(number(), pa.array([True, False, None]))
    assert encode(number(missing="drop"), pa.nulls(2)) == ([0, 0], [0, 1], [2, 0, 0, 0, 0])
    large = number(0, 1e19, out_of_domain="drop")
    assert encode(large, pa.array([2**63 - 1, -1]))[:2] == ([2.0**63, 0], [1])
    assert encode(large, pa.array([2**64 - 1], pa.uint64()))[1] == [0]


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.text("0123456789+-.eE", max_size=8),
        st.text("+-naifNIFNty()_0x", max_size=9),
        st.sampled_from(["", " 1", "1 ", "0x1p3", "1_0", "1f", "infinity", "iNfInItY", "nan(x_1)", "١", "1\n", "1\0"]),
        st.floats().map(repr),
        st.text(max_size=4),
    )
)
def test_the_texts_that_are_numbers_are_those_that_arrow_casts(text: str) -> None:
    try:
        value = pa.array([text]).cast(pa.float64())[0].as_py()
    except pa.ArrowInvalid:
        value = None
    assert bool(re.fullmatch(_NUMBER.strip("^$"), text)) == (value is not None)
    attribute = number(-8e307, 8e307, missing="drop", out_of_domain="drop")
    alone, among = encode(attribute, pa.array([text])), encode(attribute, pa.array([text, "abc", "0.25"]))
    assert among == ([*alone[0], -8e307, 0.25], alone[1], [*alone[2][:4], alone[2][4] + 1])
    assert alone[2][MISTYPED] == (value is None)


def test_missing_texts_and_empty_fields() -> None:
    attribute = number(missing="drop", missing_values=("NA", "-99", " x "))
    array = pa.array(["1", "NA", "-99.0", "", " x ", "-9.9e1", " NA", "2"])
    assert encode(attribute, array) == ([1, 0, 0, 0, 0, 0, 0, 2], [1, 2, 4, 5], [4, 0, 0, 0, 2])
    assert encode(attribute, array, empty_is_missing=True, strip=True)[2] == [6, 0, 0, 0, 0]
    inside = number(0, 9, missing="drop", missing_values=("9",))
    assert encode(inside, pa.array([9.0, 8.0])) == ([0, 8], [0], [1, 0, 0, 0, 0])
    assert encode(number(), pa.array(["nan", "1"]))[2] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("attribute", "column", "error", "message"),
    [
        (number(), ["1", "abc987"], ColumnMismatch, "column 'x': values that are no numbers in a number attribute"),
        (number(missing="drop", out_of_domain="drop"), ["2,5"], ColumnMismatch, "'x': values that are no numbers"),
        (number(), [1, 987.5], OutOfDomain, "column 'x': values outside the declared domain.*`out_of_domain: refuse`"),
        (number(), [math.inf], OutOfDomain, "column 'x': values outside the declared domain"),
        (number(), [1, -math.inf], OutOfDomain, "column 'x': values outside the declared domain"),
        (number(), [1, None], OutOfDomain, "column 'x': missing values.*`missing: refuse`"),
        (number(), [1.0, math.nan], OutOfDomain, "column 'x': missing values"),
    ],
)
def test_what_the_policies_refuse(
    attribute: Attribute, column: list[Any], error: type[DataError], message: str
) -> None:
    schema = Schema(attributes=(attribute,))
    report = TableEncoder(schema).encode(pa.record_batch({"x": column})).report
    with pytest.raises(error, match=message) as caught:
        check(report, schema)
    assert not any(character.isdigit() for character in str(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_wrong_integers_and_wrong_numbers_have_their_own_words() -> None:
    schema = Schema(attributes=(number(), Attribute(name="n", kind="integer", bounds=(0, 1))))
    encoder = TableEncoder(schema)
    with pytest.raises(ColumnMismatch, match="column 'n': values that are no integers in an integer attribute"):
        check(encoder.encode(pa.record_batch({"x": [1.0], "n": [0.5]})).report, schema)
    with pytest.raises(ColumnMismatch, match="column 'x': values that are no numbers in a number attribute"):
        check(encoder.encode(pa.record_batch({"x": ["?"], "n": [1.0]})).report, schema)


@pytest.mark.parametrize("column", [[datetime.date(2024, 1, 1)], [b"1"], [[1.0]]])
def test_types_that_hold_no_numbers(column: list[Any]) -> None:
    array = pa.array(column)
    message = r"column 'x' has the type .*, which cannot hold a number attribute"
    with pytest.raises(ColumnMismatch, match=message):
        check_type(number(), array.type)
    with pytest.raises(ColumnMismatch, match=message):
        NumberEncoder(number()).encode(array)


def test_other_attributes_have_another_encoder() -> None:
    with pytest.raises(ValueError, match="'n' is not a number"):
        NumberEncoder(Attribute(name="n", kind="integer", bounds=(0, 1)))


SCHEMA = Schema(
    attributes=(
        number(-1, 1, missing="drop", out_of_domain="clip", missing_values=("NA",)),
        Attribute(name="k", kind="integer", bounds=(0, 9)),
        Attribute(name="b", kind="number", bounds=(0, 1), bins=Count(count=4), out_of_domain="drop"),
    )
)


@pytest.mark.parametrize("form", ["parquet", "texts", "csv"])
def test_any_layout_gives_the_same_numbers(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(3)
    x, k, b = rng.normal(0, 0.7, 500), rng.integers(0, 10, 500), rng.random(500) * 1.1
    x[::17], x[5] = np.nan, np.inf
    table = pa.table({"k": k, "x": pa.array(x, from_pandas=True), "b": b})
    if form == "csv":
        rows = [
            "k,x,b",
            *(
                f"{i},{'NA' if np.isnan(v) else repr(float(v))}, {w!r}"
                for i, v, w in zip(k, x, b.tolist(), strict=True)
            ),
        ]
        (tmp_path / "t.csv").write_text("\n".join(rows))
    else:
        if form == "texts":
            table = table.set_column(1, "x", table["x"].cast(pa.string()))
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=90)
    kept = ~np.isnan(x) & (b <= 1)
    expected = [np.clip(x, -1, 1)[kept], k[kept], np.minimum((b * 4).astype(int), 3)[kept]]
    split = Split(KeyRef.fixed("5a" * 32), ("1/2", "1/2"))
    source = TableSource((str(tmp_path / ("t.csv" if form == "csv" else "t.parquet")),), csv=CsvSpec(strip=True))
    halves: list[Any] = []
    for partitions in (1, 4, 25):
        table_ = located_table(open_table(source, SCHEMA, partitions=partitions))
        for batch_rows in (7, 1000):
            codes, report = run_pass(table_, gather_operator(), batch_rows=batch_rows)
            assert [column.dtype for column in codes] == [np.float64, np.uint8, np.uint8]
            for column, wanted in zip(codes, expected, strict=True):
                np.testing.assert_array_equal(column, wanted)
            check(report, SCHEMA)
        halves.append([np.concatenate(c) for c in zip(*_half(source, partitions, split), strict=True)])
    assert all(np.array_equal(a, b) for other in halves[1:] for a, b in zip(halves[0], other, strict=True))
    assert 150 < len(halves[0][0]) < 320


def _half(source: TableSource, partitions: int, split: Split) -> list[Any]:
    executor = Cluster()  # threads
    (table,) = executor.compute([locate(executor, open_table(source, SCHEMA, partitions=partitions))])
    parts = encoded_partitions(executor, table, name="cache", split=split)
    whole = table_pass(executor, table, gather_operator(), name="pass", split=split, label=1)
    (codes, _), *selected = executor.compute([whole, *partition_codes(executor, parts, name="part", label=1)])
    for column, pieces in zip(codes, zip(*selected, strict=True), strict=True):
        np.testing.assert_array_equal(column, np.concatenate(pieces))
    return selected
