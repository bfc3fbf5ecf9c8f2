"""Tables as people have them: what is read, passed over and refused, for each form (docs/how-to/schema.md)."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask import delayed
from pydantic import ValidationError

from dpdist.api.given import as_input
from dpdist.data.report import check
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.errors import ColumnMismatch, DpdistError, SpecError
from dpdist.ledger.database import Database
from dpdist.spec.data import CsvSpec
from dpdist.spec.draft import draft
from dpdist.spec.schema import Schema

SCHEMA = Schema.model_validate(
    {
        "attributes": [
            {"name": "region", "kind": "categorical", "values": ["north", "south, east"]},
            {"name": "age", "kind": "integer", "bounds": [0, 99]},
        ]
    }
)
RECORDS = [[0, 7], [1, 40], [0, 41]]


def records(path: Path, schema: Schema = SCHEMA, **settings: Any) -> list[list[int]]:
    """The codes of a table, sorted."""
    source = TableSource((str(path),), **settings)
    table = open_table(source, schema, partitions=2)
    found = [np.stack(b.codes, 1) for p in range(len(table.partitions)) for b in table.batches(p)]
    return sorted(np.concatenate(found).tolist(), key=lambda row: row[-1])


def parquet(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ('region,age\nnorth,7\n"south, east",40\nnorth,41\n', {}),
        ('region,\t"age"\n "north", 7\n\t"south, east" ,40\n"north","41"\n', {}),
        ('age, "region"\n7, "north"\n40,  "south, east"\n41,north\n', {}),
        ('region,age,,\nnorth,7,,\n"south, east",40,,\nnorth,41,,\n', {"extra_columns": "ignore"}),
        ('region,x,age,x\nnorth,1,7,2\n"south, east",1,40,2\nnorth,1,41,2\n', {"extra_columns": "ignore"}),
        ("region\tage\nnorth\t7\nsouth, east\t40\nnorth\t41\n", {"csv": CsvSpec(delimiter="\t")}),
        (
            'note\tregion\tage\n\t"north"\t7\n\t "south, east"\t40\n\t"north"\t41\n',
            {"csv": CsvSpec(delimiter="\t"), "extra_columns": "ignore"},
        ),
    ],
)
def test_csv_as_it_is_written(text: str, settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert records(tmp_path / "t.csv", **settings) == RECORDS


def test_a_blank_before_a_quote_inside_a_quoted_field_is_kept(tmp_path: Path) -> None:
    schema = Schema.model_validate(
        {"attributes": [{"name": "said", "kind": "categorical", "values": ['a, "b"', "c"]}, SCHEMA.attributes[1]]}
    )
    (tmp_path / "t.csv").write_text('said,age\n"a, ""b""",1\n "c", 2\n "a, ""b""", "3"\n')
    assert records(tmp_path / "t.csv", schema) == [[0, 1], [1, 2], [0, 3]]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1250", "windows-1252", "iso8859_15", "koi8-r", "utf-8"])
def test_a_file_has_the_encoding_that_the_spec_names(encoding: str, tmp_path: Path) -> None:
    words = ["Ж", "Щ"] if encoding == "koi8-r" else ["ä", "é"]
    schema = Schema.model_validate(
        {
            "attributes": [
                {"name": words[0], "kind": "categorical", "values": words},
                {"name": "n", "kind": "integer", "bounds": [0, 9], "missing": {"category": "none"}},
            ]
        }
    )
    text = f'{words[1]} a note\n{words[0]},n\n{words[0]},1\n\n"{words[1]}", 2\n{words[1]} no record\n'
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    csv = CsvSpec.model_validate({"encoding": encoding, "skip_rows": 1, "comment": f"{words[1]} "})
    assert records(tmp_path / "t.csv", schema, csv=csv) == [[0, 1], [1, 2]]
    if encoding != "utf-8":
        with pytest.raises(DpdistError, match="UTF-8"):
            records(tmp_path / "t.csv", schema, csv=CsvSpec(skip_rows=1))


@pytest.mark.parametrize(
    "name", ["utf-32", "utf-7", "shift_jis", "gb18030", "hz", "rot13", "raw_unicode_escape", "klingon", "idna", "cp037"]
)
def test_lines_of_other_encodings_cannot_be_cut(name: str) -> None:
    with pytest.raises(ValidationError, match="is no encoding with a byte for each character"):
        CsvSpec.model_validate({"encoding": name})


