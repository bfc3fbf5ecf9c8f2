"""What a synthesis finds before it learns: one record is in one cell of each histogram."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.data.arrow import ArrowRecords
from dpdist.families.synthesis.discovery_steps import count_multiples
from dpdist.spec.schema import Schema

SCHEMA = Schema.model_validate(
    {"attributes": [{"name": "v", "kind": "number", "bounds": [0, 9], "bins": {"count": 3}}]}
)


def counted(array: pa.Array) -> list[int]:
    table = pa.table({"v": array})
    found = count_multiples(ArrowRecords(SCHEMA, table, [(0, len(table))], "0"), 0, ["v"])
    return [int(count) for count in found[0]]


@given(st.from_regex(r"\A-?[0-9]{1,3}\.?[0-9]{0,3}\Z") | st.text(max_size=6))
def test_a_record_counts_at_most_once(text: str) -> None:
    assert sum(counted(pa.array([text]))) <= 1


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["5", "5.", "5.0", "5.00", "-3"], [5, 0]),
        (["5.5", "5.05", "5.50", "-0.25"], [0, 4]),
        (["5.125", "", "1e5", ".5", "x"], [0, 0]),
    ],
)
def test_whole_numbers_and_cents(texts: list[str], expected: list[int]) -> None:
    assert counted(pa.array(texts)) == expected


def test_floats_are_read_as_they_are_written() -> None:
    assert counted(pa.array(np.array([1.0, 2.5, 2.25, 1 / 3]))) == [1, 2]
