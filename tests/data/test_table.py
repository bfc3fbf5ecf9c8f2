"""Opening tables: layouts, columns, and files that cannot be used."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import readable

from dpdist.cluster.cluster import Cluster
from dpdist.cluster.executor import InProcess
from dpdist.data import table as data_table
from dpdist.data.files import TableFile
from dpdist.data.operators import gather_operator
from dpdist.data.report import check
from dpdist.data.source import FoundFile, TableSource, fingerprint
from dpdist.data.table import Table, TableFiles, layout, open_table
from dpdist.errors import ColumnMismatch, DataError, DataNotFound, EmptyTable, SpecError, UnreadableFile, WrongFormat
from dpdist.families.base.graph import run_pass
from dpdist.spec.attribute import Attribute
from dpdist.spec.data import CsvSpec
from dpdist.spec.schema import Schema

SCHEMA = Schema(
    attributes=(
        Attribute(name="age", kind="integer", bounds=(0, 99)),
        Attribute(name="sex", kind="categorical", values=("f", "m")),
    )
)


def source(*paths: Path | str, **options: Any) -> TableSource:
    return TableSource(tuple(map(str, paths)), **options)


def columns(rows: int, start: int = 0) -> pa.Table:
    numbers = np.arange(start, start + rows)
    return pa.table({"age": numbers % 100, "sex": np.array(["f", "m"])[numbers % 2]})


def lengths(table: Table) -> list[int]:
    return [sum(piece.rows for piece in partition) for partition in table.partitions]


def read_all(table: Table) -> list[np.ndarray]:
    codes, report = run_pass(table, gather_operator())
    check(report, table.schema)
    return codes


def is_columns(codes: list[np.ndarray], rows: int) -> bool:
    numbers = np.arange(rows)
    return np.array_equal(codes[0], numbers % 100) and np.array_equal(codes[1], numbers % 2)


def test_cuts_move_to_row_groups(tmp_path: Path) -> None:
    pq.write_table(columns(1000), tmp_path / "a.parquet", row_group_size=100)
    pq.write_table(columns(500, 1000), tmp_path / "b.parquet", row_group_size=250)
    folder = source(tmp_path)

    def of(**options: int) -> list[int]:
        table = open_table(folder, SCHEMA, **options)
        assert table.rows == sum(lengths(table)) == 1500
        assert is_columns(read_all(table), 1500)
        return lengths(table)

    assert of() == [1500]
    assert of(partitions=1) == [1500]
    assert of(partitions=3) == [500, 500, 500]
    assert of(partitions=4) == [400, 300, 300, 500]
    assert of(partition_rows=100) == [100] * 15
    assert len(of(partitions=16)) == 16
    assert of(partitions=1500) == of(partitions=10_000) == [1] * 1500


FILE = FoundFile("f", 1, "s")


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4), st.integers(1, 40), st.booleans())
def test_a_layout_covers_every_row_once(groups: list[list[int]], partitions: int, rows: bool) -> None:
    files = tuple(TableFile(FILE, (), (0, *np.cumsum(sizes).tolist())) for sizes in groups)
    total = sum(file.length for file in files)
    if not total:
        return
    parts = layout(files, partitions, rows=rows)
    assert len(parts) <= partitions
    pieces = [stretch for part in parts for stretch in part]
    assert all(start < stop for _, start, stop in pieces)
    assert [(file, row) for file, start, stop in pieces for row in range(start, stop)] == [
        (number, row) for number, file in enumerate(files) for row in range(file.length)
    ]
    if rows:
        biggest = max(sum(stop - start for _, start, stop in part) for part in parts)
        assert biggest <= 2 * total / min(partitions, total) + 1


def test_csv_partitions(tmp_path: Path) -> None:
    pa.csv.write_csv(columns(700), tmp_path / "a.csv")
    pa.csv.write_csv(columns(800, 700), tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("age,sex\n")  # a part without rows
    for options in ({}, {"partitions": 1}, {"partitions": 3}, {"partitions": 16}, {"partition_rows": 200}):
        table = open_table(source(tmp_path), SCHEMA, **options)
        assert len(table.partitions) == options.get("partitions", 7 if options else 1)
        assert table.rows == 1500
        assert is_columns(read_all(table), 1500)
        assert table.fingerprint == fingerprint(source(tmp_path))


def test_no_record_is_read_before_the_rows_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then tasks read each line once: a release is charged in between."""
    pa.csv.write_csv(columns(700), tmp_path / "a.csv")
    pa.csv.write_csv(columns(800), tmp_path / "b.csv")
    read, plain = list[int](), data_table._csv_records

    def counted(*args: Any) -> Iterator[bytes]:
        for block in plain(*args):
            read.append(len(block))
            yield block

    monkeypatch.setattr(data_table, "_csv_records", counted)
    files = TableFiles.of(source(tmp_path), SCHEMA, partitions=5)
    assert not read
    table = files.on(Cluster())
    assert table.rows == 1500
    assert sum(read) == sum(path.stat().st_size - len('"age","sex"\n') for path in tmp_path.iterdir())