def test_a_comment_is_a_text_of_the_encoding() -> None:
    with pytest.raises(ValidationError, match="`comment` is no text in iso8859-1"):
        CsvSpec.model_validate({"encoding": "latin-1", "comment": "€"})


def test_a_value_of_a_folder_is_no_marker(tmp_path: Path) -> None:
    parquet(tmp_path / "t/file=a.md5/1.parquet", region=["north"], age=[7])
    parquet(tmp_path / "t/file=b.crc/1.parquet", region=["north"], age=[41])
    assert records(tmp_path / "t", extra_columns="ignore") == [[0, 7], [0, 41]]


def test_a_wanted_name_that_repeats_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("region,age,age\nnorth,7,8\n")
    with pytest.raises(ColumnMismatch, match="'age' once each"):
        records(tmp_path / "t.csv", extra_columns="ignore")


@pytest.mark.parametrize(
    "name",
    ["_SUCCESS", ".part.crc", "y=1_$folder$", "README", "README.md", "part.parquet.crc", "SHA.sha256", "_temporary/x"],
)
def test_what_stands_beside_the_parts_is_passed_over(name: str, tmp_path: Path) -> None:
    parquet(tmp_path / "t/a.parquet", region=["north", "south, east", "north"], age=[7, 40, 41])
    (tmp_path / "t" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "t" / name).write_text("not a table")
    assert records(tmp_path / "t") == RECORDS
    assert "name: age" in draft(tmp_path / "t")


def hive(folder: Path, write: Callable[[Path, list[int]], None]) -> None:
    for place, ages in (("region=north/b", [7, 41]), ("region=south%2C east/c=1", [40])):
        (folder / place).mkdir(parents=True)
        write(folder / place / "part", ages)


def test_columns_of_hive_folders_are_columns(tmp_path: Path) -> None:
    hive(tmp_path / "p", lambda path, ages: parquet(path.with_suffix(".parquet"), age=ages))
    hive(tmp_path / "c", lambda path, ages: path.with_suffix(".csv").write_text("age\n" + "\n".join(map(str, ages))))
    for form in "pc":
        assert records(tmp_path / form, extra_columns="ignore") == RECORDS
        with pytest.raises(ColumnMismatch, match="schema does not name"):
            records(tmp_path / form)  # the folder c=1
        assert records(tmp_path / form / "region=*/b") == [[0, 7], [0, 41]]
    for public in (False, True):  # the names of folders are values of records
        found = draft(tmp_path / "p", public=public)
        assert "name: region" in found
        assert ("south, east" in found) is public


def test_a_hive_column_may_be_a_number_and_may_be_missing(tmp_path: Path) -> None:
    schema = Schema.model_validate(
        {
            "attributes": [
                {"name": "year", "kind": "integer", "bounds": [2000, 2030], "missing": {"category": "none"}},
                {"name": "share", "kind": "number", "bounds": [0, 1]},
                SCHEMA.attributes[1],
            ]
        }
    )
    for year, share, age in (("2020", "0.5", 1), ("__HIVE_DEFAULT_PARTITION__", "1", 2)):
        parquet(tmp_path / f"t/year={year}/share={share}/part.parquet", age=[age])
    assert records(tmp_path / "t", schema) == [[20, 0.5, 1], [31, 1, 2]]
    parquet(tmp_path / "t/year=2021/part.parquet", age=[3])
    with pytest.raises(ColumnMismatch, match="'share' is missing"):
        records(tmp_path / "t", schema)


def test_messages_do_not_show_the_values_of_folders(tmp_path: Path) -> None:
    (tmp_path / "t/region=north").mkdir(parents=True)
    for name, content in (("1.parquet", b"no table"), ("1.csv", b"wrong\n1\n"), ("1.csv", b'age\n"1\n')):
        path = tmp_path / "t/region=north" / name
        path.write_bytes(content)
        with pytest.raises(DpdistError, match=r"region=…/1\.") as caught:
            records(tmp_path / "t")
        assert "north" not in str(caught.value)
        path.unlink()


