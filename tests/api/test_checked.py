"""Checks of a table against a schema: public facts for everybody, what records say for the custodian alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Command

import dpdist
from dpdist.api.schemas import NOT_READ
from dpdist.errors import DataNotFound, SpecError

SCHEMA = dpdist.Schema.model_validate(
    {
        "attributes": [
            {"name": "sex", "kind": "categorical", "values": ["Male", "Female"]},
            {"name": "age", "kind": "integer", "bounds": [0, 99], "out_of_domain": "drop"},
        ]
    }
)
GOOD = {"sex": ["Male", "Female", "Male"], "age": [1, 2, 103], "more": [1.5, 2.5, 3.5]}
UNFIT = {"sex": [1, 2, 1], "age": [1.5, 2.5, 3.5]}
BROKEN = {"sex": ["Male", "x", "Male"], "age": [1, 2, 3]}


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def polars(_: Path, columns: dict[str, Any]) -> Any:
    import polars

    return polars.DataFrame(columns)


def dask(_: Path, columns: dict[str, Any]) -> Any:
    import dask.dataframe

    return dask.dataframe.from_pandas(pd.DataFrame(columns), npartitions=2)


GIVEN: list[Callable[[Path, dict[str, Any]], Any]] = [
    parquet,
    lambda _, columns: pa.table(columns),
    lambda _, columns: pd.DataFrame(columns),
    polars,
    dask,
]
tables = pytest.mark.parametrize("given", GIVEN, ids=["parquet", "arrow", "pandas", "polars", "dask"])


@tables
def test_public_facts_are_told_without_a_record(
    given: Callable[[Path, dict[str, Any]], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("a record was read")

    for room in ("data.table.Table", "data.arrow.ArrowRecords", "data.records.RecordsInMemory"):
        monkeypatch.setattr(f"dpdist.{room}.batches", read)
    for columns in (GOOD, BROKEN):
        found = SCHEMA.check(given(tmp_path, columns))
        assert found.fits
        assert (found.of_records, found.counts) == (None, None)
        assert NOT_READ in repr(found)
    unfit = SCHEMA.check(given(tmp_path, UNFIT))
    assert not unfit.fits
    assert "column 'sex' holds integers, and no declared value is one" in unfit.problems[0]
    (missing,) = SCHEMA.check(given(tmp_path, {"sex": ["Male"]})).problems
    assert "the column 'age' is missing" in missing


@tables
def test_the_custodian_is_told_what_records_say(given: Callable[[Path, dict[str, Any]], Any], tmp_path: Path) -> None:
    found = SCHEMA.check(given(tmp_path, GOOD), custodian=True)
    assert found.fits
    assert found.counts is not None
    assert (found.counts["rows_read"], found.counts["rows_kept"]) == (3, 2)
    assert "confidential: age: 1 out of domain" in repr(found)
    broken = SCHEMA.check(given(tmp_path, BROKEN), custodian=True)
    assert not broken.fits
    assert broken.of_records is not None
    assert "'sex': values outside the declared domain" in broken.of_records[0]
    assert not SCHEMA.check(given(tmp_path, UNFIT), custodian=True).fits


def test_types_that_records_decide_are_not_public() -> None:
    """pandas holds texts and numbers of a column of objects; which they are, its records say."""
    frame = pd.DataFrame({"sex": pd.Series([1, 2], dtype=object), "age": [1, 2]})
    assert SCHEMA.check(frame).fits
    assert not SCHEMA.check(frame.astype({"sex": int})).fits


def test_files_are_read_as_a_spec_says(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("Male;1\nFemale;2\n")
    layout: dict[str, Any] = {"format": "csv", "csv": {"header": False, "columns": ["sex", "age"], "delimiter": ";"}}
    assert SCHEMA.check(tmp_path / "t.txt", custodian=True, **layout).fits
    (tmp_path / "t.txt").write_bytes("Male;1".encode("utf-16"))
    (problem,) = SCHEMA.check(tmp_path / "t.txt", **layout).problems
    assert "UTF-16 text: set data.csv.encoding to utf-16" in problem
    with pytest.raises(SpecError, match=r"csv\.headers: there is no such setting"):
        SCHEMA.check(tmp_path / "t.txt", csv={"headers": False})
    with pytest.raises(SpecError, match="csv, format: of files only"):
        SCHEMA.check(pa.table(GOOD), **layout)
    with pytest.raises(DataNotFound):
        SCHEMA.check(tmp_path / "nothing.parquet")


def test_the_command_says_which_answers_depend_on_records(dpdist: Command, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(json.dumps(SCHEMA.model_dump(mode="json", exclude_defaults=True)))
    parquet(tmp_path, BROKEN)
    told = dpdist("schema", "check", "schema.yaml", "--against", "t.parquet")
    assert (told.code, "no record was read" in told.words) == (0, True)
    assert "names and types of the columns fit" in told.words
    kept = dpdist("schema", "check", "schema.yaml", "--against", "t.parquet", "--custodian")
    assert kept.code == 3
    assert "confidential: 3 of 3 rows are kept confidential: sex: 1 out of domain" in kept.words
    assert "confidential, as printed above" in kept.err
    parquet(tmp_path, UNFIT)
    unfit = dpdist("schema", "check", "schema.yaml", "--against", "t.parquet")
    assert unfit.code == 3
    assert "'sex' holds integers" in unfit.err
    assert dpdist("schema", "check", "schema.yaml", "--custodian").code == 2


def test_the_command_takes_the_layout_from_a_spec(dpdist: Command, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(json.dumps(SCHEMA.model_dump(mode="json", exclude_defaults=True)))
    (tmp_path / "t.txt").write_text("Male;1\n")
    csv = {"header": False, "columns": ["sex", "age"], "delimiter": ";"}
    data = {"path": "t.txt", "format": "csv", "csv": csv, "minimum_records": 1}
    spec = {"kind": "synthesis", "name": "a", "dataset": "d", "schema": "schema.yaml", "data": data}
    spec |= {"output": {"path": "o"}, "privacy": {"epsilon": 1, "delta": 1e-9}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    against = ["schema", "check", "schema.yaml", "--against", "t.txt"]
    assert dpdist(*against).code == 2
    assert dpdist(*against, "--spec", "spec.yaml", "--custodian").code == 0