def test_compressed_csv_is_a_partition_per_file(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 700)):
        with pa.CompressedOutputStream(str(tmp_path / f"{name}.csv.gz"), "gzip") as file:
            pa.csv.write_csv(columns(700, start), file)
    table = open_table(source(tmp_path), SCHEMA)
    assert lengths(table) == [700, 700]
    assert is_columns(read_all(table), 1400)
    one = open_table(source(tmp_path), SCHEMA, partitions=1)
    assert lengths(one) == [1400]
    assert is_columns(read_all(one), 1400)


class Slots(InProcess):
    """An executor that says it has this many slots."""

    def __init__(self, slots: int) -> None:
        self.slots = slots


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("slots", "partitions"),
    [(1, 3), (2, 4), (3, 3), (8, 8), (64, 12)],  # an unequal share is mended; no partition under a quarter of 500 rows
)
def test_slots_have_as_many_partitions_each(kind: str, slots: int, partitions: int, tmp_path: Path) -> None:
    rows = columns(1500)
    if kind == "parquet":
        pq.write_table(rows, tmp_path / "a.parquet", row_group_size=100)
    else:
        pa.csv.write_csv(rows, tmp_path / "a.csv")
    files = TableFiles.of(source(tmp_path), SCHEMA, partition_rows=500)
    assert len(files.on(InProcess()).partitions) == 3
    table = files.on(Slots(slots))
    assert len(table.partitions) == partitions
    assert is_columns(read_all(table), 1500)


def test_a_partitioning_that_was_asked_for_or_is_fine_stays(tmp_path: Path) -> None:
    pq.write_table(columns(1500), tmp_path / "a.parquet")

    def partitions(slots: int, name: str = "a.parquet", **options: int) -> int:
        return len(TableFiles.of(source(tmp_path / name), SCHEMA, **options).on(Slots(slots)).partitions)

    assert partitions(2, partitions=3) == 3
    assert partitions(2, partition_rows=150) == 10  # five each: none waits long for the other
    assert partitions(3, partition_rows=150) == 12
    with pa.CompressedOutputStream(str(tmp_path / "b.csv.gz"), "gzip") as file:
        pa.csv.write_csv(columns(700), file)
    assert partitions(4, "b.csv.gz", partition_rows=100) == 1


def test_columns_by_name_in_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,age, sex\n?, 1, m\n")
    (tmp_path / "b.csv").write_text("sex,age\nf,2\n")
    (tmp_path / "c.csv").write_text("age;sex\n3;m\n")
    table = open_table(source(tmp_path / "[ab].csv", extra_columns="ignore"), SCHEMA)
    assert [column.tolist() for column in read_all(table)] == [[1, 2], [1, 0]]
    table = open_table(source(tmp_path / "c.csv", csv=CsvSpec(delimiter=";")), SCHEMA)
    assert [column.tolist() for column in read_all(table)] == [[3], [1]]
    renamed = CsvSpec(columns=("sex", "age"))
    (tmp_path / "d.csv").write_text("Geschlecht,Alter\nf,4\n")
    table = open_table(source(tmp_path / "d.csv", csv=renamed), SCHEMA)
    assert [column.tolist() for column in read_all(table)] == [[4], [0]]


def test_names_with_dots_and_texts_in_parquet(tmp_path: Path) -> None:
    attributes = (
        Attribute(name="a.b", kind="categorical", values=("x", "y")),
        Attribute(name="a", kind="integer", bounds=(0, 1)),
    )
    pq.write_table(pa.table({"a": [0, 1], "a.b": ["y", "x"]}), tmp_path / "t.parquet")
    codes = read_all(open_table(source(tmp_path), Schema(attributes=attributes)))
    assert [column.tolist() for column in codes] == [[1, 0], [0, 1]]