def test_columns_may_all_come_from_folders(tmp_path: Path) -> None:
    schema = Schema(attributes=SCHEMA.attributes[:1])
    for form, write in {
        "p": lambda path: parquet(path.with_suffix(".parquet"), x=[1, 2, 3]),
        "c": lambda path: path.with_suffix(".csv").write_text("x\n1\n2\n3\n"),
    }.items():
        (tmp_path / form / "region=north").mkdir(parents=True)
        write(tmp_path / form / "region=north/1")
        assert records(tmp_path / form, schema, extra_columns="ignore") == [[0]] * 3
        both = TableSource((str(tmp_path / form), str(tmp_path / form / "region=north")), extra_columns="ignore")
        assert open_table(both, schema).rows == 3


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "t/region=north/1.parquet", age=[41])
    folder = os.fsencode(tmp_path) + b"/t/region=\xff"
    try:
        os.makedirs(folder)
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    with open(folder + b"/1.parquet", "wb"):
        pass
    with pytest.raises(DpdistError, match="has a name that is no UTF-8: rename it"):
        records(tmp_path / "t")


def test_drafts_of_files_that_differ(tmp_path: Path) -> None:
    parquet(tmp_path / "t/1.parquet", a=[1, 2] * 50, b=pa.nulls(100), c=pa.array(["x"] * 100).dictionary_encode())
    parquet(tmp_path / "t/2.parquet", a=[1.0, 2.0] * 50, b=["x", "y"] * 50, c=["y"] * 100)
    found = draft(tmp_path / "t", public=True)
    assert found.count("values: [x, y]") == 2
    assert "missing: {category: missing}" in found
    parquet(tmp_path / "t/3.parquet", a=["one"], b=["x"], c=["y"])
    with pytest.raises(SpecError, match=r"3.parquet: the column 'a' holds string, and double in other files"):
        draft(tmp_path / "t")


