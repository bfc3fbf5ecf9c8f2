"""Columns to codes: types, extremes, policies and what is refused."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpdist.data.arrow import TableInMemory
from dpdist.data.encode import ColumnEncoder, TableEncoder, check_type
from dpdist.data.numbers import NumberEncoder, parse_integer
from dpdist.data.report import RowReport, check
from dpdist.errors import ColumnMismatch, DataError, OutOfDomain
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema

MISSING, BELOW, ABOVE, UNKNOWN, MISTYPED = range(5)
NONE = {"category": "none"}


def integer(low: int = 1, high: int = 5, **more: Any) -> Attribute:
    return Attribute(name="n", kind="integer", bounds=(low, high), **more)


def number(**more: Any) -> Attribute:
    return Attribute(name="x", kind="number", bounds=(0, 2), **more)


def values(*names: int | str, kind: Any = "categorical", **more: Any) -> Attribute:
    return Attribute(name="v", kind=kind, values=names, **more)


def encode(attribute: Attribute, array: pa.Array, **options: Any) -> tuple[list[int], list[int], list[int]]:
    """Codes, rows that are dropped, and the counts of troubles."""
    encoder = NumberEncoder if attribute.kind == "number" else ColumnEncoder
    codes, dropped, counts = encoder(attribute, **options).encode(array)
    assert codes.dtype == attribute.dtype
    assert len(codes) == len(array)
    return codes.tolist(), [] if dropped is None else np.flatnonzero(dropped).tolist(), counts.tolist()


TYPES = [
    *(getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 16, 32, 64)),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    *(pa.decimal32(7, 1), pa.decimal64(12, 1), pa.decimal128(21, 2), pa.decimal256(50, 1)),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
]


OF_NUMBERS = Attribute(name="x", kind="number", bounds=(1, 5), bins={"count": 8}, missing=NONE, out_of_domain="clip")


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        (integer(missing=NONE), [0, 4, 5, 2, 0, 0, 5]),
        (values(5, 4, 3, 2, 1, missing=NONE), [4, 0, 5, 2, 0, 0, 5]),
        (OF_NUMBERS, [0, 7, 8, 4, 7, 0, 8]),
    ],
    ids=["int", "cat", "number"],
)
def test_every_type_holds_integers(kind: pa.DataType, attribute: Attribute, expected: list[int]) -> None:
    check_type(attribute, kind)
    check_type(attribute, pa.null())
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    array = pa.array([1, 5, None, 3, 9, 0, None], pa.int8())
    array = array.cast(pa.string()).cast(inner) if pa.types.is_string_view(inner) else array.cast(inner)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_encode().cast(kind)
    halves = pa.concat_arrays([array.slice(0, 2), array.slice(2)])
    for piece in (array, halves, pa.concat_arrays([array, array]).slice(7)):
        assert encode(attribute, piece) == (expected, [], [2, 1, 1, 0, 0])
    assert encode(attribute, array.slice(1, 3)) == (expected[1:4], [], [1, 0, 0, 0, 0])
    assert encode(attribute, array.slice(0, 0)) == ([], [], [0, 0, 0, 0, 0])


def test_texts() -> None:
    attribute = values(
        "red", "dark blue", aliases={"RED": "red"}, missing=NONE, missing_values=("?",), out_of_domain="drop"
    )
    array = pa.array(["red", "dark blue", "RED", "?", None, "", "green", " red"])
    assert encode(attribute, array) == ([0, 1, 0, 2, 2, 0, 0, 0], [5, 6, 7], [2, 0, 0, 3, 0])
    csv = {"strip": True, "empty_is_missing": True}
    assert encode(attribute, array, **csv) == ([0, 1, 0, 2, 2, 2, 0, 0], [6], [3, 0, 0, 1, 0])
    many = pa.array([f"value {i}" for i in range(70_000)] + ["red"])
    codes, dropped, counts = encode(attribute, many)
    assert (codes[-1], len(dropped), counts[UNKNOWN]) == (0, 70_000, 70_000)


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.dictionary(pa.int8(), pa.date32())], ids=str)
def test_days_are_their_texts(kind: pa.DataType) -> None:
    attribute = values("2023-12-31", "2024-02-29", kind="ordinal", missing=NONE, out_of_domain="drop")
    days = [datetime.date(2024, 2, 29), None, datetime.date(2024, 3, 1), datetime.date(2023, 12, 31)]
    array = pa.array(days, pa.date32())
    array = array.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else array.cast(kind)
    check_type(attribute, kind)
    assert encode(attribute, array) == ([1, 2, 0, 0], [2], [1, 0, 0, 1, 0])
    with pytest.raises(ColumnMismatch, match="which cannot hold an integer attribute"):
        check_type(integer(), kind)
    with pytest.raises(ColumnMismatch, match=r"timestamp\[us\], which .* ordinal attribute: declare kind: datetime"):
        check_type(attribute, pa.timestamp("us"))


def test_a_declared_text_wins_over_an_alias_and_over_missing() -> None:
    assert encode(values("?", "b", missing=NONE, missing_values=("?",)), pa.array(["?", "b"])) == ([0, 1], [], [0] * 5)
    assert encode(values("", "b", missing=NONE), pa.array(["", "b"]), empty_is_missing=True) == ([0, 1], [], [0] * 5)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float64(), pa.string()], ids=str)
def test_integers_that_mean_missing(kind: pa.DataType) -> None:
    array = pa.array([1, 9, 8, 7]).cast(kind)
    declared = values(1, 9, missing=NONE, missing_values=("9", "8"), out_of_domain="drop")
    assert encode(declared, array) == ([0, 1, 2, 0], [3], [1, 0, 0, 1, 0])
    inside = integer(1, 9, missing=NONE, missing_values=("9",))
    assert encode(inside, array) == ([0, 9, 7, 6], [], [1, 0, 0, 0, 0])


def test_integers_written_as_texts() -> None:
    assert [parse_integer(t) for t in ("17", "+17", "-3", "017", "17.0", "17.")] == [17, 17, -3, 17, 17, 17]
    for text in ("", "17.5", "1e3", "1 7", "1,000", "abc", "-", ".5", "١٧", "9" * 401, "0x1", "nan"):
        assert parse_integer(text) is None
    lenient = pa.array(["03", "3.0", "+3", "4.5", "three", "99999999999999999999999", "-99999999999999999999999"])
    drop = {"out_of_domain": "drop"}
    assert encode(integer(**drop), lenient) == ([2, 2, 2, 0, 0, 0, 0], [5, 6], [0, 1, 1, 0, 2])
    assert encode(values(1, 2, 3, **drop), lenient) == ([2, 2, 2, 0, 0, 0, 0], [3, 4, 5, 6], [0, 1, 1, 2, 0])
    assert encode(values("1", "2", "3", **drop), pa.array(["3", "03", "3.0"])) == ([2, 0, 0], [1, 2], [0, 0, 0, 2, 0])
    assert encode(values("1", "2", "3", **drop), pa.array([3, 4])) == ([2, 0], [1], [0, 0, 1, 0, 0])
    assert encode(values("1", "x", **drop), pa.array([1, 4, None])) == ([0, 0, 0], [1], [1, 0, 0, 1, 0])


def test_floats() -> None:
    array = pa.array([1.0, 5.0, 2.5, np.nan, np.inf, -np.inf, 1e300, -1e19, 2.0**63, -(2.0**63), -0.0, None])
    codes, dropped, counts = encode(integer(0, 5, missing=NONE, out_of_domain="clip"), array)
    assert codes == [1, 5, 0, 6, 5, 0, 5, 0, 5, 0, 0, 6]
    assert (dropped, counts) == ([], [2, 3, 3, 0, 1])
    assert encode(values(0, 1), array)[2] == [2, 3, 4, 1, 0]


def test_booleans() -> None:
    """They are texts and no numbers: true is not category 1."""
    array = pa.array([True, False, None])
    for attribute in (values(0, 1), values(1, 2), integer()):
        for column in (array, array.dictionary_encode()):
            with pytest.raises(ColumnMismatch, match="has the type bool"):
                check_type(attribute, column.type)
            with pytest.raises(ColumnMismatch, match="has the type bool"):
                ColumnEncoder(attribute).encode(column)
    assert encode(values("yes", "no", aliases={"true": "yes", "false": "no"}, missing=NONE), array)[0] == [0, 1, 2]
    assert encode(values("false", "true", missing=NONE), array)[0] == [1, 0, 2]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=str)
def test_integers_at_the_ends_of_their_type(kind: pa.DataType) -> None:
    info = np.iinfo(kind.to_pandas_dtype())
    array = pa.array([info.min, info.max, 3], kind)
    below = int(info.min < 0)
    assert encode(integer(0, 4, out_of_domain="clip"), array) == ([0, 4, 3], [], [0, below, 1, 0, 0])
    limit = 2**62
    ends = integer(-limit, limit, bins={"edges": [-limit, 0, limit]}, out_of_domain="drop")
    assert encode(ends, array) == (
        [1 - below, 0, 1] if not below else [0, 0, 1],
        [0, 1] if below else [1],
        [0, below, 1, 0, 0],
    )
    assert encode(ends, pa.array([limit - 1, limit, limit + 1], kind)) == ([1, 2, 0], [2], [0, 0, 1, 0, 0])
    texts = pa.array([str(n) for n in (-limit, limit, -limit - 1, limit + 1, 10**30, -(10**30))])
    assert encode(ends, texts) == ([0, 2, 0, 0, 0, 0], [2, 3, 4, 5], [0, 2, 2, 0, 0])
    floats = pa.array([-(2.0**62), 2.0**62, np.nextafter(-(2.0**62), -np.inf), np.nextafter(2.0**62, np.inf)])
    assert encode(ends, floats) == ([0, 2, 0, 0], [2, 3], [0, 1, 1, 0, 0])
    assert encode(values(str(10**30), "5"), pa.array([str(10**30), "5"]))[0] == [0, 1]


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.uint16(), pa.int32(), pa.int64(), pa.float64(), pa.string()], ids=str
)
def test_bins(wide: bool, kind: pa.DataType) -> None:
    high = 10**9 if wide else 100
    attribute = integer(
        -10, high, bins={"edges": [-10, 0, 1, 50]}, out_of_domain="clip", missing=NONE, missing_values=("-99", "x")
    )
    numbers = [-10, -1, 0, 1, 49, 50, 100, -11, 101, -99]
    array = pa.array(numbers).cast(kind) if kind != pa.uint16() else pa.array([abs(n) for n in numbers], kind)
    codes, dropped, counts = encode(attribute, array)
    if kind == pa.uint16():
        assert codes == [2, 2, 1, 2, 2, 3, 3, 2, 3, 3]
    else:
        assert codes == [0, 0, 1, 2, 2, 3, 3, 0, 3, 4]
        assert counts == [1, 1, 0 if wide else 1, 0, 0]
    assert dropped == []


def test_missing_integers_far_outside_the_domain() -> None:
    for sentinel in (-(2**62), 999_999_999_999):
        attribute = integer(missing="drop", missing_values=(str(sentinel),))
        assert encode(attribute, pa.array([1, sentinel])) == ([0, 0], [1], [1, 0, 0, 0, 0])


def test_clip_needs_an_order() -> None:
    gaps = values(1, 2, 8, 4, kind="ordinal", out_of_domain="clip")
    assert encode(gaps, pa.array([0, 9, 8, 3])) == ([0, 2, 2, 0], [], [0, 1, 1, 1, 0])
    schema = Schema(attributes=(gaps,))
    encoded = TableEncoder(schema).encode(pa.record_batch({"v": [1, 3]}))
    with pytest.raises(OutOfDomain, match=r"column 'v': .* neither below nor above"):
        check(encoded.report, schema)


def test_out_of_domain_may_be_a_category() -> None:
    assert encode(values("a", "b", "other", out_of_domain={"category": "other"}), pa.array(["x", "a"]))[0] == [2, 0]
    attribute = values("a", "b", missing=NONE, out_of_domain=NONE)
    assert encode(attribute, pa.array(["x", None, "b"])) == ([2, 2, 1], [], [1, 0, 0, 1, 0])
    assert encode(integer(missing=NONE, out_of_domain=NONE), pa.array([0, None, 9, 1]))[0] == [5, 5, 5, 0]


def test_a_domain_that_fills_its_type() -> None:
    attribute = integer(0, 255, out_of_domain="drop")
    assert attribute.dtype == np.uint8
    assert encode(attribute, pa.array([0, 255, 256, -1, 128])) == ([0, 255, 0, 0, 128], [2, 3], [0, 1, 1, 0, 0])
    large = integer(0, 65_535, out_of_domain="drop")
    assert encode(large, pa.array([65_535, 65_536])) == ([65_535, 0], [1], [0, 0, 1, 0, 0])


@pytest.mark.parametrize(
    ("attribute", "column", "error", "message"),
    [
        (integer(), ["1", "abc"], ColumnMismatch, "column 'n': values that are no integers"),
        (integer(out_of_domain="drop", missing="drop"), [1.0, 2.5], ColumnMismatch, "'n': values that are no integers"),
        (integer(), [1, 987], OutOfDomain, "column 'n': values outside the declared domain.*`out_of_domain: refuse`"),
        (integer(), [1, None], OutOfDomain, "column 'n': missing values.*`missing: refuse`"),
        (integer(), [1.0, float("nan")], OutOfDomain, "column 'n': missing values"),
        (values("a"), ["a", "zzz"], OutOfDomain, "column 'v': values outside the declared domain"),
        (number(), ["1", "abc987"], ColumnMismatch, "column 'x': values that are no numbers in a number attribute"),
        (number(missing="drop", out_of_domain="drop"), ["2,5"], ColumnMismatch, "'x': values that are no numbers"),
        (number(), [1, 987.5], OutOfDomain, "column 'x': values outside the declared domain.*`out_of_domain: refuse`"),
        (number(), [float("inf")], OutOfDomain, "column 'x': values outside the declared domain"),
        (number(), [1, float("-inf")], OutOfDomain, "column 'x': values outside the declared domain"),
        (number(), [1, None], OutOfDomain, "column 'x': missing values.*`missing: refuse`"),
        (number(), [1.0, float("nan")], OutOfDomain, "column 'x': missing values"),
    ],
)  # fmt: skip
def test_what_the_policies_refuse(
    attribute: Attribute, column: list[Any], error: type[DataError], message: str
) -> None:
    schema = Schema(attributes=(attribute,))
    report = TableEncoder(schema).encode(pa.record_batch({attribute.name: column})).report
    with pytest.raises(error, match=message) as caught:
        check(report, schema)
    assert not any(private in str(caught.value) for private in ("987", "zzz", "abc", "2.5"))
    assert not any(character.isdigit() for character in str(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_all_columns_are_named_at_once() -> None:
    schema = Schema(attributes=(integer(), values("a"), Attribute(name="w", kind="categorical", values=("b",))))
    batch = pa.record_batch({"n": [9, 1], "v": ["x", "a"], "w": ["b", None]})
    with pytest.raises(OutOfDomain) as caught:
        check(TableEncoder(schema).encode(batch).report, schema)
    assert "columns 'n', 'v': values outside" in str(caught.value)
    assert "column 'w': missing values" in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "column", "name"),
    [
        (integer(), pa.array([datetime.date(2024, 1, 1)]), r"date32\[day\]"),
        (integer(), pa.array([b"1"]), "binary"),
        (integer(), pa.array([[1]]), "list,"),
        (integer(), pa.array([{"planted": 1}]), "struct,"),
        (values("a", "b"), pa.array([1.5]), "double"),
        (values("a", "b"), pa.array([Decimal("1.5")]), "decimal"),
        (values("a"), pa.array([b"a"]).dictionary_encode(), "binary"),
        (number(), pa.array([datetime.date(2024, 1, 1)]), "date32"),
        (number(), pa.array([b"1"]), "binary"),
        (number(), pa.array([[1.0]]), "list,"),
    ],
)
def test_types_that_cannot_hold_an_attribute(attribute: Attribute, column: pa.Array, name: str) -> None:
    message = f"column '{attribute.name}' has the type .*{name}"
    with pytest.raises(ColumnMismatch, match=message):
        check_type(attribute, column.type)
    with pytest.raises(ColumnMismatch, match=message):
        TableEncoder(Schema(attributes=(attribute,))).encode(pa.record_batch({attribute.name: column}))


@pytest.mark.parametrize(
    ("column", "what", "fitting"),
    [
        (pa.array([1, 2]), "integers", {"values": ("1", "x")}),
        (pa.array([True]), "true and false", {"values": ("true", "false")}),
        (pa.array([datetime.date(2024, 1, 1)]), "days", {"values": ("2024-01-01",)}),
        (pa.array([1, 2]).dictionary_encode(), "integers", {"values": ("a",), "aliases": {"1": "a"}}),
        (pa.array([1, 2]), "integers", {"values": ("a",), "out_of_domain": {"category": "a"}}),
    ],
)
def test_a_type_of_which_no_value_is_declared(column: pa.Array, what: str, fitting: dict[str, Any]) -> None:
    """Whatever the policy drops: no record would be in the domain, as the type alone shows."""
    check_type(Attribute(name="v", kind="categorical", **fitting), column.type)
    unfit = values("Male", "01/02/2024", out_of_domain="drop")
    with pytest.raises(ColumnMismatch, match=f"column 'v' holds {what}, and no declared value is one: .*aliases"):
        check_type(unfit, column.type)


def test_reports_add_up_and_show_nothing() -> None:
    schema = Schema(attributes=(integer(missing="drop"),))
    encoder = TableEncoder(schema)
    reports = [encoder.encode(pa.record_batch({"n": pa.array(c, pa.int64())})).report for c in ([1, None], [9], [None])]
    total = RowReport.empty(schema) + reports[0] + reports[1] + reports[2]
    assert (total.rows, total.kept, total.counts.tolist()) == (4, 2, [[2, 0, 1, 0, 0]])
    assert repr(total) == "RowReport(<counts hidden>)"


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
@pytest.mark.parametrize("policy", ["drop", {"category": "other"}])
def test_a_text_that_is_no_utf8_is_out_of_domain(kind: pa.DataType, policy: object) -> None:
    """In files and in tables in memory: by the policy, beside good texts, missing ones and numbers."""
    attributes = [
        {"name": "a", "kind": "categorical", "values": ["x", "é", "other"], "out_of_domain": policy},
        {"name": "n", "kind": "number", "bounds": [0, 9], "bins": {"count": 3}, "out_of_domain": "drop"},
    ]
    schema = Schema.model_validate({"attributes": attributes})
    texts = pa.array([b"x", b"\xff", "é".encode(), b"\xc3"]).view(pa.string())
    numbers = pa.array(["1", "2", "3", "4"])
    table = pa.table(
        {"a": texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts.cast(kind), "n": numbers}
    )
    (batch,) = TableInMemory(table, "a table").open(schema).batches(0)
    assert batch.codes[0].tolist()[::2] == [0, 1]
    assert batch.report.counts[0].tolist() == [0, 0, 0, 2, 0]
    if policy == "drop":
        assert batch.keep is not None
        assert batch.keep.tolist() == [True, False, True, False]
    else:
        assert batch.codes[0].tolist() == [0, 2, 1, 2]


def test_a_number_of_bytes_that_are_no_text_is_mistyped() -> None:
    schema = Schema.model_validate({"attributes": [{"name": "n", "kind": "number", "bounds": [0, 9]}]})
    table = pa.table({"n": pa.array([b"1", b"\xff"]).view(pa.string())})
    (batch,) = TableInMemory(table, "a table").open(schema).batches(0)
    assert batch.report.counts[0].tolist() == [0, 0, 0, 0, 1]