@pytest.mark.parametrize("partitions", [None, 3])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "age,sex\n"),
        ("t.csv", "age,sex\n\n\n"),
        ("t.csv.gz", gzip.compress(b"age,sex\n", mtime=0)),
        ("t.parquet", columns(0)),
    ],
)
def test_files_without_rows_are_a_table_of_no_records(
    tmp_path: Path, name: str, content: Any, partitions: int | None
) -> None:
    if isinstance(content, pa.Table):
        pq.write_table(content, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    table = open_table(source(tmp_path), SCHEMA, partitions=partitions)
    assert table.rows == 0
    assert [column.size for column in read_all(table)] == [0, 0]


CSV = "age,sex\n1,f\n2,m\n"


@pytest.mark.parametrize(
    ("name", "content", "options", "error", "message"),
    [
        ("t.parquet", b"", {}, EmptyTable, r"t.parquet is empty \(0 bytes\)"),
        ("t.csv", "", {}, EmptyTable, r"t.csv is empty \(0 bytes\), without a header"),
        ("t.csv", "age\n1\n", {}, ColumnMismatch, "does not have the column 'sex' once"),
        ("t.csv", "age,sex,zip\n1,f,9\n", {}, ColumnMismatch, "columns that the schema does not name.*extra_columns"),
        ("t.csv", "age,sex,sex\n1,f,9\n", {}, ColumnMismatch, "does not have the column 'sex' once"),
        ("t.csv", CSV, {"csv": CsvSpec(columns=("age",))}, ColumnMismatch, "has 2 columns, csv.columns has 1"),
        ("t.csv", "1,f\n", {"csv": CsvSpec(header=False, columns=("sex", "x"))}, ColumnMismatch, "'age' is missing"),
        ("t.csv", "age;sex\n1;f\n", {}, ColumnMismatch, "'age', 'sex' once each; fields .* ',', see data.csv"),
        ("t.parquet", columns(3).drop_columns("sex"), {}, ColumnMismatch, "the column 'sex' is missing"),
        ("t.parquet", columns(3).append_column("zip", [[1] * 3]), {}, ColumnMismatch, "does not name the column 'zip'"),
        ("t.parquet", pa.table({"age": [[1]], "sex": ["f"]}), {}, ColumnMismatch, "t.parquet: .* 'age' has .* list"),
        ("t.parquet", pa.table({"age": [1], "sex": [0.5]}), {}, ColumnMismatch, "t.parquet: .* 'sex' has .* double"),
        ("t.parquet", CSV, {}, UnreadableFile, "t.parquet is not a Parquet file: check data.path and data.format"),
        ("t.parquet", b"PAR1 and no more", {}, UnreadableFile, "t.parquet is a truncated or damaged Parquet file"),
        ("t.csv.gz", b"not gzip at all", {}, UnreadableFile, "t.csv.gz is not a valid gzip file"),
        ("t.csv.bz2", b"not bzip2 at all", {}, UnreadableFile, "t.csv.bz2 is not a valid bz2 file"),
        ("t.csv.xz", b"not xz at all", {}, UnreadableFile, "t.csv.xz is not a valid xz file"),
        ("t.csv", b"\xff\xfe1\x00", {}, WrongFormat, "is not a CSV file, but UTF-16 text: set data.csv.encoding"),
        ("t.csv", b"PK\x03\x04", {}, WrongFormat, "but a ZIP archive, as spreadsheets are"),
        ("t.csv", b"1\x00", {}, UnreadableFile, "header of .* is not a line of UTF-8 text"),
    ],
)  # fmt: skip
def test_what_cannot_be_opened(
    tmp_path: Path, name: str, content: Any, options: dict[str, Any], error: type[DataError], message: str
) -> None:
    if isinstance(content, pa.Table):
        pq.write_table(content, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(error, match=message):
        open_table(source(tmp_path / name, **options), SCHEMA)


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    pq.write_table(columns(10_000), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    for keep in (0.5, 0.999):
        (tmp_path / "t.parquet").write_bytes(content[: int(len(content) * keep)])
        with pytest.raises(UnreadableFile, match="truncated or damaged Parquet file: write or copy it again"):
            open_table(source(tmp_path), SCHEMA)


def test_a_damaged_page(tmp_path: Path) -> None:
    pq.write_table(columns(10_000), tmp_path / "t.parquet", compression="zstd", use_dictionary=False)
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[200:4000] = bytes(3800)
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"t.parquet is a damaged Parquet file") as caught:
        read_all(open_table(source(tmp_path), SCHEMA))
    assert caught.value.__context__ is None


def test_a_damaged_compressed_file(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        file.write(b"age,sex\n" + b"".join(b"%d,f\n" % (i * i % 97) for i in range(900_000)))
    content = (tmp_path / "t.csv.gz").read_bytes()
    (tmp_path / "t.csv.gz").write_bytes(content[:-100])
    with pytest.raises(UnreadableFile, match=r"t.csv.gz is a damaged gzip file"):
        open_table(source(tmp_path), SCHEMA)


@pytest.mark.parametrize(
    "row",
    [b"77", b"77,f,88", b"77,\xff", b'"77"x,f', b"77,f\n\n  \n", b'7"7,"f\nm"m"'],
    ids=["short", "long", "utf8", "quote", "blanks", "quotes"],
)
def test_a_line_that_is_no_record(tmp_path: Path, row: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(b"age,sex\n1,f\n" + row + b"\n3,m\n")
    table = open_table(source(tmp_path), SCHEMA)
    with pytest.raises(DataError) as caught:
        read_all(table)
    assert "77" not in readable(str(caught.value))
    assert caught.value.__context__ is None
    if row != b'"77"x,f':
        assert "has a record that is not UTF-8 text with 2 fields separated by ','" in str(caught.value)


def test_text_in_an_integer_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,sex\n1,f\nunknown,m\n")
    with pytest.raises(
        ColumnMismatch, match=r"column 'age': values that are no integers in an integer attribute.*kind: number"
    ):
        read_all(open_table(source(tmp_path), SCHEMA))


@pytest.mark.parametrize(("values", "refused"), [(("08", "13"), True), (("8", "13"), False), (("0.5", "8"), False)])
def test_codes_with_zeros_meet_a_column_of_integers(tmp_path: Path, values: tuple[str, ...], refused: bool) -> None:
    """The types of the columns are read before the charge: no record is."""
    pq.write_table(pa.table({"state": [8, 13]}), tmp_path / "t.parquet")
    schema = Schema(attributes=(Attribute(name="state", kind="categorical", values=values),))
    if not refused:
        open_table(source(tmp_path), schema)
        return
    with pytest.raises(ColumnMismatch, match=r"the column holds integers, .*: write 8, not '08'"):
        open_table(source(tmp_path), schema)
    aliased = Attribute(name="state", kind="categorical", values=values, aliases={"8": "08"})
    open_table(source(tmp_path), Schema(attributes=(aliased,)))


def test_files_that_change_are_noticed(tmp_path: Path) -> None:
    csv, parquet = tmp_path / "t.csv", tmp_path / "t.parquet"
    csv.write_text(CSV + "3,f\n")
    table = open_table(source(csv), SCHEMA)
    csv.write_text(CSV)
    with pytest.raises(UnreadableFile, match=r"t.csv has changed since the table was opened"):
        read_all(table)
    csv.unlink()
    with pytest.raises(DataNotFound, match=r"there is no file at .*t.csv"):
        read_all(table)
    for before, after in ((columns(10), columns(11)), (columns(10), columns(10).select(["sex", "age"]))):
        pq.write_table(before, parquet)
        table = open_table(source(parquet), SCHEMA)
        pq.write_table(after, parquet)
        with pytest.raises(UnreadableFile, match=r"t.parquet has changed since the table was opened"):
            read_all(table)
    parquet.unlink()
    with pytest.raises(DataNotFound, match=r"there is no file at .*t.parquet"):
        read_all(table)


def test_a_number_of_partitions_makes_sense(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cluster.partitions must be 1 or more"):
        open_table(source(tmp_path), SCHEMA, partitions=0)


@pytest.mark.parametrize("prebuffered", [1 << 26, 0])
@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz"])
def test_tables_on_s3(
    s3: Any, s3_server: str, tmp_path: Path, name: str, prebuffered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdist.data.table._PREBUFFERED_BYTES", prebuffered)
    if name == "t.parquet":
        pq.write_table(columns(5000), tmp_path / name, row_group_size=900)
    else:
        with (
            pa.CompressedOutputStream(str(tmp_path / name), "gzip")
            if "gz" in name
            else open(tmp_path / name, "wb") as f
        ):
            pa.csv.write_csv(columns(5000), f)
    s3.put(str(tmp_path / name), f"census/{name}")
    remote = source(f"s3://census/{name}", storage_options={"endpoint_url": s3_server})
    for partitions in (1, 7):
        table = open_table(remote, SCHEMA, partitions=partitions)
        assert is_columns(read_all(table), 5000)
    s3.rm(f"census/{name}")
    with pytest.raises(DataNotFound, match=f"there is no file at s3://census/{name}"):
        read_all(table)