def test_a_table_in_a_store_is_drafted(s3: Any, s3_server: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    parquet(tmp_path / "t.parquet", age=[7])
    s3.put(str(tmp_path / "t.parquet"), "census/t/k=5/t.parquet")
    found = draft("s3://census/t")
    assert "name: age" in found
    assert "name: k" in found


def test_other_columns_of_a_frame_do_not_matter_whatever_their_type() -> None:
    frame = pd.DataFrame({"region": ["north", "south, east", "north"], "age": [7, 40, 41], "note": ["a", "b", "c"]})
    wanted = SCHEMA.names
    same = as_input(frame, executor=None, wanted=wanted, extra_columns="ignore")
    strange = frame.assign(diagnoses=[["A00"], [], None], mixed=[1, "x", object()], pair=[{"a": 1}] * 3)
    strange.columns = [*strange.columns[:-1], "mixed"]  # a name twice
    arrow = pa.Table.from_pandas(frame.assign(diagnoses=[["A00"], [], None]), preserve_index=False)
    for one in (strange, arrow):
        found = as_input(one, executor=None, extra_columns="ignore", wanted=wanted)
        assert found.fingerprint == same.fingerprint  # what has a digest is part of the identity of the table
        assert found.open(SCHEMA).rows == 3
    twice = pa.table([*arrow.columns, arrow["note"], arrow["age"]], names=[*arrow.column_names, "x", "x"])
    assert as_input(twice, executor=None, extra_columns="ignore", wanted=wanted).fingerprint == same.fingerprint
    other = as_input(frame.assign(note="d"), executor=None, wanted=wanted, extra_columns="ignore")
    assert other.fingerprint != same.fingerprint
    with pytest.raises(ColumnMismatch, match="two columns have the same name, 'mixed': rename one"):
        as_input(strange, executor=None)
    lists = as_input(frame.assign(age=[[1], [2], [3]]), executor=None, wanted=wanted, extra_columns="ignore")
    with pytest.raises(ColumnMismatch, match=r"'age'.* list"):
        lists.open(SCHEMA)


def test_lazy_objects_are_no_tables() -> None:
    for lazy in (delayed(pd.DataFrame({"age": [1]})), delayed([1, 2])):
        with pytest.raises(SpecError, match=r"the dask Delayed.* is not one of these"):
            as_input(lazy, executor=None)


def test_a_path_of_a_ledger_is_taken_as_it_is(tmp_path: Path) -> None:
    for name in ("what?.db", "50%3F.db", "a#b.db"):
        assert Database(str(tmp_path / name)).file == tmp_path / name
    with pytest.raises(DpdistError):
        Database("what?")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_utf_16_is_read_in_whole_files(encoding: str, suffix: str, tmp_path: Path) -> None:
    mark = "" if encoding == "utf-16" else "\ufeff"
    lines = ["region;age", *(f"{('north', 'south, east')[k % 2]};{k % 100}" for k in range(100_000))]
    with fsspec.open(str(tmp_path / f"t{suffix}"), "wb", compression="infer") as file:
        file.write((mark + "\r\n".join(lines)).encode(encoding))
    source = TableSource((str(tmp_path),), csv=CsvSpec(delimiter=";", encoding=encoding))
    table = open_table(source, SCHEMA, partitions=3)
    found = [
        np.stack(batch.codes, 1) for p in range(len(table.partitions)) for batch in table.batches(p, batch_rows=999)
    ]
    np.testing.assert_array_equal(np.concatenate(found), [[k % 2, k % 100] for k in range(100_000)])


NUMBERS = Schema.model_validate(
    {
        "attributes": [
            {
                "name": "pay",
                "kind": "number",
                "bounds": [-9, 1e7],
                "missing": "drop",
                "missing_values": ["-1,5", "n.a."],
            },
            {"name": "days", "kind": "integer", "bounds": [0, 9000], "missing": {"category": "none"}},
        ]
    }
)


@pytest.mark.parametrize(
    ("settings", "lines", "expected"),
    [
        ({"decimal": ",", "thousands": "."}, ["1.234,56;1.234", "12,5;12", ";0,0"], [[12.5, 12], [1234.56, 1234]]),
        ({"decimal": ",", "thousands": " "}, ["1 234 567,5;8 000", "-1,5;1", "n.a.;1"], [[1234567.5, 8000]]),
        ({"decimal": ",", "thousands": "'"}, ["1'000;1'000", ",5;5", "-2,5e3;1"], [[0.5, 5], [1000, 1000]]),
        ({"thousands": ","}, ['"1,234.5";"8,000"', "1234.5;"], [[1234.5, 8000], [1234.5, 9001]]),
        ({"decimal": ","}, ["1,5;7", "2;8"], [[1.5, 7], [2, 8]]),
    ],
)
def test_numbers_as_the_world_writes_them(
    settings: dict[str, Any], lines: list[str], expected: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["pay;days", *lines]))
    schema = (
        NUMBERS
        if "-2,5e3;1" not in lines
        else Schema.model_validate(
            {"attributes": [NUMBERS.attributes[0].model_dump() | {"out_of_domain": "drop"}, NUMBERS.attributes[1]]}
        )
    )
    source = TableSource((str(tmp_path),), csv=CsvSpec(delimiter=";", **settings))
    table = open_table(source, schema, partitions=1)
    batches = list(table.batches(0))
    found = [np.stack(b.codes, 1)[slice(None) if b.keep is None else b.keep] for b in batches]
    assert sorted(np.concatenate(found).tolist()) == expected


@pytest.mark.parametrize("text", ["1.5", "1.234.5", "12.34,5", "1,2,3", "1.23"])
def test_numbers_with_other_signs_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"pay;days\n{text};{text}\n")
    table = open_table(TableSource((str(tmp_path),), csv=CsvSpec(delimiter=";", decimal=",", thousands=".")), NUMBERS)
    report = next(iter(table.batches(0))).report
    with pytest.raises(ColumnMismatch, match="'days': values that are no integers"):
        check(report, NUMBERS)


def test_layouts_of_numbers_that_contradict_themselves() -> None:
    with pytest.raises(ValidationError, match="different signs"):
        CsvSpec(decimal=",", thousands=",")


# --- Tables and codebooks as people have them: one script for each kind of fault, where they are at hand


ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")).parent / "field"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))


@pytest.mark.slow
@pytest.mark.skipif(not (SCRIPTS and os.environ.get("DPDIST_FIELD")), reason="they run with DPDIST_FIELD=1")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_kind_of_fault_is_mended(script: Path, tmp_path: Path) -> None:
    environment = os.environ | {"DPDIST": str(Path(sys.executable).with_name("dpdist")), "CASES_WORK": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]
