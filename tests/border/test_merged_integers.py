"""Values of a contract that are integers in quotes, and what renames them: read as before, or no part.

`clip` once refused a table for one value below the domain, and a column of floats was refused for one null.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dpdist.data.encode import TableEncoder, check_type
from dpdist.data.report import check
from dpdist.errors import DpdistError
from dpdist.schema.part import departures
from dpdist.schema.schema import Schema

DIGITS = {"name": "c", "kind": "ordinal", "values": ["1", "2", "3"], "out_of_domain": "clip", "missing": "drop"}
MIXED = {"name": "c", "kind": "categorical", "values": ["7", "no", "?"], "missing": "drop", "missing_values": ["9.0"]}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], pa.Array]] = {
    "clipped integer": (DIGITS, {"values": ["a"], "aliases": dict.fromkeys("123", "a")}, pa.array([1, -4])),
    "clipped text": (DIGITS, {"values": ["a"], "aliases": dict.fromkeys("123", "a")}, pa.array(["1", "9"])),
    "missing as an integer": (MIXED, {"values": ["7"], "aliases": {"no": "7", "?": "7"}}, pa.array(["9", "no"])),
}


def _outcome(attribute: dict[str, Any], column: pa.Array) -> Any:
    """Why a column is refused, or the rows that are kept."""
    schema = Schema.model_validate({"attributes": [attribute]})
    try:
        check_type(schema.attributes[0], column.type)
        rows = TableEncoder(schema).encode(pa.RecordBatch.from_arrays([column], ["c"]))
        check(rows.report, schema)
    except DpdistError as error:
        return type(error)
    return [True] * len(column) if rows.keep is None else rows.keep.tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_part_that_reads_a_column_in_another_way_is_no_part(name: str) -> None:
    whole, changes, column = CASES[name]
    assert _outcome(whole | changes, column) != _outcome(whole, column)
    part, contract = (Schema.model_validate({"attributes": [tree]}) for tree in (whole | changes, whole))
    assert departures(part, contract)


def test_a_null_that_made_floats_refuses_nothing() -> None:
    whole = DIGITS | {"out_of_domain": "refuse"}
    part = whole | {"values": ["a", "3"], "aliases": {"1": "a", "2": "a"}}
    assert not departures(*(Schema.model_validate({"attributes": [tree]}) for tree in (part, whole)))
    assert _outcome(part, pa.array([1.0, None])) == _outcome(whole, pa.array([1.0, None])) == [True, False]


def test_texts_are_merged_as_before() -> None:
    whole = {"name": "c", "kind": "categorical", "values": ["1", "2", "none"]}
    part = whole | {"values": ["some", "none"], "aliases": {"1": "some", "2": "some"}}
    assert not departures(*(Schema.model_validate({"attributes": [tree]}) for tree in (part, whole)))
