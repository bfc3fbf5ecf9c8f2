"""Number columns: every type, policies, infinite values and NaN, against one value at a time in plain Python."""

import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.data.numbers import _NUMBER, NumberEncoder
from dpdist.errors import ColumnMismatch
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category, Count, Edges

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


@settings(max_examples=120, deadline=None)
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


@settings(max_examples=200, deadline=None)
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
